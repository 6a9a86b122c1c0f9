"""Watches every operator, for hints: the memory that tensors take over time, and which tensors are read again."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeGuard, cast
from weakref import ref

import torch

from noclobber.model.forks import lock
from noclobber.model.seen.events import Tensor
from noclobber.model.seen.hints import InPlaceCall, Opportunity, Spelling
from noclobber.model.seen.memory import Interval, falls
from noclobber.model.seen.operators import TWIN_IS_VIEW, WITHOUT_TWIN
from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.sites import Place, place_of, site_of
from noclobber.observe.core.writes.operator_mode import OperatorMode
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import compile_guard, registry
from noclobber.observe.torch_api.frames import outward
from noclobber.observe.torch_api.tensors import storages, tensor_state

if TYPE_CHECKING:
    from torch._ops import OpOverload

MOST_EVENTS = 2_000_000
"""Storages made and freed that are written down, 16 bytes for each; later ones are not."""
_COMMUTE = ("aten::add", "aten::mul")
"""Operators that give the same bits if their operands change places."""
Instruction = tuple[CodeType, int]


@dataclass(slots=True, eq=False)
class _Storage:
    """A storage. Moments are indexes into `Allocations.live`; -1 for one that was there before anything was watched."""

    bytes: int
    made: int
    by: Instruction | None = None
    """The innermost Python instruction that made it."""
    used: int = 0
    """The number of the last operator that got it."""
    handed: bool = False
    """Whether code outside of torch ever got its memory."""
    freed: int | None = None
    reference: object = None


@dataclass(slots=True)
class _Use:
    """One time that a line wrote a result out of place that its input could have held."""

    input: _Storage
    output: _Storage
    number: int


@dataclass(slots=True, eq=False)
class _Line:
    """What is known of the operators of one kind at one place."""

    place: Place
    op: str
    spelling: Spelling
    position: int = 0
    """Which argument may hold the result."""
    uses: list[_Use] = field(default_factory=list)
    tensor: Tensor | None = None
    """The first such input. To look for its name in the program's variables would keep those alive for longer."""
    numbers: bool = False
    """Whether the other operands are plain numbers."""
    spoiled: bool = False
    """Whether the result did not fit, or the input was needed, at least once."""


@dataclass(slots=True, eq=False)
class _InPlace:
    """What is known of the calls in place of one operator at one place."""

    place: Place
    op: str
    tensor: Tensor
    times: int = 0
    bytes: int = 0
    """The most that one call wrote."""
    copied: int = 0
    """In how many calls autograd kept a clone of what was overwritten."""
    saved: bool = False
    """Whether something that was overwritten had been saved."""
    moments: list[Interval] = field(default_factory=list)


