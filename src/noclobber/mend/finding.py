"""What a finding says about the source: the syntax at its labels."""

from __future__ import annotations

import os

from noclobber.model.finding import Finding, Role
from noclobber.model.source import Owner, Site, owner_of
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
