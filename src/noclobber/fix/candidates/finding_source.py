"""What a finding tells about the source: the nodes at its labels, in parsed files, and the other files it names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from noclobber.fix.candidates.syntax import ParsedFile, parse, small, walk
from noclobber.model.finding import Finding, Role

Read = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Place:
    """A label resolved to the syntax: the node at its span and the statement around that."""

    file: ParsedFile
    node: cst.CSTNode

    @property
    def statement(self) -> cst.CSTNode:
        """The simple or compound statement that holds the node."""
        return small(self.file, self.node) or self.node


@dataclass(frozen=True, slots=True)
class Scene:
    """A finding and the way to the text of files. `read` raises OSError where there is no such file."""

    finding: Finding
    read: Read

    def file(self, path: str) -> ParsedFile | None:
        """The parsed file of a path; None where it is missing or cannot be parsed."""
        try:
            return parse(path, self.read(path))
        except (OSError, UnicodeDecodeError, KeyError):
            return None

    def places(self, *roles: Role) -> list[Place]:
        """The places of the labels of some roles, in the order of the labels."""
        found = []
        for one in self.finding.labels:
            file = self.file(one.span.path) if one.role in roles else None
            if file is not None:
                found.append(Place(file, file.at(one.span)))
        return found

    def place(self, role: Role) -> Place | None:
        """The first place of a role."""
        return next(iter(self.places(role)), None)

    def ops(self) -> list[str]:
        """The writing operators without their namespace: ["add_"]; the step of an optimizer as "SGD.step"."""
        names = [str(one.get("op") or "").split("::")[-1].split(".default")[0] for one in self.finding.writes]
        return list(dict.fromkeys(name for name in names if name))

    def kind(self) -> str:
        """ "parameter", "buffer" or "tensor"; empty where it is not known."""
        return str((self.finding.tensor or {}).get("kind") or "")

    def name(self) -> str:
        """The name of the tensor, such as "net.fc.weight"; empty where it is not known."""
        return str((self.finding.tensor or {}).get("name") or "")

    def files(self) -> list[ParsedFile]:
        """The files of the user's own labels, then the modules that these import from beside them."""
        paths = list(dict.fromkeys(one.span.path for one in self.finding.labels if one.role != "inside"))
        own = [file for path in paths if (file := self.file(path)) is not None]
        near = [file for one in own for path in _imported(one) if path not in paths and (file := self.file(path))]
        return list({file.path: file for file in (*own, *near)}.values())


def _imported(file: ParsedFile) -> Iterator[str]:
    """Paths that the imports of a file may lead to, in its own folder and below."""
    folder = os.path.dirname(file.path)
    imports: list[cst.ImportFrom | cst.Import] = [*walk(file.module, cst.ImportFrom), *walk(file.module, cst.Import)]
    for one in imports:
        listed = [] if isinstance(one.names, cst.ImportStar) else [alias.name for alias in one.names]
        names = [one.module] if isinstance(one, cst.ImportFrom) and one.module is not None else listed
        for name in names:
            parts = file.source(name).split(".")
            yield os.path.join(folder, *parts) + ".py"
            yield os.path.join(folder, *parts, "__init__.py")
