"""Decides whether a patch is right: runs the program with it, and compares its gradients with the right ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from noclobber.fix.edits.candidate import Way
from noclobber.fix.edits.patch import Patch, line_before
from noclobber.fix.edits.source import Misfit
from noclobber.fix.proof import printed
from noclobber.fix.proof.baselines import (
    ASKED,
    DRIFT,
    HANDED,
    WHOLE,
    WITHOUT,
    Kind,
    Reference,
    References,
    is_refused,
    kinds_for,
)
from noclobber.fix.proof.job import Ended, Mode, Order, Result
from noclobber.fix.proof.launcher import Launcher, Trial
from noclobber.fix.proof.levels import Level
from noclobber.model.finding import Finding
from noclobber.model.source import Span
from noclobber.observe.gradient_trace import comparison, evidence, forward_mode

_NO_BACKWARD = "no backward call runs with the patch, so there are no gradients to compare"
_UNREACHED = "there are no gradients to compare with, because without the patch the program ends before them"
_NOT_RIGHT = (
    "even with the saved values kept, this program's gradients are not correct, so there is nothing to compare the "
    "patch with"
)
_DISAGREES = (
    "its gradient could not be checked: central differences of its loss are not known, or not its gradient, as where "
    "values are detached"
)
_OF_ITS_OWN = "its gradient is not that of forward mode, but the program makes gradients of its own"
_BEYOND = "later calls cannot be compared: without the patch the program ends before them"


_FIRST: Mapping[Way, str] = {
    "anew": "the first is that of the program as it is, the others have newer weights",
    "summed": "the first is the sum of the first two of the program as it is",
}
"""What the first backward call of a patched program is compared with."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run with a patch showed. `right`: nothing contradicts the patch. `clean`: and nothing is left to fix.

    `why` says why the patch is wrong, `proof` why it is right.
    """

    right: bool
    clean: bool = False
    why: str = ""
    proof: str = ""
    level: Level = Level.UNPROVEN
    comparable: bool = False
    """Whether they might have been compared, and those of another patch may be."""
    complete: bool = False
    """Whether every gradient was compared."""
    elsewhere: bool = False
    """Whether the findings that are left are about other writes."""
    differs: bool = False
    """Whether the only problem is that values differ from the reference."""
    result: Result | None = None


class Prover:
    """Runs one program with patches. `codes` are the rule codes of the findings so far."""

    def __init__(self, launcher: Launcher, search: Result, backwards: int, seconds: float) -> None:
        self._launcher = launcher
        self._seconds, self._whole = seconds, backwards
        self.search = search
        self.calls = max(backwards, (search.found_at or 1) - 1 + backwards)
        """How many backward calls each run makes, at most."""
        self.codes: set[str] = set()
        self.references = References(launcher, self.calls, seconds, backwards)
        self._after = 0
        """How many backward calls come before the one whose derivative is measured."""
        self._doubled: dict[object, dict[str, Any] | None] = {}

    def meet(self, finding: Finding, findings: Iterable[Finding] = ()) -> None:
        """Begin the run that patches for this finding will be compared with.

        If autograd does not see the write either (NC208), preserving the saves gives no right gradients.
        """
        self.codes.add(finding.code)
        place = _place(finding, "write")
        self.codes.update(one.code for one in findings if one.code == "NC208" and _place(one, "write") == place)
        retaining = finding.code == "NC104" or self.references.retaining
        after = self.search.calls if is_refused(self.codes) else 0
        if (retaining, after) != (self.references.retaining, self._after):
            self._after = after
            self.references = References(self._launcher, self.calls, self._seconds, self._whole, after)
            self.references.retaining = retaining
        for kind in kinds_for(self.codes, self.search.calls)[:1]:
            self.references.start(kind)

    def start(self, patch: Patch, mode: Mode = "watch") -> Trial:
        """Begin to run the program with a patch. Raises Misfit where an encoding lacks a character of it."""
        return self._launcher.start(self._order(mode, patch), fresh=mode == "bare")

    def _order(self, mode: Mode, patch: Patch) -> Order:
        return Order(mode, self.calls, self._seconds, self._whole, patch.served, after=self._after)

    def judge(self, trial: Trial, patch: Patch, before: Patch, finding: Finding, *, way: Way = "same") -> Verdict:
        """Return the verdict of a run with `patch`, which should fix a finding of the program patched by `before`.

        Unless the `way` is "same", only the first backward call has a counterpart in the program as it is.
        """
        result = trial.result()
        if result.crash:
            return Verdict(False, why=f"noclobber itself failed: {result.crash}")
        if result.ended in (Ended.TIMEOUT, Ended.DIED, Ended.REFUSED):
            return Verdict(False, why=result.error)
        if result.lost and not self.search.lost:
            return Verdict(False, why="the program then reads `.grad` of a tensor that is not a leaf, and gets None")
        if any(is_there(finding, one, before, patch) for one in result.findings):
            return Verdict(False, why="the finding is still there")
        if way != "same":
            return self._beyond_the_first(result, patch, finding, way)
        place = _place(finding, "write")
        left = [_is_same(place, _place(one, "write"), before, patch) for one in result.findings]
        return replace(self._judged(result, patch), elsewhere=bool(left) and not any(left))

    def _beyond_the_first(self, result: Result, patch: Patch, finding: Finding, way: Way) -> Verdict:
        """Compare the first backward call with that of the program as it is, or with the sum of its first two, and all
        of them with those of the patched program when each save is read as it was saved."""
        if not result.went_through or result.findings:
            return Verdict(False, why=result.failure or "another finding is left", result=result)
        found = evidence.read(result.evidence)
        events = self.references.get(kinds_for(self.codes, self.search.calls)[0]).events
        first = comparison.summed(events) if way == "summed" else comparison.until(events, 1)
        besides = comparison.besides_one_step if finding.code != "NC104" else partial(comparison.besides, exact=False)
        right = evidence.read(self._launcher.run(self._order("reference", patch)).evidence)
        compared = comparison.compare(right, found)
        differing = (
            comparison.compare(first, comparison.until(found, 1)).difference
            or compared.difference
            or comparison.besides(right, found, exact=compared.exact)
            or (besides(events, found) if way == "summed" else "")
        )
        if differing or not first or not compared.calls or comparison.says_nothing(found):
            return Verdict(False, why=differing or "no gradients can be compared", differs=True, result=result)
        fewer = "; one step does what two did" if way == "summed" and finding.code != "NC104" else ""
        proof = f"{_counted(compared, '')}; {_FIRST[way]}{fewer}"
        # Newer weights are another result, unless the program as it is ends before it has one.
        proven = way == "summed" or not self.search.went_through
        return Verdict(True, True, proof=proof, level=Level.PROVEN if proven else Level.UNPROVEN, result=result)

    def _judged(self, result: Result, patch: Patch) -> Verdict:
        """Compare with the references, the first of which was started when the finding was met."""
        found, clean = evidence.read(result.evidence), not result.findings
        if clean and not self._ends_as_before(result):
            return Verdict(False, why=result.failure, result=result)
        differences, codes = [], set(self.codes)
        for kind in kinds_for(self.codes, self.search.calls):
            if kind == "derivative":
                return self._by_derivative(found, result, patch)
            reference = self.references.get(kind)
            codes -= {HANDED} if kind == "handed" else set()
            codes.update(one.code for one in reference.result.findings)
            codes -= {ASKED} if kind == "before" else set()  # it asks as it did; the answer is another
            if not reference.result.calls and not codes & {DRIFT, *WITHOUT}:
                return self._by_derivative(found, result, patch)  # as of compiled code, which preserving does not reach
            if not reference.result.calls or codes & set(WITHOUT) or (DRIFT in codes and reference.cloned):
                break
            compared = comparison.compare(reference.events, found, truncated=kind in ("step", "backward"))
            same = not compared.difference
            # Where gradients may be others with good reason, so may what optimizers make of them.
            others = comparison.besides(
                reference.events, found, exact=same and compared.exact, stepped=same and kind in WHOLE
            )
            if others and (same or DRIFT in codes):
                return Verdict(False, why=others, differs=True, result=result)
            if comparison.says_nothing(reference.events):
                differences.append("every gradient of the program is zero, which proves nothing")
            elif compared.difference:
                differences.append(compared.difference)
            elif clean and not self._is_enough(compared, reference.result, result):
                differences.append(f"only {compared.calls} backward calls could be compared")
            elif reference.result.ended is Ended.WELL and result.calls > reference.result.calls:
                differences.append("the program then makes more backward calls")
            elif said := self._other_output(kind, reference.result, result):
                return Verdict(False, why=said, differs=True, result=result)
            else:
                whole = reference.result.went_through or reference.result.ends_like(result)
                if not whole and is_refused(codes):
                    return self._by_derivative(found, result, patch, f"{_counted(compared, reference.words)}; ")
                proof = _matches(compared, reference, result)
                complete = whole and kind in WHOLE
                return Verdict(True, clean, proof=proof, level=Level.PROVEN, complete=complete, result=result)
        if differences and DRIFT not in codes:
            return Verdict(False, why=differences[0], differs=True, result=result)
        for reference in self.references.known():
            if left := comparison.lost_leaf(reference.events, found):
                why = f"`{left.rpartition(': ')[2]}` gets no gradient any more"
                return Verdict(False, why=why, differs=True, result=result)
        return self._by_loss(evidence.read(self.search.evidence), found, result, codes)

    def _by_derivative(self, found: list[dict[str, Any]], result: Result, patch: Patch, said: str = "") -> Verdict:
        """Compare with the program with gradients off, where reverse mode is refused: the loss, what the program keeps,
        and the derivative by forward mode along one direction, or by central differences along several.

        A write to a leaf may be an update or a part of what is computed, and only the patch says which. But if the
        written value depends on other leaves, an update would leave them without a gradient. `said` are the words on
        the calls before.
        """
        its, known = comparison.call_of(found, self._after + 1), True
        kinds: tuple[Kind, ...] = ("derivative", "updated")
        for kind in kinds:
            reference = self.references.get(kind)
            right = comparison.call_of(reference.events, self._after + 1)
            if right is None or its is None:
                return self._without_a_call(reference, found, result, said)
            differing, exact = comparison.same_before(right, its)
            if differing:
                which = "first" if not self._after else "next"
                why = differing.replace("the loss differs", f"the {which} loss is different")
                return Verdict(False, why=why, differs=True, result=result)
            how = self._agreement(kind, right, its, patch)
            if how:
                return self._checked(result, f"{said}{self._loss(exact)}{reference.words}; gradient agrees with {how}")
            known = known and how is not None
            if not reference.result.rewritten or reference.result.given:
                break
        if not known:
            unproven = self._without_gradients(result, f"{said}{self._loss(exact)}; ", _DISAGREES)
            return replace(unproven, comparable=True)
        if reference.result.custom or reference.result.given:
            unproven = self._without_gradients(result, f"{said}{self._loss(exact)}; ", _OF_ITS_OWN)
            return replace(unproven, comparable=True)
        why = "its gradient is not the one that forward mode gives without the patch"
        return Verdict(False, why=why, differs=True, result=result)

    def _agreement(self, kind: Kind, right: dict[str, Any], its: dict[str, Any], patch: Patch) -> str | None:
        """Return in words what a gradient agrees with; empty if it does not agree with forward mode, None if nothing
        gives its derivative, or not for sure."""
        ours, theirs = its.get("along", []), [one for one in right["along"] if one is not None]
        if theirs and ours and (theirs[0][1] or ours[0][1]):
            return "forward mode along 1 random direction" if forward_mode.same(theirs[0], ours[0]) else ""
        if not any(one[1] for one in ours):
            return None
        for double in (True, False):
            differences = self.references.differences(kind, double=double)
            call = self._in_float64(patch) if double else its
            still = None if differences is None else comparison.call_of(differences.events, self._after + 1)
            if differences is None or still is None or call is None or comparison.same_before(still, call)[0]:
                continue
            pairs = list(zip(differences.along, call["along"], strict=False))
            if len(pairs) == len(differences.along) and all(
                one[1] and forward_mode.same(wanted, one) for wanted, one in pairs
            ):
                where = ", in float64" if double else ""
                return f"central differences of its own loss along {len(pairs)} random directions{where}"
            return None
        return None

    def _in_float64(self, patch: Patch) -> dict[str, Any] | None:
        """Return the backward call of a patched program that makes its numbers in float64; None if it does not run."""
        key = patch.key()
        if key not in self._doubled:
            order = replace(self._order("bare", patch), backwards=self._after + 1, double=True)
            self._doubled[key] = comparison.call_of(evidence.read(self._launcher.run(order).evidence), self._after + 1)
        return self._doubled[key]

    def _without_a_call(self, reference: Reference, found: list[dict[str, Any]], result: Result, said: str) -> Verdict:
        """Compare the ends of both runs, where none comes to another backward call."""
        if not Ended.WELL is reference.result.ended is result.ended or reference.result.calls != result.calls:
            without = comparison.call_of(found, self._after + 1) is None and result.ended is Ended.WELL
            return self._without_gradients(result, said, _NO_BACKWARD if without else _UNREACHED)
        differing = comparison.besides(reference.events, found, exact=True)
        differing = differing or printed.difference(reference.result, result)
        if differing:
            return Verdict(False, why=differing, differs=True, result=result)
        ends = f"what it keeps and prints in the end is what it is with gradients off{reference.words}"
        if not said:
            return self._without_gradients(result, said, f"{ends}; {_NO_BACKWARD}")
        return Verdict(True, not result.findings, proof=f"{said}{ends}", level=Level.CHECKED, result=result)

    def _checked(self, result: Result, proof: str) -> Verdict:
        return Verdict(True, not result.findings, proof=f"{proof}; {_BEYOND}", level=Level.CHECKED, result=result)

    def _without_gradients(self, result: Result, said: str, lacking: str) -> Verdict:
        proof = f"{said or 'it runs without an error or a finding; '}{lacking}"
        return Verdict(True, not result.findings, proof=proof, result=result)

    def _loss(self, exact: bool) -> str:
        how = "equal to the last bit to" if exact else "equal up to rounding to"
        return f"{'next' if self._after else 'first'} loss {how} what it is with gradients off"

    def _by_loss(
        self, before: list[dict[str, Any]], found: list[dict[str, Any]], result: Result, codes: Iterable[str] = ()
    ) -> Verdict:
        """Compare the first loss, where there are no right gradients to compare with."""
        right, loss = comparison.first_loss(before), comparison.first_loss(found)
        if right is not None and loss is not None and not comparison.same_loss(right, loss):
            return Verdict(False, why="the first loss is different", differs=True, result=result)
        known = right is not None and loss is not None
        runs = f"it runs without an error or a finding{', and its first loss is the same' * known}; "
        of_none = _NOT_RIGHT if set(codes) & {DRIFT, *WITHOUT} else _UNREACHED
        return self._without_gradients(result, runs, of_none if loss is not None else _NO_BACKWARD)

    def _other_output(self, kind: Kind, reference: Result, result: Result) -> str:
        """Return how the output or the end of a patched run differs from the reference; empty if it does not, or if
        the program prints something else in each run."""
        if reference.ended is Ended.EXIT and result.ended is Ended.WELL:
            return f"it ends well, and ended with {reference.error} before"
        said = printed.difference(reference, result)
        return "" if said and printed.difference(reference, self.references.again(kind).result) else said

    def _ends_as_before(self, result: Result) -> bool:
        """Return True if nothing stops a patched program, or only what stops it without the patch too, which is not
        about in-place writes."""
        if result.went_through:
            return True
        for kind in kinds_for(self.codes, self.search.calls)[:1]:
            self.references.get(kind)
        ends = [self.search, *(one.result for one in self.references.known())]
        return any(one.ends_like(result) and not _is_ours(one) for one in ends)

    def _is_enough(self, compared: comparison.Comparison, reference: Result, result: Result) -> bool:
        """Return True if enough backward calls were compared: those up to the finding, and all that were asked for
        if there was time for them."""
        first = min(reference.calls, self.search.found_at or 1)
        if result.ended is Ended.LIMIT and result.calls < self.calls:
            return compared.calls >= first
        return compared.calls >= first and compared.calls + compared.displaced >= min(reference.calls, self.calls)

    def drift(self) -> str:
        """Return how a second reference run, or a second search, differs from the first; empty if it does not."""
        kind = next(iter(kinds_for(self.codes, self.search.calls)), None)
        if kind is None:
            again = self._launcher.run(Order("search", self.calls, self._seconds))
            verdict = self._by_loss(evidence.read(self.search.evidence), evidence.read(again.evidence), again)
            return verdict.why if verdict.differs else ""
        once, twice = self.references.get(kind), self.references.again(kind)
        compared = comparison.compare(once.events, twice.events)
        return (
            compared.difference
            or comparison.besides(once.events, twice.events, exact=compared.exact)
            or printed.difference(once.result, twice.result)
        )


def _is_ours(result: Result) -> bool:
    return result.error.startswith("ClobberError") or bool(result.findings)


def _counted(compared: comparison.Comparison, words: str) -> str:
    calls = f"{compared.calls} backward call{'s' * (compared.calls > 1)}"
    how = "to the last bit" if compared.exact else "within 1e-5 of the largest magnitude (float32)"
    return f"{calls} compared, all gradients correct {how}{words}"


def _matches(compared: comparison.Comparison, reference: Reference, result: Result) -> str:
    words = _counted(compared, reference.words)
    if reference.result.went_through:
        return words
    if reference.result.ends_like(result):
        return f"{words}; then {result.failure}, but not because of an in-place write"
    return f"{words}; {_BEYOND}"


def is_there(wanted: Finding, found: Finding, before: Patch, after: Patch) -> bool:
    """Return True if a finding of the patched program is the one to fix, or one that the patch itself caused.

    Another tensor that the same line writes, or another save of the same tensor, is a different finding.
    """
    names = [one.tensor and one.tensor.name for one in (wanted, found)]
    if None not in names and names[0] != names[1]:
        return False
    return all(_is_same(_place(wanted, role), _place(found, role), before, after) for role in ("write", "save"))


def _is_same(old: Span | None, new: Span | None, before: Patch, after: Patch) -> bool:
    """Return True if a place is the same before and after a patch, or new. Unchanged code beside a change is not."""
    if old is None or new is None or old.path != new.path:
        return old == new
    try:
        line = line_before(before.read(old.path), after.read(new.path), new.line)
    except (OSError, Misfit):
        return old.line == new.line
    if line is not None:
        return old.line <= line <= old.end_line
    was, now = _snippet(before, old), _snippet(after, new)
    return now == was or now not in _line(before, old)


def _snippet(patch: Patch, span: Span) -> str:
    """The text of a span within its first line."""
    return _line(patch, span)[span.column - 1 : span.end_column - 1 if span.end_line == span.line else None]


def _line(patch: Patch, span: Span) -> str:
    lines = patch.read(span.path).split("\n")
    return lines[span.line - 1] if span.line <= len(lines) else ""


def _place(finding: Finding, role: str) -> Span | None:
    label = next((one for one in finding.labels if one.role == role), finding.primary if role == "write" else None)
    return label.span if label is not None else None
