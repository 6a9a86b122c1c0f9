"""The calls that hand torch's memory to foreign code, or make a tensor on memory that foreign code may hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple
from weakref import ref

import torch
import torch.utils.dlpack

from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import compile_guard, modes
from noclobber.observe.torch_api.frames import frame_above
from noclobber.observe.torch_api.tensors import storages

SHARED = "share_memory_"
"""This method hands memory to other processes, not to code of this process."""


class Handout(NamedTuple):
    """One call that handed memory out. `held` returns True while somebody may hold what it returned or took in."""

    by: str
    place: Place | None
    storage: ref[torch.UntypedStorage]
    held: Callable[[], bool]


Hand = Callable[[torch.Tensor, str, FrameType, Callable[[], bool]], None]
"""Called with the tensor, the name of the call, the frame that made the call, and `Handout.held`."""
Method = Callable[..., object]
Holding = Callable[[object], Callable[[], bool]]
"""Returns `Handout.held` of what a call returned."""


class Exports:
    """Calls `hand` for every handout, from `put` until the way has ended and `forget` is called."""

    def __init__(self, hand: Hand, way: Way) -> None:
        self._hand, self._way = hand, way
        self._put: list[tuple[type | ModuleType, str, Method, Method]] = []
        """What is replaced: the owner, the name, PyTorch's function and ours."""

    def put(self, quick: compile_guard.Quick | None) -> None:
        """Replace the calls. `quick` is what `compile_guard.around_regions` takes."""
        _fill_tables()
        self._relays, scripted = _relays(), _scripted()
        for owner, name, call in self._calls():
            native = getattr(owner, name)
            self._way.after(owner, name, call)
            ours = getattr(owner, name)
            self._put.append((owner, name, native, ours))
            if id(native) in scripted:
                # torch.jit.script looks up a function by its id.
                scripted[id(ours)] = scripted[id(native)]
        withdraw = self._way.entry(self._withdraw, also_off=True)
        put_back = self._way.entry(self._put_back, also_off=True)
        self._stop = compile_guard.around_regions(withdraw, put_back, quick)

    def forget(self) -> None:
        """Remove what torch keeps of the replaced functions. The way itself puts the native functions back."""
        self._stop()
        scripted = _scripted()
        for _, _, native, ours in self._put:
            compile_guard.forget(ours, native)
            scripted.pop(id(ours), None)
        self._put.clear()

    def _withdraw(self) -> None:
        """Put the native functions back while torch.compile looks at code. It knows methods by name: those stay."""
        for owner, name, native, ours in self._put:
            if isinstance(owner, ModuleType) and vars(owner)[name] is ours:
                setattr(owner, name, native)
                compile_guard.forget(ours, native)

    def _put_back(self) -> None:
        for owner, name, native, ours in self._put:
            if isinstance(owner, ModuleType) and vars(owner)[name] is native:
                setattr(owner, name, ours)

    def _calls(self) -> Iterator[tuple[type | ModuleType, str, Callable[..., None]]]:
        """Yield every call that hands memory out: its owner, its name, and what to call after it."""
        for name, holding, unless_torch in (
            ("numpy", _alive, False),
            ("data_ptr", _always, True),
            ("untyped_storage", _used, True),
            ("__dlpack__", _always, False),
            (SHARED, _never, False),
        ):
            yield torch.Tensor, name, partial(self._gave, name, holding, unless_torch)
        for owner in (torch, torch.utils.dlpack):
            yield owner, "to_dlpack", partial(self._gave, "to_dlpack", _always, False)
            yield owner, "from_dlpack", partial(self._took, "from_dlpack")
        for name in ("from_numpy", "frombuffer", "as_tensor", "asarray"):
            yield torch, name, partial(self._took, name)

    def _gave(
        self,
        by: str,
        holding: Holding,
        unless_torch: bool,
        given: object,
        tensor: torch.Tensor,
        *_: object,
        **__: object,
    ) -> None:
        """Report a method that gave memory; `unless_torch` skips torch's calls, which keep nothing."""
        frame = frame_above(3)
        while (relay := self._relays.get(frame.f_code)) is not None and frame.f_back is not None:
            frame, by = frame.f_back, relay
        if type(tensor) in storages.PLAIN and not (unless_torch and owner_of(frame.f_code.co_filename) in _OURS):
            self._hand(tensor, by, frame, holding(given))

    def _took(self, by: str, tensor: torch.Tensor, /, *args: object, **kwargs: object) -> None:
        """Report a function that made a tensor on foreign memory."""
        source = args[0] if args else next(iter(kwargs.values()), None)
        if type(tensor) in storages.PLAIN and tensor is not source and not _is_own(tensor):
            self._hand(tensor, by, frame_above(3), _owned(source))


