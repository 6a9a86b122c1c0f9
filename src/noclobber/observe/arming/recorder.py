"""The listeners, and all that watches for them: attached for the first, detached after the last. `SEEN` lists it.

Here stands also what the folders above ask of this one: what is covered, what an error is about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.model.reports.report import COMPILED, WITHOUT_BYTES, Coverage, unseen_in_words
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import Drift
from noclobber.observe import policy
from noclobber.observe.core import blamed_lines, boundary, calls, engine, save_hooks, threads
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context, Parts, Subscriber
from noclobber.observe.core.writes import kernel_functions, optimizer_steps, write_kernels, write_log
from noclobber.observe.describe import holders, refusals
from noclobber.observe.detectors import (
    lost_hooks,
    returned_gradients,
    shared_gradients,
    stale_casts,
    undeclared_writes,
    untracked_writes,
)
from noclobber.observe.detectors.foreign_memory import exported_saves
from noclobber.observe.memory import saved_bytes
from noclobber.observe.native import bridge
from noclobber.observe.preserve import copy_before_write
from noclobber.observe.takers import (
    ctx_attributes,
    gradient_writes,
    other_memory,
    overwritten_inputs,
    user_save_hooks,
)
from noclobber.observe.takers.checkpoint import instrument
from noclobber.observe.torch_api import releases, self_tests
from noclobber.observe.torch_api.dispatch import compile_guard
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


def _compiled(_: Context, way: Way) -> None:
    way.at_end(compile_guard.skip_ours(way.patches))
    way.at_end(compile_guard.FRAMES.disarm)
    compile_guard.FRAMES.arm(way.patches)


def _functions(context: Context, way: Way) -> None:
    calls.arm_forwards(context.forwards, context.memory, context.bus.not_seen, way)


SEEN: tuple[Seen, ...] = (
    Seen("lines that warnings blame", blamed_lines.arm, of_saves=False),
    Seen("regions that torch.compile compiles", _compiled, of_saves=False),
    Seen("threads that the program starts", threads.arm, lasting=True, of_saves=False),
    Seen("operators that the program defines", write_kernels.arm, of_saves=False),
    Seen("writes of custom Functions in backward", engine.arm_listening, of_saves=False),
    Seen("writes into gradients", gradient_writes.arm, of_saves=False),
    Seen("saves under the program's own saved-tensor hooks", user_save_hooks.arm, of_saves=False),
    Seen("optimizer steps", optimizer_steps.arm, of_saves=False),
    Seen("graphs that torch.jit.trace records", traced_graphs.arm, of_saves=False),
    Seen("tensors whose dimensions have names", named_tensors.arm, lasting=True, of_saves=False),
    Seen("hooks that the program registers on a save", hooks_on_saves.arm),
    Seen("saves that a backward with create_graph makes of its inputs", double_backward.arm),
    Seen("what ctx.saved_tensors gives", save_hooks.arm_originals),
    Seen("assignments to `.data`", other_memory.arm_assignments),
    Seen("aliases that `.detach()` makes", other_memory.arm_detached),
    Seen("the checks of `swap_tensors`", checks_of_swaps.arm),
    Seen("tensors that are swapped", other_memory.arm_swaps),
    Seen("storages whose memory the program frees", other_memory.arm_resizes),
    Seen("writes that autograd does not know of", untracked_writes.arm),
    Seen("hooks on tensors that a write replaced", lost_hooks.arm),
    Seen("gradients that share memory", shared_gradients.arm),
    Seen("gradients of tensors that a write replaced", overwritten_inputs.arm),
    Seen("gradients that custom Functions return", returned_gradients.arm),
    Seen("casts that autocast keeps", stale_casts.arm),
    Seen("memory that other code holds (numpy, DLPack)", exported_saves.arm),
    Seen("checkpoint regions", instrument.arm),
    Seen("custom Functions", _functions),
    Seen("what custom Functions keep on their ctx", ctx_attributes.arm),
    Seen("what custom Functions write", undeclared_writes.arm),
    Seen("custom operators", undeclared_writes.arm_operators),
    Seen("blocks that put version counters back", threads.arm_preserved_versions),
    Seen("torch.func transforms", threads.arm_transforms),
    Seen("bytes that saves keep", saved_bytes.arm),
    # Armed last, so it is called first at the end of a backward, while the notes of the others are still there.
    Seen("errors that leave a backward", policy.arm, lasting=True, of_saves=False),
)
"""The ways of seeing, in the order in which they are armed. To add one, add its file and a line here."""


_subscribers: list[Subscriber] = []
"""A listener stands here once for each block in which it listens."""
_earlier: dict[Subscriber, dict[str, int]] = {}
"""What was not seen before each of them began to listen."""
_changing = threading.RLock()
"""Held while it changes who listens."""


def subscribe(one: Subscriber) -> None:
    """Send events to a listener from now on, each once, and watch the calling thread.

    Raises UnsupportedTorch if noclobber cannot watch.
    """
    with _changing:
        if one not in _subscribers:
            _earlier[one] = _not_seen()
        _subscribers.append(one)
        try:
            _settle()
            threads.begin_block(CONTEXT)
        except Exception as failure:
            _subscribers.remove(one)
            if one not in _subscribers:
                del _earlier[one]
            CONTEXT.core.guarded(_settle)
            if isinstance(failure, UnsupportedTorch):
                raise
            raise UnsupportedTorch(f"noclobber cannot watch: {boundary.lost('', failure).why}") from failure


def unsubscribe(one: Subscriber) -> Coverage:
    """Undo one `subscribe`. Return what was covered."""
    with _changing:
        covered = CONTEXT.core.guarded(coverage, one) or Coverage("", False, lost=tuple(CONTEXT.bus.lost))
        _subscribers.remove(one)
        if one not in _subscribers:
            del _earlier[one]
        CONTEXT.core.guarded(lambda: threads.end_block(CONTEXT))
        CONTEXT.core.guarded(_settle)
    return covered


def settle() -> None:
    """Watch as the listeners ask for now: one of them asks for more than before, or for less."""
    with _changing:
        CONTEXT.core.guarded(_settle)


def coverage(one: Subscriber) -> Coverage:
    """Return what a listener was told of: what was not seen since it began to listen is not seen by it."""
    earlier = _earlier.get(one, {})
    counts = {what: more for what, count in _not_seen().items() if (more := count - earlier.get(what, 0)) > 0}
    if regions := compile_guard.FRAMES.not_seen():
        counts[COMPILED] = regions
    counts.update(dict.fromkeys(one.allocations.unseen() if one.allocations is not None else (), 1))
    unseen = tuple(unseen_in_words(what, count) for what, count in counts.items())
    by = "dispatch key, native" if CONTEXT.native is not None else "dispatch key"
    notes, lost = releases.notes(), tuple(CONTEXT.bus.lost)
    return Coverage(by, CONTEXT.watching, CONTEXT.contents is not None, unseen, notes, lost)


def _not_seen() -> dict[str, int]:
    """Return how often each thing was not seen until now."""
    counts = CONTEXT.bus.unseen.copy()
    if CONTEXT.contents is not None and (unread := CONTEXT.contents.unread):
        counts[WITHOUT_BYTES] = counts.get(WITHOUT_BYTES, 0) + unread
    return counts


def before_next_backward(function: Callable[[], object]) -> None:
    """Call a function before the next backward call begins."""
    CONTEXT.before_backward = function


def is_armed() -> bool:
    return CONTEXT.armed


def apart() -> AbstractContextManager[None]:
    """Run a block of this thread unwatched: a trial of noclobber's own."""
    return threads.apart(CONTEXT)


