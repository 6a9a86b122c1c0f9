"""A candidate among the suggestions of the rule: in the place of the one that says the same in words, else first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from noclobber.fix.candidate import Candidate
from noclobber.model.finding import Applicability, Suggestion

_SAME = tuple(
    (re.compile(title), re.compile(message))
    for title, message in (
        (r"write into a clone", r"write into a clone|work on a copy|write take a clone"),
        (r"autograd keeps?\b|be a clone", r"save a copy|read a copy|give the forward a clone|clone the value"),
        (r"give `.*` a clone", r"give .* a (?:clone|copy)"),
        (r"copies of its|a local copy", r"a local copy|read a copy"),
        (r"with the new `", r"functional_call"),
        (r"a copy of `.*` of its own", r"a copy of its own"),
        (r"detach", r"detach"),
        (r"inplace", r"inplace=False"),
        (r"torch\.no_grad\(\)", r"inside `with torch\.no_grad"),
        (r"instead of `inference_mode`", r"instead of `torch\.inference_mode"),
        (r"make the views", r"make the view "),
        (r"take each view", r"take each view"),
        (r"index instead", r"index instead"),
        (r"which is mapped", r"a mapped one"),
        (r"own bytes|bytes of its own|numpy a copy", r"bytes of its own|where the tensor is made"),
        (r"register the hook", r"register the hook"),
        (r"mark_dirty", r"mark_dirty"),
        (r"save_for_backward", r"save_for_backward"),
        (r"broadcast", r"broadcast_buffers"),
        (r"in a list", r"in a list"),
        (r"keep the graph", r"pass `retain_graph=True`"),
        (r"after .*\bbackwards?\b|backward before|update first", r"backward before|after the (?:last )?backward"),
        (r"out of place|\bbind\b|new (?:tensor|gradient)", r"out of place|\b(?:re)?bind|new (?:tensor|value|name)"),
    )
)
"""The same change in the title of a candidate and in the words of the rules."""
_BEGIN = re.compile(r"(?:or )?(?:where [^,]*, )?")
"""What leads from one suggestion to the next, and when it is meant."""
_COST = re.compile(r" \([^()]* more\)")


def joined(candidate: Candidate, own: Sequence[Suggestion]) -> tuple[Suggestion, ...]:
    """The suggestions of a rule with a candidate, which nobody has run."""
    exact = Suggestion(candidate.title, candidate.edits, Applicability.UNPROVEN)
    for number, one in enumerate(own):
        if any(title.search(candidate.title) and message.search(one.message) for title, message in _SAME):
            begin, cost = _BEGIN.match(one.message), _COST.search(one.message)
            if candidate.title.startswith("write into a clone"):
                cost = None  # the rule counts what is written, and a clone is of the whole tensor
            message = f"{begin[0] if begin else ''}{candidate.title}{cost[0] if cost else ''}"
            return (*own[:number], replace(exact, message=message), *own[number + 1 :])
    return (exact, *(replace(one, message=f"or {one.message.removeprefix('or ')}") for one in own[:1]), *own[1:])
