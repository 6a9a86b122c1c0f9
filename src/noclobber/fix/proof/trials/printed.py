"""What two runs of a program print: the same words, and the same numbers up to rounding."""

from __future__ import annotations

import math
import re
from itertools import zip_longest

from noclobber.fix.proof.trials.job import Ended, Result

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?!\w)")
_WITHIN = 1e-3
_LONGEST = 60


def difference(right: Result, found: Result) -> str:
    """Return in words the first line that differs between two runs; empty if none does.

    If a run was stopped, only as much is compared as it had printed by then.
    """
    whole = right.ended is found.ended is not Ended.LIMIT
    one, other = (_lines(each.printed, whole) for each in (right, found))
    if not whole:
        shorter = min(len(one), len(other))
        one, other = one[:shorter], other[:shorter]
    for number, (line, its) in enumerate(zip_longest(one, other), 1):
        if line is None or its is None:
            return f"it prints {'more' if line is None else 'less'} than before, from line {number} on"
        if not _alike(line, its):
            return f"line {number} of what it prints is {_quoted(its)}, and was {_quoted(line)}"
    return ""


def _lines(text: str, whole: bool) -> list[str]:
    """The lines; where a run was stopped, without one that was under way."""
    lines = text.splitlines()
    return lines if whole or text.endswith(("\n", "\r")) else lines[:-1]


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    return all(map(_close, _NUMBER.findall(one), _NUMBER.findall(other)))


def _close(one: str, other: str) -> bool:
    """Whole numbers count something, and must be the same."""
    if one.lstrip("+-").isdigit() or other.lstrip("+-").isdigit():
        return one == other
    return math.isclose(float(one), float(other), rel_tol=_WITHIN)


def _quoted(line: str) -> str:
    return f"`{line if len(line) <= _LONGEST else f'{line[: _LONGEST - 1]}…'}`"