def _scripted() -> dict[int, str]:
    table: dict[int, str] = private.lookup("jit._builtins._get_builtin_table")()
    return table


def _fill_tables() -> None:
    """Make torch fill its tables of functions before they are replaced: it fills a table once, on first use."""
    import torch.utils._device  # `import torch` leaves it out

    torch.overrides.get_ignored_functions()
    torch.overrides.get_testing_overrides()
    private.lookup("overrides._get_overridable_functions")()
    private.lookup("utils._device._device_constructors")()


_OURS = (Owner.TORCH, Owner.NOCLOBBER)


def _relays() -> dict[CodeType, str]:
    """Return the methods of torch that pass on what a replaced method returns, by code, with the names to report."""
    return {
        torch.Tensor.storage.__code__: "storage",
        private.lookup("Tensor._typed_storage").__code__: "storage",
        torch.Tensor.__array__.__code__: "__array__",
        vars(torch.Tensor)["__cuda_array_interface__"].fget.__code__: "__cuda_array_interface__",
    }


def _is_own(tensor: torch.Tensor) -> bool:
    """Return True if torch allocated the tensor's memory, or if it has none: then no foreign code holds it."""
    try:
        with modes.plain():
            return bool(storages.storage(tensor).resizable())
    except (RuntimeError, NotImplementedError):
        return True


def _always(_: object) -> Callable[[], bool]:
    """For an address or a capsule: noclobber cannot know who has it, so it counts as held."""
    return lambda: True


def _never(_: object) -> Callable[[], bool]:
    return lambda: False


def _alive(array: object) -> Callable[[], bool]:
    """For an array that torch made: every view of the array holds it, so it lives while anybody holds the memory."""
    reference = ref(array)
    return lambda: reference() is not None


def _used(storage: object) -> Callable[[], bool]:
    """For a storage. Its Python object lives as long as torch's, so its references are counted."""
    return partial(_has_holders, ref(storage))


def _owned(source: object) -> Callable[[], bool]:
    """For an array that a tensor was made of and holds: `held` asks if anybody else holds the array or its base."""
    if not isinstance(source, getattr(sys.modules.get("numpy"), "ndarray", ())):
        return lambda: True
    reference = ref(source)

    def held() -> bool:
        return _has_holders(reference) or any(_has_holders(partial(_below, reference, depth)) for depth in (1, 2, 3))

    return held


def _below(reference: Callable[[], object], depth: int) -> object:
    """Return the base of an array, `depth` steps down; None if the array is gone or has no such base."""
    thing = reference()
    for _ in range(depth):
        base = getattr(thing, "base", None)
        thing = getattr(thing, "obj", None) if base is None else base
    return thing


def _has_holders(get: Callable[[], object]) -> bool:
    return _holders(get) > _ONE


def _holders(get: Callable[[], object]) -> int:
    thing = get()
    return 0 if thing is None else sys.getrefcount(thing)


_sample: list[object] = [type("", (), {})()]
_ONE = _holders(ref(_sample[0]))
"""What `_holders` counts for an object that has one holder."""
