"""NC104 freed-graph: a backward goes through a graph that an earlier backward has already freed

What happens
    A backward frees what its graph saved. A later backward that reaches the same graph finds nothing, and PyTorch
    raises "Trying to backward through the graph a second time".

Why
    There are three causes, and they look alike. Two backwards go through the same part of the graph: for the same
    loss, or for two losses with a common part. Or the forward stands before a loop, and each turn of the loop goes
    backward through it. Or a tensor of an earlier iteration (a hidden state, a memory, a running loss) still carries
    its graph into this one.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    h = x.exp()
    h.sum().backward()
    h.prod().backward()

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    h = x.exp()
    (h.sum() + h.prod()).backward()

Notes
    For a carried state, write `h = h.detach()` at the end of each iteration; for the tuple of an LSTM,
    `state = tuple(part.detach() for part in state)`. `retain_graph=True` does not help there: the graph grows with
    every iteration, and once an optimizer has stepped the error turns into NC103.
    A forward before a loop that calls `backward` and `step`: move the forward into the loop, so that each turn
    computes its loss with the current weights. What no optimizer changes, such as the features of a frozen network, is
    a constant of the loop: `features = encoder(x).detach()`.
    If one graph really serves two backwards, pass `retain_graph=True` to the first.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from noclobber.model.reports.finding import Cause, Finding, Label, label
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import Event
from noclobber.rules.shared import carrying
from noclobber.rules.shared.account import Help, account
from noclobber.rules.shared.labels import inside_label
from noclobber.rules.shared.refusing import says
from noclobber.rules.shared.wording import node_in_words
from noclobber.rules.shared.writetext import write_of
from noclobber.syntax.names import dotted
from noclobber.syntax.writes import Form

MESSAGES = (
    "[Trying to backward through the graph a second time] (or directly [access saved tensors after they have already "
    "been freed]). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
    "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access saved "
    "tensors after calling backward.",
    "access saved variables after they have already been freed",
)

_HEADLINES = {
    True: "second backward through a graph that the first one has freed",
    False: "backward reaches into a graph of an earlier iteration, which is already freed",
    None: "backward through a graph that an earlier backward has freed",
}
_ONLY_ONCE = "a backward frees what its graph saved, so the graph can be used only once"
_NO_CURE = "`retain_graph=True` does not fix a carried state: the graph would grow with every iteration"
_NOTES = {True: _ONLY_ONCE, False: _NO_CURE, None: f"{_ONLY_ONCE}; {_NO_CURE}"}
_ONCE = "backward in a {0} goes again through a graph that was built once, before the {0}"
_FORWARD = "run the forward inside the {}, so that each backward has its own graph"
_NOT_IN_INIT = (
    "compute in the forward what `__init__` computes from a parameter here, so that each backward has its own graph"
)
_CONSTANT = "detach what is a constant in the {} (a target, an old log-probability): `t = t.detach()`"
_KEEP = "pass `retain_graph=True` to `backward`: no optimizer steps in this loop, so the graph stays right"
_EACH = "a backward frees what its graph saved, so each backward needs a forward of its own"
_STEPPED = (
    "; `retain_graph=True` does not help here, because the step changes the weights that the graph was built with"
)
_SHARED = "backward reaches into a part of the graph that another backward has freed"
_DETACH = "detach the state that is carried over, at the end of each iteration: "
_NO_GRAD = "or, if no gradient should flow through it, write it inside `with torch.no_grad():`"
_UNKNOWN = "`h = h.detach()`, and of a tuple each part, `h = tuple(part.detach() for part in h)`"
_SUM = "sum the losses and call `backward` once"
_SUM_FIRST = "sum the losses and call `backward` once, before the steps"
_CACHED = "`parametrize.cached()` keeps each parametrized weight, and its graph, to the end of its block"
_UNCACHED = "enter `parametrize.cached()` anew for each backward, around the forward alone"
_AGAIN = "or run the forward again for each backward"
_RETAIN = "or pass `retain_graph=True` to the first `backward`, if one graph really serves two"


def find(event: Event) -> Finding | None:
    """A refusal whose message says that the graph is freed."""
    return _explained(event) if isinstance(event, Refusal) and says(event, *MESSAGES) else None


def _explained(event: Refusal) -> Finding:
    if event.call == "access":
        return _finding(
            event, "a saved tensor is read after backward has freed it", ["read it before backward, or keep a copy"], ""
        )
    if event.is_cached:
        return _finding(replace(event, carried=()), _HEADLINES[None], [_UNCACHED], _CACHED, Cause.CARRIED)
    repeated = event.repeated_root
    is_of_library = event.written is not None and event.written.inside is not None
    if not is_of_library and write_of(event.written).form in (Form.CALL, Form.OTHER):
        event = replace(event, written=None)  # an operator such as that of `GRUCell` writes what it made itself
    states = event.carried if event.are_all_carried else ()
    turns = carrying.in_words(event.site)
    is_in_init = event.saved is not None and event.saved.code.co_name == "__init__"
    headline, forward = _ONCE.format(turns), _NOT_IN_INIT if is_in_init else _FORWARD.format(turns)
    once = event.written is None and not event.shared and carrying.built_once(event.site, event.saved, states)
    if once and carrying.may_be_constant(event):
        helped: list[Help] = [carrying.constant(event), f"or {forward}"]
        return _finding(replace(event, carried=()), headline, helped, _EACH, Cause.BUILT_ONCE)
    if once:
        stepped = carrying.steps_in_loop(event.site)
        helps = [forward, *[_CONSTANT.format(turns)] * (not repeated)]
        if not stepped:  # each turn has a loss of its own, as for a Jacobian: one graph serves them all
            helps = [*helps, _KEEP] if repeated else [_KEEP, _SUM, *helps]
        told = [f"{'or ' * (number > 0)}{one}" for number, one in enumerate(helps)]
        return _finding(replace(event, carried=()), headline, told, _EACH + _STEPPED * stepped, Cause.BUILT_ONCE)
    stepped = carrying.steps_between(event.freed, event.site)
    two = [_SUM_FIRST, _AGAIN] if stepped else [_SUM, _RETAIN]
    if repeated is False and event.shared:
        return _finding(event, _SHARED, two, _ONLY_ONCE + _STEPPED * stepped, Cause.SHARED)
    if repeated is False and (name := carrying.sum_of_turns(event.site)):
        anew = f"set `{name}` anew after this backward, as before the loop, or detach it: `{name} = {name}.detach()`"
        return _finding(event, _HEADLINES[repeated], [anew], _NO_CURE, Cause.CARRIED)
    if repeated is False and (grown := {one.name.partition("[")[0] for one in event.carried if one.grows}):
        helps = [f"empty `{name}` at the end of each iteration: `{name}.clear()`" for name in sorted(grown)]
        return _finding(event, _HEADLINES[repeated], helps, _NO_CURE, Cause.CARRIED)
    detach = _DETACH + (", ".join(map(carrying.detached, carrying.states(event))) or _UNKNOWN)
    if repeated is False and event.written is not None:
        name = dotted(write_of(event.written).target) or "h"
        before = f"detach the state before it is written: `{name} = {name}.detach()`; {_NO_GRAD}"
        cut = [detach, _NO_GRAD] if event.carried else [before]
        return _finding(event, _HEADLINES[repeated], cut, _NO_CURE, Cause.CARRIED)
    helps = {
        True: two,
        False: [detach, *[f"or, if nothing is carried: {forward}"] * (once is None and not event.carried)],
        None: [f"for a carried state: {detach}", f"for two losses: {_SUM}"],
    }[repeated]
    known = {True: Cause.SHARED, False: Cause.CARRIED, None: None}
    note = _NOTES[repeated] + _STEPPED * (stepped and repeated is True)
    return _finding(event, _HEADLINES[repeated], helps, note, known[repeated])


def _finding(event: Refusal, headline: str, helps: Sequence[Help], note: str, cause: Cause | None = None) -> Finding:
    notes = [*carrying.notes(event), *[note] * (note != "")]
    return account(headline, _labels(event), notes=notes, helps=helps, cause=cause)


def _labels(event: Refusal) -> tuple[Label, ...]:
    node = f": {node_in_words(event.saved_node)} kept a tensor for its backward" if event.saved_node else ""
    labels: list[Label] = []
    if event.saved is not None:
        labels.append(
            label("save", event.saved, f"part of the freed graph was built here{node}", primary=event.site is None)
        )
    if event.written is not None:
        target = write_of(event.written).target
        what = f"`{ast.unparse(target)}`" if target is not None else "a tensor"
        text = f"{what} is written in place here and carries the old graph over"
        labels.append(label("write", event.written, text))
    else:
        labels += carrying.labels(event)
    if event.freed is not None and event.freed != event.site:
        labels.append(label("read", event.freed, "this backward frees it"))
    if event.site is not None:
        reader = {"grad": "`autograd.grad`", "access": "this access"}.get(event.call, "this backward")
        labels.append(label("read", event.site, f"{reader} needs it again", primary=True))
    return (*labels, *inside_label(event.saved, "the freed graph was built here"))
