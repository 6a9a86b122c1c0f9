"""Mends one finding after another: tries what may mend it, and keeps what is proven and costs least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from noclobber.fix.candidate import Candidate

try:
    from noclobber.fix.candidates import candidates
except ImportError:

    def candidates(finding, read):
        return [Candidate(s.message, s.edits) for s in finding.suggestions if s.edits]


from noclobber.fix.patch import Patch
from noclobber.fix.prove import Prover, Verdict
from noclobber.fix.source import Misfit
from noclobber.model.finding import Finding

ROUNDS = 8
MOST_TRIALS = 6
"""Candidates that are tried for one finding."""
MOST_PROVEN = 2
"""Proven ones among equals that are compared for what they cost."""


@dataclass(frozen=True, slots=True)
class Mended:
    """A finding, and what mends it. `extra`: bytes more that the first backward finds saved, None where unknown.

    Where not `proven`, `proof` says why not.
    """

    finding: Finding
    title: str
    extra: int | None
    proof: str
    proven: bool = True


@dataclass(slots=True)
class Mending:
    """What came of it. `left` are findings without a proven patch, each with what was tried and why it fell through."""

    patch: Patch = field(default_factory=Patch)
    mended: list[Mended] = field(default_factory=list)
    left: list[tuple[Finding, list[tuple[str, str]]]] = field(default_factory=list)
    unproven: list[tuple[Mended, Patch]] = field(default_factory=list)
    bare: str = ""
    """Why the whole patch fails under bare PyTorch; empty where it does not."""


@dataclass(frozen=True, slots=True)
class _Tried:
    candidate: Candidate
    patch: Patch
    verdict: Verdict


class Mender:
    """Goes from finding to finding until none is left, or none can be mended."""

    def __init__(self, prover: Prover, tell: Callable[[str], None]) -> None:
        self._prover = prover
        self._tell = tell
        self._done = Mending()
        self._refused: set[tuple[tuple[str, str], ...]] = set()

    def mend(self) -> Mending:
        """Mend what the search found."""
        done = self._done
        findings = list(self._prover.search.findings)
        for _ in range(ROUNDS):
            waiting = [one for one in findings if not self._is_left(one)]
            if not waiting:
                break
            chosen = self._best(waiting[0])
            if chosen is not None:
                findings = list(chosen.verdict.result.findings) if chosen.verdict.result else []
                done.left = [(one, tried) for one, tried in done.left if one in findings]
        done.left += [(one, []) for one in findings if not self._is_left(one)]
        return done

    def _is_left(self, finding: Finding) -> bool:
        return any(finding.identity() == one.identity() for one, _ in self._done.left)

    def _best(self, finding: Finding) -> _Tried | None:
        """Mend one finding; None where nothing that is tried is proven."""
        done, prover = self._done, self._prover
        prover.meet(finding)
        proven: list[_Tried] = []
        failed: list[tuple[str, str]] = []
        differing: list[_Tried] = []
        trials = 0
        for candidate in sorted(_candidates(finding, done.patch), key=lambda one: one.cost):
            if proven and (candidate.cost > proven[0].candidate.cost or len(proven) >= MOST_PROVEN):
                break
            if trials >= MOST_TRIALS:
                break
            try:
                patch = done.patch.edited(candidate.edits)
            except (Misfit, OSError) as reason:
                failed.append((candidate.title, str(reason)))
                continue
            if patch.key() in self._refused:
                continue
            self._refused.add(patch.key())
            trials += 1
            self._tell(f"trying: {candidate.title}")
            verdict = prover.try_out(patch, done.patch, finding)
            if verdict.right and verdict.clean:
                bare = prover.try_out(patch, done.patch, finding, "bare")
                if not bare.right:
                    verdict = Verdict(False, why=f"under PyTorch alone {bare.why}", differs=bare.differs)
            one = _Tried(candidate, patch, verdict)
            if verdict.right:
                proven.append(one)
            else:
                failed.append((candidate.title, verdict.why))
                if verdict.differs:
                    differing.append(one)
        if proven:
            best = min(proven, key=_price)
            done.mended.append(self._mended(finding, best))
            done.patch = best.patch
            return best
        if differing and not prover.is_deterministic():
            one = differing[0]
            why = "the program is not deterministic: it gives other gradients each time, so nothing can be proven"
            done.unproven.append((Mended(finding, one.candidate.title, None, why, proven=False), one.patch))
        done.left.append((finding, failed))
        return None

    def _mended(self, finding: Finding, best: _Tried) -> Mended:
        before, result = self._prover.search.saved, best.verdict.result
        after = result.saved if result is not None else None
        extra = after - before if before is not None and after is not None else None
        return Mended(finding, best.candidate.title, extra, best.verdict.proof)


def _price(tried: _Tried) -> tuple[bool, int, int]:
    """Fewest bytes first, then the smallest diff."""
    result = tried.verdict.result
    saved = result.saved if result is not None else None
    return (saved is None, saved or 0, tried.patch.lines)


def _candidates(finding: Finding, patch: Patch) -> list[Candidate]:
    return candidates(finding, patch.read)
