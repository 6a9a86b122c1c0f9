"""The possible meanings of a write outside of autograd, each with the gradients that it gives.

No run can decide which is meant, so none is proven, chosen or written.
"""

from __future__ import annotations

from typing import Any

from noclobber.fix.edits.patch import Patch
from noclobber.fix.edits.source import Misfit
from noclobber.fix.proof.repairs import Reading
from noclobber.fix.proof.verdicts import Prover, is_there
from noclobber.mend import meanings
from noclobber.mend.meanings import Meaning
from noclobber.model.reports.finding import Finding
from noclobber.observe.gradient_trace import comparison, evidence

_LEAVES = 3
"""Leaves whose gradients are shown."""


def readings(prover: Prover, finding: Finding, before: Patch) -> list[Reading]:
    """Return the program as it is, and with each change that states one meaning, runs, and removes the finding."""
    trials = []
    for meaning, one in meanings.readings(finding, before.read):
        try:
            patch = before.edited(one.edits)
            trials.append((meaning, one.title, patch, prover.start(patch)))
        except (Misfit, OSError):
            continue
    bare = prover.start(before, "bare").result()
    found = [Reading("as it is", _gradients(bare.evidence))]
    preserved = prover.as_it_is.get("full").events
    for meaning, title, patch, trial in trials:
        result = trial.result()
        stopped = not (result.went_through or result.ends_like(bare))
        if stopped or any(is_there(finding, one, before, patch) for one in result.findings):
            continue
        if _keeps_what_it_says(evidence.read(result.evidence), preserved, meaning):
            found.append(Reading(f"{meaning.value}: {title}", _gradients(result.evidence), patch))
    return found


def _keeps_what_it_says(events: list[dict[str, Any]], preserved: list[dict[str, Any]], meaning: Meaning) -> bool:
    """Return True if a change computes the same loss as the preserved run, and no leaf loses its gradient. If the
    gradient should pass, it must also be equal. Where only foreign code should see the write, the loss is another."""
    right, loss = comparison.first_loss(preserved), comparison.first_loss(events)
    if right is None or loss is None:
        return True
    if comparison.lost_leaf(preserved, events):
        return False
    if meaning is not Meaning.ASIDE and not comparison.same_loss(right, loss):
        return False
    return not (meaning is Meaning.PASSED and comparison.compare(preserved[:1], events[:1]).difference)


def _gradients(path: str) -> str:
    """The norms of the gradients of the first backward, by leaf: "`net.weight` 3.1, `net.bias` 0"."""
    calls = [one for one in evidence.read(path) if one["kind"] in ("backward", "grad")]
    if not calls:
        return "no backward ends"
    first = next((one for one in calls if one["leaves"]), calls[0])
    got = [(name.rpartition(": ")[2] or "a leaf", gradient) for _, gradient, name in first["leaves"]]
    got = got or [(f"gradient {number}", one) for number, one in enumerate(first["returned"], 1) if one is not None]
    words = ", ".join(f"`{name}` {evidence.norm(gradient):.4g}" for name, gradient in got[:_LEAVES])
    return words + (f" and {len(got) - _LEAVES} more" if len(got) > _LEAVES else "") if got else "no leaf gets one"
