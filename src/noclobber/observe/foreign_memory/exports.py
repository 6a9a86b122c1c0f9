"""Where torch hands memory to code that it does not see, or takes in memory which such code may still hold."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.jit._builtins
import torch.utils._device
import torch.utils.dlpack

from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.sites import Place
from noclobber.observe.torch_api import compile_guard, private
from noclobber.observe.torch_api.frames import frame_above, passed_over

SHARED = "share_memory_"
"""It hands memory to other processes, not to code of this one."""


class Handout(NamedTuple):
    """One call that handed memory out. `held` tells whether somebody still holds what the call gave, or was given."""

    by: str
    place: Place | None
    storage: ref[Any]
    held: Callable[[], bool]


Hand = Callable[[torch.Tensor, str, FrameType, Callable[[], bool]], None]
"""Is told of a tensor, the name of the call, the frame that made it, and `Handout.held`."""


class Exports:
    """Tells `hand` of every handout, from `put` until the way is ended and `forget` is called."""

    def __init__(self, hand: Hand, way: Way) -> None:
        self._hand, self._way = hand, way
        self._put: list[tuple[Any, str, Any, Any]] = []
        self._regions = compile_guard.Regions(
            way.entry(self._withdraw, also_off=True), way.entry(self._put_back, also_off=True)
        )

    def put(self) -> None:
        """Begin."""
        _fill_tables()
        relays, scripted = _relays(), _scripted()
        for owner, name, wrap in _calls():
            native = getattr(owner, name)
            ours = wrap(native, name, self._hand, self._way, relays)
            self._way.patches.put(owner, name, ours)
            self._put.append((owner, name, native, ours))
            if id(native) in scripted:
                # What torch.jit.script looks up a function by.
                scripted[id(ours)] = scripted[id(native)]
        self._regions.listen()

    def forget(self) -> None:
        """End."""
        self._regions.stop()
        scripted = _scripted()
        for _, _, native, ours in self._put:
            compile_guard.forget(ours, native)
            scripted.pop(id(ours), None)
        self._put.clear()

    def _withdraw(self) -> None:
        """Functions only: torch.compile goes by the names of methods."""
        for owner, name, native, ours in self._put:
            if isinstance(owner, ModuleType) and vars(owner)[name] is ours:
                setattr(owner, name, native)
                compile_guard.forget(ours, native)

    def _put_back(self) -> None:
        for owner, name, native, ours in self._put:
            if isinstance(owner, ModuleType) and vars(owner)[name] is native:
                setattr(owner, name, ours)


def _scripted() -> dict[int, str]:
    table: dict[int, str] = private.lookup("jit._builtins._get_builtin_table")()
    return table


def _calls() -> Iterator[tuple[Any, str, Callable[..., Callable[..., Any]]]]:
    """Every call that hands memory out: its owner, its name, and what to put in its place."""
    yield torch.Tensor, "numpy", partial(_giving, _alive)
    yield torch.Tensor, "data_ptr", partial(_giving, _always, unless_torch=True)
    yield torch.Tensor, "untyped_storage", partial(_giving, _used, unless_torch=True)
    yield torch.Tensor, "__dlpack__", partial(_giving, _always)
    yield torch.Tensor, SHARED, partial(_giving, _never)
    for owner in (torch, torch.utils.dlpack):
        yield owner, "to_dlpack", partial(_giving, _always)
        yield owner, "from_dlpack", _taking
    for name in ("from_numpy", "frombuffer", "as_tensor", "asarray"):
        yield torch, name, _taking


def _fill_tables() -> None:
    """Let torch note its own functions before they are replaced: tables that it fills on first use, and keeps."""
    torch.overrides.get_ignored_functions()
    torch.overrides.get_testing_overrides()
    private.lookup("overrides._get_overridable_functions")()
    private.lookup("utils._device._device_constructors")()


def _giving(
    holding: Callable[[torch.Tensor, Any], Callable[[], bool]],
    native: Callable[..., Any],
    name: str,
    hand: Hand,
    way: Way,
    relays: dict[CodeType, str],
    *,
    unless_torch: bool = False,
) -> Callable[..., Any]:
    """A method that gives memory away. With `unless_torch` torch's own calls do not count, as it keeps nothing."""

    def gave(tensor: Any, given: Any, frame: FrameType) -> None:
        by = name
        while (relay := relays.get(frame.f_code)) is not None and frame.f_back is not None:
            frame, by = frame.f_back, relay
        if type(tensor) in _PLAIN and not (unless_torch and owner_of(frame.f_code.co_filename) in _OURS):
            hand(tensor, by, frame, holding(tensor, given))

    gave_away = way.entry(gave)

    @functools.wraps(native)
    def giving(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        given = native(tensor, *args, **kwargs)
        gave_away(tensor, given, frame_above(1))
        return given

    private.never_compile(passed_over(giving))
    return giving


def _taking(
    native: Callable[..., Any], name: str, hand: Hand, way: Way, relays: dict[CodeType, str]
) -> Callable[..., Any]:
    """A function that makes a tensor on memory of others."""

    def took(tensor: Any, source: Any, frame: FrameType) -> None:
        if type(tensor) in _PLAIN and tensor is not source and not _is_own(tensor):
            hand(tensor, name, frame, _owned(source))

    took_in = way.entry(took)

    @functools.wraps(native)
    def taking(*args: Any, **kwargs: Any) -> Any:
        frame = frame_above(1)
        tensor = native(*args, **kwargs)
        took_in(tensor, args[0] if args else next(iter(kwargs.values()), None), frame)
        return tensor

    private.never_compile(passed_over(taking))
    return taking


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OURS = (Owner.TORCH, Owner.NOCLOBBER)


def _relays() -> dict[CodeType, str]:
    """Methods of torch that hand on what one of the replaced ones gives."""
    return {
        torch.Tensor.storage.__code__: "storage",
        private.lookup("Tensor._typed_storage").__code__: "storage",
        torch.Tensor.__array__.__code__: "__array__",
        vars(torch.Tensor)["__cuda_array_interface__"].fget.__code__: "__cuda_array_interface__",
    }


def _is_own(tensor: torch.Tensor) -> bool:
    """Whether torch allocated a tensor's memory: then nobody else knows of it."""
    try:
        with private.plain():
            return bool(private.storage(tensor).resizable())
    except (RuntimeError, NotImplementedError):
        return True


def _always(tensor: torch.Tensor, given: Any) -> Callable[[], bool]:
    """An address or a capsule: nobody knows who has it."""
    return lambda: True


def _never(tensor: torch.Tensor, given: Any) -> Callable[[], bool]:
    return lambda: False


def _alive(tensor: torch.Tensor, array: Any) -> Callable[[], bool]:
    """An array that torch made: all of its views hold it."""
    reference = ref(array)
    return lambda: reference() is not None


def _used(tensor: torch.Tensor, storage: Any) -> Callable[[], bool]:
    """A storage: Python's object of it is there as long as torch's."""
    return partial(_has_holders, ref(storage))


def _owned(source: Any) -> Callable[[], bool]:
    """An array that the tensor made of it holds: whether the program holds it too, or what it is a view of."""
    if not isinstance(source, getattr(sys.modules.get("numpy"), "ndarray", ())):
        return lambda: True
    reference = ref(source)

    def held() -> bool:
        return _has_holders(reference) or any(_has_holders(partial(_below, reference, depth)) for depth in (1, 2, 3))

    return held


def _below(reference: Callable[[], Any], depth: int) -> Any:
    """What an array is a view of, and so on."""
    thing = reference()
    for _ in range(depth):
        base = getattr(thing, "base", None)
        thing = getattr(thing, "obj", None) if base is None else base
    return thing


def _has_holders(get: Callable[[], Any]) -> bool:
    """Whether an object that one other certainly holds has more holders than that."""
    return _holders(get) > _ONE


def _holders(get: Callable[[], Any]) -> int:
    thing = get()
    return 0 if thing is None else sys.getrefcount(thing)


_sample: list[Any] = [type("", (), {})()]
_ONE = _holders(ref(_sample[0]))
"""What `_holders` counts where there is one."""
