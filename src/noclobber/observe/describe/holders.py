"""Finds the names under which the program holds memory, at a write that meets a live save of it.

A change that binds the written name to a new tensor is sound only if no other name is read that shows the old memory.
So all Python tensors on the written bytes are looked at, and all that refers to them: the variables of the frames,
which the garbage collector does not show, and the containers, which it shows. If the references are more than these,
or one has no name, the answer is "not known". What autograd and noclobber hold is not counted. Only names are kept.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from inspect import CO_OPTIMIZED
from itertools import chain, islice, pairwise
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType
from typing import Any, TypeGuard
from weakref import getweakrefs

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.model.seen.events import MOST_MODULES, Holder, without_indexes
from noclobber.model.source import Owner, Site, owner_of
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.records import Looked, Record, looked_at
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.describe.called import calls_to, module_path
from noclobber.observe.describe.reachable import can_hold_another, reachable, variables
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.frames import outward
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import Geometry, geometry, touch

_MOST_TIMES = MOST_MODULES
"""How often the holders of what one line writes are looked for; it takes some 0.1 s."""
_MOST_LINES = 64
_MOST_SECONDS = 1.0
"""How long a process computes for that in all, busy machine or not: a suite of many programs must not take longer."""
_MOST_AROUND = 500
"""Values that are looked at in each frame around that which writes."""
spent: list[float] = []
"""How long each look of this process computed, in seconds."""
frozen = gc.get_freeze_count()
"""How many objects of the process the garbage collector did not show before the program began: it may hide more."""


def look(context: Context, handles: list[Handle], tensor: torch.Tensor, noted: Record) -> None:
    """Note who holds the memory of a tensor that is about to be written, if the write may change bytes of a save."""
    place, memory = noted.place, context.memory
    handed = memory.foreign_writers.handed if memory.foreign_writers is not None else ()
    if (
        place is None
        or noted.key in handed
        or not any(touch(geometry(handle.alias), noted.geometry) for handle in handles)
    ):
        return
    if not note(tensor, place, handles):
        memory.looks[id(place[0]), place[1]] = 0


def note(tensor: torch.Tensor, place: Place, handles: list[Handle]) -> bool:
    """Note who holds the memory of a tensor that a line writes, and where in the program the line is.

    `handles` are those of all live saves of that memory. Returns False if the line was looked at often enough.
    """
    line, key = (id(place[0]), place[1]), storages.storage_key(tensor)
    known = looked_at.get(line)
    if known is None and len(looked_at) < _MOST_LINES:
        known = looked_at[line] = Looked(place[0])
    if known is None or key is None or known.times >= _MOST_TIMES:
        return False
    known.times += 1
    begun = time.thread_time()
    with modes.plain():
        frame = sys._getframe()
        is_late = sum(spent) >= _MOST_SECONDS
        found, is_widest = (None, False) if is_late else _holders(tensor, key, handles, frame)
        if module := module_path(frame):
            known.modules = tuple(dict.fromkeys((*known.modules, module)))
        known.calls = known.calls or calls_to(frame)
        apart = _apart(key, frame)
        known.apart = tuple(apart if known.times == 1 else (one for one in known.apart if one in apart))
        del frame
    spent.append(time.thread_time() - begun)
    if not is_late or known.times == 1:
        known.holders = _both(known.holders, found)
        known.is_widest &= is_widest
    return True


def _apart(key: int, frame: FrameType) -> dict[Holder, None]:
    """Return the variables of the program's frames that hold tensors of other memory."""
    frames = (one for one in outward(frame) if owner_of(one.f_code.co_filename) is Owner.USER)
    held = ((Site(one.f_code, one.f_lasti), name, value) for one in frames for name, value in variables(one).items())
    tensors = ((Holder(name, site), value) for site, name, value in held if type(value) in storages.PLAIN)
    return dict.fromkeys(holder for holder, value in tensors if storages.storage_key(value) not in (key, None))


def _both(known: tuple[Holder, ...] | None, found: tuple[Holder, ...] | None) -> tuple[Holder, ...] | None:
    return None if known is None or found is None else tuple(dict.fromkeys((*known, *found)))


