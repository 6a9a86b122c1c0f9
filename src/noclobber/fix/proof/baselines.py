"""The right gradients of the program as it is: which runs give them, run only when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from noclobber.fix.proof.trials.job import FORWARD, Mode, Order, Result, Right
from noclobber.fix.proof.trials.launcher import Launcher, Trial

if TYPE_CHECKING:
    from noclobber.observe.gradient_trace.forward_mode import Along

Kind = Right | Literal["derivative", "updated"]
WHOLE: tuple[Kind, ...] = ("full", "handed", "before", "recast", "returned", "once")
"""Those of which nothing is cut off."""

OWN = "NC204 by the backward of its own ctx"
"""Stands for findings about a backward that computes in the memory of its own ctx: no run puts that back."""
WITHOUT = ("NC206", "NC207", "NC208", "NC209", "NC210", "NC211", OWN)
"""What goes wrong though every save is read as it was saved: a run that preserves the saves gives the same numbers."""
UNDECLARED = "NC207"
"""Of these what no run puts right: the patched program's own central differences tell."""
HANDED = "NC206"
"""Of these what is about gradients that Python code is handed and writes: handing out clones gives the right ones."""
ASKED = "NC209"
"""The code of findings about gradients with respect to an overwritten tensor. The reference asks for the old value."""
CAST = "NC211"
"""The code of findings about casts that autocast keeps. In the reference it keeps none."""
STEPPED = "NC103"
"""The code of findings about weights that a step has changed: no gradient can reach back over it."""
DRIFT = "NC205"
"""The code of findings about regions that run again. They get their old bytes if saves are preserved; what else drifts
stands still in a run that calls them once. Gradients that match either are right, and others may be right too: the
second run draws random numbers."""
RETURNED = "NC305"
"""The code of refused writes to what a custom Function returns. In the reference it returns clones."""


@dataclass(frozen=True, slots=True)
class Reference:
    """`events` were recorded in the reference run; `words` say what it gives, as the end of a sentence."""

    kind: Kind
    events: list[dict[str, Any]]
    result: Result
    words: str


_WORDS = {
    "full": "",
    "step": "; gradients that reach back over an optimizer step are left out",
    "backward": "; gradients that reach back into an earlier backward call are left out",
    "handed": ", where each gradient is handed out as a clone",
    "before": ", with respect to the values from before the write",
    "recast": ", where autocast keeps no casts",
    "once": ", where regions run once",
    "returned": ", where custom Functions return clones",
    "derivative": "",
    "updated": " and its write to a leaf as an update",
}


def kinds_for(codes: Iterable[str], calls: int) -> tuple[Kind, ...]:
    """Return the kinds of references for findings of these codes; one that matches is enough.

    `calls`: backward calls that the program ended before the first finding.
    """
    codes = set(codes)
    if of_these := codes & set(WITHOUT):
        kinds: dict[str, Kind] = {HANDED: "handed", ASKED: "before", CAST: "recast"}
        return tuple(kinds[one] for one in of_these if one in kinds) if len(of_these) == 1 else ()
    if RETURNED in codes:
        return ("returned",)
    if is_refused(codes) and not calls:
        return ("derivative",)
    if "NC104" in codes:
        return ("full", "backward")
    once: tuple[Kind, ...] = ("once",) if DRIFT in codes else ()
    return ("full", "step", *once) if STEPPED in codes else ("full", *once)


def is_refused(codes: Iterable[str]) -> bool:
    """Return True if PyTorch refuses a write: no run of the program as it is has gradients beyond it."""
    return any(code.startswith("NC3") for code in codes)


@dataclass(frozen=True, slots=True)
class Differences:
    """Central differences of a program. `still` is the backward call of the run in which no leaf is moved, `along` has
    the derivative along each direction."""

    still: dict[str, Any]
    along: list[Along]


def differences(launcher: Launcher, order: Order) -> Iterator[Differences]:
    """Central differences of what the backward call after those of an `order` begins from; none where a leaf was given,
    with gradients off, what others lead to."""
    from noclobber.observe.gradient_trace import comparison, evidence, forward_mode

    def started(step: float, direction: int = 0) -> Trial:
        return launcher.start(replace(order, step=step, direction=direction))

    def loss(trial: Trial) -> dict[str, Any] | None:
        result = trial.result()
        is_cut = order.mode == "moved" and result.given
        return None if is_cut else comparison.call_of(evidence.read(result.evidence), order.after + 1)

    if (still := loss(started(0.0))) is None:
        return
    for precision in forward_mode.precisions_of(still):
        along = []
        for direction in range(forward_mode.DIRECTIONS):
            both = [started(sign * precision.step, direction) for sign in (1, -1)]
            ahead, behind = map(loss, both)
            if ahead is None or behind is None:
                return
            along.append(forward_mode.derivative(ahead["weighed"], behind["weighed"], precision))
        yield Differences(still, along)


class References:
    """The runs of one program that give right gradients, each made once and by an `order` that says the rest.

    Its `after`: how many backward calls the program ends before a write is refused. Its `retaining`: whether graphs are
    kept for a second backward, which the program is refused.
    """

    def __init__(self, launcher: Launcher, order: Order) -> None:
        self._launcher, self.order = launcher, order
        self._differences: dict[tuple[Kind, bool], tuple[list[Differences], Iterator[Differences]]] = {}
        self._started: dict[Kind, Trial] = {}
        self._known: dict[Kind, Reference] = {}
        self._again: dict[Kind, Reference] = {}

    def start(self, kind: Kind) -> None:
        """Begin a run that will be asked for."""
        if kind not in self._known and kind not in self._started:
            self._started[kind] = self._launcher.start(self._order(_mode(kind), kind))

    def get(self, kind: Kind) -> Reference:
        """The reference, when its run is over. Where saves cannot be preserved they are cloned; where an operator has
        no derivative by forward mode there is the loss alone."""
        if kind not in self._known:
            self.start(kind)
            result = self._started.pop(kind).result()
            if _mode(kind) == "reference" and result.error.startswith("ClobberError"):
                result = self._launcher.run(self._order("clones", kind))
            elif kind in FORWARD and not result.went_through:
                result = self._launcher.run(replace(self._order(kind, kind), step=0.0))
            self._known[kind] = self._reference(kind, result)
        return self._known[kind]

    def known(self) -> list[Reference]:
        """Those that were asked for so far."""
        return list(self._known.values())

    def again(self, kind: Kind) -> Reference:
        """The same run once more, to see whether it gives the same."""
        if kind not in self._again:
            self._again[kind] = self._reference(kind, self._launcher.run(self._order(_mode(kind), kind)))
        return self._again[kind]

    def differences(self, kind: Kind, *, double: bool) -> Iterator[Differences]:
        """Central differences, `double` in float64, with one step after the other; none where the program does not run
        so."""
        if (kind, double) not in self._differences:
            order = replace(self._order(_mode(kind), kind), double=double)
            self._differences[kind, double] = [], differences(self._launcher, order)
        known, more = self._differences[kind, double]
        yield from known
        for one in more:
            known.append(one)
            yield one

    def _reference(self, kind: Kind, result: Result) -> Reference:
        from noclobber.observe.gradient_trace import evidence

        return Reference(kind, evidence.read(result.evidence), result, _WORDS[kind])

    def _order(self, mode: Mode, kind: Kind) -> Order:
        right: Right = "full" if kind == "derivative" or kind == "updated" else kind
        return replace(self.order, mode=mode, right=right)


def _mode(kind: Kind) -> Mode:
    return kind if kind in ("derivative", "updated") else "reference"
