"""The end of a backward call: what is left to compare, and what an error that it raised is about."""

from __future__ import annotations

from noclobber.model.error import ClobberError
from noclobber.model.events import Refusal
from noclobber.observe import policy
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.describe import clobbers, refusals, torch_messages
from noclobber.observe.torch_api.autograd import graph


def arm(context: Context, way: Way) -> None:
    """At the end of each backward call, make the comparisons that are left, and explain an error that it raised."""

    def ended(call: Backward, result: object, error: BaseException | None) -> ClobberError | None:
        stopped = policy.settle(context, call) if call.later else None
        if isinstance(error, RuntimeError):
            _has_failed(context, call, error)
        return stopped

    context.calls.watch_ends(way, ended)


def _has_failed(context: Context, call: Backward, error: RuntimeError) -> None:
    """Explain an error that a backward call raised: report the other stale saves of its graph, or what was freed."""
    event, message = refusals.remembered(error), str(error)
    if torch_messages.is_stale(message) and not isinstance(event, Refusal):
        seen = error.handles if isinstance(error, ClobberError) else set[int]()
        others = clobbers.stale_saves(graph.roots_of(call.outputs), call, context.memory, seen)
        if event is None and others:
            refusals.remember(error, others[0])
        context.bus.tell(others, error)
    elif event is None and refusals.is_freed(message):
        roots = graph.roots_of(call.outputs)
        refusals.remember(error, refusals.refusal_of_freed(message, roots, call, context.memory))
    elif event is None and message == refusals.DETACHED:
        roots = graph.roots_of(call.outputs)
        refusals.remember(error, refusals.refusal_of_detached(message, roots, call, context.memory))