def _holders(
    tensor: torch.Tensor, key: int, handles: list[Handle], frame: FrameType | None
) -> tuple[tuple[Holder, ...] | None, bool]:
    """Return the names, None if there may be others, and whether no other tensor there is known to be of a wider type.

    `frame` and those above it may hold the tensor too.
    """
    if gc.get_freeze_count() > frozen:
        return None, False
    frames = list(outward(frame))
    begin = next((i for i, one in enumerate(frames) if owner_of(one.f_code.co_filename) is Owner.USER), None)
    if begin is None or not _may_be_written_anew(frames[:begin]):
        return None, False
    on = _tensors_on(key, geometry(tensor))
    if any(map(_is_special, on)) or _is_held_elsewhere(on):
        return None, False
    seen = _Seen({id(one): 0 for one in on})
    seen.add_handles(handles)
    if id(tensor) not in seen.counts:  # it has no elements, and so no bytes that anybody could read
        return None, False
    for i, one in enumerate(frames):
        if not seen.add_frame(one, passes=i < begin or _passes_on(one.f_code)):
            return None, False
    for inner, outer in pairwise(frames):
        own = variables(outer)
        if _is_of_module(inner.f_code, "_wrapped_call_impl"):
            seen.called_with.update(map(id, own.values()))
        elif own.get("kwargs") and _is_of(outer.f_code, *_WITHOUT_DYNAMO):
            seen.called_with.update(map(id, own["args"]))
            seen.in_call = _IN_CALL - 1  # an operand of the program's may lie on the stack as well
    is_widest = seen.add_paths(frames[begin], tensor.dtype)
    seen.add_attributes(one for one in frames[begin + 1 :] if owner_of(one.f_code.co_filename) is Owner.USER)
    return tuple(dict.fromkeys(seen.holders)) if _are_all(on, seen, tensor) else None, is_widest


def _may_be_written_anew(inside: list[FrameType]) -> bool:
    """Return True if what the program's line calls is an operator, a module, or a function for one of these.

    No other call has a form that returns a new tensor: the step of an optimizer, `load_state_dict`, a function of
    another library. To look for the holders of what they write would take long, and say nothing.
    """
    called = [one.f_code for one in inside if owner_of(one.f_code.co_filename) is not Owner.NOCLOBBER][-1:]
    return all(_is_of_module(one, "_wrapped_call_impl") or _is_of(one, *_OF_OPERATORS) for one in called)


_OF_OPERATORS = ("torch/_tensor.py", "torch/functional.py", "torch/nn/functional.py", "torch/nn/init.py")
"""Files whose functions call an operator, and hand on what they are given."""


def _tensors_on(key: int, where: Geometry) -> list[torch.Tensor]:
    """Return the Python tensors that show bytes which a write changes."""
    return [
        one
        for one in gc.get_objects()
        if issubclass(type(one), torch.Tensor) and storages.storage_key(one) == key and touch(geometry(one), where)
    ]


def _is_special(one: torch.Tensor) -> bool:
    """Return True for a tensor that is more to the program than its memory: by its class, attributes, hooks, or a weak
    reference."""
    if type(one) not in storages.PLAIN or one.__dict__:
        return True
    return (
        one.retains_grad
        or bool(one._backward_hooks)
        or not all(isinstance(w, tensor_state.Weak) for w in getweakrefs(one))
    )


def _is_held_elsewhere(on: list[torch.Tensor]) -> bool:
    """Return True if a variable of another thread refers to a tensor."""
    ids, others = {id(one) for one in on}, sys._current_frames()
    del others[threading.get_ident()]  # which would hold this frame, and what it holds, in a cycle
    frames = chain.from_iterable(map(outward, others.values()))
    return any(not ids.isdisjoint(map(id, variables(frame).values())) for frame in frames)


def _passes_on(code: CodeType) -> bool:
    """Return True for the functions of torch that only hand a tensor on, and do not read it again after the call.

    What a checkpoint reads to recompute is held for autograd: the region has to get what it got in forward.
    """
    if code.co_name == "forward":
        return _is_of(code, "torch/nn/modules/container.py")
    if _is_of_module(code, "_wrapped_call_impl", "_call_impl"):
        return True
    return _is_of(code, "torch/utils/checkpoint.py", *_WITHOUT_DYNAMO)


_WITHOUT_DYNAMO = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")
"""Files with the functions that call `checkpoint` with `*args` and `**kwargs`, which Python puts on its stack (torch
2.13, Python 3.11; tests/mend/test_sound.py)."""


def _is_of_module(code: CodeType, *names: str) -> bool:
    return code.co_name in names and _is_of(code, "torch/nn/modules/module.py")


def _is_of(code: CodeType, *files: str) -> bool:
    return code.co_filename.replace("\\", "/").endswith(files)


