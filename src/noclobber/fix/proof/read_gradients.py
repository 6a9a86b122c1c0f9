"""The lines of a program that do something with gradients, other than to set them to zero or to hand them to a step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.trials.job import Ended, Result
from noclobber.mend.gradients import read_in
from noclobber.model.source import Owner, owner_of
from noclobber.observe.gradient_trace.evidence import Event
from noclobber.syntax.names import call_of, called, calls, dotted, mentions, owner
from noclobber.syntax.tree import FUNCTION, File, functions, lines_in, parse, walk

_CLIPPING = ("clip_grad", "grad_norm")
"""Parts of the names of functions that read the gradients of the weights that they are given."""
_OTHER_HOOKS = ("forward", "saved_tensors", "state_dict", "step_")
"""Parts of the names of hooks that get no gradients."""
Lines = list[tuple[str, range]]
"""Lines of files, each by the path."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Where gradients are read, and what a run must have come to if it is to show that nothing reads others."""

    read: Lines = field(default_factory=list)
    """Each expression that reads some."""
    aside: Lines = field(default_factory=list)
    """Each that only sets them to zero, or asks whether they are there."""
    steps: dict[str, Lines] = field(default_factory=dict)
    """The calls of `step`, by what they are called on."""
    unknown: Lines = field(default_factory=list)
    """What hands gradients to other code, or may read those of another leaf in another call."""

    def of(self, events: list[Event]) -> list[Event]:
        """Return the reads that count, of what was recorded."""
        reads = (event for event in events if event["kind"] == "read")
        return [one for one in reads if _is_in(one["at"], self.read) or not _is_in(one["at"], self.aside)]

    def unreached(self, events: list[Event], result: Result) -> str:
        """Return in words which line a run did not come to, or gives gradients to code whose use of them nothing shows;
        empty where none does."""
        found = list(self.unknown)
        if result.ended is Ended.LIMIT:
            at = {event["at"] for event in events if event["kind"] in ("read", "step")}
            groups = [self.read, *(some for some in self.steps.values() if any(_is_met(one, at) for one in some))]
            found += [one for some in groups for one in some if not _is_met(one, at)]
        return f"line {found[0][1][0]} reads gradients, and no run shows which" if found else ""


def readers(patch: Patch, result: Result) -> Readers:
    """Return those of the program's own files, as a patch leaves them. A file that cannot be parsed has none."""
    found = Readers()
    for path in {*result.files, *patch.after}:
        try:
            file = parse(path, patch.read(path)) if owner_of(path) is Owner.USER else None
        except (OSError, ValueError):
            continue
        if file is None:
            continue
        reading = list(_using(file))
        found.read.extend((path, lines_in(one)) for one in reading)
        setting = [one for one in read_in(file) if _is_aside(file, one)]
        clearing = calls(file.tree, "zero_grad", "step", "backward")
        found.aside.extend((path, lines_in(one)) for one in (*setting, *clearing))
        for one in calls(file.tree, "step"):
            if not one.args:
                found.steps.setdefault(dotted(owner(one)), []).append((path, lines_in(one)))
        found.unknown.extend((path, lines_in(one)) for one in (*_hooks(file), *_called_for_several(file, reading)))
    return found


def _is_in(at: tuple[str, int], some: Lines) -> bool:
    return any(at[0] == path and at[1] in lines for path, lines in some)


def _is_met(one: tuple[str, range], seen: set[tuple[str, int]]) -> bool:
    return any((one[0], line) in seen for line in one[1])


def _using(file: File) -> Iterator[ast.expr]:
    """`p.grad` that is neither set to zero nor only asked for whether it is there, `getattr(p, "grad")`, and what clips
    gradients."""
    yield from (one for one in read_in(file) if not _is_aside(file, one))
    yield from (one for one in walk(file.tree, ast.Constant) if one.value == "grad")
    yield from (one for one in walk(file.tree, ast.Call) if any(word in called(one) for word in _CLIPPING))


def _is_aside(file: File, gradient: ast.expr) -> bool:
    """`p.grad.zero_()`, as a statement of its own, and `p.grad is not None`."""
    row, above = file.statement(gradient), file.above[gradient]
    if isinstance(above, ast.Compare):
        return all(isinstance(one, (ast.Is, ast.IsNot)) for one in above.ops)
    return isinstance(above, ast.Attribute) and above.attr == "zero_" and call_of(row) is file.above[above]


def _hooks(file: File) -> Iterator[ast.expr | ast.stmt]:
    """What registers hooks that get gradients, and the backward of a custom Function."""
    for one in walk(file.tree, ast.Call):
        if "hook" in called(one) and not any(word in called(one) for word in _OTHER_HOOKS):
            yield one
    yield from (one for one in functions(file.tree) if one.name == "backward")


def _called_for_several(file: File, reading: list[ast.expr]) -> Iterator[ast.stmt]:
    """The functions that read gradients and are called in several places: each may read those of other leaves."""
    for scope in {file.scope(one) for one in reading}:
        if isinstance(scope, FUNCTION) and len(mentions(file, scope.name)) > 1:
            yield scope
