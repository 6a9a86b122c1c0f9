"""One program run under `preserve`, and whether its gradients are the right ones."""

from __future__ import annotations

import re
import warnings

import noclobber
from tests.fuzz.judge import HUGE, Outcome, Verdict, first_line, right_gradients, run, untame, wrong_gradient

LOST = re.compile(r"np\.|\.numpy|buf\b.*=|ctypes\.|dlpack")
"""Writes that torch does not see can't be kept from a save: of programs with these a raise is all that can be had."""
FREED = "Trying to backward through the graph a second time"
"""The oracle runs regions without a checkpoint; the backward inside a reentrant one frees more."""


def judge(source: str) -> Verdict:
    """QUIET where the gradients are right, REFUSED where the program can't be run to its end, else a fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right, kept = right_gradients(source), run(source, noclobber.preserve)
        if kept.error is None and right.error is None:
            if wrong := wrong_gradient(kept, right):
                return Verdict(Outcome.UNTAME if untame(kept, right, HUGE) else Outcome.ESCAPE, f"wrong {wrong}")
            return Verdict(Outcome.QUIET)
        if kept.error is None:
            return Verdict(Outcome.NO_ORACLE, first_line(right.error))
        if right.error is not None:
            return Verdict(Outcome.REFUSED, first_line(kept.error))
        if isinstance(kept.error, noclobber.ClobberError) and LOST.search(_body(source)):
            return Verdict(Outcome.RAISED, first_line(kept.error))
        if not isinstance(kept.error, noclobber.ClobberError):
            bare, checkpointed = run(source).error, "checkpoint(" in _body(source)
            if checkpointed and (FREED in str(kept.error) or bare is not None):
                return Verdict(Outcome.REFUSED, first_line(kept.error))
            if bare is not None and first_line(bare) == first_line(kept.error):
                return Verdict(Outcome.REFUSED, first_line(kept.error))
        return Verdict(Outcome.CHANGED, f"raises {type(kept.error).__name__}: {first_line(kept.error)}")


def _body(source: str) -> str:
    """A program without what every program begins with."""
    begin, mark, body = source.partition("for p in (x, w, b, k)]")
    return body if mark else begin