class Allocations:
    """Follows tensors from when it is among the `allocations` of the context. `hints()` may be asked later too."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind
        """The kind of device whose memory is followed, such as "cuda"; empty for all."""
        self.live = array("q", [0])
        """The bytes that are alive after each storage made or freed."""
        self.full = False
        """Whether there were more events than are written down."""
        self.uncompiled = False
        """Whether a compiled function ran as it is written: torch compiles nothing under a dispatch mode."""
        self._storages: dict[int, _Storage] = {}
        self._number = 0
        self._lines: dict[Hashable, _Line] = {}
        self._calls: dict[Hashable, _InPlace] = {}
        self._cloned: tuple[int, int, int] = (0, 0, 0)
        """The last clone: the number of the operator, the keys of what was cloned and of the clone."""
        self._lock = lock()

    def stop(self) -> None:
        """Let go of all storages: what dies from now on is not written down. What follows later begins at no bytes."""
        with self._lock:
            for one in self._storages.values():
                one.freed, one.reference = len(self.live), None
            self._storages.clear()
            self.live.append(0)

    def handed(self, key: int) -> None:
        with self._lock:
            if (known := self._storages.get(key)) is not None:
                known.handed = True

    # -- one operator ------------------------------------------------------------------------------------------------

    def before(self, context: Context, func: OpOverload[..., object], args: tuple[Any, ...], frame: FrameType) -> None:
        """Note a call that will write in place, before it does."""
        if self.full or not args or not _writes_first(func) or not _is_plain(args[0]):
            return
        tensor, key = args[0], storages.storage_key(args[0])
        with self._lock:
            storage = self._storages.get(key or 0)
            if key is None or storage is None or _is_aside(context) or not torch.is_grad_enabled():
                return
            place, instruction = place_of(frame), (frame.f_code, frame.f_lasti)
            if place is None or storage.by == instruction or not tensor.is_floating_point() or not _is_whole(tensor):
                return
            name = func._schema.name
            known = self._calls.get((place, name))
            if known is None:
                known = self._calls[place, name] = _InPlace(place, name, clobbers.unnamed(tensor))
            known.times += 1
            known.bytes = max(known.bytes, storage.bytes)
            number, source, clone = self._cloned
            if number == self._number and source == key and context.live.at(clone):
                known.copied += 1
            known.saved |= bool(context.live.at(key))
            known.moments.append(Interval(len(self.live) - 1, len(self.live), storage.bytes))

    def after(
        self,
        context: Context,
        func: OpOverload[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: object,
        frame: FrameType,
    ) -> None:
        """Note what an operator read, and what it made."""
        if self.full:
            return
        with self._lock:
            self._number += 1
            self.uncompiled = self.uncompiled or _is_compiled(frame)
            for tensor in _tensors((*args, *kwargs.values())):
                if (key := storages.storage_key(tensor)) is not None:
                    self._known(tensor, key).used = self._number
            for tensor in _tensors((result,)):
                self._made(tensor, frame)
            if func._schema.name == "aten::clone" and _is_plain(result) and _is_plain(args[0]):
                keys = storages.storage_key(args[0]), storages.storage_key(result)
                self._cloned = (self._number, keys[0] or 0, keys[1] or 0)
            elif _is_plain(result) and (positions := _could_write(func)):
                self._out_of_place(context, func._schema.name, positions, args, result, frame)
            self.full = len(self.live) > MOST_EVENTS

    def enter(self, context: Context) -> OperatorMode:
        """Put a mode on this thread's mode stack, for all who follow operators, and return it."""
        compile_guard.never_compile(OperatorMode.__torch_dispatch__)
        mode: Any = OperatorMode(context.core, partial(_before, context))
        return cast(OperatorMode, mode.__enter__())

    def unseen(self) -> list[str]:
        words = [f"operators after the first {MOST_EVENTS:,} storages made and freed"] if self.full else []
        return words + ["compiled functions in their compiled form: here they run uncompiled"] * self.uncompiled

    def _known(self, tensor: torch.Tensor, key: int) -> _Storage:
        known = self._storages.get(key)
        if known is None:
            known = _Storage(storages.storage(tensor).nbytes(), -1)
            self._follow(tensor, key, known)
        return known

    def _made(self, tensor: torch.Tensor, frame: FrameType) -> None:
        key = storages.storage_key(tensor)
        if key is None or key in self._storages or (self.kind and tensor.device.type != self.kind):
            return
        size = storages.storage(tensor).nbytes()
        if size:
            made = _Storage(size, len(self.live), (frame.f_code, frame.f_lasti), self._number)
            self._follow(tensor, key, made)
            self.live.append(self.live[-1] + size)

    def _follow(self, tensor: torch.Tensor, key: int, one: _Storage) -> None:
        self._storages[key] = one
        one.reference = ref(storages.storage(tensor), partial(self._freed, key, one))

    def _freed(self, key: int, one: _Storage, _: object) -> None:
        with self._lock:
            if self._storages.get(key) is one:
                del self._storages[key]
            one.freed, one.reference = len(self.live), None
            if one.made >= 0 and not self.full:
                self.live.append(self.live[-1] - one.bytes)

    def _out_of_place(
        self,
        context: Context,
        op: str,
        positions: tuple[int, ...],
        args: tuple[Any, ...],
        result: torch.Tensor,
        frame: FrameType,
    ) -> None:
        output = self._storages.get(storages.storage_key(result) or 0)
        if output is None or output.made != len(self.live) - 1 or _is_aside(context):
            return
        place, spelling = place_of(frame), _spelling(frame)
        if place is None or spelling is None or place[2] is not None:
            return
        key = (place, op, spelling)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(place, op, spelling)
        if line.spoiled:
            return
        for position in positions:
            value = args[position] if position < len(args) else None
            if _is_plain(value) and (not line.uses or position == line.position):
                found = self._storages.get(storages.storage_key(value) or 0)
                if found is not None and self._fits(context, value, found, result, args, position):
                    line.position = position
                    line.uses.append(_Use(found, output, self._number))
                    if line.tensor is None:
                        line.tensor, line.numbers = clobbers.unnamed(value), not _others(args, position)
                    return
        line.spoiled = True
        line.uses.clear()

    def _fits(
        self,
        context: Context,
        value: torch.Tensor,
        found: _Storage,
        result: torch.Tensor,
        args: tuple[Any, ...],
        position: int,
    ) -> bool:
        """Return True if a value could hold the result, and nobody keeps it so far."""
        key = storages.storage_key(value)
        return (
            found.made >= 0
            and not found.handed
            and (value.shape, value.dtype, value.stride()) == (result.shape, result.dtype, result.stride())
            and _is_whole(value)
            and not (value.requires_grad and tensor_state.is_leaf(value))
            and value.is_inference() == result.is_inference()
            and tensor_state.creation_of(value) in ("", "DEFAULT")
            and all(storages.storage_key(one) != key for one in _others(args, position))
            and not context.live.at(cast(int, key))
        )

    # -- at the end --------------------------------------------------------------------------------------------------

    def hints(self) -> list[Opportunity | InPlaceCall]:
        """Return what in-place writes would bring, the most first, then the calls that write in place already."""
        with self._lock:
            return [*self._opportunities(), *self._in_place()]

    def _opportunities(self) -> Iterator[Opportunity]:
        end = len(self.live)
        groups: dict[Any, list[Interval]] = {}
        for key, line in self._lines.items():
            if line.uses and not any(one.input.used > one.number or one.input.handed for one in line.uses):
                groups[key] = [
                    Interval(one.output.made, min(_end(one.input, end), _end(one.output, end)), one.output.bytes)
                    for one in line.uses
                ]
        peak = max(self.live)
        for key, fall in falls(self.live, groups).items():
            line = self._lines[key]
            site = site_of(line.place)
            assert site is not None
            yield Opportunity(
                line.op,
                site,
                line.tensor or Tensor(),
                line.position,
                *fall,
                peak,
                len(line.uses),
                line.spelling,
                line.numbers,
            )

    def _in_place(self) -> Iterator[InPlaceCall]:
        peak = max(self.live)
        for one in self._calls.values():
            site = site_of(one.place)
            assert site is not None
            rise = max(self.live[moment.begin] + moment.bytes - peak for moment in one.moments)
            copied = one.bytes if one.copied == one.times else 0
            yield InPlaceCall(one.op, site, one.tensor, one.bytes, max(0, rise), copied, one.saved, one.times)


