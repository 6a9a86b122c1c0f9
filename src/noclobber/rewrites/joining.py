"""Puts a change first among a rule's suggestions, and drops the suggestion that says the same in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from noclobber.model.finding import Suggestion

_SAME = tuple(
    (re.compile(title), re.compile(message))
    for title, message in (
        (r"clone of the result", r"write out of place|save a copy|write into a clone"),
        (r"write into a clone", r"write into a clone|work on a copy|write take a clone"),
        (r"autograd keep", r"save a copy|read a copy|give the forward a clone|clone the value"),
        (r"give the Function a clone", r"give .* a (?:clone|copy)"),
        (r"inplace", r"inplace=False"),
        (r"torch\.no_grad\(\)", r"inside `with torch\.no_grad"),
        (r"instead of `inference_mode`", r"instead of `torch\.inference_mode"),
        (r"^move .* below", r"before the steps|after the (?:last )?backward"),
        (
            r"out of place|new tensor",
            r"out of place|\b(?:re)?bind|new (?:tensor|gradient|value|name)|detach\(\)|squeeze",
        ),
        (r"clone the value", r"clone the value"),
        (r"which is mapped", r"from a mapped one"),
    )
)
"""The same change in the title of a rewrite and in the words of the rules."""


def joined(sound: Suggestion, own: Sequence[Suggestion]) -> tuple[Suggestion, ...]:
    """The suggestions of a rule with a change that is sound."""
    same = (one for one in own if any(t.search(sound.message) and m.search(one.message) for t, m in _SAME))
    known = next(same, None)
    rest = [one for one in own if one is not known]
    return (sound, *(replace(one, message=f"or {one.message.removeprefix('or ')}") for one in rest[:1]), *rest[1:])
