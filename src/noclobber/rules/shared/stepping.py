"""Notes and help for weights that an optimizer changed too early: two losses, a carried state, a graph built once."""

from __future__ import annotations

import ast
from typing import Literal

from noclobber.model.reports.finding import PUT_BACK, Cure, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Write
from noclobber.model.source import Site
from noclobber.rules.shared import carrying
from noclobber.rules.shared.labels import later, line_to_show, subject, writer_in_words
from noclobber.rules.shared.wording import node_in_words
from noclobber.syntax.names import bound_by_loop, is_given, names_in
from noclobber.syntax.tree import place_of, walk

Situation = Literal["carried", "built once", "same pass"]


def situation(clobber: Clobber, write: Write) -> Situation:
    """How the step came between save and read.

    Where the source has the read before the step, a loop went round between them: the graph is one of an earlier
    iteration, "built once" where that was before the loop, else "carried". Or a function was called twice.
    """
    step, read, save = line_to_show(write), clobber.read.site, clobber.save.site
    if step is None or read is None or not later(step, read) or called_twice(clobber, write):
        return "same pass"
    states = clobber.carried if clobber.are_all_carried else ()
    return "built once" if carrying.built_once(read, save, states) else "carried"


def called_twice(clobber: Clobber, write: Write) -> tuple[int, int] | None:
    """The lines of one function that make the call which steps, and below it the call which goes backward."""
    pairs = zip(write.calls[:-1], clobber.read.calls[:-1], strict=False)
    one, other = next(((one, other) for one, other in pairs if one != other), (None, None))
    if one is None or other is None or one.code is not other.code or one.lasti >= other.lasti:
        return None
    return (one.line, other.line) if one.line < other.line else None


def step_note(clobber: Clobber, write: Write) -> str:
    """The note that says why backward needs the old weights."""
    op, name = node_in_words(clobber.save.node), subject(clobber.save.tensor, "parameter")
    needs = f"the backward of {op} computes with {name} as it was in forward"
    if clobber.restored:
        return f"{needs}; {PUT_BACK}"
    note = f"{needs}; {writer_in_words(write)} has changed it since"
    if not write.in_forward:
        note += ", inside a backward call"
    elif situation(clobber, write) != "same pass":
        note += ": this graph was built before that step, in an earlier iteration or before the loop"
    return note


def step_cures(clobber: Clobber, write: Write) -> tuple[Suggestion, ...]:
    """Move the step, run the forward again, or detach: in the order that fits the situation."""
    if not write.in_forward:
        return inside_backward(write, "step")
    now = situation(clobber, write)
    if now == "carried":
        detach = f"detach what is carried to the next iteration ({_detached(clobber)})"
        apart = (
            "run the forward inside the loop, or every backward before the first step; detach constants that were "
            "computed before the loop (targets, old log-probabilities)"
        )
        if clobber.carried or _retains(clobber.read.site):
            return Suggestion(f"{detach} instead of `retain_graph=True`"), Suggestion(f"if nothing is carried, {apart}")
        return Suggestion(apart), Suggestion(f"or, if something is carried: {detach}")
    if now == "built once":
        forward = "run this forward inside the loop, so that each backward reads the weights it was built with"
        later = (
            "run every backward before the first step: step in a second loop, after this one, and limit each backward "
            "to the weights of its own optimizer with `inputs=`; optimizers that share weights need the forward again"
        )
        constant = "or, if its result is a constant in the loop (a target, an old log-probability), detach it there"
        if carrying.may_be_constant(clobber):
            return Suggestion(carrying.constant(clobber)), Suggestion(f"or {forward}")
        if _has_turns(write):
            return (Suggestion(later, cure=Cure.LATER), Suggestion(f"or {forward}"))
        return (Suggestion(forward), Suggestion(f"or {later}", cure=Cure.LATER), Suggestion(constant))
    detach = "or detach what should not receive this gradient: `t.detach()` before it enters this loss"
    if lines := called_twice(clobber, write):
        calls = "the call on line {} steps, that on line {} goes backward".format(*lines)
        first = "make the later call first, if the other one zeroes its gradients before its backward"
        again = f"or run the forward again after line {lines[0]}, so that this backward reads the new weights"
        moved = Suggestion(f"run every backward before the steps: {calls}; {first}", cure=Cure.LATER)
        return moved, Suggestion(again), Suggestion(detach)
    once = "sum the losses, call `backward` once and step once: `(first + second).backward()`"
    return (
        *[Suggestion(once)] * _steps_again(clobber, write),
        Suggestion(
            f"run every backward before the steps{_places(clobber, write)}; call no `zero_grad()` in between, and "
            "limit a backward with `inputs=` if both losses reach the same weights",
            cure=Cure.LATER,
        ),
        Suggestion("or run the forward again after the step, so that this backward reads the new weights"),
        Suggestion(detach),
    )


def inside_backward(write: Write, change: str) -> tuple[Suggestion, ...]:
    """Return the help for weights that are changed inside a backward call, in a hook. `change` says so as an order."""
    later = f"{change} after the last backward that needs the weights has returned, not in a hook"
    once = (
        "checkpoint with `use_reentrant=False`: a hook on a weight that is used in several places then runs once, "
        "after all of them"
    )
    moved = Suggestion(f"or {later}" if write.nested else later, cure=Cure.LATER)
    return (Suggestion(once), moved) if write.nested else (moved,)


def _retains(read: Site | None) -> bool:
    """Return True if the function of a backward keeps a graph for another one."""
    place = place_of(read)
    scope = place.file.scope(place.node) if place is not None else None
    return scope is not None and any(is_given(one, "retain_graph", True) for one in walk(scope, ast.Call))


def _steps_again(clobber: Clobber, write: Write) -> bool:
    """Return True if the same optimizer steps below the backward too, in the same function."""
    step, read = line_to_show(write), clobber.read.site
    place = place_of(step)
    if place is None or step is None or read is None or step.code is not read.code:
        return False
    text, file = place.file.source(place.node), place.file
    calls = (one for one in walk(file.scope(place.node), ast.Call) if one.lineno > read.line)
    return any(file.source(one) == text for one in calls)


def _has_turns(write: Write) -> bool:
    """Return True if each turn of the loop steps another optimizer: `for opt in opts: ...; opt.step()`."""
    place = place_of(line_to_show(write))
    if place is None or not isinstance(place.node, ast.Call):
        return False
    return not names_in(place.node.func).isdisjoint(bound_by_loop(place.file, place.node))


def _detached(clobber: Clobber) -> str:
    """The call that detaches the state: an LSTM has a pair of tensors, which has no `detach`."""
    if node_in_words(clobber.save.node).startswith("lstm"):
        return "`state = tuple(t.detach() for t in state)`"
    return "`h = h.detach()`"


def _places(clobber: Clobber, write: Write) -> str:
    """ ": move `opt.step()` below line 25", where both are in one piece of code."""
    step, read = line_to_show(write), clobber.read.site
    if step is None or read is None or step.code is not read.code:
        return ""
    return f": move {spelled_call(step, 'the step')} below line {read.line}"


def spelled_call(site: Site, otherwise: str) -> str:
    """ "`opt.step()`" where the text at a site is short and on one line, else "the step on line 25"."""
    place = place_of(site)
    text = place.file.source(place.node) if place is not None else ""
    return f"`{text}`" if text and "\n" not in text and len(text) <= 60 else f"{otherwise} on line {site.line}"