def _end(storage: _Storage, end: int) -> int:
    return end if storage.freed is None else storage.freed


def _is_plain(value: object) -> TypeGuard[torch.Tensor]:
    """Return True for a tensor that has memory and strides of its own."""
    return (
        isinstance(value, torch.Tensor)
        and type(value) in storages.STORED
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type != "meta"
    )


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    return filter(_is_plain, tensor_state.tensors_in(*values))


def _others(args: tuple[Any, ...], position: int) -> list[torch.Tensor]:
    return list(_tensors(one for index, one in enumerate(args) if index != position))


def _is_aside(context: Context) -> bool:
    """Return True for what autograd or an optimizer does, and not the program's forward."""
    return engine_state.backward_call() is not None or bool(context.thread.backwards) or context.thread.step is not None


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return True if a tensor shows each byte of its storage once."""
    if tensor.numel() * tensor.itemsize != storages.storage(tensor).nbytes():
        return False
    return all(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


@cache
def _writes_first(func: OpOverload[..., object]) -> bool:
    schema, name = func._schema, func._schema.name.partition("::")[2]
    first = schema.arguments[0].alias_info if schema.arguments else None
    return name.endswith("_") and first is not None and first.is_write and name not in WITHOUT_TWIN | TWIN_IS_VIEW


@cache
def _could_write(func: OpOverload[..., object]) -> tuple[int, ...]:
    """Return the arguments that could hold the result of an operator; empty if it has no form in place."""
    schema = func._schema
    name = schema.name + "_"
    if schema.is_mutable or name.partition("::")[2] in WITHOUT_TWIN | TWIN_IS_VIEW:
        return ()
    if not {f"{name}.{schema.overload_name}".rstrip("."), name} & _names():
        return ()
    tensors = [index for index, one in enumerate(schema.arguments) if str(one.type) == "Tensor"]
    return tuple(tensors[:2]) if schema.name in _COMMUTE else tuple(index for index in tensors[:1] if index == 0)


@cache
def _names() -> frozenset[str]:
    return frozenset(registry.operator_names())


def _spelling(frame: FrameType) -> Spelling | None:
    """Return how the program asks for the operator that `frame` calls; None if not the program's own code does."""
    code = frame.f_code
    if owner_of(code.co_filename) is Owner.USER:
        return Spelling("expression")
    if code.co_filename != torch.nn.functional.__file__ or "inplace" not in code.co_varnames[: code.co_argcount]:
        return None
    above = _caller_of(frame)
    if above is None:
        return None
    if owner_of(above.f_code.co_filename) is Owner.USER:
        return Spelling("function", code.co_name)
    module = above.f_locals.get("self")
    if above.f_code.co_name == "forward" and isinstance(module, torch.nn.Module) and hasattr(module, "inplace"):
        return Spelling("module", type(module).__name__, inner=not _is_called_by_program(above))
    return None


