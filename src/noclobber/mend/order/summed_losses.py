"""Two backwards of one forward as one: `(first + second).backward()`, and one step where there were two."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from noclobber.mend.change import Change
from noclobber.mend.order.steps import loss_of, method_of, together
from noclobber.mend.scene import Scene
from noclobber.syntax.edits import remove, replace
from noclobber.syntax.names import calls, dotted, optimizer_of
from noclobber.syntax.tree import File, Place, walk

_UPDATES = ("zero_grad", "clip_grad_norm_", "clip_grad_value_", "unscale_", "update", "grad")
"""Calls that change or use gradients: between two backwards they show that each has gradients of its own."""


def summed(scene: Scene) -> Iterator[Change]:
    """One backward for two losses, and one step where there were two."""
    yield from _of_freed(scene) if scene.is_freed else ()
    yield from _stepped_once(scene) if scene.steps() and not scene.reads_first() else ()


def _of_freed(scene: Scene) -> Iterator[Change]:
    """The two backwards of a graph that the first one has freed, where nothing in between uses the gradients."""
    reads = scene.places("read")
    if len(reads) != 2 or reads[0].file is not reads[1].file:
        return
    yield from _of(reads[1].file, reads[0].row, reads[1], ())


def _stepped_once(scene: Scene) -> Iterator[Change]:
    """The backwards before and after a step, where the same optimizer steps again later on: the first step goes."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None or step.file is not read.file:
        return
    rows, first, second = together(step.file, step.row, read.row)
    name = optimizer_of(step.row)
    if not rows or first >= second or not name or rows[first] is not step.row:
        return
    if not any(optimizer_of(one) == name for one in rows[second + 1 :]):
        return
    zeros = [one for one in rows[first + 1 : second] if dotted(method_of(one, "zero_grad")) == name]
    before = next((one for one in reversed(rows[:first]) if loss_of(one) is not None), None)
    if before is not None:
        yield from _of(step.file, before, read, (step.row, *zeros))


def _of(file: File, first: ast.stmt, read: Place, gone: Sequence[ast.stmt]) -> Iterator[Change]:
    one, other = loss_of(first), loss_of(read.row)
    rows, at, last = together(file, first, read.row)
    if (
        one is None
        or other is None
        or not (dotted(one) and dotted(other))
        or not rows
        or at >= last
        or rows[last] is not read.row
        or rows[at] is not first
    ):
        return
    if dotted(one) == dotted(other) or any(
        map(_uses_gradients, (row for row in rows[at + 1 : last] if row not in gone))
    ):
        return
    between = (each for row in rows[at + 1 : last] for each in walk(row, ast.Name))
    bound = {each.id for each in between if not isinstance(each.ctx, ast.Load)}
    removed = [edit for row in (first, *gone) if (edit := remove(file, row)) is not None]
    if dotted(one).partition(".")[0] in bound or len(removed) < 1 + len(gone):
        return
    text = f"({file.source(one)} + {file.source(other)}).backward()"
    title = "sum the losses and call `backward` once" + ", then step once" * bool(gone)
    yield Change(title, (*removed, replace(file, read.row, text)), 0, way="summed")


def _uses_gradients(row: ast.stmt) -> bool:
    named = any(one.attr == "grad" for one in walk(row, ast.Attribute))
    return named or bool(calls(row, "step", "backward", *_UPDATES))