class _Seen:
    """What refers to some tensors, by their ids, as far as it was found."""

    def __init__(self, counts: dict[int, int]) -> None:
        self.counts = counts
        """References from the variables of functions, by the id of a tensor."""
        self.called_with: Counter[int] = Counter()
        """How many frames hold it while they call a module: `Module.__call__` is a slot of C, so what is an argument
        stays on the stack of the frame, too (Python 3.11; tests/mend/test_sound.py). Also of `_WITHOUT_DYNAMO`."""
        self.in_call = _IN_CALL
        self.holders: list[Holder] = []
        self.named: set[int] = set()
        self.cells: set[str] = set()
        """The names of variables that functions share."""
        self.known: set[int] = set()
        """Ids of containers whose references have a name, or are only handed on."""
        self.in_frames: set[int] = set()
        """Ids of what else variables hold."""
        self.tuples: dict[int, list[Any]] = {}
        """Tuples of tensors that variables of functions hold, by id: one entry for each variable."""

    def add_handles(self, handles: list[Handle]) -> None:
        """Add the references from saves that the garbage collector does not show: see core/seen/collector.py."""
        for handle in handles:
            if not gc.is_tracked(handle) and id(handle.alias) in self.counts:
                self.counts[id(handle.alias)] += 1

    def add_frame(self, frame: FrameType, *, passes: bool) -> bool:
        """Add the variables of a frame. Returns False if a library's may be read again."""
        code, is_users = frame.f_code, owner_of(frame.f_code.co_filename) is Owner.USER
        shared = (*code.co_cellvars, *code.co_freevars)
        in_globals = not code.co_flags & CO_OPTIMIZED
        for name, value in variables(frame).items():
            number = id(value)
            if number not in self.counts:
                (self.known if passes and not is_users else self.in_frames).add(number)
                is_local = is_users and not in_globals and name not in shared
                if is_local and type(value) is tuple and any(id(part) in self.counts for part in value):
                    self.tuples.setdefault(number, []).append(value)
                    self.holders.append(Holder(name, Site(code, frame.f_lasti)))
                continue
            if not is_users and not passes:
                return False
            if in_globals:
                self.known.add(id(frame.f_locals))
            elif name in shared:
                self.cells.add(name)
            else:
                self.counts[number] += 1
            if is_users:
                self._name(Holder(name, Site(code, frame.f_lasti)), number)
        return True

    def add_paths(self, frame: FrameType, dtype: torch.dtype) -> bool:
        """Add what the variables of a frame lead to, and the variables of its file. Returns False if any tensor there
        has a type that is wider than `dtype`."""
        own, site, is_widest = set(variables(frame)), Site(frame.f_code, frame.f_lasti), True
        for held in reachable([frame]):
            if isinstance(held.value, torch.Tensor):
                is_widest &= not _is_wider(held.value.dtype, dtype)
            if id(held.value) not in self.counts or (held.owner is None and held.name in own):
                continue
            if held.owner is None:
                self.known.add(id(frame.f_globals))
                self._name(Holder(held.name), id(held.value))
            elif id(held.owner) in self.tuples:
                self.known.add(id(held.owner))
            elif held.kind != "name":
                self.known |= set(map(id, _dicts_of(held.owner)))
                self._name(Holder(held.name if can_hold_another(held) else "", site), id(held.value))
        return is_widest

    def add_attributes(self, frames: Iterable[FrameType]) -> None:
        """Add the attributes of the objects that the variables of frames hold, where nothing has named them yet."""
        before, there = self.known.copy(), set[tuple[int, str]]()
        for frame in frames:
            for held in islice(reachable([frame]), _MOST_AROUND):
                place = id(held.owner), held.name.rpartition(".")[2]
                is_new = held.kind == "attribute" and place not in there and id(held.owner) not in before
                if is_new and id(held.value) in self.counts:
                    there.add(place)
                    self.known |= set(map(id, _dicts_of(held.owner)))
                    name = held.name if can_hold_another(held) else ""
                    self._name(Holder(name, Site(frame.f_code, frame.f_lasti)), id(held.value))

    def _name(self, holder: Holder, number: int) -> None:
        place = without_indexes(holder.name)
        if "[]" in place and any(without_indexes(one.name) == place for one in self.holders):
            holder = replace(holder, name="")
        self.holders.append(holder)
        self.named.add(number)


