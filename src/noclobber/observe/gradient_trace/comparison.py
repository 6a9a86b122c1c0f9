"""Whether two runs gave the same gradients: evidence of one against that of the other, call by call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from noclobber.observe.gradient_trace import forward_mode

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""The largest difference that passes, relative to the largest magnitude, where sums were added in another order."""
_SKETCHES = 1e-4
_ROUNDED = 1e-2
"""The same for what optimizers make of gradients that are not equal bit for bit: some divide by their size."""
_AHEAD = 3
"""How far apart one call may be in two runs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`difference` says, in words, where two runs first differ; empty where they agree. `calls` were compared."""

    calls: int
    exact: bool = True
    difference: str = ""
    displaced: int = 0
    """Calls at the end that were not compared: calls come in another order, and the other run made them later."""


def compare(right: list[dict[str, Any]], found: list[dict[str, Any]], *, truncated: bool = False) -> Comparison:
    """Compare as many backward calls as both have, and the optimizer steps among them.

    Calls may come in another order where optimizers step: each step must then get the gradients that it got, too.
    `truncated`: gradients that are zero in `right` may be missing.
    """
    exact, furthest = True, 0
    calls, other_calls = _calls(right), _calls(found)
    compared = min(len(calls), len(other_calls))
    left, unmatched = list(range(compared)), 0
    movable = bool(_steps(right)) and bool(_steps(found))
    for number, other in enumerate(other_calls[:compared]):
        near = [index for index in left if index != number and abs(index - number) <= _AHEAD] if movable else []
        first = ""
        for index in [number] * (number in left) + near:
            same = _same_call(calls, index, other, truncated)
            if not isinstance(same, str):
                left.remove(index)
                exact &= same
                furthest = max(furthest, abs(index - number))
                break
            first = first or same
        else:
            if number < compared - furthest:
                return Comparison(number, exact, f"backward call {number + 1}{first or ' is another one'}")
            unmatched += 1
    failed = next((event["roots"] for event in found if event["kind"] == "failed"), None)
    if failed and len(calls) > compared == len(other_calls) and not same_loss(calls[compared]["roots"], failed):
        return Comparison(compared, exact, f"backward call {compared + 1}: the loss differs")
    wrong = _steps_differ(right, found, truncated)
    return Comparison(compared - unmatched, exact, wrong, unmatched)


def besides(right: list[dict[str, Any]], found: list[dict[str, Any]], *, exact: bool, stepped: bool = True) -> str:
    """What two runs hold otherwise besides their gradients, in words; empty where that is the same.

    `exact`: whether the gradients are the same bit for bit. `stepped`: whether what optimizers make of them must be.
    """
    within = _SKETCHES if exact else _ROUNDED
    return (
        (_stepped_differ(right, found, within) if stepped else "")
        or _buffers_differ(right, found)
        or (_ends_differ(right, found, "held", within) if stepped else "")
        or (_ends_differ(right, found, "leaves") if exact and stepped else "")
    )


def _same_call(calls: list[dict[str, Any]], index: int, other: dict[str, Any], truncated: bool) -> bool | str:
    """Whether a call is exactly the same as that of an index, or how it differs."""
    one, exact = calls[index], True
    if one["kind"] != other["kind"]:
        return " is another one"
    for what, wanted, got in (
        ("the loss", one["roots"], other["roots"]),
        ("a returned gradient", one["returned"], other["returned"]),
    ):
        if len(wanted) != len(got):
            return f": {what} is missing, or there is one more"
        for each, its in zip(wanted, got, strict=True):
            same = _same(each, its)
            if same is None:
                return f": {what} differs"
            exact &= same
    if truncated and one["kind"] == "backward" and all(_is_zero(gradient) for _, gradient, _ in one["leaves"]):
        return ": every gradient is zero"
    paired = _pair(one["leaves"], other["leaves"], truncated)
    if isinstance(paired, str):
        held = {name: leaf for before in calls[:index] for leaf, _, name in before["leaves"]}
        named = _pair_named(one["leaves"], other["leaves"], truncated, held)
        return f": {paired}" if named is None else exact and named
    return exact and paired


def first_loss(events: list[dict[str, Any]]) -> list[Any] | None:
    """The values that the first backward call begins from; None where there is no call."""
    return next((event["roots"] for event in events if "roots" in event), None)


