"""Optimizer steps: one record per parameter and step, by PyTorch's global optimizer hooks, instead of one per write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from noclobber.model.seen.events import Step
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.records import Stepped, moment, record
from noclobber.observe.core.seen.sites import Place, caller, identity, site_of
from noclobber.observe.core.seen.thread_state import Thread
from noclobber.observe.core.seen.written import Written
from noclobber.observe.torch_api.autograd import engine_state, hook_stack
from noclobber.observe.torch_api.dispatch import spare_key
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import geometry, span

_STEPS = 256
"""The number of lines that run a step, for which the Step is kept."""
Hook = Callable[[torch.optim.Optimizer, tuple[object, ...], dict[str, object]], None]
"""Called with the optimizer and what its `step` was called with."""


def parameters(optimizer: torch.optim.Optimizer) -> Sequence[torch.Tensor]:
    """Return the tensors that a step may write: every parameter that has a gradient."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def is_of_torch(kind: type) -> bool:
    """Return True if a type of optimizers is PyTorch's own: its step runs no code of the program but a closure."""
    return kind.__module__.startswith("torch.optim.")


def arm(context: Context, way: Way) -> None:
    """Listen to the steps of every optimizer, and report the live saves that a step is about to overwrite."""
    both: tuple[Hook, Hook] = partial(_before, context), partial(_after, context)
    if context.native is not None:
        both = context.native.around_steps(*both, context.core.entry(is_of_torch), context.core.entry(_about))
    begins, ends = way.entry(both[0]), way.entry(both[1], also_off=True)

    def raised(held: _Arguments, optimizer: torch.optim.Optimizer) -> None:
        if context.thread.arguments == id(held):  # no other step has begun since
            ends(optimizer, held, {})

    at_raise = way.entry(raised, also_off=True)

    def before(
        optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[_Arguments, dict[str, object]]:
        begins(optimizer, args, kwargs)
        held = _Arguments(args)
        held.raised = at_raise
        context.thread.arguments = id(held)
        return held, kwargs

    def after(optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        ends(optimizer, args, kwargs)
        if isinstance(args, _Arguments):
            args.raised = None

    way.at_end(hook_stack.hook(register_optimizer_step_pre_hook, before).remove)
    way.at_end(hook_stack.hook(register_optimizer_step_post_hook, after).remove)


class _Arguments(tuple[object, ...]):
    """The arguments of a step under way. Only PyTorch's frame of the step holds them, so they go when the step raises:
    the hooks after a step are called only if it returns (Optimizer.profile_hook_step, torch 2.13)."""

    raised: Callable[[_Arguments, Any], object] | None = None

    def __del__(self) -> None:
        if self.raised is not None:
            self.raised(self, self[0])


def _before(
    context: Context, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Record the writes of a step that begins, to parameters that a finding may need. PyTorch's own optimizers then run
    unlogged."""
    thread, live, native = context.thread, context.live, context.native
    if not thread.watched:
        return
    unmute(thread)
    place = caller() if native is None else native.place_here()
    step = step_of(type(optimizer), place)
    closure = len(args) > 1 or bool(kwargs.get("closure"))  # it runs forward and backward inside the step
    # `differentiable=True` records the step itself.
    rests = not closure and is_of_torch(type(optimizer)) and not optimizer.defaults.get("differentiable")
    thread.step, thread.stepped = step, None
    if closure:
        # Only writes to parameters are the step's own.
        groups = optimizer.param_groups
        thread.stepped = frozenset(storages.storage_key(one) for group in groups for one in group["params"])
    if native is not None and thread.entered:
        native.set_step(None if rests else step, thread.stepped)
    if rests:
        if context.watching and (live.any() or context.memory.reread):
            _about_to_write(context, optimizer, parameters(optimizer), place, step)
        else:
            _remember(context, optimizer, place, step)
        thread.muted = True
        spare_key.set_key(False)
    elif context.watching and live.any():
        # They may be shards, as those of FSDP2 are. Saves of what is sharded lie in other memory.
        others = (one for one in parameters(optimizer) if type(one) not in storages.PLAIN)
        _about_to_write(context, optimizer, others, place, step)


def _remember(context: Context, optimizer: torch.optim.Optimizer, place: Place | None, step: Step) -> None:
    """Remember the writes of a step where no save is known that they could meet, as under `install`."""
    written, about = parameters(optimizer), written_by(step.optimizer, bool(optimizer.defaults.get("fused")))
    keys, where = tuple(map(storages.storage_key, written)), tuple(map(geometry, written))
    versions, in_backward = list(map(tensor_state.version_of, written)), len(context.thread.backwards)
    node = engine_state.next_node()
    context.memory.stepped(Stepped(about, place, keys, versions, where, step, in_backward, node, moment()))


def _about_to_write(
    context: Context,
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[torch.Tensor],
    place: Place | None,
    step: Step,
) -> None:
    written = written_by(step.optimizer, bool(optimizer.defaults.get("fused")))
    for parameter in parameters:
        key = storages.storage_key(parameter)
        if key is None:
            continue
        noted = record(written, parameter, key, place, context.thread)
        context.memory.log(noted)
        if context.watching:
            met, _ = context.live.meeting(key, span(noted.geometry), parameter)
            if met.handles:
                context.parts.meet(context, met.handles, parameter, noted)


_steps: dict[tuple[object, ...], Step] = {}
"""By the name of the optimizer and the identity of the place, which the Step holds. Equal code may be of another
file."""


def step_of(optimizer: type, place: Place | None) -> Step:
    """Return the Step of an optimizer of a class at a place; the same object each time."""
    key = (optimizer.__name__, is_of_torch(optimizer), *identity(place))
    if (step := _steps.get(key)) is None:
        if len(_steps) >= _STEPS:
            _steps.clear()
        step = _steps[key] = Step(optimizer.__name__, site_of(place), is_of_torch(optimizer))
    return step


@lru_cache(maxsize=256)
def written_by(optimizer: str, fused: bool = False) -> Written:
    return Written(f"{optimizer}.step", (), fused)


def _about(kind: type, fused: bool, place: Place | None) -> tuple[Written, Step]:
    return written_by(kind.__name__, fused), step_of(kind, place)


def _after(context: Context, *_: object) -> None:
    thread, native = context.thread, context.native
    if thread.muted:
        unmute(thread)
        return
    thread.step = None
    if native is not None and thread.entered:
        native.set_step(None, None)


def unmute(thread: Thread) -> None:
    """Log writes again. Also called later for a step that raised and did not reach its end."""
    if thread.muted:
        thread.muted = False
        thread.step = None
        spare_key.set_key(True)
