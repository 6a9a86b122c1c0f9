"""Makes a Refusal of the model from an error that PyTorch raised: which write, view or save the error is about."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import Node

from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal, Tensor
from noclobber.model.seen.silent import Drift
from noclobber.model.source import Owner, Site, owner_of, site_of_traceback
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.core.seen.reads import read_by
from noclobber.observe.core.seen.records import Backward, Record, seen_at
from noclobber.observe.core.seen.sites import Place, identity, place_of, site_of
from noclobber.observe.core.seen.written import Written, tensors
from noclobber.observe.describe import carried_states, holders
from noclobber.observe.describe.reachable import reachable, variables
from noclobber.observe.describe.tensor_names import name_of, user_frames
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state, graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.frames import frame_above, outward
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import shape_of

DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
_ABOUT_WRITING = re.compile(
    r"in-?place|leaf variable|is a view|memory location|desired output type|broadcast shape|out=|mutat|"
    r"version[_ ]counter|inference",
    re.IGNORECASE,
)

_HOLDING = (torch.nn.Module, list, tuple, dict)
"""What holds the leaves that a loop writes one by one."""
_MOST_NODES = 50
"""Of a larger graph it is not asked which leaves it leads to."""
_OF_NODE = re.compile(r"Backwards?\d*$")
_SLOPED = re.compile(r"In-place (leakyReLu|elu) backward calculation is triggered with a negative slope")
_SLOPES = {"leakyReLu": ("leaky_relu", "rrelu", "rrelu_with_noise"), "elu": ("elu", "celu", "selu")}
"""The operators that an error about a slope may mean (torch 2.13; tests/observe/describe/test_sloped.py)."""


def is_freed(message: str) -> bool:
    """Return True for the error about a second backward through a freed graph."""
    return "backward through the graph a second time" in message


class Witness:
    """Holds on an exception what the exception is about. Pickling the exception drops the event."""

    __slots__ = ("event",)

    def __init__(self, event: Refusal | Clobber | Drift | None = None) -> None:
        self.event = event

    def __reduce__(self) -> tuple[object, ...]:
        return (Witness, ())


def remember(error: BaseException, event: Refusal | Clobber | Drift) -> None:
    """Keep on an exception what it is about. The program may still catch it, and then nothing is reported."""
    error._noclobber = Witness(event)  # type: ignore[attr-defined]


def remembered(error: BaseException) -> Refusal | Clobber | Drift | None:
    """Return what `remember` kept on an exception; None if there is nothing."""
    witness: Witness | None = getattr(error, "_noclobber", None)
    return None if witness is None else witness.event


def about_writing(message: str) -> bool:
    """Return True if an error text may concern an in-place operation. The rules decide."""
    return _ABOUT_WRITING.search(message) is not None


def write_failed(
    context: Context, written: Written, args: tuple[object, ...], kwargs: dict[str, object], error: RuntimeError
) -> None:
    """Remember what the error of an operator that did not write is about, in case the program does not catch it."""
    if remembered(error) is None and about_writing(str(error)):
        tensor = next(tensors(written, args, kwargs), None)
        frame = frame_above(2)
        if is_of_base(str(error)):  # of a view that the operator reads, and not of what it writes
            refusal = _refusal_below(str(error), site_of(place_of(frame)), outward(frame), context.memory)
        else:
            refusal = refusal_of_write(written.op, tensor, str(error), frame, context)
            given = (*args, *kwargs.values())
            refusal = replace(
                refusal,
                carries_gradient=_carry_gradients(tensor, given),
                of_itself=tensor is not None and _lead_to(tensor, given),
                unmapped=_maps(tensor, given),
            )
        remember(error, refusal)
        context.bus.refuse(error, refusal)


def _carry_gradients(tensor: torch.Tensor | None, given: Sequence[object]) -> bool | None:
    """Return True if what an operator is given beside the tensor that it writes is in a graph; None if it is not known,
    which `...` says."""
    if any(one is ... for one in given):
        return None
    return any(one.requires_grad for one in tensor_state.tensors_in(given) if one is not tensor)


def _lead_to(tensor: torch.Tensor, given: Sequence[object]) -> bool:
    """Return True if the graph of what an operator is given leads only to the leaf that it writes, by few nodes."""
    tracked = [one for one in tensor_state.tensors_in(given) if one is not tensor and one.requires_grad]
    made = [graph.made_or_base_of(one) for one in tracked]
    nodes = list(islice(graph.walk([one for one in made if one is not None]), _MOST_NODES + 1))
    if len(nodes) > _MOST_NODES or None in made:
        return False
    return bool(nodes) and all(getattr(one, "variable", None) is tensor for one in nodes if not one.next_functions)


def _maps(tensor: torch.Tensor | None, given: Sequence[object]) -> bool:
    """Return True if `torch.vmap` maps what an operator is given, and not the tensor that it writes."""
    if tensor is None or tensor_state.is_mapped(tensor):
        return False
    return any(tensor_state.is_mapped(one) for one in tensor_state.tensors_in(given))


def refusal_of_write(op: str, tensor: torch.Tensor | None, message: str, frame: FrameType, context: Context) -> Refusal:
    """Return the refusal of an operator to write `tensor`, which is None if it is not known."""
    place = place_of(frame)
    site = site_of(place)
    if tensor is None or place is None:
        return Refusal(message, site, op)
    key = storages.storage_key(tensor)
    saves = [] if key is None else context.live.at(key)
    holders.note(tensor, place, saves)
    name = name_of(tensor, frame)
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape, kind = shape_of(tensor), name.kind if name else "tensor"
    whole = tensor_state.whole(tensor)
    if isinstance(whole, torch.nn.Parameter):
        kind = "parameter"
    about = Tensor(shape, dtype, str(tensor.device), name and name.text, kind)
    expanded = "view of a leaf" in message and _is_expanded(tensor, op)
    refusal = Refusal(
        message,
        site,
        op,
        about,
        _created(tensor, message, context.memory),
        is_saved=key is None or bool(saves),
        keeps_others=_keeps_others(tensor, frame, context),
        is_computed=tensor_state.is_computed(whole),
        expanded=expanded,
    )
    if (seen := seen_at(place)) is None:
        return refusal
    return replace(refusal, holders=seen.holders, is_widest=seen.is_widest, modules=seen.modules, calls=seen.calls)


def _keeps_others(tensor: torch.Tensor, frame: FrameType, context: Context) -> bool:
    """Return True if a variable of a frame leads to a leaf, and to another one that a live save is on."""
    with modes.plain():
        if not tensor_state.is_leaf(tensor):
            return False
        for name, held in variables(next(user_frames(frame), frame)).items():
            those = read_by(held).tensors if name == "self" or isinstance(held, _HOLDING) else []
            if any(one is tensor for one in those):
                keys = {storages.storage_key(one) for one in those if one is not tensor and one.requires_grad}
                return any(context.live.at(key) for key in keys if key is not None)
    return False


def _created(tensor: torch.Tensor, message: str, memory: Memory) -> Site | None:
    """Return where one of several views was made; None if that is not known.

    PyTorch itself has just read the view's grad_fn, so reading it changes nothing.
    """
    if "is a view" not in message:
        return None
    number = None if (node := graph.maker_of(tensor)) is None else node._sequence_nr()
    return next((site_of(place) for seen, _, place in reversed(memory.views) if seen == number), None)


def _is_expanded(view: torch.Tensor, op: str) -> bool:
    """Return True if a view was taken from an expanded tensor, or is one that the operator writes even so.

    PyTorch keeps no view in between: the graph names them (torch 2.13; tests/observe/describe/test_expanded.py). A view
    whose base was written since gets its new node here, and not where the program next asks for it.
    """
    made_by, name = graph.maker_of(view), op.split("::")[-1].partition(".")[0]
    overlaps = any(not step and size > 1 for step, size in zip(view.stride(), view.shape, strict=True))
    if made_by is None or (overlaps and name not in OVERLAPPING):
        return False
    return any(node.name() == "ExpandBackward0" for node in graph.walk([made_by]))


OVERLAPPING = ("fill_", "zero_", "index_fill_", "index_put_", "masked_fill_", "fill_diagonal_", "tril_", "triu_")
"""Operators that write tensors whose elements share memory; others refuse that (torch 2.13, the same test)."""


def refusal_of_read(handle: Handle, backward: Backward) -> Refusal:
    """Return the refusal to unpack a save that was detached in place."""
    suspect = handle.suspect
    if suspect is None or not suspect.detached:
        return _refusal_of_detached(backward, handle.place, None)
    others = [record.place for record, _ in suspect.writes if not record.written.detaches]
    refusal = _refusal_of_detached(backward, handle.place, suspect.detached_at)
    return replace(refusal, overwritten=site_of(others[-1])) if others else refusal


def refusal_of_detached(backward: Backward, memory: Memory) -> Refusal:
    """Return the refusal of a backward to unpack a save of PyTorch's own that was detached in place.

    Of the saves that may be meant the newest is: the engine runs newer nodes first.
    """
    detached = [record for record in memory.recent if record.written.detaches]
    found = [
        (saved.node._sequence_nr(), record)
        for node in graph.walk(graph.roots_of(backward.outputs))
        for saved in graph.saves_of_or_gone(node)
        for record in detached
        if record.node > node._sequence_nr() and _is_cut_off(graph.content(saved), record.key)
    ]
    number, last = max(found, key=lambda one: (one[0], one[1].moment), default=(None, None))
    saved = None if number is None else memory.place_of(number)
    return _refusal_of_detached(backward, saved, last and last.place)


def _is_cut_off(saved: object, key: int) -> bool:
    """Return True for a tensor on this storage that has no node. A view keeps its node, and must not be asked."""
    if not isinstance(saved, torch.Tensor) or storages.storage_key(saved) != key:
        return False
    return not saved._is_view() and saved.grad_fn is None


def _refusal_of_detached(backward: Backward, saved: Place | None, detached: Place | None) -> Refusal:
    op = "aten::detach_" if detached is not None else None
    site, written = site_of(backward.place), site_of(detached)
    return Refusal(DETACHED, site, op, saved=site_of(saved), written=written, call="backward")


def refusal_of_freed(message: str, backward: Backward, memory: Memory) -> Refusal:
    """Return the refusal of a backward that reached a freed graph.

    It says where the newest freed node saved, and whether the root itself is from before the last backward: of this
    line, if it has run one.
    """
    roots, boundaries = graph.roots_of(backward.outputs), memory.thread.boundaries
    _, last = boundaries.get(identity(backward.place), (None, 0))
    boundary = last or memory.thread.boundary
    numbers = [node._sequence_nr() for node in roots if node._sequence_nr() != graph.UNNUMBERED]
    repeated = None if not boundary or not numbers else max(numbers) < boundary
    edges = carried_states.edges_into(roots, boundary, graph.released)
    # What this call itself has run is freed too, and may be from before the last backward, but of this turn of a loop.
    before = boundary if last and edges else memory.thread.boundary
    freed = [
        node
        for node in graph.walk(roots)
        if node._sequence_nr() != graph.UNNUMBERED
        and (not before or node._sequence_nr() < before)
        and graph.released(node)
    ]
    freed.sort(key=lambda node: -node._sequence_nr())
    newest = next(iter(freed), None)
    # A product with a number has nothing saved, and is released all the same (torch 2.13; tests/mend/test_sound.py).
    places = ((one, memory.place_of(one._sequence_nr())) for one in freed)
    saving, place = next(((one, known) for one, known in places if known is not None), (newest, None))
    shared, freeing = False, None
    if newest is not None:
        number = newest._sequence_nr()
        shared = repeated is False and number >= last
        ends = ((end, line) for line, end in boundaries.values() if end > number)
        freeing = min(ends, key=lambda entry: entry[0], default=(0, None))[1]
    is_state = repeated is False and not shared
    site, frame = site_of(backward.place), sys._getframe(1)
    states, are_all, keys = (
        carried_states.carried(edges, boundary, site, frame, memory) if is_state else ((), False, set())
    )
    is_anew = False
    if states and not any(one.is_renewed for one in states):
        behind = graph.walk([edge.node for edge in edges])
        leaves = [one for node in behind if (one := getattr(node, "variable", None)) is not None]
        is_anew = carried_states.leads_anew(roots, boundary, set(map(storages.storage_key, leaves)))
    carrying = _carrying(roots, boundary, memory, keys) if is_state or repeated is not False else None
    newer = {node for node, edge in carried_states.crossing(roots, boundary) if edge in edges}
    # A write to what is in no graph yet is not in the log: its node is of the same operator.
    stored = {node for node in newer if carrying is not None and _is_of(carrying, node)}
    return Refusal(
        message,
        site,
        saved=site_of(place),
        written=site_of(carrying.place) if carrying else None,
        saved_node=saving.name() if saving is not None else None,
        call="grad" if backward.call == "grad" else "backward",
        repeated_root=repeated,
        shared=shared,
        freed=site_of(freeing),
        carried=states,
        are_all_carried=are_all,
        is_run_anew=is_anew,
        is_cached=_are_cached(freed),
        are_stored_freed=newer != set() and newer == stored,
    )


def _are_cached(freed: list[Node]) -> bool:
    """Return True if a block of `parametrize.cached()` keeps what some of these nodes have computed."""
    kept = graph.roots_of(private.lookup("nn.utils.parametrize._cache").values())
    return not {*freed}.isdisjoint(graph.walk(kept))


def _carrying(roots: list[Node], boundary: int, memory: Memory, states: set[int | None]) -> Record | None:
    """Return the write that carries a state from an older graph into the newest graph; None if none is known.

    It made a node at either end of the edge between the graphs. Of what was in no graph before, only a later write is
    known: to the storage of one of the `states`, by the operator that made the older node.
    """
    edges = [*carried_states.crossing(roots, boundary)] if boundary else []
    ends = {node for newer, older in edges for node in (newer, older.node)}
    recent = [
        one for one in reversed(memory.recent) if one.step is None
    ]  # the first one may be to what has no graph yet
    alike = ((one, node) for one in recent for node in ends if _is_of(one, node))
    again = next(
        (
            one
            for one in recent
            if one.in_graph and one.key in states and any(_is_of(one, edge.node) for _, edge in edges)
        ),
        None,
    )
    return next((one for one, node in alike if _made(one, node)), again)


def _is_of(record: Record, node: Node) -> bool:
    """Return True if a node is of the operator of a write, or of any write through a view."""
    name, op = node.name().rpartition("::")[2], record.written.op.partition("::")[2]
    return name == "CopySlices" or _OF_NODE.sub("", name).lower() == op.replace("_", "")


def _made(record: Record, node: Node) -> bool:
    """Return True if a write to a tensor in the graph made a node of its kind. Where it was through a view, PyTorch
    makes the node of the operator first (torch 2.13; tests/observe/describe/test_freed.py)."""
    return record.node == node._sequence_nr() - node.name().endswith("CopySlices")


def refusal_of(error: BaseException, memory: Memory) -> Refusal | Clobber | Drift | None:
    """Return what an exception that left the program is about; None if it is not about writing.

    This is what is remembered on the exception, else what its text and frames say.
    """
    event = remembered(error)
    if event is not None or not isinstance(error, RuntimeError):
        return event
    message = str(error)
    site = site_of_traceback(error.__traceback__)
    last = next(reversed(memory.recent), None)
    if "pack hook is modifying its input" in message and last is not None:
        return Refusal(message, site, last.written.op, written=site_of(last.place), saved=site, call="save")
    if "Inference tensors cannot be saved" in message:
        return Refusal(message, site, saved=site, call="save")
    if (sloped := _SLOPED.search(message)) is not None:
        names = [f"aten::{name}_" for name in _SLOPES[sloped[1]]]
        places = {record.place for record in memory.recent if record.written.op in names}
        return Refusal(
            message, site, names[0], written=site_of(places.pop() if len(places) == 1 else None), call="backward"
        )
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    if is_of_base(message):
        return _refusal_below(message, site, frames, memory)
    apply = _called(frames, "apply")
    if apply is not None and about_writing(message) and (wrote := _last_of_function(apply, memory)) is not None:
        return Refusal(message, site, wrote.written.op, written=site_of(wrote.place))
    return Refusal(message, site, call="write" if _called(frames, "_engine_run_backward") is None else "backward")


def _refusal_below(message: str, site: Site | None, frames: Iterable[FrameType], memory: Memory) -> Refusal:
    """Return the refusal to use a view after a write to its base, with the write if it is known."""
    if (wrote := write_below(message, frames, memory)) is None:
        return Refusal(message, site, call="access")
    return Refusal(message, site, wrote.written.op, written=site_of(wrote.place))


def _last_of_function(apply: FrameType, memory: Memory) -> Record | None:
    """Return the last write of a custom Function to its arguments, if PyTorch refuses the Function after its forward.

    The Function's node is made before its forward runs, so no write from before the call has the same number.
    """
    given = apply.f_locals.get("args", ())
    keys = {storages.storage_key(one) for one in given if isinstance(one, torch.Tensor)}
    number = engine_state.next_node()
    return next((one for one in reversed(memory.recent) if one.node == number and one.key in keys), None)


def _called(frames: Iterable[FrameType], function: str) -> FrameType | None:
    """Return the innermost frame of a function of torch with this name; None if there is none."""
    of_torch = (one for one in frames if owner_of(one.f_code.co_filename) is Owner.TORCH)
    return next((one for one in of_torch if one.f_code.co_name == function), None)


def is_of_base(message: str) -> bool:
    """Return True for the error about a view whose base, or another view of its base, was written."""
    return "its base or another view of its base has been modified" in message


def write_below(message: str, frames: Iterable[FrameType], memory: Memory) -> Record | None:
    """Return the write that an error about a view is about; None if it is not known.

    PyTorch does not say which view it refuses. So all views are looked at that it refuses in the same words: those that
    the innermost of the `frames` leads to, else those anywhere.
    """
    with modes.plain():
        near = ([one.value for one in reachable([frame]) if _refuses(one.value, message)] for frame in frames)
        views = next(filter(None, near), None) or [one for one in gc.get_objects() if _refuses(one, message)]
        writes = [_last_write(view, memory) for view in views]
    places = {write.place if write is not None else None for write in writes}
    return writes[-1] if len(places) == 1 else None


def _refuses(thing: Any, message: str) -> bool:
    """Return True for a view of which PyTorch says this.

    Asking a view for its node makes a new node where the base was written, except of a view that PyTorch refuses then
    (torch 2.13; tests/observe/describe/test_stale_views.py). So no other views are asked.
    """
    if not issubclass(type(thing), torch.Tensor):
        return False
    try:
        if tensor_state.creation_of(thing) in ("", "DEFAULT"):
            return False
        thing.grad_fn  # noqa: B018 - reading it runs PyTorch's check
    except Exception as error:
        return str(error) == message
    return False


def _last_write(view: torch.Tensor, memory: Memory) -> Record | None:
    """Return the last write to the memory of a view; None unless it is the one that gave the view its version."""
    key, version = storages.storage_key(view), tensor_state.version_of(view)
    for record in reversed(memory.recent):
        if record.key == key and not record.written.uncounted and record.version is not None:
            return record if record.version + 1 == version else None
    return None