def begin_again() -> None:
    """Drop what was counted until now: in a forked child."""
    CONTEXT.bus.forget()
    for earlier in _earlier.values():
        earlier.clear()


def event_of(error: BaseException) -> Refusal | Clobber | Drift | None:
    """Return what an exception is about, if it may concern writing in place; else None."""
    return refusals.refusal_of(error, CONTEXT.memory)


def overwritten_by(asked: object, inputs: Sequence[object]) -> int | None:
    """Return the number of the node of the write after which a gradient with respect to `asked` is not what the program
    asks for (NC209); None if there is none. `inputs` are all the tensors that it asks gradients for."""
    noted = CONTEXT.state(overwritten_inputs.AskedInputs).write_to(asked, inputs)
    return None if noted is None else noted.node


def _listeners() -> list[Subscriber]:
    return list(dict.fromkeys(_subscribers))


CONTEXT = Context(
    Parts(
        meet=policy.meet,
        detached=policy.detached,
        detached_by_number=policy.detached_by_number,
        read=policy.read,
        around=user_save_hooks.around,
        look=holders.look,
        refused=refusals.write_failed,
        overlaps=copy_before_write.keep_overlapped,
        untracked=untracked_writes.UntrackedWrites,
        subscribe=subscribe,
        unsubscribe=unsubscribe,
    )
)
"""The only context of this process."""
_ways: list[Way] = []


