"""Sources written down in a test, nodes looked up by their text, and a source after edits."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from noclobber.fix.edits.source import Source
from noclobber.model.reports.finding import Edit
from noclobber.model.source import Span
from noclobber.syntax.tree import File, Node, parse

PATH = "/nowhere/train.py"


def parsed(text: str) -> File:
    """A source that is Python."""
    file = parse(PATH, text)
    assert file is not None
    return file


def span_of(text: str, piece: str) -> Span:
    """Where a piece first stands in a text."""
    start = text.index(piece)
    end = start + len(piece)
    first, last = text[:start], text[:end]
    return Span(
        PATH,
        first.count("\n") + 1,
        start - (first.rfind("\n") + 1) + 1,
        last.count("\n") + 1,
        end - (last.rfind("\n") + 1) + 1,
    )


def node_at(file: File, piece: str, kind: type[Node] = ast.AST) -> Node:  # type: ignore[assignment]
    """The smallest node at a piece of the text."""
    node = file.at(span_of(file.text, piece))
    assert isinstance(node, kind)
    return node


def edited(file: File, edits: Sequence[Edit]) -> str:
    """The text after edits."""
    return Source(file.path, file.text, "utf-8").edited(edits).text
