"""Decides whether a patch is right: runs the program with it, and compares its gradients with the right ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from noclobber.fix.edits.patch import Patch, line_before
from noclobber.fix.edits.source import Misfit
from noclobber.fix.proof.baselines import (
    ASKED,
    CAST,
    DRIFT,
    HANDED,
    OWN,
    STEPPED,
    UNDECLARED,
    WHOLE,
    WITHOUT,
    Kind,
    Reference,
    References,
    is_refused,
    kinds_for,
)
from noclobber.fix.proof.derivatives import (
    BEYOND,
    NO_BACKWARD,
    UNREACHED,
    Alone,
    Stage,
    by_derivative,
    own_agreement,
    without_gradients,
)
from noclobber.fix.proof.read_gradients import readers
from noclobber.fix.proof.repairs import Level, Verdict
from noclobber.fix.proof.trials import printed
from noclobber.fix.proof.trials.job import Ended, Mode, Order, Result
from noclobber.fix.proof.trials.launcher import Launcher, Trial
from noclobber.mend.change import Way
from noclobber.model.reports.finding import Finding
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.source import Span
from noclobber.model.units import counted
from noclobber.observe.gradient_trace import comparison, evidence

_NOT_RIGHT = (
    "even with the saved values kept, this program's gradients are not correct, so there is nothing to compare the "
    "patch with"
)
_FIRST: Mapping[Way, str] = {
    "anew": "the first is that of the program as it is, the others have newer weights",
    "gathered": "the first is that of the program as it is, the others are of the same weights; one step follows all",
    "summed": "the first is the sum of the first two of the program as it is",
}
"""What the first backward call of a patched program is compared with."""
TO_THE_END = 10.0
"""Seconds that a program gets to come to its end, where it reads gradients below the calls that are compared."""


class Prover:
    """Runs one program with patches."""

    def __init__(self, launcher: Launcher, search: Result, backwards: int, seconds: float) -> None:
        self._launcher = launcher
        self._seconds, self._whole = seconds, backwards
        self.search = search
        self.calls = max(backwards, (search.found_at or 1) - 1 + backwards)
        """How many backward calls each run makes, at most."""
        self._stages: list[Stage] = []
        self.as_it_is = References(launcher, self._order("reference", Patch()))

    @property
    def codes(self) -> frozenset[str]:
        """The rule codes of the findings so far."""
        return frozenset(code for stage in self._stages for code in stage.codes)

    def meet(self, finding: Finding, findings: Iterable[Finding], found_in: Result, before: Patch) -> None:
        """Begin the run that patches for this finding will be compared with. It was found in a run of the program
        patched by `before`.

        A program with a refused write has no gradients beyond it. What is found beyond it is compared with the patched
        program, and the whole patch also with the program as it is. If autograd does not see the write either (NC208),
        preserving the saves gives no right gradients.
        """
        place = _place(finding, "write")
        codes = {one.code for one in findings if one.code == "NC208" and _place(one, "write") == place}
        # Saves that are preserved make right what an undeclared write does to saves, and not what reads it later.
        codes.add("NC201" if finding.code == "NC207" and isinstance(finding.event, Clobber) else finding.code)
        by_own = finding.code == "NC204" and finding.writes and not any(one.in_forward for one in finding.writes)
        codes |= {OWN} if by_own else set()
        # A region that runs again after a step reads new weights, as any other backward that comes too late.
        codes |= {STEPPED} if finding.code == DRIFT and any(one.step for one in finding.writes) else set()
        refused = is_refused({finding.code})
        after = found_in.calls if refused else 0
        last = self._stages[-1] if self._stages else None
        if last is None or refused is not is_refused(last.codes) or after > last.after:
            self._stages.append(self._stage(codes, after, before))
        else:
            last.codes |= codes
            if "NC104" in codes and not last.references.order.retaining:
                self._stages[-1] = self._stage(last.codes, last.after, last.before)
        if isinstance(event := finding.event, Refusal):
            self._stages[-1].of_itself = event.of_itself
            self._stages[-1].of_constants = event.carries_gradient is False
            self._stages[-1].expanded |= event.expanded
        self._stages[-1].carries |= isinstance(finding.event, (Clobber, Refusal)) and finding.event.carried != ()
        for kind in kinds_for(self._stages[-1].codes, self._stages[-1].after)[:1]:
            self._stages[-1].references.start(kind)

    def _stage(self, codes: set[str], after: int, before: Patch) -> Stage:
        references = self.as_it_is
        if after or before.after or "NC104" in codes:
            order = replace(self._order("reference", before), after=after, retaining="NC104" in codes)
            references = References(self._launcher, order)
        return Stage(references, codes, after, before)

    def start(self, patch: Patch, mode: Mode = "watch") -> Trial:
        """Begin to run the program with a patch. Raises Misfit where an encoding lacks a character of it."""
        return self._launcher.start(self._order(mode, patch))

    def _order(self, mode: Mode, patch: Patch) -> Order:
        after = max((one.after for one in self._stages), default=0)
        return Order(mode, self.calls, self._seconds, self._whole, patch.served, after=after)

    def judge(
        self, trial: Trial, patch: Patch, before: Patch, finding: Finding, *, way: Way = "same", is_sound: bool = False
    ) -> Verdict:
        """Return the verdict of a run with `patch`, which should fix a finding of the program patched by `before`.

        Unless the `way` is "same", only the first backward call has a counterpart in the program as it is. `is_sound`:
        the source shows that the newer weights of the others are what is meant.
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
        if way in _FIRST:
            return self._beyond_the_first(result, patch, finding, way, is_sound=is_sound)
        place = _place(finding, "write")
        left = [_is_same(place, _place(one, "write"), before, patch) for one in result.findings]
        return replace(self._judged(result, patch), elsewhere=bool(left) and not any(left))

    def _beyond_the_first(self, result: Result, patch: Patch, finding: Finding, way: Way, *, is_sound: bool) -> Verdict:
        """Compare the first backward call with that of the program as it is, or with the sum of its first two, and all
        of them with those of the patched program when each save is read as it was saved."""
        if not result.went_through or result.findings:
            return Verdict(False, why=result.failure or "another finding is left", result=result)
        found = evidence.read(result.evidence)
        last = self._stages[-1]
        events = last.references.get(kinds_for(last.codes, last.after)[0]).events
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
        proven = way == "summed" or is_sound or not self.search.went_through
        return Verdict(True, True, proof=proof, level=Level.PROVEN if proven else Level.UNPROVEN, result=result)

    def _judged(self, result: Result, patch: Patch) -> Verdict:
        """Compare with what was found so far, step by step; the verdict is the least sure one."""
        # What is left to fix, and raises nothing, spoils gradients too, and what is printed of them: all is compared
        # with it kept from that.
        spoilt = any(isinstance(one.event, Clobber) and one.event.message is None for one in result.findings)
        kept = self._launcher.run(self._order("reference", patch)) if spoilt else result
        found = evidence.read(kept.evidence)
        if not result.findings and not self._ends_as_before(result):
            return Verdict(False, why=result.failure, result=result)
        verdicts, shown = [], replace(kept, report=result.report)
        alone = Alone(self._launcher, replace(self._order("bare", patch), double=True))
        for stage in self._stages:
            verdicts.append(replace(self._at(stage, found, shown, alone, patch), result=result))
            if not verdicts[-1].right:
                return verdicts[-1]
        least = max(verdicts, key=lambda one: list(Level).index(one.level))
        told = [one for one in verdicts if one.level is least.level] if least.level is Level.UNPROVEN else verdicts
        beyond = f"; {BEYOND}"
        proofs = dict.fromkeys(one.proof.removesuffix(beyond) for one in told)
        proof = "; then, with the patch so far, ".join(proofs)
        return replace(least, proof=proof + beyond * any(one.proof.endswith(beyond) for one in told))

    def _at(self, stage: Stage, found: list[dict[str, Any]], result: Result, alone: Alone, patch: Patch) -> Verdict:
        """Compare with the references of a stage, the first of which was started when its finding was met."""
        clean = not result.findings
        differences: list[str] = []
        besides: list[str] = []
        of_loss = False
        codes = set(stage.codes)
        derived = partial(by_derivative, stage, found, result, alone)
        for kind in kinds_for(stage.codes, stage.after):
            if kind == "derivative":
                return derived()
            reference = stage.references.get(kind)
            codes -= {"handed": {HANDED}, "recast": {CAST}}.get(kind, set())
            codes.update(one.code for one in reference.result.findings)
            codes -= {ASKED} if kind == "before" else set()  # it asks as it did; the answer is another
            if not reference.result.calls and not codes & {DRIFT, *WITHOUT}:
                return derived()  # as of compiled code, which preserving does not reach
            if not reference.result.calls or codes & set(WITHOUT):
                break
            compared = comparison.compare(reference.events, found, truncated=kind in ("step", "backward"))
            same = not compared.difference
            # Where gradients may be others with good reason, so may what optimizers make of them.
            others = comparison.besides(
                reference.events,
                found,
                exact=same and compared.exact,
                stepped=same and kind in WHOLE,
                kept=kind != "before",  # the program keeps what was overwritten, and the patch gives it the old value
            )
            if others and DRIFT in codes:  # what a region changes twice as it is, it changes once in the last reference
                besides.append(others)
                continue
            if same and compared.exact and kind in WHOLE and kind != "before":
                others = others or _numbers_differ(stage.references, kind, found)
            if others and same:
                return Verdict(False, why=others, differs=True, result=result)
            if comparison.says_nothing(reference.events):
                differences.append("every gradient of the program is zero, which proves nothing")
            elif compared.difference:
                of_loss |= not differences and compared.of_loss
                differences.append(compared.difference)
            elif clean and not self._is_enough(compared, reference.result, result):
                differences.append(f"only {compared.calls} backward calls could be compared")
            elif reference.result.ended is Ended.WELL and result.calls > reference.result.calls:
                differences.append("the program then makes more backward calls")
            elif said := (
                self._used_otherwise(stage, compared, kind, found, result, patch)
                or self._other_output(stage, kind, reference.result, result)
            ):
                return Verdict(False, why=said, differs=True, result=result)
            else:
                whole = reference.result.went_through or reference.result.ends_like(result)
                if not whole and is_refused(codes):
                    return derived(said=f"{_counted(compared, reference.words)}; ")
                proof = _matches(compared, reference, result)
                return Verdict(True, clean, proof=proof, level=Level.PROVEN, result=result)
        if (differences and DRIFT not in codes) or (besides and not differences):
            return Verdict(False, why=[*differences, *besides][0], differs=True, of_loss=of_loss, result=result)
        for reference in stage.references.known():
            if left := comparison.lost_leaf(reference.events, found):
                why = f"`{left.rpartition(': ')[2]}` gets no gradient any more"
                return Verdict(False, why=why, differs=True, result=result)
        verdict = self._by_loss(evidence.read(self.search.evidence), found, result, codes)
        if verdict.right and codes == {UNDECLARED} and (how := own_agreement(stage, alone)):
            return Verdict(True, clean, proof=f"first loss the same; {how}", level=Level.CHECKED, result=result)
        return verdict

    def _used_otherwise(
        self,
        stage: Stage,
        compared: comparison.Comparison,
        kind: Kind,
        found: list[dict[str, Any]],
        result: Result,
        patch: Patch,
    ) -> str:
        """Return in words which step gets another gradient, or none any more, because of what is cut off, or which line
        of the program reads one: only what is carried from turn to turn may bring less, and a later step has no use for
        what others get.

        A step that the patch makes below the last backward of a run comes before the next one.
        """
        is_cut = kind in ("step", "backward")
        reference = stage.references.get("full" if is_cut else kind)
        full = reference.events
        if not (is_cut and stage.carries):
            before, lines = readers(stage.before, reference.result), readers(patch, result)
            if read := comparison.reads_differ(before.of(full), lines.of(found)):
                return read
            if (is_cut or compared.sums_differ) and (left := lines.unreached(found, result)):
                ends = None if lines.unknown else self._to_the_end(stage, patch)
                if ends is None or lines.unreached(ends[1], result):
                    return left
                if read := comparison.reads_differ(before.of(ends[0]), lines.of(ends[1])):
                    return read
        if not is_cut:
            return ""
        if result.ended is Ended.LIMIT and comparison.has_fewer_steps(full, found):
            more = replace(self._order("watch", patch), backwards=self.calls + 1)
            found = evidence.read(self._launcher.run(more).evidence)
        return (
            comparison.starved(full, found) if stage.carries else comparison.steps_differ(full, found, truncated=True)
        )

    def _to_the_end(self, stage: Stage, patch: Patch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
        """Return what the reference and the patched program come to in whole runs; None if one does not end soon."""
        longest = min(self._seconds, TO_THE_END)
        orders = stage.references.order, self._order("watch", patch)
        trials = [self._launcher.start(replace(one, backwards=sys.maxsize, seconds=longest)) for one in orders]
        one, other = (each.result() for each in trials)
        if not one.ended is other.ended is Ended.WELL:
            return None
        return evidence.read(one.evidence), evidence.read(other.evidence)

    def _by_loss(
        self, before: list[dict[str, Any]], found: list[dict[str, Any]], result: Result, codes: Iterable[str] = ()
    ) -> Verdict:
        """Compare the first loss, where there are no right gradients to compare with."""
        right, loss = comparison.first_loss(before), comparison.first_loss(found)
        if right is not None and loss is not None and not comparison.same_loss(right, loss):
            return Verdict(False, why="the first loss is different", differs=True, result=result)
        known = right is not None and loss is not None
        runs = f"it runs without an error or a finding{', and its first loss is the same' * known}; "
        of_none = _NOT_RIGHT if set(codes) & {DRIFT, *WITHOUT} else UNREACHED
        return without_gradients(result, runs, of_none if loss is not None else NO_BACKWARD)

    def _other_output(self, stage: Stage, kind: Kind, reference: Result, result: Result) -> str:
        """Return how the output or the end of a patched run differs from the reference; empty if it does not, or if
        the program prints something else in each run."""
        if reference.ended is Ended.EXIT and result.ended is Ended.WELL:
            return f"it ends well, and ended with {reference.error} before"
        said = printed.difference(reference, result)
        return "" if said and printed.difference(reference, stage.references.again(kind).result) else said

    def _ends_as_before(self, result: Result) -> bool:
        """Return True if nothing stops a patched program, or only what stops it without the patch too, which is not
        about in-place writes."""
        if result.went_through:
            return True
        for stage in self._stages:
            for kind in kinds_for(stage.codes, stage.after)[:1]:
                stage.references.get(kind)
        ends = [self.search, *(one.result for stage in self._stages for one in stage.references.known())]
        others = [one for one in ends if not one.error.startswith("ClobberError") and not one.findings]
        return any(one.ends_like(result) for one in others)

    def _is_enough(self, compared: comparison.Comparison, reference: Result, result: Result) -> bool:
        """Return True if enough backward calls were compared: those up to the finding, and all that were asked for
        if there was time for them."""
        first = min(reference.calls, self.search.found_at or 1)
        if result.ended is Ended.LIMIT and result.calls < self.calls:
            return compared.calls >= first
        return compared.calls >= first and compared.calls + compared.displaced >= min(reference.calls, self.calls)

    def drift(self) -> str:
        """Return how a second reference run, or a second search, differs from the first; empty if it does not."""
        last = self._stages[-1]
        kind = next(iter(kinds_for(last.codes, last.after)), None)
        if kind is None:
            again = self._launcher.run(Order("search", self.calls, self._seconds))
            verdict = self._by_loss(evidence.read(self.search.evidence), evidence.read(again.evidence), again)
            return verdict.why if verdict.differs else ""
        once, twice = last.references.get(kind), last.references.again(kind)
        compared = comparison.compare(once.events, twice.events)
        return (
            compared.difference
            or comparison.besides(once.events, twice.events, exact=compared.exact)
            or printed.difference(once.result, twice.result)
        )


def _numbers_differ(references: References, kind: Kind, found: list[dict[str, Any]]) -> str:
    return comparison.numbers_differ(references.get(kind).events, found, lambda: references.again(kind).events)


def _counted(compared: comparison.Comparison, words: str) -> str:
    how = "to the last bit" if compared.exact else "within 1e-5 of the largest magnitude (float32)"
    return f"{counted(compared.calls, 'backward call')} compared, all gradients correct {how}{words}"


def _matches(compared: comparison.Comparison, reference: Reference, result: Result) -> str:
    words = _counted(compared, reference.words)
    if reference.result.went_through:
        return words
    if reference.result.ends_like(result):
        return f"{words}; then {result.failure}, but not because of an in-place write"
    return f"{words}; {BEYOND}"


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