def _settle() -> None:
    """Watch as the listeners ask for now."""
    context, everyone = CONTEXT, _listeners()
    watching = any(one.watching for one in everyone)
    contents = watching and any(one.contents for one in everyone)
    only_foreign = not any(one.contents and not one.keeping for one in everyone)
    known = context.contents
    as_it_is = contents == (known is not None) and (known is None or known.only_foreign == only_foreign)
    if context.armed and (not everyone or watching != context.watching or not as_it_is):
        context.bus.listeners = []
        detach(forget=not everyone)
    if everyone and not context.armed:
        attach(watching=watching, contents=contents, only_foreign=only_foreign)
    context.bus.listeners = [*everyone]
    context.everywhere = any(one.everywhere for one in everyone)
    _keep(any(one.keeping for one in everyone))
    counted, context.accounts[:] = bool(context.accounts), [one.account for one in everyone if one.account is not None]
    if bool(context.accounts) != counted:
        threads.renew_hooks(context)  # the native part takes no saves that anybody counts
    context.allocations[:] = [one.allocations for one in everyone if one.allocations is not None]
    threads.renew_modes(context)
    stops = any(one.on_write == "raise" for one in everyone)
    context.be_careful(stops - context.stop_writes)
    context.stop_writes = stops


def attach(*, watching: bool, contents: bool, only_foreign: bool) -> None:
    """Start seeing; `only_foreign` is that of Contents.

    Raises UnsupportedTorch if this release of torch lacks something that everything needs.
    """
    context = CONTEXT
    context.watching = watching
    context.era += not watching
    context.contents = Contents(only_foreign=only_foreign) if contents else None
    context.core = core = Way("some saves and writes", context.bus.fail, lasting=True)
    try:
        self_tests.of_saves()
        bridge.connect(context)
        write_kernels.test(context)
        bridge.begin(context)
        write_kernels.connect(context, write_log.before(context))
        engine.arm(context, core)
        calls.arm_backwards(context.customs, core)
        if watching:
            unfinished_backwards.end_at_exit(context)
        for seen in SEEN:
            if watching or not seen.of_saves:
                way = Way(seen.name, context.bus.fail, lasting=seen.lasting)
                _ways.append(way)
                way.arm(partial(seen.arm, context))
        context.armings += 1
        context.memory.begin()
        context.armed = True  # not before: a thread that is entered while half is armed would miss its writes
        threads.enter(context)
    except Exception:
        detach()
        raise


def detach(*, forget: bool = True) -> None:
    """Stop seeing and put PyTorch back as it was. `forget` what was seen, unless seeing goes on in another mode."""
    context = CONTEXT
    guarded = context.core.guarded
    context.armed = False
    if forget or not context.is_alone:
        context.memory.end()
    guarded(lambda: _keep(False))
    guarded(lambda: threads.leave(context))
    guarded(kernel_functions.tell, None)
    guarded(lambda: bridge.end(context))
    for way in (*reversed(_ways), context.core):
        guarded(way.end)
    _ways.clear()
    context.watching = context.stop_writes = context.keeping = context.python_in_backward = False
    context.careful = 0
    context.ignore_all()
    context.bus.unseen, context.contents = _not_seen(), None
    if forget:
        context.before_backward = None
        context.era += 1
        guarded(context.forget)
        guarded(lambda: bridge.forget(context))


def _keep(keeping: bool) -> None:
    """Start or stop preserving the bytes that writes change."""
    context = CONTEXT
    if keeping == context.keeping:
        return
    context.keeping = keeping
    context.be_careful(1 if keeping else -1)
    if context.native is not None:
        context.native.set_keeping(keeping)
    threads.renew_hooks(context)
