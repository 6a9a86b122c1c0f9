"""Finds writes to gradients of which `torch.autograd.grad` returned several in the same memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from types import FrameType

import torch

from noclobber.model.seen.events import Read, Tensor
from noclobber.model.seen.silent import SharedGradient
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import End
from noclobber.observe.core.context import After, Context
from noclobber.observe.core.seen.records import Backward, Record, record
from noclobber.observe.core.seen.sites import Place, place_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.digests import fingerprint
from noclobber.observe.witness.layout import Geometry, geometry, touch
from noclobber.observe.witness.witness import Witness

_MOST = 64
"""Memories that are known at a time."""
_MOST_PLACES = 256
_SETTING = tuple(f"aten::_foreach_{name}_" for name in ("zero", "clamp_min", "clamp_max", "minimum", "maximum"))
"""Operators for lists of tensors that leave the same when they run twice."""
_COMPUTING = tuple(f"aten::{name}_" for name in ("mul", "div", "add", "sub", "neg", "pow"))
"""Operators that leave something else when they run twice: each of several gradients wants its own run of them."""
_ROUNDING = 1e-4


@dataclass(slots=True, eq=False)
class _Shared:
    """Memory that a call of `grad` returned as several gradients, and what has written to it so far."""

    handed: Witness
    read: Read
    places: tuple[int, ...]
    """Which of the gradients that the call returned lie there."""
    written: set[tuple[Place | None, str, Geometry]] = field(default_factory=set)


def arm(context: Context, way: Way) -> None:
    """Look at what each call of `torch.autograd.grad` returns."""
    context.calls.special.watch(way, SharedGradients(context, way).begin)


class SharedGradients:
    """The memories of a run that hold several gradients. Where each gradient is written by the same statement, as in a
    loop or by one operator for lists, the memory is written as often."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way, self._looking = context, way, way.entry(self._look)
        self._shared: dict[int, _Shared] = {}
        self._looked_at: set[Place | None] = set()
        """Where a first write was, and the source has been asked what is read later."""

    def begin(self, call: Backward) -> End:
        """Return what to call when the call has ended."""
        return partial(self._ended, call)

    def _ended(self, call: Backward, result: object, _: BaseException | None) -> None:
        by_key: dict[int, dict[int, torch.Tensor]] = {}
        for place, one in enumerate(result if isinstance(result, tuple) else ()):
            is_strided = isinstance(one, torch.Tensor) and one.layout is torch.strided
            if is_strided and (key := storages.storage_key(one)) is not None:
                by_key.setdefault(key, {})[place] = one
        for key, some in by_key.items():
            if any(touch(geometry(one), geometry(other)) for one, other in combinations(some.values(), 2)):
                self._expect(key, next(iter(some.values())), clobbers.read_of(call), tuple(some))

    def _expect(self, key: int, tensor: torch.Tensor, read: Read, places: tuple[int, ...]) -> None:
        for one, shared in list(self._shared.items()):  # other threads change it too
            if shared.handed.storage.expired():
                self._forget(one)
        if key not in self._shared and len(self._shared) < _MOST:
            self._shared[key] = _Shared(Witness(key, tensor, fingerprint(tensor), geometry(tensor)), read, places)
            self._context.attend(self._looking, [key])

    def _forget(self, key: int) -> None:
        if self._shared.pop(key, None) is not None:
            self._context.ignore(self._looking, [key])

    def _look(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> After | None:
        shared = self._shared.get(key)
        if shared is None or not storages.is_at(shared.handed.storage, key):
            return None
        place = place_of(frame)
        this = (place, written.op, geometry(tensor))
        first = () if this in shared.written else shared.places
        shared.written.add(this)
        if first:
            if written.op not in _COMPUTING or place in self._looked_at or len(self._looked_at) == _MOST_PLACES:
                return None
            self._looked_at.add(place)
        elif written.op in _SETTING:
            return None
        noted = record(written, tensor, key, place, self._context.thread)
        now = shared.handed.now()
        with modes.aside():
            old = None if now is None or shared.handed.digest is None else now.clone()
        return self._way.entry(partial(self._wrote, shared, noted, old, clobbers.later_of(tensor), first))

    def _wrote(
        self,
        shared: _Shared,
        noted: Record,
        old: torch.Tensor | None,
        described: Callable[[], Tensor],
        first: tuple[int, ...],
    ) -> None:
        """Report a write that has changed the numbers by more than rounding: not one by a factor of one."""
        now = shared.handed.now()
        with modes.aside():
            if now is None or (old is not None and torch.allclose(now, old, _ROUNDING, equal_nan=True)):
                return
        if self._shared.get(noted.key) is shared:
            if not first:
                self._forget(noted.key)
            self._context.bus.notice(SharedGradient(clobbers.write_of(noted, described()), shared.read, first))
