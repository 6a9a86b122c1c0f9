"""Make a failing program as short as it gets: leave out lines and blocks for as long as it fails alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def shrunk(source: str, fails: Callable[[str], bool]) -> str:
    """The source with every line left out that can be; `fails` says whether a source still fails in the same way."""
    lines, before = source.splitlines(), 0
    while len(lines) != before:
        before = len(lines)
        for at in reversed(range(len(lines))):
            if at < len(lines):
                for shorter in _without(lines, at):
                    if fails("\n".join(shorter) + "\n"):
                        lines = shorter
                        break
    return "\n".join(lines) + "\n"


def _without(lines: list[str], at: int) -> Iterator[list[str]]:
    """Without a line and what is indented below it; without the line only, what was below it moved out."""
    depth = _indent(lines[at])
    end = at + 1
    while end < len(lines) and _indent(lines[end]) > depth:
        end += 1
    yield lines[:at] + lines[end:]
    if end > at + 1:
        yield lines[:at] + [line[4:] for line in lines[at + 1 : end]] + lines[end:]
    for part in _parts(lines[at]):
        yield [*lines[:at], part, *lines[at + 1 :]]


def _parts(line: str) -> Iterator[str]:
    """A sum of losses with one of them left out."""
    inside, closing, rest = line.partition(").backward(")
    terms = inside.lstrip().removeprefix("(").split(" + ")
    if closing and len(terms) > 1:
        for i in range(len(terms)):
            yield "(" + " + ".join(terms[:i] + terms[i + 1 :]) + closing + rest


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
