"""Applies hints: writes in place where that lowers the peak of memory, and keeps what a run proves and measures."""

from __future__ import annotations

import sys
from collections.abc import Callable

from noclobber.fix.edits.patch import Patch
from noclobber.fix.edits.source import Misfit
from noclobber.fix.proof.repairs import Applied, AppliedHints
from noclobber.fix.proof.trials import printed
from noclobber.fix.proof.trials.job import Ended, Mode, Order, Result
from noclobber.fix.proof.trials.launcher import Launcher, Trial
from noclobber.mend.change import Change
from noclobber.mend.cures import candidates
from noclobber.model.reports.finding import Finding
from noclobber.model.seen.hints import Opportunity
from noclobber.model.units import counted, size
from noclobber.observe.gradient_trace import comparison, evidence

WITHIN = 0.05
"""How far the measured fall of the peak may be from what was announced, as a part of that."""
ROUNDS = 16
"""Hints that are tried."""


class HintTrials:
    """Goes from hint to hint: the one that lowers the peak the furthest first, then again with that one applied."""

    def __init__(self, launcher: Launcher, search: Result, seconds: float) -> None:
        self._launcher = launcher
        self._search = search
        self._seconds = seconds
        self._done = AppliedHints(search.unseen)
        self._bare: Result | None = None

    def carry_out(self, tell: Callable[[str], None]) -> AppliedHints:
        """Apply what can be applied."""
        done, search = self._done, self._search
        tell("measuring the peak of the program as it is")
        self._bare, done.peak = self._run("bare", Patch()), self._run("memory", Patch()).peak
        for _ in range(ROUNDS):
            withdrawn = [_spelled(one) for one, _ in done.withdrawn]
            hint = next((one for one in _hints(search) if _spelled(one) not in withdrawn), None)
            if hint is None:
                break
            if (why := self._try(hint, tell)) is None:
                search = self._run("hints", done.patch)
            else:
                done.withdrawn.append((done.patch.unpatched(hint), why))
        return done

    def _try(self, hint: Finding, tell: Callable[[str], None]) -> str | None:
        """Apply a hint. Return None if it was kept, else why not."""
        done, why = self._done, "no change of the source is known for it"
        for candidate in candidates(hint, done.patch.read):
            tell(f"trying: {candidate.title}")
            try:
                patch = done.patch.edited(candidate.edits)
                verdict = self._judged(hint, candidate, patch)
            except (Misfit, OSError) as reason:
                why = str(reason)
                continue
            if isinstance(verdict, Applied):
                done.applied.append(verdict)
                done.patch, done.peak = patch, verdict.after
                return None
            why = verdict
        return why

    def _judged(self, hint: Finding, candidate: Change, patch: Patch) -> Applied | str:
        watched, memory, bare = (self._start(mode, patch) for mode in ("watch", "memory", "bare"))
        if why := self._differs(bare.result()):
            watched.end()
            memory.end()
            return why
        result = watched.result()
        if result.findings or result.ended is not Ended.WELL:
            return "in place, a gradient is wrong" if result.findings else result.failure
        before, after = self._done.peak, memory.result().peak
        if before is None or after is None:
            return "the peak cannot be measured: the program uses a profiler"
        promised = _alone(hint)
        if abs(before - after - promised) > WITHIN * promised:
            fell = f"the measured peak falls by {size(max(before - after, 0))}, and not by {size(promised)}"
            return f"{fell}: it counts what operators take for themselves"
        calls = f"{counted(bare.result().calls, 'backward call')} compared, all gradients the same to the last bit"
        proof = calls if bare.result().calls else "the output is the same"
        return Applied(self._done.patch.unpatched(hint), candidate.title, before, after, proof)

    def _differs(self, result: Result) -> str:
        """Return how a patched run under PyTorch alone differs from the program as it is; empty if it does not."""
        right = self._bare
        assert right is not None
        if result.crash or result.ended is not Ended.WELL or result.calls != right.calls:
            return result.crash or result.error or "the program ends differently"
        one, other = evidence.read(right.evidence), evidence.read(result.evidence)
        compared = comparison.compare(one, other)
        if not compared.calls and not right.printed:
            return "nothing can be compared: the program runs no backward and prints nothing"
        differing = (
            compared.difference or comparison.besides(one, other, exact=True) or printed.difference(right, result)
        )
        if not differing and not comparison.identical(one, other):
            return "gradients, parameters or buffers differ in the last bits"
        return differing

    def _run(self, mode: Mode, patch: Patch) -> Result:
        return self._start(mode, patch).result()

    def _start(self, mode: Mode, patch: Patch) -> Trial:
        return self._launcher.start(Order(mode, sys.maxsize, self._seconds, served=patch.served))


def _hints(search: Result) -> list[Finding]:
    """The hints that lower the peak, whatever becomes of the others; the one that lowers it the furthest first."""
    return sorted(filter(_alone, search.hints), key=_alone, reverse=True)


def _alone(finding: Finding) -> int:
    """Bytes that the peak falls by if this hint is the only one that is followed."""
    return finding.event.alone if isinstance(finding.event, Opportunity) else 0


def _spelled(finding: Finding) -> tuple[object, ...]:
    """What a hint is about. Its line may have moved by a patch, its text may not."""
    label, hint = finding.primary, finding.event
    where = None if label is None else (label.span.path, label.source, label.span.column)
    return (where, hint.op, hint.spelling.name) if isinstance(hint, Opportunity) else (where,)