def derivative(events: list[dict[str, Any]]) -> forward_mode.Along | None:
    """What the first backward call says of the derivative along the direction of the leaves; None where nothing."""
    return next((event["along"] for event in events if "along" in event), None)


def lost_leaf(right: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """The name of a leaf that gets a gradient in the first backward call of `right` and none in that of `found`; empty
    where there is none, or where names do not tell the leaves apart."""
    calls, others = _calls(right), _calls(found)
    if not calls or not others:
        return ""
    names, got = ([name for *_, name in one[0]["leaves"]] for one in (calls, others))
    if len(set(names)) < len(names) or len(set(got)) < len(got):
        return ""
    return next((name for name in names if name not in got), "")


def says_nothing(events: list[dict[str, Any]]) -> bool:
    """Whether all gradients are zero, as are those of much else that a program might compute."""
    calls = _calls(events)
    gradients = [one for call in calls for one in (*call["returned"], *(gradient for _, gradient, _ in call["leaves"]))]
    return bool(gradients) and all(map(_is_zero, gradients))


def same_loss(right: list[Any], found: list[Any]) -> bool:
    """Whether two first backward calls begin from equal values."""
    return len(right) == len(found) and all(
        _same(one, other) is not None for one, other in zip(right, found, strict=True)
    )


def _calls(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] in ("backward", "grad")]


def _same(right: Any, found: Any) -> bool | None:
    """Of two tensors or two sketches: True where equal bit for bit, False within tolerance, None where different."""
    if not isinstance(right, torch.Tensor) or not isinstance(found, torch.Tensor):
        return True if right == found else False if _alike(right, found) else None
    if right.shape != found.shape or right.dtype != found.dtype:
        return None
    if torch.equal(right, found):
        return True
    if not right.is_floating_point() and not right.is_complex():
        return None
    if torch.allclose(right, found, rtol=0, atol=0, equal_nan=True):
        return True
    finite = torch.isfinite(right)
    if not torch.equal(finite, torch.isfinite(found)) or not bool(finite.any()):
        return None
    if not torch.allclose(right[~finite], found[~finite], rtol=0, atol=0, equal_nan=True):
        return None
    right, found = right[finite], found[finite]
    kind = right.real.dtype if right.is_complex() else right.dtype
    wide = torch.complex128 if right.is_complex() else torch.float64
    most = float(right.to(wide).abs().max()) * TOLERANCE.get(kind, 1e-5)
    return False if float((right.to(wide) - found.to(wide)).abs().max()) <= most else None


def _pair(right: list[Any], found: list[Any], truncated: bool) -> bool | str:
    """Pair leaves by what they hold, in the order in which they appear; whether all are exact, or what differs."""
    exact = True
    left = list(found)
    for leaf, gradient, _ in right:
        alike = [index for index, (other, *_) in enumerate(left) if _alike(leaf, other)]
        matches = [(index, same) for index in alike if (same := _same(gradient, left[index][1])) is not None]
        if matches:
            index, same = next((one for one in matches if one[1]), matches[0])
            del left[index]
            exact &= same
        elif not (truncated and _is_zero(gradient)):
            shape = "x".join(map(str, leaf[0])) or "a scalar"
            if alike:
                return f"the gradient of a leaf of shape {shape} differs"
            return f"no gradient reaches a leaf of shape {shape}"
    if not all(truncated and _is_zero(gradient) for _, gradient, _ in left):
        return "a gradient reaches a leaf that gets none"
    return exact


def _pair_named(right: list[Any], found: list[Any], truncated: bool, held: dict[str, Any]) -> bool | None:
    """Pair leaves by what the program calls them, for weights that have moved below a backward; None where they differ.

    A leaf may hold what it held in the call before (`held`, by name): the same change, later.
    """
    wanted, got = ({name: (leaf, gradient) for leaf, gradient, name in leaves} for leaves in (right, found))
    if "" in wanted or "" in got or len(wanted) < len(right) or len(got) < len(found):
        return None
    exact = True
    for name in wanted.keys() | got.keys():
        (leaf, gradient), (other, its) = wanted.get(name, (None, None)), got.get(name, (None, None))
        if leaf is None or other is None:
            if truncated and _is_zero(gradient) and _is_zero(its):
                continue
            return None
        same = _same(gradient, its)
        before = held.get(name)
        later = leaf[:2] == other[:2] and (before is None or _alike(before, other))
        if same is None or not (later or _alike(leaf, other)):
            return None
        exact &= same
    return exact


