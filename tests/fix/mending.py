"""Findings made from snippets of a source, and the sources that their candidates make of it."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from noclobber.fix.candidates import candidates
from noclobber.fix.edits.source import Source
from noclobber.model.finding import Finding, Label, Role
from noclobber.model.source import Span

PATH = "/nowhere/train.py"


def span(source: str, snippet: str, path: str = PATH) -> Span:
    """Where a snippet first stands in a source."""
    start = source.index(snippet)
    before, inside = source[:start], snippet.split("\n")
    line, column = before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1
    end = len(inside[-1]) + (column if len(inside) == 1 else 1)
    return Span(path, line, column, line + len(inside) - 1, end)


def finding(
    code: str,
    source: str,
    *,
    field: str = "",
    op: str = "aten::add_",
    kind: str = "tensor",
    name: str = "",
    message: str = "",
    **labels: str,
) -> Finding:
    """A finding of a code whose labels stand at snippets: `write="h += 1"`."""
    roles: dict[str, Role] = {"save": "save", "write": "write", "freed": "read", "read": "read", "create": "create"}
    made = tuple(Label(roles[role], span(source, text), "", role == "write") for role, text in labels.items())
    tensor: dict[str, Any] = {"name": name or None, "kind": kind}
    writes = ({"op": op, "path": PATH, "line": span(source, labels["write"]).line},) if "write" in labels else ()
    save = {"field": field} if field else None
    return Finding(code, "a rule", "error", message, made, tensor, save, writes)


def mended(code: str, source: str, **about: str) -> list[str]:
    """The source after each candidate, in their order."""
    source = dedent(source).strip("\n") + "\n"
    files = {PATH: source}
    found = candidates(finding(code, source, **about), lambda path: _read(files, path))
    return [Source(PATH, source, "utf-8").edited(one.edits).text for one in found]


def changes(code: str, source: str, **about: str) -> list[str]:
    """The lines that each candidate puts in, one text each, without their indentation."""
    before = [one.strip() for one in dedent(source).split("\n")]
    found = []
    for text in mended(code, source, **about):
        left = list(before)
        new = []
        for line in (one.strip() for one in text.split("\n")):
            if line in left:
                left.remove(line)
            else:
                new.append(line)
        found.append("\n".join(new))
    return found


def _read(files: dict[str, str], path: str) -> str:
    if path not in files:
        raise FileNotFoundError(path)
    return files[path]