def _is_wider(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return True if an operator on tensors of a real or complex type and of another one does not give the other."""
    parts = [one.to_real() if one.is_complex else one for one in (dtype, other)]
    is_number = dtype.is_floating_point or dtype.is_complex
    is_longer = is_number and parts[0].itemsize > parts[1].itemsize
    return is_longer or (dtype.is_complex and not other.is_complex)


def _dicts_of(owner: Any) -> list[Any]:
    """Return what holds the attributes or the items of an object, or the defaults of a function."""
    inside = getattr(owner, "__dict__", None)
    if type(owner) is FunctionType:
        return [owner.__defaults__, owner.__kwdefaults__, inside]
    return [owner, inside, *((inside or {}).get(name) for name in ("_buffers", "_parameters"))]


def _are_all(on: list[torch.Tensor], seen: _Seen, written: torch.Tensor) -> bool:
    """Return True if nothing but what was found refers to the tensors.

    Where C++ holds a tensor too, one reference more is its own (torch 2.13; tests/observe/describe/test_holders.py).
    """
    unknown, cells = list[Any](), 0
    referrers = [one for one in gc.get_referrers(*on) if one is not on]
    for one in filter(_is_of_generator, referrers):
        if one.gi_frame is not None and not one.gi_running:
            held, named = list(map(id, gc.get_referents(one))), list(map(id, variables(one.gi_frame).values()))
            if any(held.count(number) > named.count(number) for number in seen.counts):
                return False  # its stack holds a tensor that the expression under way will read
            seen.add_frame(one.gi_frame, passes=False)
    if any(sys.getrefcount(several[0]) > 2 * len(several) + 2 for several in seen.tuples.values()):
        return False  # more than the variables, the two lists, and the argument
    for one in referrers:
        if _is_of_generator(one):
            continue  # its variables are counted
        cells += type(one) is CellType
        for part in gc.get_referents(one):
            if id(part) in seen.counts:
                seen.counts[id(part)] += 1
        is_ours = str(type(one).__module__).partition(".")[0] == "noclobber"
        is_named = is_ours or id(one) in {*seen.known, *seen.tuples} or isinstance(one, CellType)
        if not is_named and not _is_of_ctx(one, referrers):
            unknown.append(one)
    part = None
    # What has the arguments is held by the call alone, which is under way.
    if not all(type(one) is tuple or _has_output(one) for one in unknown) or cells > len(seen.cells):
        return False
    others = {id(one) for one in on} - seen.named - {id(written)}
    if not _are_under_way(unknown, seen.in_frames, referrers, others):
        return False
    left = {
        id(one): sys.getrefcount(one) - seen.counts[id(one)] - _OWN - (tensor_state.use_count(one) > 1) for one in on
    }
    left = {number: max(several - seen.called_with[number], 0) for number, several in left.items()}
    in_call = left.pop(id(written))
    on_stack = 0 if id(written) in seen.named else 1  # `h[0] = 1` writes to a view that has no name
    return in_call <= seen.in_call and sum(left.values()) <= on_stack


def _is_of_generator(one: object) -> TypeGuard[GeneratorType[Any, Any, Any]]:
    """Return True for a generator of the program's."""
    return type(one) is GeneratorType and owner_of(one.gi_code.co_filename) is Owner.USER


def _has_output(one: object) -> bool:
    """Return True for the keyword arguments of `torch.add(a, b, out=h)`."""
    return type(one) is dict and "out" in one


def _are_under_way(unknown: list[Any], in_frames: set[int], referrers: list[Any], others: set[int]) -> bool:
    """Return True if nothing but calls and loops that are under way holds some arguments and parts, and no variable:
    `enumerate(x.unbind())` gives each part once. None of the `others`, which a loop would still give."""
    while unknown:
        one = unknown.pop()
        if isinstance(one, GeneratorType) and _passes_on(one.gi_code):
            continue  # the region of a checkpoint is under way
        if not (type(one) in _GIVING or _has_output(one)) or id(one) in in_frames:
            return False
        holding = [up for up in gc.get_referrers(one) if up is not unknown and up is not referrers]
        if type(one) is tuple and not others.isdisjoint(map(id, one)) and any(type(up) in _GIVING for up in holding):
            return False
        unknown += holding
        del holding  # which would hold the next ones, too
    return True


_GIVING: tuple[type, ...] = (tuple, type(iter(())), type(iter(dict[str, str]().items())), enumerate, zip)
"""What gives each of its parts once, and holds the one that it gave last."""


def _is_of_ctx(attributes: Any, referrers: list[Any]) -> bool:
    """Return True for the attributes of the `ctx` of a custom Function: like a save, its backward has to read what was
    there."""
    if type(attributes) is not dict:
        return False
    owners = [one for one in gc.get_referrers(attributes) if one is not referrers and not isinstance(one, FrameType)]
    return len(owners) == 1 and isinstance(owners[0], BackwardCFunction)


_OWN = 3
"""References in `_are_all`: of the list, of the loop, of the argument."""
_IN_CALL = 5
"""References to what is written that are of the call alone, from the program's line to here; at most so many."""
