"""Compares the gradients of two runs, backward call by backward call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from noclobber.observe.gradient_trace import evidence

if TYPE_CHECKING:
    from noclobber.observe.gradient_trace.evidence import Event, Seen, Sketch

    _Leaf = tuple[Sketch, Seen, str]
    """A leaf, its gradient, and its name; the name is empty where none is known."""
    _Optimizer = tuple[str, tuple[object, ...], tuple[str, ...]]
    """What an optimizer is known by: its class, the shapes of its parameters, and their names."""
    _Steps = dict[_Optimizer, list[list[Seen]]]
    """What was recorded at each step, by optimizer."""

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""The largest difference between equal gradients, relative to their largest magnitude. Gradients differ that much if
sums are added in another order."""
_SKETCHES = 1e-4
"""The same for the numbers of sketches."""
_ROUNDED = 1e-2
"""The same for what optimizers make of gradients that are not equal bit for bit: some divide by their size."""
_AHEAD = 3
"""How many places apart the same call may be in two runs."""


_LOSS = ": the loss differs"


class _Around(NamedTuple):
    """What is known beside a call: of both runs, by the names of leaves."""

    in_right: dict[str, Sketch]
    """What leaves held in the calls before, and so `in_found`."""
    in_found: dict[str, Sketch]
    stepped: list[Seen]
    """What optimizers left at their last steps."""
    follows: bool
    """Whether another call follows."""
    later: set[str]
    """The leaves that an optimizer steps after the call."""
    changed: set[str]
    """The leaves that held something else in an earlier call: a call adds to them. So it does to those `unused`, whose
    gradients no step got."""
    unused: set[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for two runs. `difference` says in words where they first differ; empty where they agree. `calls` is
    how many calls were compared, `exact` whether all were equal bit for bit."""

    calls: int
    exact: bool = True
    difference: str = ""
    displaced: int = 0
    """How many calls at the end were not compared: the runs make calls in another order, and the other run makes these
    later."""
    sums_differ: bool = False
    """Whether leaves may hold other sums of gradients between two steps: one got no gradient where `right` has one that
    no step gets, or calls come in another order."""

    @property
    def of_loss(self) -> bool:
        """Whether the loss of a call is what differs."""
        return self.difference.endswith(_LOSS)


def compare(right: list[Event], found: list[Event], *, truncated: bool = False) -> Comparison:
    """Compare as many backward calls as both runs have, and the optimizer steps among them.

    Where optimizers step, calls may come in another order; each step must still get the same gradients. If `truncated`,
    gradients that are zero in `right` may be missing in `found`.
    """
    exact, furthest = True, 0
    calls, other_calls = _calls(right), _calls(found)
    stepped, later = _stepped_before_calls(right), _stepped_after_calls(right, found)
    compared = min(len(calls), len(other_calls))
    left, unmatched = list(range(compared)), 0
    changed, unused = set[str](), set[str]()
    movable = bool(_steps(right)) and bool(_steps(found))
    for number, other in enumerate(other_calls[:compared]):
        near = [index for index in left if index != number and abs(index - number) <= _AHEAD] if movable else []
        first = ""
        for index in [number] * (number in left) + near:
            follows = max(index, number) + 1 < compared
            held = _held(calls[:index]), _held(other_calls[:number])
            around = _Around(*held, stepped[index], follows, later[index], changed, unused)
            same = _same_call(calls[index], other, truncated, around)
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
        return Comparison(compared, exact, f"backward call {compared + 1}{_LOSS}")
    wrong = steps_differ(right, found, truncated)
    return Comparison(compared - unmatched, exact, wrong, unmatched, bool(unused or furthest))


def besides(right: list[Event], found: list[Event], *, exact: bool, stepped: bool = True, kept: bool = True) -> str:
    """Return in words what differs between two runs besides their gradients; empty where nothing does.

    `exact` says that the gradients are equal bit for bit. Unless `stepped`, only the buffers are compared, and not what
    optimizers make of the gradients, or what else the program keeps. Unless `kept`, that is left out.
    """
    within = _SKETCHES if exact else _ROUNDED
    return (
        (_stepped_differ(right, found, within) if stepped else "")
        or _kept_differ(right, found, "buffers")
        or (_kept_differ(right, found, "state", within) if stepped and kept else "")
        or (_ends_differ(right, found, "held", within) if stepped else "")
        or (_ends_differ(right, found, "leaves") if exact and stepped else "")
    )


def identical(right: list[Event], found: list[Event]) -> bool:
    """Return True if all that was recorded is equal bit for bit, to the ends of both programs."""
    return _bits(right) == _bits(found)


def _bits(seen: object) -> object:
    """Return what was recorded with the fingerprint of each tensor in its place, or its numbers where there is none."""
    if isinstance(seen, torch.Tensor):
        return _bits(evidence.sketch(seen))
    if isinstance(seen, evidence.Sketch):
        return (seen.shape, seen.dtype, seen.numbers if seen.bits is None else seen.bits)
    if isinstance(seen, dict):
        return {key: _bits(value) for key, value in seen.items() if key not in ("along", "bare")}
    return list(map(_bits, seen)) if isinstance(seen, (list, tuple)) else seen


def _same_call(call: Event, other: Event, truncated: bool, around: _Around) -> bool | str:
    """Compare a call with one of the other run. `around` is what leaves may hold in it.

    Returns True if they are equal bit for bit, False if they are equal within tolerance, or in words how they differ.
    """
    exact = True
    if call["kind"] != other["kind"]:
        return " is another one"
    for what, wanted, got in (
        ("the loss", call["roots"], other["roots"]),
        ("a returned gradient", call["returned"], other["returned"]),
    ):
        if len(wanted) != len(got):
            return f": {what} is missing, or there is one more"
        if (same := _all_same(wanted, got)) is None:
            return f": {what} differs"
        exact &= same
    if truncated and call["kind"] == "backward" and all(_is_zero(gradient) for _, gradient, _ in call["leaves"]):
        return ": every gradient is zero"
    paired = _pair(call["leaves"], other["leaves"], truncated)
    if isinstance(paired, str):
        named = _pair_named(call["leaves"], other["leaves"], truncated, around)
        return f": {paired}" if named is None else exact and named
    return exact and paired


def until(events: list[Event], calls: int) -> list[Event]:
    """Return the events up to the end of a number of backward calls; none if there are fewer."""
    at = [number for number, event in enumerate(events, 1) if event["kind"] in ("backward", "grad")]
    return events[: at[calls - 1]] if len(at) >= calls else []


def summed(events: list[Event]) -> list[Event]:
    """Return one backward call in the place of the first two: of the sum of their losses.

    A leaf holds what it held in the first call. Empty if there are fewer than two calls, if they do not begin at one
    loss each, or if a leaf has no name of its own.
    """
    calls = [event for event in until(events, 2) if event["kind"] == "backward"]
    if len(calls) != 2:
        return []
    one, other = calls
    roots = [*one["roots"], *other["roots"]]
    names = [[name for *_, name in call["leaves"]] for call in calls]
    tensors = [seen for call in calls for _, seen, _ in call["leaves"]] + roots
    plain = len(roots) == 2 and all(isinstance(seen, torch.Tensor) for seen in tensors if seen is not None)
    if not plain or any("" in some or len(set(some)) < len(some) for some in names):
        return []
    leaves: dict[str, _Leaf] = {name: (leaf, gradient, name) for leaf, gradient, name in one["leaves"]}
    for leaf, gradient, name in other["leaves"]:
        held, before, _ = leaves.get(name, (leaf, None, name))
        leaves[name] = (held, gradient if before is None else before if gradient is None else before + gradient, name)
    return [one | {"roots": [roots[0] + roots[1]], "leaves": list(leaves.values())}]


def besides_one_step(right: list[Event], found: list[Event]) -> str:
    """Return in words what differs besides gradients where one step of `found` takes the place of two of `right`: of
    those after its first two backward calls. Empty where nothing does, as with SGD: Adam takes two other steps."""
    before, its = until(right, 3) or right, until(found, 2) or found
    first = next(
        (number for number, event in enumerate(before) if event["kind"] == "stepped" and until(before[:number], 1)),
        None,
    )
    if first is None:
        return "no step can be compared"
    others = [*before[:first], *before[first + 1 :]]
    return _stepped_differ(others, its, _SKETCHES) or _ends_differ(right, found, "held", _ROUNDED)


def first_loss(events: list[Event]) -> list[Seen] | None:
    """Return the values that the first backward call starts from; None where there is no call."""
    return next((event["roots"] for event in events if "roots" in event), None)


def call_of(events: list[Event], number: int) -> Event | None:
    """Return the backward call of a number, without those inside of it; None where it was not begun."""
    return next((event for event in reversed(events) if event.get("number") == number), None)


def same_before(right: Event, found: Event, which: str = "") -> tuple[str, bool]:
    """Compare what two runs computed before a backward call: the loss, and what the program keeps. `which` loss it is,
    in a word with a blank.

    Returns in words what differs, empty where nothing does, and whether the loss is equal to the last bit.
    """
    same = _all_same(right["roots"], found["roots"])
    if same is None:
        return f"the {which}loss is different", False
    return _kept_differ([right], [found], "buffers") or _kept_differ([right], [found], "state"), same


def transforms(right: list[Event], found: list[Event]) -> int:
    """Return how many gradients torch.func has taken in two runs, if all are equal up to rounding and not all zero;
    else 0."""
    wanted, got = (
        [seen for one in run if one["kind"] == "transform" for seen in one["returned"]] for run in (right, found)
    )
    same = len(wanted) == len(got) and all(map(_alike, wanted, got)) and None not in wanted
    return 0 if not same or all(map(_is_zero, wanted)) else len(wanted)


def lost_leaf(right: list[Event], found: list[Event]) -> str:
    """Return the name of a leaf that gets a gradient in the first backward call of `right` and none in that of `found`.

    Empty where there is no such leaf, or where several leaves have one name.
    """
    calls, others = _calls(right), _calls(found)
    if not calls or not others:
        return ""
    names, got = ([name for *_, name in run[0]["leaves"]] for run in (calls, others))
    if len(set(names)) < len(names) or len(set(got)) < len(got):
        return ""
    return next((name for name in names if name not in got), "")


def starved(right: list[Event], found: list[Event]) -> str:
    """Return in words which step gets no gradient, or zeros, for a parameter that has one at that step in `right`."""
    for step, one, other in _pairs_of_steps(right, found):
        if any(_is_zero(its) and not _is_zero(wanted) for wanted, its in zip(one, other, strict=True)):
            return f"{step} gets no gradient any more for one of its parameters"
    return ""


def steps_differ(right: list[Event], found: list[Event], truncated: bool) -> str:
    """Return in words which optimizer step gets other gradients; empty where none does. Steps of two optimizers may
    come in another order."""
    for step, one, other in _pairs_of_steps(right, found):
        pairs = list(zip(one, other, strict=True))
        if not all(_alike(a, b) or (truncated and _is_zero(a) and _is_zero(b)) for a, b in pairs):
            return f"{step} gets other gradients"
    return ""


def reads_differ(right: list[Event], found: list[Event]) -> str:
    """Return in words of which leaf the program reads another gradient; empty where of none. Both are reads alone."""
    read: dict[str, list[Seen]] = {}
    for event in right:
        read.setdefault(event["leaf"], []).append(event["gradient"])
    for event in found:
        left = read.get(event["leaf"])
        if left and not _alike(left.pop(0), event["gradient"]):
            return f"the program reads another gradient of `{_name(event['leaf'])}`"
    return ""


def has_fewer_steps(right: list[Event], found: list[Event]) -> bool:
    """Return True if some optimizer steps less often than in `right`."""
    steps = _steps(found)
    return any(len(steps.get(key, ())) < len(one) for key, one in _steps(right).items())


def says_nothing(events: list[Event]) -> bool:
    """Return True if all gradients are zero. Many other programs give zeros as well, so equal zeros prove nothing."""
    calls = _calls(events)
    gradients = [
        gradient for call in calls for gradient in (*call["returned"], *(gradient for _, gradient, _ in call["leaves"]))
    ]
    return bool(gradients) and all(map(_is_zero, gradients))


def same_loss(right: list[Seen], found: list[Seen]) -> bool:
    """Return True if two backward calls start from equal values."""
    return _all_same(right, found) is not None


def _calls(events: list[Event]) -> list[Event]:
    return [event for event in events if event["kind"] in ("backward", "grad")]


def _held(calls: list[Event]) -> dict[str, Sketch]:
    """Return what each leaf held in the last of some calls that reached it, by name."""
    return {name: leaf for call in calls for leaf, _, name in call["leaves"]}


def _stepped_before_calls(events: list[Event]) -> list[list[Seen]]:
    """Return, for each call, what the optimizers left at their last steps before it."""
    left: dict[_Optimizer, list[Seen]] = {}
    before = []
    for event in events:
        if event["kind"] == "stepped":
            left[_optimizer(event)] = event["held"]
        elif event["kind"] in ("backward", "grad"):
            before.append([seen for held in left.values() for seen in held])
    return before


def _stepped_after_calls(right: list[Event], found: list[Event]) -> list[set[str]]:
    """Return, for each call, the names of the leaves that an optimizer steps after it, at a step that both runs have:
    there the gradients are compared that the step got."""
    left = {key: len(steps) for key, steps in _steps(found).items()}
    after: list[set[str]] = []
    for event in right:
        if event["kind"] in ("backward", "grad"):
            after.append(set())
        elif event["kind"] == "step" and left.get(key := _optimizer(event), 0):
            left[key] -= 1
            for names in after:
                names.update(event["names"])
    return after


def _same(right: Seen, found: Seen) -> bool | None:
    """Compare two tensors or two sketches: True if equal bit for bit, False if equal within tolerance, else None."""
    if not isinstance(right, torch.Tensor) or not isinstance(found, torch.Tensor):
        return True if _bits(right) == _bits(found) else False if _alike(right, found) else None
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


def _all_same(right: list[Seen], found: list[Seen]) -> bool | None:
    """Compare as many tensors or sketches as `_same` compares two; None also if one is missing."""
    if len(right) != len(found):
        return None
    same = list(map(_same, right, found))
    return None if None in same else all(same)


def _pair(right: list[_Leaf], found: list[_Leaf], truncated: bool) -> bool | str:
    """Pair leaves by the values that they hold, in the order in which they appear, and compare their gradients.

    Returns True if all are equal bit for bit, False if all are equal within tolerance, or in words what differs.
    """
    exact = True
    left = list(found)
    for leaf, gradient, _ in right:
        alike = [index for index, (other, *_) in enumerate(left) if _alike(leaf, other)]
        matches = [(index, same) for index in alike if (same := _same(gradient, left[index][1])) is not None]
        if matches:
            index, same = next((match for match in matches if match[1]), matches[0])
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


def _pair_named(right: list[_Leaf], found: list[_Leaf], truncated: bool, around: _Around) -> bool | None:
    """Pair leaves by their names and compare their gradients, for a patch that changes weights after a backward call
    and not before it.

    In `found` a leaf may therefore still hold what it held in the call before, in either run, or what an optimizer left
    since: the same change comes later. It may hold anything else where the loss of a later call shows that this is so,
    and in the last one, where it did so before. A leaf may get no gradient that no step gets, and so again in the last
    calls.
    Returns True if all are equal bit for bit, False if all are equal within tolerance, None if they differ or a name is
    missing or not unique.
    """
    wanted, got = ({name: (leaf, gradient) for leaf, gradient, name in leaves} for leaves in (right, found))
    if "" in wanted or "" in got or len(wanted) < len(right) or len(got) < len(found):
        return None
    exact, moved, thrown_away = True, set[str](), set[str]()
    in_right = around.in_right
    for name in wanted.keys() | got.keys():
        (leaf, gradient), (other, its) = wanted.get(name, (None, None)), got.get(name, (None, None))
        if leaf is None or other is None:
            if truncated and _is_zero(gradient) and _is_zero(its):
                continue
            if other is not None or name not in around.later | around.unused:
                return None
            thrown_away.add(name)
            continue
        same = _same(gradient, its)
        before = [held[name] for held in (in_right, around.in_found) if name in held]
        if same is None or leaf[:2] != other[:2]:
            return None
        if name in in_right and not any(_alike(one, other) for one in (leaf, *before, *around.stepped)):
            if not (around.follows or name in around.changed):
                return None
            moved.add(name)
        exact &= same
    around.changed.update(moved)
    around.unused.update(thrown_away)
    return exact


def _ends_differ(right: list[Event], found: list[Event], what: str, within: float = _SKETCHES) -> str:
    """Return in words what differs at the end of two programs, if both came to their own end; empty where nothing does.

    Compares what has a name in both runs: the "leaves" by the program's names, or what modules "held".
    """
    ends = ([event.get(what, {}) for event in events if event["kind"] == "end"] for events in (right, found))
    wanted, got = ({name: seen for end in some for name, seen in end.items()} for some in ends)
    names = sorted(name for name in wanted.keys() & got.keys() if not _alike(wanted[name], got[name], within))
    return f"in the end `{_name(names[0])}` holds something else" if names else ""


def _name(known: str) -> str:
    """Return a name as a report shows it: "net.fc.weight" of "train: net.fc.weight", "BatchNorm1d.running_mean" of
    "3 BatchNorm1d.running_mean"."""
    return known.rpartition(": ")[2].lstrip("0123456789").lstrip()


def _kept_differ(right: list[Event], found: list[Event], what: str, within: float = _SKETCHES) -> str:
    """Return in words what the program keeps and differs; empty where nothing does. `what` is "buffers" or "state".

    It must be equal at each backward call, and at the end where both programs come to their own end. A patch may move
    the code that writes it to the other side of a backward call. It must then still arrive at the same value: at the
    end, or at most one call later or earlier, and changed if it changes in `right`.
    """
    rows, ends = _kept_at(right, found, end=False), _kept_at(right, found, end=True)
    for name in dict.fromkeys(name for one, _ in (*rows, *ends) for name in one[what]):
        pairs, last = _pairs(rows, what, name), _pairs(ends, what, name)
        if not all(_alike(*pair, within) for pair in last):
            return f"in the end {_said(what, name)}"
        if not last and not _arrives(pairs, within):
            return _said(what, name)
    return ""


def numbers_differ(right: list[Event], found: list[Event], again: Callable[[], list[Event]]) -> str:
    """Return in words which float that a container or an object of the program holds is another one, as in
    `history.append(loss.item())`; empty where none is. `again` runs `right` once more: what differs then too is a time.
    """
    rows, ends = _kept_at(right, found, end=False), _kept_at(right, found, end=True)
    names = dict.fromkeys(name for one, _ in (*rows, *ends) for name in one["numbers"])
    arrived = (all(_alike(*pair) for pair in _floats(ends, one)) and _arrives(_floats(rows, one)) for one in names)
    others = [name for name, is_same in zip(names, arrived, strict=True) if not is_same]
    once, twice = ([one["numbers"] for one in run if "numbers" in one] for run in (right, again() if others else []))
    told = (name for name in others if [one.get(name) for one in once] == [one.get(name) for one in twice])
    return next((_said("numbers", name) for name in told), "")


def _floats(rows: list[tuple[Event, Event]], name: str) -> list[tuple[Seen, Seen]]:
    both = [(one["numbers"].get(name), other["numbers"].get(name)) for one, other in rows]
    return [
        (evidence.Sketch((), "float", (one,) * 3), evidence.Sketch((), "float", (other,) * 3))
        for one, other in both
        if one is not None and other is not None
    ]


def _kept_at(right: list[Event], found: list[Event], *, end: bool) -> list[tuple[Event, Event]]:
    wanted, got = ([one for one in run if "state" in one and (one["kind"] == "end") is end] for run in (right, found))
    return list(zip(wanted, got, strict=False))


def _pairs(rows: list[tuple[Event, Event]], what: str, name: str) -> list[tuple[Seen, Seen]]:
    """Return what has a name in both runs. In the other run a variable may be bound again at each call."""
    both = [(one[what], other["bare"] | other[what]) for one, other in rows]
    return [(wanted[name], got[name]) for wanted, got in both if name in wanted and name in got]


def _arrives(pairs: list[tuple[Seen, Seen]], within: float = _SKETCHES) -> bool:
    if all(_alike(*pair, within) for pair in pairs):
        return True
    (first, its_first), (last, its_last) = pairs[0], pairs[-1]
    arrives = any(_alike(one, its_last, within) or _alike(last, other, within) for one, other in pairs[-2:])
    return arrives and (not _alike(its_first, its_last, within) or _alike(first, last, within))


def _said(what: str, name: str) -> str:
    return f"{'the buffer ' * (what == 'buffers')}`{_name(name)}` holds something else"


def _stepped_differ(right: list[Event], found: list[Event], within: float) -> str:
    """Return in words which optimizer step leaves other parameters or another state; empty where none does."""
    for step, one, other in _pairs_of_steps(right, found, "stepped", "held"):
        if len(one) != len(other) or not all(_alike(a, b, within) for a, b in zip(one, other, strict=True)):
            return f"{step} leaves other parameters, or another state of its own"
    return ""


def _alike(one: Seen, other: Seen, within: float = _SKETCHES) -> bool:
    """Return True if two sketches are of equal tensors, up to rounding; also if both are None."""
    if not isinstance(one, evidence.Sketch) or not isinstance(other, evidence.Sketch):
        return one is None and other is None
    if one[:2] != other[:2]:
        return False
    scale = max(abs(one.numbers[0]), abs(other.numbers[0]))
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= within * scale
        for a, b in zip(one.numbers, other.numbers, strict=True)
    )


def _pairs_of_steps(
    right: list[Event], found: list[Event], kind: str = "step", what: str = "gradients"
) -> Iterator[tuple[str, list[Seen], list[Seen]]]:
    """Yield each step that both runs have: in words which one it is, and what was recorded at it in each run. Two
    optimizers of one class and of equal shapes are told apart by the names of their parameters, if both runs have the
    same names."""
    wanted, got = _steps(right, kind, what), _steps(found, kind, what)
    if wanted.keys() != got.keys():
        wanted, got = _steps(right, kind, what, by_name=False), _steps(found, kind, what, by_name=False)
    for key, steps in wanted.items():
        for number, (one, other) in enumerate(zip(steps, got.get(key, ()), strict=False), 1):
            yield f"step {number} of {key[0]}", one, other


def _is_zero(gradient: Seen) -> bool:
    """Return True if a gradient, or the sketch of one, is all zeros; also for None."""
    if isinstance(gradient, torch.Tensor):
        return not bool((gradient != 0).any())
    return gradient is None or gradient.numbers[0] == 0


def _steps(events: list[Event], kind: str = "step", what: str = "gradients", *, by_name: bool = True) -> _Steps:
    steps: _Steps = {}
    for event in events:
        if event["kind"] == kind:
            optimizer, shapes, names = _optimizer(event)
            steps.setdefault((optimizer, shapes, names if by_name else ()), []).append(event[what])
    return steps


def _optimizer(event: Event) -> _Optimizer:
    optimizer, shapes, names = event["optimizer"]
    return optimizer, tuple(shapes), tuple(names)
