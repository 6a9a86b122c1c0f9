"""Attaches everything that watches to this process, and detaches it. The list `SEEN` says what is attached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from noclobber.observe import allocations, saved_bytes, write_policy
from noclobber.observe.checkpoint import instrument
from noclobber.observe.core import (
    custom_backwards,
    custom_forwards,
    engine,
    interpose,
    kernel_functions,
    late_fills,
    optimizer_steps,
    save_hooks,
    threads,
    write_kernels,
    write_log,
)
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Account, Context, Operators
from noclobber.observe.describe import holders, refusals
from noclobber.observe.detectors import (
    changed_saves,
    ctx_attributes,
    gradient_writes,
    lost_hooks,
    other_memory,
    overwritten_inputs,
    stale_casts,
    undeclared_writes,
    untracked_writes,
    user_save_hooks,
)
from noclobber.observe.foreign_memory import exported_saves
from noclobber.observe.native import bridge
from noclobber.observe.preserve import copy_before_write, own_saves
from noclobber.observe.torch_api import compile_guard, private, self_tests
from noclobber.observe.transparent import (
    checks_of_swaps,
    double_backward,
    hooks_on_saves,
    named_tensors,
    traced_graphs,
    unfinished_backwards,
)
from noclobber.observe.witness.digests import Contents


class Seen(NamedTuple):
    """One way of seeing."""

    name: str
    """What a report calls it."""
    arm: Callable[[Context, Way], None]
    """Begins to see."""
    lasting: bool = False
    """Whether it goes on after a failure."""
    of_saves: bool = True
    """Whether it is armed only if saves are watched."""


def _warnings(context: Context, way: Way) -> None:
    interpose.on_warnings(way)


def _compiled(context: Context, way: Way) -> None:
    way.at_end(compile_guard.skip_ours(way.patches))
    way.at_end(compile_guard.FRAMES.disarm)
    compile_guard.FRAMES.arm(way.patches)


def _operators(context: Context, way: Way) -> None:
    interpose.on_new_operators(way, write_kernels.look_at, write_kernels.scan)


def _saved_tensors(context: Context, way: Way) -> None:
    interpose.on_saved_tensors(way, save_hooks.originals)


def _custom_functions(context: Context, way: Way) -> None:
    custom_forwards.arm(context.forwards, way, lambda: context.thread.watched, context.memory)


SEEN: tuple[Seen, ...] = (
    Seen("lines that warnings blame", _warnings, of_saves=False),
    Seen("regions that torch.compile compiles", _compiled, of_saves=False),
    Seen("threads that the program starts", threads.arm, lasting=True, of_saves=False),
    Seen("operators that the program defines", _operators, of_saves=False),
    Seen("writes of custom Functions in backward", engine.arm_listening, of_saves=False),
    Seen("writes into gradients", gradient_writes.arm, of_saves=False),
    Seen("saves under the program's own saved-tensor hooks", user_save_hooks.arm, of_saves=False),
    Seen("optimizer steps", optimizer_steps.arm, of_saves=False),
    Seen("graphs that torch.jit.trace records", traced_graphs.arm, of_saves=False),
    Seen("tensors whose dimensions have names", named_tensors.arm, lasting=True, of_saves=False),
    Seen("hooks that the program registers on a save", hooks_on_saves.arm),
    Seen("saves that a backward with create_graph makes of its inputs", double_backward.arm),
    Seen("what ctx.saved_tensors gives", _saved_tensors),
    Seen("assignments to `.data`", other_memory.arm_assignments),
    Seen("the checks of `swap_tensors`", checks_of_swaps.arm),
    Seen("tensors that are swapped", other_memory.arm_swaps),
    Seen("writes that autograd does not know of", untracked_writes.arm),
    Seen("hooks on tensors that a write replaced", lost_hooks.arm),
    Seen("gradients of tensors that a write replaced", overwritten_inputs.arm),
    Seen("casts that autocast keeps", stale_casts.arm),
    Seen("memory that other code holds (numpy, DLPack)", exported_saves.arm),
    Seen("checkpoint regions", instrument.arm),
    Seen("custom Functions", _custom_functions),
    Seen("what custom Functions keep on their ctx", ctx_attributes.arm),
    Seen("what custom Functions write", undeclared_writes.arm),
    Seen("custom operators", undeclared_writes.arm_operators),
    Seen("blocks that put version counters back", threads.arm_preserved_versions),
    Seen("torch.func transforms", threads.arm_transforms),
    Seen("bytes that saves keep", saved_bytes.arm),
    # Armed last, so it is called first at the end of a backward, while the notes of the others are still there.
    Seen("errors that leave a backward", changed_saves.arm, lasting=True, of_saves=False),
)
"""The ways of seeing, in the order in which they are armed. To add one, add its file and a line here."""


def _composed() -> Context:
    """Return the context with the functions that are defined outside of core/."""
    context = Context()
    context.meet = partial(write_policy.meet, context)
    context.look = context.core.entry(partial(holders.look, context.memory))
    context.detached = partial(write_policy.detached, context)
    context.detached_by_number = partial(write_policy.detached_by_number, context)
    context.make_hooks = partial(_hooks, context)
    context.late = partial(threads.saved_late, context)
    context.operator_mode = partial(allocations.enter, context)
    return context


def _hooks(context: Context, below: save_hooks.Pair | None) -> save_hooks.Hooks:
    if below is not None:
        return user_save_hooks.around(context, *below)
    changed = partial(changed_saves.read, context, silently=not context.keeping)
    exported, history = context.memory.foreign_writers, context.thread.history
    hooks = save_hooks.hooks(context, context.live, history, changed, context.contents, exported, context.core.fail)
    hooks = copy_before_write.with_sparse(hooks, context.core) if context.keeping else hooks
    return saved_bytes.counting(hooks, context) if context.accounts else hooks


CONTEXT = _composed()
"""The only context of this process."""
_ways: list[Way] = []


def attach(*, watching: bool, contents: bool = False, only_foreign: bool = False) -> None:
    """Start seeing; `only_foreign` is that of Contents.

    Raises UnsupportedTorch if this release of torch lacks something that everything needs.
    """
    private.require()
    context = CONTEXT
    context.armed, context.watching = True, watching
    context.era += not watching
    context.contents = Contents(only_foreign=only_foreign) if contents else None
    context.core = core = Way("some saves and writes", context.bus.fail, lasting=True)
    try:
        self_tests.of_saves()
        bridge.connect(context)
        context.by_key = write_kernels.key_answers()
        context.untracked = context.state(untracked_writes.UntrackedWrites)
        bridge.begin(context)
        write_kernels.connect(_sink(context))
        engine.arm(context, core)
        custom_backwards.arm(context.customs, core)
        if watching:
            unfinished_backwards.end_at_exit(context)
    except Exception:
        detach()
        raise
    for seen in SEEN:
        if watching or not seen.of_saves:
            way = Way(seen.name, context.bus.fail, lasting=seen.lasting)
            _ways.append(way)
            way.arm(partial(seen.arm, context))
    context.armings += 1
    context.memory.begin()
    threads.enter(context)


def _sink(context: Context) -> kernel_functions.Sink:
    core = context.core
    if context.watching:
        before = write_log.writes_to_saves(context)
    else:
        without_storage = partial(context.bus.not_seen, write_log.WITHOUT_STORAGE)
        before = write_log.every_write(context.memory, without_storage)
    failed, filled = partial(refusals.write_failed, context), partial(late_fills.filled, context)
    views = core.entry(partial(write_log.views_made, context.memory))
    return kernel_functions.Sink(
        before,
        core.entry(failed),
        views,
        core.fail,
        core.entry(filled),
        all_writes=context.watching,
        contents=context.contents is not None,
    )


def detach(*, forget: bool = True) -> None:
    """Stop seeing and put PyTorch back as it was. `forget` what was seen, unless seeing goes on in another mode."""
    context = CONTEXT
    guarded = context.core.guarded
    if forget or not context.is_alone:
        context.memory.end()
    guarded(lambda: keep(False))
    guarded(lambda: threads.leave(context))
    guarded(partial(kernel_functions.send_to, None))
    guarded(lambda: bridge.end(context))
    for way in (*reversed(_ways), context.core):
        guarded(way.end)
    _ways.clear()
    context.armed = context.watching = context.stop_writes = context.keeping = context.python_in_backward = False
    context.careful = 0
    context.ignore_all()
    context.contents = None
    if forget:
        context.before_backward = None
        context.era += 1
        guarded(context.forget)
        guarded(lambda: bridge.forget(context))


def keep(keeping: bool) -> None:
    """Start or stop preserving the bytes that writes change."""
    context = CONTEXT
    if keeping == context.keeping:
        return
    context.keeping = keeping
    context.be_careful(1 if keeping else -1)
    sink = kernel_functions.sink()
    if sink is not None:
        kernel_functions.send_to(sink._replace(own=partial(own_saves.before, context) if keeping else None))
    if context.native is not None:
        context.native.set_keeping(keeping)
    threads.renew_hooks(context)


def count(accounts: Sequence[Account]) -> None:
    """Set who counts the bytes of saves from now on."""
    context, before = CONTEXT, bool(CONTEXT.accounts)
    context.accounts[:] = accounts
    if bool(accounts) != before:
        threads.renew_hooks(context)


def follow(these: Sequence[Operators]) -> None:
    """Set who follows every operator from now on."""
    CONTEXT.allocations[:] = these
    threads.renew_modes(CONTEXT)


def stop(writes: bool) -> None:
    """Set whether writes to saved tensors are stopped."""
    CONTEXT.be_careful(writes - CONTEXT.stop_writes)
    CONTEXT.stop_writes = writes
