"""Fixes one finding after another: tries candidates, the cheapest first, and keeps the first that is proven."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from noclobber.fix.edits.patch import Patch
from noclobber.fix.edits.source import Misfit
from noclobber.fix.proof.readings import readings
from noclobber.fix.proof.repairs import Level, Repair, Repairs, Verdict
from noclobber.fix.proof.trials.job import Result
from noclobber.fix.proof.trials.launcher import Trial
from noclobber.fix.proof.verdicts import Prover
from noclobber.mend import meanings
from noclobber.mend.autograd.seen_by_autograd import let_see
from noclobber.mend.change import LAST_RESORT, Change
from noclobber.mend.cures import candidates
from noclobber.mend.scene import is_of_intent
from noclobber.mend.shown import fitted
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.shared_writes import of_one_write
from noclobber.model.seen.silent import Untracked

ROUNDS = 8
AT_ONCE = 2
"""Candidates that are run at the same time. Beside the first runs what it is compared with."""
_UNPROVEN = "this patch removes the finding, but another one is left"


@dataclass(frozen=True, slots=True)
class _Running:
    candidate: Change
    patch: Patch
    watched: Trial
    bare: Trial | None
    """The run under PyTorch alone, if it was started."""

    def end(self) -> None:
        """End what still runs."""
        for trial in (self.watched, self.bare):
            if trial is not None:
                trial.end()


@dataclass(frozen=True, slots=True)
class _Tried(_Running):
    verdict: Verdict


@dataclass(slots=True)
class _Attempt:
    """What was tried for one finding."""

    proven: list[_Tried] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    differing: list[_Tried] = field(default_factory=list)
    trials: int = 0

    @property
    def clean(self) -> list[_Tried]:
        """The proven candidates that leave nothing to fix."""
        return [one for one in self.proven if one.verdict.clean]

    def ordered(self) -> list[_Tried]:
        """Return the best first: what leaves nothing to fix, and then what was compared."""
        clean = sorted(self.clean, key=lambda one: one.verdict.comparable)
        return clean + [one for one in self.proven if not one.verdict.clean]

    def is_enough(self, following: Change) -> bool:
        """Return True if the `following` candidate, and all after it, are not needed. One that leaves findings of the
        same write is not enough."""
        if self.clean:
            return following.cost >= LAST_RESORT or not all(one.verdict.comparable for one in self.clean)
        return any(one.verdict.elsewhere for one in self.proven)


class RepairSearch:
    """Goes from finding to finding until none is left, or no more can be fixed."""

    def __init__(
        self, prover: Prover, tell: Callable[[str], None], before: Patch | None = None, *, unproven: bool = False
    ) -> None:
        self._prover = prover
        self._unproven = unproven
        """Whether to use a patch that cannot be compared, because the program differs from run to run."""
        self._tell = tell
        self._done = Repairs(before or Patch())
        self._saved = prover.search.saved
        """The most bytes saved at the start of a backward, with the patch so far."""
        self._found_in = prover.search
        """The run with the patch so far."""
        self._differing = False
        """Whether a patch is used that could not be compared."""
        self._seen: set[tuple[tuple[tuple[str, str], ...], frozenset[str]]] = set()
        self._steps: list[tuple[Patch, _Tried]] = []
        """What was chosen, each with the patch before it."""
        self._been = {self._done.patch.key()}
        """The programs so far: a change that leads back to one of them is none."""

    def search(self) -> Repairs:
        """Fix what the search found."""
        done = self._done
        findings = _to_fix(self._prover.search)
        for _ in range(ROUNDS):
            waiting = [one for one in findings if not self._is_left(one)]
            if not waiting:
                break
            chosen = self._best(waiting[0], findings)
            if chosen is not None:
                self._found_in = chosen.verdict.result or self._found_in
                findings = _to_fix(chosen.verdict.result) if chosen.verdict.result else []
                there = {one.identity() for one in findings}
                done.left = [(one, tried) for one, tried in done.left if one.identity() in there]
        done.left += [(one, []) for one in findings if not self._is_left(one)]
        self._without_needless()
        done.left = [(self._done.patch.unpatched(one), tried) for one, tried in done.left]
        last = done.repairs[-1] if done.repairs and not done.left else None
        proof, level = (last.proof, last.level) if last is not None else (_UNPROVEN, Level.UNPROVEN)
        level = Level.UNPROVEN if self._differing else level
        done.repairs = [replace(one, proof=proof + one.note, level=level) for one in done.repairs]
        return done

    def _without_needless(self) -> None:
        """Take out what a later change has made needless: each was chosen while others were still to come."""
        done = self._done
        if done.left or done.unproven or self._differing or len(self._steps) != len(done.repairs):
            return
        for at, (before, one) in enumerate(self._steps[:-1]):
            try:
                patch = done.patch.edited(done.patch.undoing(before, one.patch))
            except Misfit:
                continue
            self._tell(f"trying without: {one.candidate.title}")
            finding, last = done.repairs[at].finding, self._steps[-1][1].candidate
            both = [self._prover.start(patch, mode) for mode in ("watch", "bare")]
            verdicts = [self._verdict(trial, patch, Patch(), finding, last) for trial in both]
            least = max(verdicts, key=lambda verdict: list(Level).index(verdict.level))
            is_as_sure = least.level is done.repairs[-1].level is not Level.UNPROVEN
            if is_as_sure and all(verdict.right and verdict.clean for verdict in verdicts):
                done.patch = patch
                done.repairs[at] = replace(done.repairs[at], title=done.repairs[at + 1].title, extra=0)
                done.repairs[-1] = replace(done.repairs[-1], proof=least.proof, level=least.level)

    def _verdict(self, trial: Trial, patch: Patch, before: Patch, finding: Finding, one: Change) -> Verdict:
        return self._prover.judge(trial, patch, before, finding, way=one.way, is_sound=one.is_sound)

    def _is_left(self, finding: Finding) -> bool:
        return any(finding.identity() == one.identity() for one, _ in self._done.left)

    def _best(self, finding: Finding, findings: list[Finding]) -> _Tried | None:
        """Fix one finding; None if no candidate is proven."""
        done = self._done
        found = _with_those_beside(candidates(finding, done.patch.read), finding, findings, done.patch.read)
        if is_of_intent(finding):
            found = [one for one in found if one.is_sound]
            # Nothing but what backward saved may show the write, or nothing tells what the gradient without it is.
            if not found and not any(isinstance(one.event, Untracked) for one in findings):
                found = candidates(finding, done.patch.read, (let_see,))
        if found or not is_of_intent(finding):
            self._prover.meet(finding, findings, self._found_in, done.patch)
        attempt = self._attempted(finding, found)
        for one in attempt.ordered():
            # With the saves kept the gradient leaves the write out: what is equal to that is right in each meaning.
            if is_of_intent(finding) and not one.candidate.is_sound and one.verdict.level is not Level.PROVEN:
                continue
            if (why := self._alone(one, finding, attempt)) is None:
                done.repairs.append(self._repair(finding, one, attempt))
                self._steps.append((done.patch, one))
                done.patch = one.patch
                self._been.add(one.patch.key())
                return one
            attempt.failed.append((one.candidate.title, f"under PyTorch alone: {why}"))
        if is_of_intent(finding) or meanings.readings(finding, done.patch.read):
            self._tell("running each possible meaning")
            meant = readings(self._prover, finding, done.patch)
            if is_of_intent(finding) or len(meant) > 1:
                done.asked.append((done.patch.unpatched(finding), meant))
                done.left.append((finding, []))
                return None
        if attempt.differing and (drift := self._prover.drift()):
            why = f"nothing can be proven, because the program differs from run to run even without a patch: {drift}"
            offered = min(attempt.differing, key=lambda one: not one.candidate.is_sound)
            there = done.patch.unpatched(finding)
            told = Repair(there, offered.candidate.title, None, why, Level.UNPROVEN)
            if self._unproven:
                self._differing = True
                done.repairs.append(told)
                done.patch = offered.patch
                return offered
            done.unproven.append((told, offered.patch))
        done.left.append((finding, attempt.failed))
        return None

    def _attempted(self, finding: Finding, found: list[Change]) -> _Attempt:
        """Try candidates in their order until enough is known."""
        attempt = _Attempt()
        waiting, running = deque(found), deque[_Running]()
        while (waiting or running) and not attempt.is_enough(running[0].candidate if running else waiting[0]):
            if waiting and len(running) < (AT_ONCE if attempt.proven or attempt.failed else 1):
                candidate = waiting.popleft()
                self._tell(f"trying {len(found) - len(waiting)} of {len(found)}: {candidate.title}")
                if (one := self._begun(candidate, attempt)) is not None:
                    running.append(one)
            else:
                self._judge(running.popleft(), finding, attempt)
        for one in running:
            one.end()
            self._seen.discard(self._key(one.patch))
        return attempt

    def _key(self, patch: Patch) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
        return (patch.key(), frozenset(self._prover.codes))

    def _begun(self, candidate: Change, attempt: _Attempt) -> _Running | None:
        """Begin to run the program under watch with a candidate. Run the first, which is likely right, without watch
        too. None if there is nothing to run."""
        prover = self._prover
        try:
            patch = self._done.patch.edited(candidate.edits)
            if self._key(patch) in self._seen or patch.key() in self._been:
                return None
            self._seen.add(self._key(patch))
            watched = prover.start(patch)
        except (Misfit, OSError) as reason:
            attempt.failed.append((candidate.title, str(reason)))
            return None
        attempt.trials += 1
        return _Running(candidate, patch, watched, prover.start(patch, "bare") if attempt.trials == 1 else None)

    def _judge(self, run: _Running, finding: Finding, attempt: _Attempt) -> None:
        """Wait for the run of a candidate and note what it shows."""
        candidate, patch = run.candidate, run.patch
        verdict = self._verdict(run.watched, patch, self._done.patch, finding, candidate)
        one = _Tried(candidate, patch, run.watched, run.bare, verdict)
        if verdict.right:
            attempt.proven.append(one)
            return
        one.end()
        attempt.failed.append((candidate.title, verdict.why))
        if verdict.differs:
            attempt.differing.append(one)

    def _alone(self, one: _Tried, finding: Finding, attempt: _Attempt) -> str | None:
        """Return why a patch fails without watch; None if it does not, or if other findings must be fixed first."""
        for other in attempt.proven:
            if other is not one:
                other.end()
        if not one.verdict.clean:
            return None
        bare = one.bare or self._prover.start(one.patch, "bare")
        alone = self._verdict(bare, one.patch, self._done.patch, finding, one.candidate)
        return None if alone.right else alone.why

    def _repair(self, finding: Finding, best: _Tried, attempt: _Attempt) -> Repair:
        before, result = self._saved, best.verdict.result
        after = self._saved = result.saved if result is not None else None
        extra = after - before if before is not None and after is not None else None
        stepped = any(one.step is not None for one in finding.writes)
        other = next((one for one in attempt.differing if one.verdict.of_loss and not stepped), None)
        changes = "would change the loss: other code reads the written values"
        note = f"; `{other.candidate.title}` {changes}" if other else ""
        if is_of_intent(finding) and not best.candidate.is_sound:
            note += "; the gradient is the same whether it follows the write or leaves it out"
        verdict, there = best.verdict, self._done.patch.unpatched(finding)
        return Repair(there, best.candidate.title, extra, verdict.proof, verdict.level, note)


def _with_those_beside(
    found: list[Change], finding: Finding, findings: list[Finding], read: Callable[[str], str]
) -> list[Change]:
    """Return the candidates of a finding, the cheapest first, with what a report shows for it and other findings."""
    all_shown = fitted(findings, read)
    shown = next((change for one, change in all_shown if one is finding), None)
    if shown is None or any({*one.edits} >= {*shown.edits} for one in found):
        return found
    titles = dict.fromkeys(one.title for _, one in all_shown if one is not None and one.edits == shown.edits)
    at = next((number for number, one in enumerate(found) if one.cost >= shown.cost), len(found))
    return [*found[:at], replace(shown, title=", and ".join(titles)), *found[at:]]


def _to_fix(result: Result) -> list[Finding]:
    """Return the findings of a run. Those of one write that only the author can decide are one question."""
    asked = of_one_write(one for one in result.findings if is_of_intent(one))
    return [*(one for one in result.findings if not is_of_intent(one)), *asked]