def _caller_of(function: FrameType) -> FrameType | None:
    """Return the frame that calls a function of torch. Where modes see functions, as in a fake run, the function is
    called a second time, by them."""
    for one in outward(function.f_back):
        path = one.f_code.co_filename
        passes = one.f_code is function.f_code or path == torch.overrides.__file__
        if not passes and owner_of(path) is not Owner.NOCLOBBER:
            return one
    return None


def _is_called_by_program(forward: FrameType) -> bool:
    callers = (one.f_code for one in outward(forward.f_back))
    code = next((one for one in callers if one.co_name not in ("_call_impl", "_wrapped_call_impl")), None)
    return code is not None and owner_of(code.co_filename) is Owner.USER


def _is_compiled(frame: FrameType | None) -> bool:
    """Return True if `frame` belongs to a call of what the program had compiled by torch.compile.

    Such a call begins in a function `compile_wrapper` of the compiler; a call that the compiler only leaves alone, as
    an optimizer's step, begins in another one (torch 2.10 to 2.13; tests/observe/test_allocations.py).
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None:
        return False
    codes = (one.f_code for one in outward(frame))
    return any(one.co_name == "compile_wrapper" and one.co_filename == compiler.__file__ for one in codes)


def _caller(frame: FrameType) -> FrameType:
    while frame.f_back is not None and owner_of(frame.f_code.co_filename) is Owner.NOCLOBBER:
        frame = frame.f_back
    return frame


def _before(
    context: Context, func: OpOverload[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], nearest: FrameType
) -> Callable[[object], None] | None:
    """Tell all who follow operators that one is about to run. Return what to call with its result; None for one of
    noclobber's."""
    frame = _caller(nearest)
    is_ours = frame is not nearest and nearest.f_code.co_name != "detach"  # which the program calls (other_memory.py)
    if is_ours and func._schema.name == "aten::detach":
        return None  # the alias that noclobber itself makes of a save
    for one in context.allocations:
        one.before(context, func, args, frame)

    def after(result: object) -> None:
        for one in context.allocations:
            one.after(context, func, args, kwargs, result, frame)

    return after
