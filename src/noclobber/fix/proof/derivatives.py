"""Checks a patch of a refused write by the function that the program computes.

There are no gradients to compare with. But with gradients off PyTorch refuses no write: the program then gives the
loss, and its derivative by forward mode or by central differences. Where neither knows it, as the program computes with
gradients, a later loss of the patched program is compared with that program's own central differences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.baselines import Differences, Kind, Reference, References, differences
from noclobber.fix.proof.repairs import Level, Verdict
from noclobber.fix.proof.trials import printed
from noclobber.fix.proof.trials.job import Ended, Order, Result
from noclobber.fix.proof.trials.launcher import Launcher
from noclobber.observe.gradient_trace import comparison, evidence, forward_mode

NO_BACKWARD = "no backward call runs with the patch, so there are no gradients to compare"
UNREACHED = "there are no gradients to compare with, because without the patch the program ends before them"
_DISAGREES = (
    "its gradient could not be checked: central differences of its loss are not known, or not its gradient, as where "
    "values are detached"
)
_OF_ITS_OWN = "its gradient is not that of forward mode, but the program makes gradients of its own"
_OF_OTHERS = (
    "the value that it writes depends on other leaves, and no run shows whether these should get a gradient through it"
)
_EXPANDED = (
    "there is nothing to compare with: without the patch, a write to one row of the expanded tensor changes all of them"
)
_FURTHER = 3
"""Backward calls in which an update may be given what was made of other leaves: the first may have constants alone."""
_FURTHEST = 32
"""The last backward call that is compared with the patched program's own central differences."""
_CENTRAL = f"central differences of its own loss along {forward_mode.DIRECTIONS} random directions"
BEYOND = "later calls cannot be compared: without the patch the program ends before them"


@dataclass(slots=True)
class Stage:
    """What patches for findings of some `codes` are compared with: runs of the program as `before` patches it.

    `after`: how many backward calls that program ends before the write is refused. `of_itself`: whether the value to be
    written was seen to depend on no leaf but the written one, `of_constants`: on none at all. `carries`: whether the
    program was seen to hand a graph on from turn to turn, by states that get new values. `expanded`: whether one was
    refused that changes other rows too, where gradients are off (`Refusal.expanded`).
    """

    references: References
    codes: set[str]
    after: int
    before: Patch
    of_itself: bool = False
    of_constants: bool = False
    expanded: bool = False
    carries: bool = False


@dataclass(slots=True)
class Alone:
    """The patched program under nothing, with its numbers in float64 where it does not say which type they have."""

    launcher: Launcher
    order: Order
    _runs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def events(self, calls: int) -> list[dict[str, Any]]:
        """What is recorded up to some number of backward calls, each with its derivatives."""
        if calls not in self._runs:
            run = self.launcher.run(replace(self.order, backwards=calls, after=calls - 1, whole=calls))
            self._runs[calls] = evidence.read(run.evidence)
        return self._runs[calls]

    def is_given(self, number: int) -> bool:
        """Whether a leaf is given, with gradients off, what was made of other leaves, up to the backward call of a
        number."""
        order = replace(self.order, mode="moved", step=0.0, double=False, backwards=number, after=number - 1)
        return self.launcher.run(order).given

    def by_loops(self) -> list[dict[str, Any]]:
        """What is recorded where `vmap` is a loop, as in the runs with gradients off."""
        return evidence.read(self.launcher.run(replace(self.order, mode="derivative", double=False)).evidence)

    def differences(self, number: int, *, is_late: bool = False) -> Iterable[Differences]:
        """Central differences of what the backward call of a number begins from. If `is_late`, only what the program
        computes after the call before it counts."""
        order = replace(self.order, mode="moved", backwards=number, after=number - 1, is_late=is_late)
        return differences(self.launcher, order)


def by_derivative(
    stage: Stage, found: list[dict[str, Any]], result: Result, alone: Alone, *, said: str = ""
) -> Verdict:
    """Compare the loss, what the program keeps, and the derivative along one direction, or along several.

    A write to a leaf may be an update or a part of what is computed, and only the patch says which. But if the written
    value depends on other leaves, an update would leave them without a gradient. `said` are the words on the calls
    before. `alone` runs the patched program in float64.
    """
    if stage.expanded:
        return without_gradients(result, said, _EXPANDED)
    its, known = comparison.call_of(found, stage.after + 1), True
    which = "next" if stage.after else "first"
    kinds: tuple[Kind, ...] = ("derivative", "updated")
    for kind in kinds:
        reference = stage.references.get(kind)
        right = comparison.call_of(reference.events, stage.after + 1)
        if right is None or its is None:
            return _without_a_call(reference, found, result, said, its, alone)
        differing, exact = comparison.same_before(right, its, f"{which} ")
        if differing:
            return Verdict(False, why=differing, differs=True, result=result)
        equal = "to the last bit to" if exact else "up to rounding to"
        loss = f"{said}{which} loss equal {equal} what it is with gradients off{reference.words}"
        how = _agreement(stage, kind, right, its, alone)
        if how and kind == "updated" and alone.is_given(stage.after + _FURTHER):
            return replace(without_gradients(result, f"{loss}; ", _OF_OTHERS), comparable=True)
        if how:
            proof = f"{loss}; gradient agrees with {how}; {BEYOND}"
            return Verdict(True, not result.findings, proof=proof, level=Level.CHECKED, result=result)
        known = known and how is not None
        if not reference.result.rewritten or (reference.result.given and not stage.of_itself):
            break
    if known and not reference.result.custom and not reference.result.given:
        why = "its gradient is not the one that forward mode gives without the patch"
        return Verdict(False, why=why, differs=True, result=result)
    if (not known or reference.result.custom) and (how := own_agreement(stage, alone)):
        proof = f"{loss}; {how}; {BEYOND}"
        return Verdict(True, not result.findings, proof=proof, level=Level.CHECKED, result=result)
    lacking = (_OF_ITS_OWN if reference.result.custom else _OF_OTHERS) if known else _DISAGREES
    return replace(without_gradients(result, f"{loss}; ", lacking), comparable=True)


