"""The pages that are made from the code when the documentation is built, and the links of codes to their pages."""

from __future__ import annotations

import re
from posixpath import relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import names_page, options_page

from noclobber import rules
from noclobber.ops.explaining import cases_of_all
from noclobber.render.tables.operator import operators

_CODE = re.compile(r"(?<![\w`\[/])NC\d{3}(?![\w\]`])")
_FENCED = re.compile(r"(^ *```.*?^ *```|^    [^\n]*|`[^`\n]+`|^#[^\n]*|\[[^\]]*\]\([^)]*\))", re.MULTILINE | re.DOTALL)
"""Where a code stays as it is: in blocks and pieces of code, in headings, in links."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {f"rules/{rule.code}.md": rule.markdown for rule in rules.catalogue()}
    pages |= {
        "rules/index.md": rule_index(),
        "operators.md": operator_page(),
        "command-line.md": "# Command line\n\n" + STATUS + options_page(),
        "api.md": "# API\n\n" + NAMES + names_page(),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link each code to its page."""
    folder = page.file.src_uri.rpartition("/")[0] or "."
    own = page.file.src_uri.rpartition("/")[2].removesuffix(".md")
    known = {rule.code for rule in rules.catalogue()} - {own}

    def linked(found: re.Match[str]) -> str:
        code = found[0]
        return f"[{code}]({relpath(f'rules/{code}.md', folder)})" if code in known else code

    parts = _FENCED.split(markdown)
    return "".join(part if at % 2 else _CODE.sub(linked, part) for at, part in enumerate(parts))


STATUS = """\
`run` ends with the status of the program. Where noclobber itself decides, these are the statuses:

| command | 0 | 1 | 2 |
|---|---|---|---|
| `run` | the program ended with 0, and no finding counts | it did, but a finding counts | the command is wrong |
| `report` | no finding counts | a finding counts | the report cannot be read |
| `fix` | everything is fixed | something is left, unproven or not written | the program cannot be run |
| `explain` | it is explained | it is no error of PyTorch | there is no such rule or operator |
| `doctor` | a small silent error is found | it is not found | the native part cannot be built |

Ctrl-C gives 130, as a shell counts it.

Which findings count is a matter of [settings](settings.md).

"""
NAMES = """\
A program needs `import noclobber` and the names in the first part of this page. The records below are what they give.
`noclobber.__version__` is the version. Everything else is internal and may change.

"""


def rule_index() -> str:
    """The list of rules."""
    rows = []
    for rule in rules.catalogue():
        rows.append(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.headline} |")
    head = "# Rules\n\n| code | name | severity | what |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def operator_page() -> str:
    """What backward keeps of each operator, as noclobber finds out by trying."""
    about = "What backward keeps of each operator, found out by trying it. `noclobber explain NAME` says more."
    return f"# Operators\n\n{about}\n\n{operators(cases_of_all(), markdown=True)}"
