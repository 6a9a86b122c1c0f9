"""What a finding says about the source: the nodes at its labels, in parsed files, and the other files it names."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from noclobber.model.events import Refusal
from noclobber.model.finding import Finding, Role
from noclobber.model.source import Owner, Site, owner_of
from noclobber.syntax.names import dotted
from noclobber.syntax.tree import File, Place, Placed, file_at, last_line, parse, walk
from noclobber.syntax.writes import WriteSyntax, write_at


def place(finding: Finding, role: Role) -> Place | None:
    """The syntax at the first label of a role; None where that is a library's, or not known."""
    for one in finding.labels:
        if one.role == role:
            file = file_at(one.span.path) if owner_of(one.span.path) is Owner.USER else None
            node = file.at(one.span) if file is not None else None
            return Place(file, node) if file is not None and isinstance(node, Placed) else None
    return None


def blamed(finding: Finding) -> Place | None:
    """Return the syntax at the write; for a refusal, at the refused line."""
    return place(finding, "write")


def kind_of(finding: Finding) -> str:
    """ "parameter", "buffer" or "tensor"."""
    return finding.tensor.kind if finding.tensor is not None else "tensor"


def name_of(finding: Finding) -> str:
    """The name of the tensor, such as "net.fc.weight"; empty where it is not known."""
    return (finding.tensor and finding.tensor.name) or ""


def lines_written(finding: Finding, file: File) -> set[int]:
    """Return the lines of a finding's writes; 0 for a line of another file, or an unknown line."""
    return {_line(one.site, file) for one in finding.writes}


def _line(site: Site | None, file: File) -> int:
    if site is None:
        return 0
    span = site.span()
    return span.line if span.path == file.path or os.path.realpath(span.path) == os.path.realpath(file.path) else 0


Read = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Scene:
    """A finding and the way to the text of files. `read` raises OSError where there is no such file."""

    finding: Finding
    read: Read

    def file(self, path: str) -> File | None:
        """The parsed file of a path; None where it is missing or cannot be parsed."""
        try:
            return parse(path, self.read(path))
        except (OSError, UnicodeDecodeError, KeyError):
            return None

    def places(self, *roles: Role) -> list[Place]:
        """The places of the labels of some roles, in the order of the labels. A decorator's `@` is no place."""
        found = []
        for one in self.finding.labels:
            file = self.file(one.span.path) if one.role in roles else None
            node = file.at(one.span) if file is not None else None
            if file is not None and isinstance(node, Placed):
                found.append(Place(file, node))
        return found

    def place(self, role: Role) -> Place | None:
        """The first place of a role."""
        return next(iter(self.places(role)), None)

    def writes(self) -> list[WriteSyntax]:
        """The writes of the finding: those at its labels, then those of its list at other lines."""
        found = [write_at(one) for one in self.places("write")]
        lines = {(one.file.path, one.statement.lineno) for one in found}
        for span in [one.site.span() for one in self.finding.writes if one.site is not None]:
            file = self.file(span.path) if (span.path, span.line) not in lines else None
            statement = _statement_on(file, span.line) if file is not None else None
            if file is not None and statement is not None:
                found.append(write_at(Place(file, statement)))
                lines.add((span.path, statement.lineno))
        return found

    def ops(self) -> list[str]:
        """The writing operators without their namespace: ["add_"]; the step of an optimizer as "SGD.step"."""
        event = self.finding.event
        ops = [event.op or ""] if isinstance(event, Refusal) else [one.op for one in self.finding.writes]
        names = [op.split("::")[-1].split(".default")[0] for op in ops]
        return list(dict.fromkeys(name for name in names if name))

    def files(self) -> list[File]:
        """The files of the user's own labels, then the modules that these import from beside them."""
        paths = list(dict.fromkeys(one.span.path for one in self.finding.labels if one.role != "inside"))
        own = [file for path in paths if (file := self.file(path)) is not None]
        near = [file for one in own for path in _imported(one) if path not in paths and (file := self.file(path))]
        return list({file.path: file for file in (*own, *near)}.values())


def _statement_on(file: File, line: int) -> ast.stmt | None:
    """The first simple statement that stands on a line."""
    simple = (one for one in walk(file.tree, ast.stmt) if not hasattr(one, "body"))
    return next((one for one in simple if one.lineno <= line <= last_line(one)), None)


def _imported(file: File) -> Iterator[str]:
    """Paths that the imports of a file may lead to, in its own folder and below."""
    folder = os.path.dirname(file.path)
    for one in walk(file.tree, ast.stmt):
        names = [alias.name for alias in one.names] if isinstance(one, (ast.Import, ast.ImportFrom)) else []
        for name in [one.module] if isinstance(one, ast.ImportFrom) and one.module else names:
            parts = name.split(".")
            yield os.path.join(folder, *parts) + ".py"
            yield os.path.join(folder, *parts, "__init__.py")


def argument_named(call: ast.Call, name: str) -> ast.expr | None:
    """The argument of a call that has a dotted name, else the first one; None where that is unpacked or missing."""
    given = [*call.args, *(one.value for one in call.keywords)]
    if not given or isinstance(given[0], ast.Starred):
        return None
    return next((one for one in given if name and dotted(one) == name), given[0])