def _agreement(stage: Stage, kind: Kind, right: dict[str, Any], its: dict[str, Any], alone: Alone) -> str | None:
    """Return in words what a gradient agrees with; empty if it does not agree with forward mode, None if nothing gives
    its derivative, or not for sure."""
    ours, theirs = its["along"], [one for one in right["along"] if one is not None]
    if theirs and ours and (theirs[0][1] or ours[0][1]):
        return "forward mode along 1 random direction" if forward_mode.same(theirs[0], ours[0]) else ""
    if not all(one[1] for one in ours):
        return None
    for double in (True, False):
        call = comparison.call_of(alone.events(stage.after + 1), stage.after + 1) if double else its
        agrees = _agrees(stage.references.differences(kind, double=double), call)
        if agrees:
            return _CENTRAL + ", in float64" * double
        if agrees is False:
            break
    return None


def _agrees(found: Iterable[Differences], call: dict[str, Any] | None) -> bool | None:
    """Return True if a backward call has the derivatives that some central differences give; None where it has none, or
    the others are of another loss."""
    agrees = None
    for one in found if call is not None and call["along"] else ():
        if call is None or comparison.same_before(one.still, call)[0]:
            break
        pairs = list(zip(one.along, call["along"], strict=False))
        agrees = len(pairs) == len(one.along) and all(forward_mode.same(*pair) for pair in pairs)
        if agrees:
            break
    return agrees


def own_agreement(stage: Stage, alone: Alone) -> str:
    """Return in words that the next backward call of a patched program that adds to `.grad` agrees with the central
    differences of the program as it is patched; empty if it does not, or if a step comes before that call.

    Where the written value is a constant, those of what comes after the call before are enough: an attack on the input
    is made of gradients of the same weights, and is a constant for the next loss.
    """
    for event in alone.events(_FURTHEST):
        number = event.get("number", 0)
        if event["kind"] == "step":
            break
        if event["kind"] == "backward" and number > stage.after:
            for is_late in (False, True) if stage.of_constants and number > 1 else (False,):
                if _agrees(alone.differences(number, is_late=is_late), event):
                    since = f" of what comes after call {number - 1}" * is_late
                    return f"gradient of backward call {number} agrees with {_CENTRAL}{since}, in float64"
            break
    return ""


def _without_a_call(
    reference: Reference, found: list[dict[str, Any]], result: Result, said: str, its: object, alone: Alone
) -> Verdict:
    """Compare the ends of both runs, where one does not come to another backward call."""
    if not Ended.WELL is reference.result.ended is result.ended or reference.result.calls != result.calls:
        without = its is None and result.ended is Ended.WELL
        return without_gradients(result, said, NO_BACKWARD if without else UNREACHED)
    differing = comparison.besides(reference.events, found, exact=True)
    if differing := differing or printed.difference(reference.result, result):
        return Verdict(False, why=differing, differs=True, result=result)
    ends = f"what it keeps and prints in the end is what it is with gradients off{reference.words}"
    taken, where = comparison.transforms(reference.events, found), ""
    if not taken and any(one["kind"] == "transform" for one in found):
        taken, where = comparison.transforms(reference.events, alone.by_loops()), ", where `vmap` is a loop"
    if taken:
        ends += f", and so is each gradient that torch.func takes{where} ({taken})"
    elif not said:
        return without_gradients(result, said, f"{ends}; {NO_BACKWARD}")
    return Verdict(True, not result.findings, proof=f"{said}{ends}", level=Level.CHECKED, result=result)


def without_gradients(result: Result, said: str, lacking: str) -> Verdict:
    """Return the verdict on a patch that nothing contradicts, and whose gradients could not be compared."""
    proof = f"{said or 'it runs without an error or a finding; '}{lacking}"
    return Verdict(True, not result.findings, proof=proof, result=result)
