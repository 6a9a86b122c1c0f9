"""What a finding says about the source: the syntax at its labels."""

from __future__ import annotations

import os

from noclobber.model.finding import Finding, Role
from noclobber.model.source import Owner, owner_of
from noclobber.syntax.tree import File, Place, Placed, file_at


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
    return str((finding.tensor or {}).get("kind") or "tensor")


def name_of(finding: Finding) -> str:
    """The name of the tensor, such as "net.fc.weight"; empty where it is not known."""
    return str((finding.tensor or {}).get("name") or "")


def lines_written(finding: Finding, file: File) -> set[int]:
    """Return the lines of a finding's writes; 0 for a line of another file, or an unknown line."""
    return {_line(one.get("path"), one.get("line"), file) for one in finding.writes}


def _line(path: object, line: object, file: File) -> int:
    same = isinstance(path, str) and (path == file.path or os.path.realpath(path) == os.path.realpath(file.path))
    return line if same and isinstance(line, int) else 0
