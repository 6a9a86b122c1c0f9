"""Notes and help for weights that an optimizer changed too early: two losses, a carried state, a graph built once."""

from __future__ import annotations

from typing import Literal

from noclobber.model.clobber import Clobber
from noclobber.model.events import Write
from noclobber.model.finding import Suggestion
from noclobber.rules.labels import later, looped, site_of, subject, writer_in_words
from noclobber.rules.sourcetext import path_to, source, text_of
from noclobber.rules.wording import node_in_words

Situation = Literal["carried", "built once", "same pass"]


def situation(clobber: Clobber, write: Write) -> Situation:
    """How the step came between save and read.

    Where the source has the read before the step, a loop went round between them: the graph is one of an earlier
    iteration, "built once" where it was saved outside that loop, else "carried".
    """
    step, read, save = site_of(write), clobber.read.site, clobber.save.site
    if step is None or read is None or not later(step, read):
        return "same pass"
    if (
        save is not None
        and save.code is step.code
        and not looped(step.code, min(save.lasti, read.lasti), max(save.lasti, step.lasti))
    ):
        return "built once"
    return "carried"


def step_note(clobber: Clobber, write: Write) -> str:
    """Why the old weights are needed."""
    op, name = node_in_words(clobber.save.node), subject(clobber.save.tensor)
    note = (
        f"the backward of {op} computes with {name} as it was in forward; {writer_in_words(write)} has changed it since"
    )
    if situation(clobber, write) != "same pass":
        note += ": this graph was built before that step, in an earlier iteration or before the loop"
    return note


def step_cures(clobber: Clobber, write: Write) -> tuple[Suggestion, ...]:
    """Move the step, run the forward again, or detach: in the order that fits the situation."""
    now = situation(clobber, write)
    if now == "carried":
        return (
            Suggestion(
                "detach what is carried into the next iteration (`state = state.detach()`) instead of `retain_graph=True`"
            ),
            Suggestion("where nothing should be carried, run the whole forward again in each iteration"),
        )
    if now == "built once":
        return (
            Suggestion("run this forward inside the loop, after each step: a graph serves one backward and one step"),
        )
    return (
        Suggestion(f"run every backward before the steps{_places(clobber, write)}"),
        Suggestion("or run the forward again after the step, so that this backward meets the new weights"),
        Suggestion("or detach what this backward should not reach: `loss = criterion(net(fake.detach()))`"),
    )


def _places(clobber: Clobber, write: Write) -> str:
    """ ": move `opt.step()` below line 25", where both are in one piece of code."""
    step, read = site_of(write), clobber.read.site
    if step is None or read is None or step.code is not read.code:
        return ""
    path = path_to(step)
    text = source(text_of(step), path[-1]) if path else ""  # type: ignore[arg-type]
    what = f"`{text}`" if text and "\n" not in text and len(text) <= 60 else f"the step on line {step.line}"
    return f": move {what} below line {read.line}"
