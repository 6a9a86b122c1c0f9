"""Programs written down in a test, compiled but never run: sites are the real instructions behind a piece of text."""

from __future__ import annotations

import dis
import linecache
import textwrap
from collections.abc import Iterator
from itertools import count
from types import CodeType

from noclobber.fix.edits.source import Source
from noclobber.mend.cures import candidates
from noclobber.mend.words import worded
from noclobber.model.reports.finding import Finding, Label
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Step, Tensor, Via, Write
from noclobber.model.source import Site

_numbers = count()


class Program:
    """A source text under a file name of its own, which `linecache` knows."""

    def __init__(self, text: str, name: str = "") -> None:
        self.text = textwrap.dedent(text).lstrip("\n")
        self.path = name or f"train_{next(_numbers)}.py"
        linecache.cache[self.path] = (len(self.text), None, self.text.splitlines(keepends=True), self.path)
        self.code = compile(self.text, self.path, "exec")

    def at(self, piece: str, inside: Site | None = None) -> Site:
        """The last instruction that CPython places exactly at the first occurrence of `piece`.

        But for the jump of a loop, which Python 3.13 places at its last statement.
        """
        offset = self.text.index(piece)
        wanted = (*self._place(offset), *self._place(offset + len(piece)))
        found = [Site(code, offset, inside) for code, offset, place in _placed(self.code) if place == wanted]
        assert found, f"no instruction at {piece!r}"
        return found[-1]

    def _place(self, offset: int) -> tuple[int, int]:
        before = self.text[:offset]
        return before.count("\n") + 1, len(before.rpartition("\n")[2].encode())

    def mended(self, finding: Finding) -> list[str]:
        """The text after each change that `fix` would try for a finding, in their order."""
        found = candidates(finding, {self.path: self.text}.__getitem__)
        return [Source(self.path, self.text, "utf-8").edited(one.edits).text for one in found]


def _placed(code: CodeType) -> Iterator[tuple[CodeType, int, tuple[int | None, ...]]]:
    for one in dis.get_instructions(code):
        if one.positions is not None and not one.opname.startswith("JUMP"):
            line, end_line, column, end_column = one.positions
            yield code, one.offset, (line, column, end_line, end_column)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _placed(constant)


STALE = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: "
    "[torch.FloatTensor [4]], which is output 0 of SigmoidBackward0, is at version 1; expected version 0 instead."
)


def save(node: str, field: str, site: Site | None, *, name: str | None = "h", **facts: object) -> Save:
    """A save of a float32 tensor of four elements, unless said otherwise."""
    tensor = Tensor(shape=(4,), name=name, **{key: facts.pop(key) for key in ("kind", "region") if key in facts})  # type: ignore[arg-type]
    return Save(node, field, tensor, site=site, **{"version": 0, **facts})  # type: ignore[arg-type]


def write(
    op: str, site: Site | None, *, order: int = 5, via: Via = "operator", step: Step | None = None, **facts: object
) -> Write:
    """A write that moves the version from 0 to 1 and overlaps, unless said otherwise."""
    facts = {"version_before": 0, "version_after": 1, "tensor": Tensor(shape=(4,)), **facts}
    return Write(op, site, order, via, step=step, **facts)  # type: ignore[arg-type]


def clobber(saved: Save, *writes: Write, read: Site | None = None, raised: bool = True) -> Clobber:
    """A clobber whose message is PyTorch's where it raises."""
    return Clobber(saved, writes, Read(saved.node, read), saved.version + len(writes), STALE if raised else None)


def told(finding: Finding, role: str) -> Label:
    """The only label of a role."""
    (one,) = [label for label in finding.labels if label.role == role]
    return one


def helped(finding: Finding) -> str:
    """Every suggestion's words, as a report shows them."""
    return "\n".join(one.message for one in worded(finding))
