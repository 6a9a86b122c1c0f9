"""The pages that are made from the source when the documentation is built: each rule, and the table of operators."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from noclobber import rules
from noclobber.ops.explaining import names, page_of
from noclobber.render.operator import operators


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {f"rules/{rule.CODE}.md": rules.page(rule).markdown for rule in rules.catalogue()}
    pages |= {"rules/index.md": rule_index(), "operators.md": operator_page()}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def rule_index() -> str:
    """The list of rules."""
    rows = []
    for rule in rules.catalogue():
        rows.append(f"| [{rule.CODE}]({rule.CODE}.md) | {rule.NAME} | {rule.SEVERITY} | {rules.page(rule).headline} |")
    head = "# Rules\n\n| code | name | severity | what |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def operator_page() -> str:
    """What backward keeps of each operator, as noclobber finds out by trying."""
    pages = [page for name in names() if (page := page_of(name)) is not None]
    about = "What backward keeps of each operator, found out by trying it. `noclobber explain NAME` says more."
    return f"# Operators\n\n{about}\n\n{operators(pages, markdown=True)}"