def _ends_differ(right: list[dict[str, Any]], found: list[dict[str, Any]], what: str, within: float = _SKETCHES) -> str:
    """Where both programs came to their own end, what both knew by a name must hold the same.

    "leaves" by what the program calls them; what modules hold, "held".
    """
    wanted, got = (
        {name: one for event in events for name, one in _end(event, what).items()} for events in (right, found)
    )
    names = sorted(name for name in wanted.keys() & got.keys() if not _alike(wanted[name], got[name], within))
    return f"in the end `{_name(names[0])}` holds something else" if names else ""


def _end(event: dict[str, Any], what: str) -> dict[str, Any]:
    named: dict[str, Any] = event.get(what, {}) if event["kind"] == "end" else {}
    return named


def _name(known: str) -> str:
    """ "net.fc.weight" of "train: net.fc.weight", and "BatchNorm1d.running_mean" of "3 BatchNorm1d.running_mean"."""
    return known.rpartition(": ")[2].lstrip("0123456789").lstrip()


def _buffers_differ(right: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """Each buffer must hold the same at each backward call. Where a patch moves what moves it to the other side of one,
    it must get there all the same: within a call of the last one, and not where it was at first if it moves at all."""
    wanted, got = ([event["buffers"] for event in events if "buffers" in event] for events in (right, found))
    rows = list(zip(wanted, got, strict=False))
    for name in rows[0][0].keys() & rows[0][1].keys() if rows else ():
        pairs = [(one[name], other[name]) for one, other in rows if name in one and name in other]
        if all(_alike(*pair) for pair in pairs):
            continue
        (first, its_first), (last, its_last) = pairs[0], pairs[-1]
        arrives = any(_alike(one, its_last) or _alike(last, other) for one, other in pairs[-2:])
        if not arrives or (_alike(its_first, its_last) and not _alike(first, last)):
            return f"the buffer `{_name(name)}` holds something else"
    return ""


def _stepped_differ(right: list[dict[str, Any]], found: list[dict[str, Any]], within: float) -> str:
    """After each step the parameters, and what the optimizer keeps of them, must be the same."""
    wanted, got = _steps(right, "stepped", "held"), _steps(found, "stepped", "held")
    for key, steps in wanted.items():
        for number, (one, other) in enumerate(zip(steps, got.get(key, ()), strict=False), 1):
            if len(one) != len(other) or not all(_alike(a, b, within) for a, b in zip(one, other, strict=True)):
                return f"step {number} of {key[0]} leaves other parameters, or another state of its own"
    return ""


def _alike(one: Any, other: Any, within: float = _SKETCHES) -> bool:
    """Whether two sketches are of equal tensors, up to rounding."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return one is None and other is None
    if one[:2] != other[:2]:
        return False
    scale = max(abs(one[2]), abs(other[2]))
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= within * scale for a, b in zip(one[2:], other[2:], strict=True)
    )


def _steps_differ(right: list[dict[str, Any]], found: list[dict[str, Any]], truncated: bool) -> str:
    """Each optimizer must step with the same gradients; which of two steps comes first may differ."""
    wanted, got = _steps(right), _steps(found)
    for key, steps in wanted.items():
        for number, (one, other) in enumerate(zip(steps, got.get(key, ()), strict=False), 1):
            pairs = list(zip(one, other, strict=True))
            if not all(_alike(a, b) or (truncated and _is_zero(a) and _is_zero(b)) for a, b in pairs):
                return f"step {number} of {key[0]} gets other gradients"
    return ""


def _is_zero(gradient: Any) -> bool:
    """Whether a gradient, or a sketch of it, is nothing but zeros."""
    if isinstance(gradient, torch.Tensor):
        return not bool((gradient != 0).any())
    return gradient is None or gradient[2] == 0


def _steps(
    events: list[dict[str, Any]], kind: str = "step", what: str = "gradients"
) -> dict[tuple[str, tuple[Any, ...]], list[Any]]:
    steps: dict[tuple[str, tuple[Any, ...]], list[Any]] = {}
    for event in events:
        if event["kind"] == kind:
            name, shapes = event["optimizer"]
            steps.setdefault((name, tuple(shapes)), []).append(event[what])
    return steps
