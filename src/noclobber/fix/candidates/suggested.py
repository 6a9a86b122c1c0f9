"""What the rule that made the finding suggests itself, where its suggestions carry edits."""

from __future__ import annotations

from collections.abc import Iterator

from noclobber.fix.candidate import Candidate
from noclobber.model.finding import Finding


def suggested(finding: Finding, cost: int = 0) -> Iterator[Candidate]:
    """The suggestions with edits, in their order."""
    for number, one in enumerate(finding.suggestions):
        if one.edits:
            title = one.message.partition(" (")[0].removeprefix("or ").removeprefix("and ")
            yield Candidate(title, one.edits, cost + number)
