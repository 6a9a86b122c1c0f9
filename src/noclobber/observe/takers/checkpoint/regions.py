"""One region of torch.utils.checkpoint: what it reads from outside, what it saved in forward, and why it drifted.

A region drifts if its second run, in backward, computes something else than forward did.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import Protocol
from weakref import ref

import torch
from torch.autograd.graph import Node

from noclobber.model.reports.error import ClobberError
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Tensor, Write
from noclobber.model.seen.silent import Drift
from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen import reads
from noclobber.observe.core.seen.hot_path import OfRegion
from noclobber.observe.core.seen.records import Backward, moment, reading, second_runs
from noclobber.observe.core.seen.sites import Place, place_of, site_of
from noclobber.observe.describe import clobbers, refusals, write_history
from noclobber.observe.takers.checkpoint import forward_bytes
from noclobber.observe.torch_api.autograd import engine_state, graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import Digest, all_known, fingerprint, is_on_device, same_but_for_zeros
from noclobber.observe.witness.layout import geometry
from noclobber.observe.witness.witness import Change, Witness, change


class Holder(Protocol):
    """What PyTorch keeps in place of a tensor that a region saves in forward, with noclobber's record of the save."""

    handles: dict[int, object]
    noclobber_save: RegionSave


def saved_under(holder: object) -> RegionSave | None:
    """Return the record of the save that PyTorch keeps a holder for; None where noclobber has not seen the save."""
    return getattr(holder, "noclobber_save", None)


class RegionSave:
    """A record of one tensor in forward: a save of a region, or an output of a reentrant one. Holds no reference to the
    tensor.

    The native part makes one without `__init__` (native/regions.cpp), for the usual save of a region.
    """

    is_copy = False
    __slots__ = ("__weakref__", "digest", "filled_last", "key", "moment", "node", "order", "place", "rough", "version")

    def __init__(self, tensor: torch.Tensor, place: Place | None, digest: Digest, order: int = 0) -> None:
        self.version, self.key = tensor_state.version_of(tensor) or 0, storages.storage_key(tensor)
        self.node, self.moment = engine_state.next_node() - 1, moment()
        self.place, self.digest, self.order = place, digest, order
        self.rough: torch.Tensor | None = None
        """A summary of the numbers, where the second run may round differently."""
        self.filled_last = False
        """True if the operator computes this save only after all is saved (kernel_functions.py)."""


_Causes = tuple[tuple[Write, ...], bool]
_UNKNOWN: _Causes = (), False


class CheckpointRegion:
    """One call of `checkpoint`: where it is, what it reads from outside, and what it saved.

    Only fingerprints of its saves are kept, because the purpose of a checkpoint is to free their memory.
    """

    def __init__(self, context: Context, way: Way, place: Place | None, read: reads.Reads) -> None:
        self.context, self.way = context, way
        self.memory = context.memory
        self.place = place
        self.begin = self.end = self.again = moment()
        """The moments when forward began, when that of a reentrant region ended, and when the second run began."""
        self.outside = outside(context, read)
        self.memory.read_again_by(self, self.outside)
        self.saves: list[RegionSave] = []
        """What forward saved, in its order."""
        self.as_saved: set[int | None] = set()
        """The storages of `outside` all of whose bytes were seen to be in the second run what they were in forward."""
        self.told = False
        """True once this region is reported."""
        self.changed: list[clobbers.Later] = []
        """What the policy of a selective checkpoint keeps, if its bytes are not as in forward."""
        self.past: forward_bytes.Past | None = None
        """What the region read in forward; None where bytes are not preserved."""
        self.count_on: set[int | None] = set()
        """The storages of what the policy keeps whose versions in the second run count on from those of forward."""
        self.values, self.values_again = read.values, read.values
        """What it could read when forward began, and when the second run began (reads.py)."""
        self._digests = context.contents is not None

    def output(self, tensor: torch.Tensor) -> RegionSave:
        """Return the record of a tensor that a reentrant region returns in forward."""
        packed = RegionSave(tensor, self.place, self.digest(tensor))
        packed.rough = rough(tensor) if packed.digest is not None or self._stays(tensor) else None
        return packed

    def digest(self, tensor: torch.Tensor) -> Digest:
        """Return the fingerprint of a tensor; None where contents are not watched.

        Also None for a tensor that the region computed on a device: the second run may round differently there, so a
        summary of its numbers is compared (`rough`).
        """
        if not self._digests or not (tensor.is_cpu or self.source(tensor) is not None):
            return None
        return fingerprint(tensor)

    def _stays(self, tensor: torch.Tensor) -> bool:
        return self._digests and is_on_device(tensor)

    def functions(self) -> tuple[OfRegion, OfRegion]:
        """Return what PyTorch's hooks call: `save` and `is_as_saved`, or what the native part does in their place."""
        both = self.way.entry(self.save), self.way.entry(self.is_as_saved)
        native = None if self.context.keeping else self.context.native
        return both if native is None else native.region_functions(self.saves, RegionSave, self._digests, *both)

    def save(self, holder: Holder, tensor: torch.Tensor) -> None:
        """Record a tensor that forward saves under PyTorch's holder. The pack hook that got it calls this."""
        thread = self.context.thread
        if not thread.watched:
            return
        packed = RegionSave(tensor, place_of(sys._getframe(2)), self.digest(tensor), len(self.saves) + 1)
        if packed.digest is None and self._stays(tensor):
            packed.rough = rough(tensor)
        holder.noclobber_save = packed
        self.saves.append(packed)
        thread.saves.append((packed.node, packed.place))
        thread.packed.append(ref(packed))

    def is_as_saved(self, holder: Holder, tensor: torch.Tensor) -> bool:
        """Return True if a recomputed tensor is known at once to be as in forward; most are."""
        packed = saved_under(holder)
        if packed is None or packed.filled_last or self.past is not None or packed.rough is not None:
            return False
        if packed.digest is None:
            return (tensor_state.version_of(tensor) or 0) <= packed.version
        return type(packed.digest) is int and fingerprint(tensor) == packed.digest

    def begins_again(self, run: ExitStack, read: reads.Reads) -> None:
        """Note that a second run begins, and what it can read. It ends with `run`."""
        self.again, self.values_again = moment(), read.values
        self.changed.clear()
        regions = self.context.thread.again
        regions.append(self)

        def ended() -> None:
            regions.remove(self)
            second_runs.append((self.again, moment()))

        run.callback(ended)

    def unfilled(self) -> list[RegionSave]:
        """Return the saves without a value if the second run stops as soon as everything is saved: their operator
        computes them only after that (torch 2.13; tests/observe/core/test_filled.py)."""
        of_last = takewhile(lambda save: save.node == self.saves[-1].node, reversed(self.saves))
        return [save for save in of_last if save.filled_last]

    def differs(self, packed: RegionSave, tensor: torch.Tensor) -> bool:
        """Return True if a recomputed tensor differs from forward: by its bytes if there is a fingerprint, else by its
        version.

        A higher version alone proves nothing if the writes that moved it are known and went to other bytes of the
        storage, or if the region itself moved it by writes that noclobber does not know.
        """
        if packed.digest is not None:
            is_other = change(packed.digest, self.digest(tensor), waits=True) is Change.BYTES
            if not is_other and self._outside_at(packed.key) is not None and _is_all(tensor):
                self.as_saved.add(packed.key)
            return is_other
        current, key = tensor_state.version_of(tensor) or 0, storages.storage_key(tensor)
        if current <= packed.version or key is None or key in self.count_on:
            return False
        outside = self.source(tensor)
        writes = self._writes_to(outside or Witness(key, tensor), tensor, packed.version)
        return any(write.overlaps for write in writes) or (outside is not None and not writes)

    def source(self, tensor: torch.Tensor) -> Witness | None:
        """Return the outside memory that a recomputed tensor is on; None where the region computed the tensor."""
        key = storages.storage_key(tensor)
        if key is None:
            return None
        moved = (known for known in self.outside.values() if _is_now_at(known, key))
        return self._outside_at(key) or next(moved, None)

    def _outside_at(self, key: int | None) -> Witness | None:
        """Return the outside memory that still has this key. Once it is gone, the region itself may get the address."""
        known = None if key is None else self.outside.get(key)
        return known if known is not None and storages.is_at(known.storage, key) else None

    def _writes_to(self, reread: Witness, tensor: torch.Tensor, version: int) -> tuple[Write, ...]:
        known = clobbers.unnamed(tensor)
        begin = self.again if reread.key not in self.outside else self.begin
        reread.version = version
        return write_history.writes_to(
            reread, write_history.since(self.memory, begin), known, tensor_state.version_of(tensor) or 0
        )

    def _kept_again(self) -> Iterator[tuple[Witness, torch.Tensor]]:
        """Yield what the second run of a reentrant region saved of outside memory: the memory and the save's alias."""
        for key, reread in self.outside.items():
            for handle in self.context.live.at(key):
                if handle.moment >= self.again:
                    yield reread, handle.alias

    def _was_written(self) -> bool:
        """Return True if the second run of a reentrant region saved memory that was overwritten since forward. This
        needs no fingerprints."""
        records = [
            noted for noted in write_history.since(self.memory, self.end, self.again) if not noted.written.is_statistics
        ]
        return any(
            write.overlaps and write.version_before != write.version_after
            for reread, alias in self._kept_again()
            for write in write_history.writes_to(reread, records, clobbers.unnamed(alias), int(alias._version))
        )

    def statistics(self) -> set[int]:
        """Return the storages of `outside` that only batch norm has written to since forward began."""
        records = write_history.since(self.memory, self.begin, self.again)
        written = {noted.key: True for noted in records if noted.key in self.outside}
        for noted in records:
            if noted.key in written and not noted.written.is_statistics:
                written[noted.key] = False
        return {key for key, only in written.items() if only}

    def was_written(self, keys: set[int]) -> bool:
        """Return True if a write to one of these storages since forward began is known. `detach_` counts as a write."""
        return any(noted.key in keys for noted in write_history.since(self.memory, self.begin, self.again))

    def returns_other(self, packed: RegionSave, tensor: torch.Tensor) -> bool:
        """Return True if a reentrant region returns something else in its second run.

        With gradients on, some operators use another algorithm (singular values, norms). Different bytes therefore mean
        nothing if the numbers are close and no write is known. The program waits for a device only where plain values
        have moved.
        """
        if packed.digest is None and packed.rough is not None and reads.moved(self.values, self.values_again):
            return all_known([far(packed.rough, tensor)])[0]
        if packed.digest is None:
            return self.past is None and self._was_written()
        if not self.differs(packed, tensor) or same_but_for_zeros(tensor, packed.digest):
            return False
        return bool(self.causes(tensor)[0]) or packed.rough is None or all_known([far(packed.rough, tensor)])[0]

    def causes(self, tensor: torch.Tensor | None) -> _Causes:
        """Return the known writes that may have made a tensor, or the whole run, differ: to its own outside memory,
        else to outside memory that the region has saves on, else to all outside memory, and last to what holds what it
        held. Writes that the second run has made as well count only if there are no others.

        The second value is True if no save of the region lies on what was written: it may not read it at all.
        """
        own = self.source(tensor) if tensor is not None else None
        used = {reread.key for reread, _ in self._kept_again()}
        used |= {witness.key for save in self.saves if (witness := self._outside_at(save.key)) is not None}
        groups = [([own], False)] if own is not None else []
        nothing: set[int | None] = set()
        for but in (self.as_saved, nothing):
            groups.append(([self.outside[key] for key in used - but], False))
            groups.append(([one for key, one in self.outside.items() if key not in but], True))
        made, again = write_history.since(self.memory, self.begin, self.again), self._again()
        for records in ([noted for noted in made if noted.place not in again], made):
            weighty = [noted for noted in records if not noted.written.is_statistics]
            for group, is_guess in groups:
                found = write_history.writes_to_any(group, weighty) or write_history.writes_to_any(group, records)
                if found:
                    return found, is_guess
        return (), False

    def _again(self) -> set[Place | None]:
        return {noted.place for noted in write_history.since(self.memory, self.again)}

    def _drift(self, save: Save, causes: _Causes, read: Read, *, reentrant: bool = False) -> Drift:
        writes, is_guess = causes
        again = {site_of(place) for place in self._again()}
        repeated = bool(writes) and all(write.site in again for write in writes)
        moved = reads.moved(self.values, self.values_again)
        sources = _sources(self.place) if moved else ()
        written = write_history.since(self.memory, self.begin, self.again)
        first = {save.key: save.moment for save in reversed(self.saves)}
        spoils = any(noted.key in first and first[noted.key] < noted.moment for noted in written)
        return Drift(
            site_of(self.place), save, writes, read, reentrant, False, repeated, moved, sources, "", spoils, is_guess
        )

    def failed(self, error: Exception) -> None:
        """Remember what may be why the second run raised an error: the plain values that differ, and where it saved
        other tensors than forward did, the writes to what it reads."""
        if self.told or isinstance(error, torch.OutOfMemoryError) or refusals.remembered(error) is not None:
            return
        saved_other = isinstance(error, torch.utils.checkpoint.CheckpointError) and "already unpacked once" not in str(
            error
        )
        causes = self.causes(None) if saved_other else _UNKNOWN
        drift = self._drift(Save("", "", Tensor(), 0), causes, clobbers.read_of(reading()))
        if drift.moved or not all(write.is_statistics for write in drift.writes):
            refusals.remember(error, replace(drift, raised=type(error).__name__))

    def tell(
        self,
        node: Node | None,
        field: str,
        packed: RegionSave,
        tensor: torch.Tensor,
        *,
        reentrant: bool = False,
        unfilled: bool = False,
    ) -> None:
        """Report that `tensor`, which `node` reads, differs from forward or is still `unfilled`.

        If the region computed the tensor itself and its version moved, it was computed right and then overwritten: that
        is a clobber. Anything else is a drift.
        """
        self.told = True
        backward = reading()
        key, current = storages.storage_key(tensor), tensor_state.version_of(tensor) or 0
        known, name = clobbers.tensor_of(tensor), node.name() if node is not None else ""
        read = clobbers.read_of(backward, name)
        is_own = not reentrant and not unfilled and key is not None and self.source(tensor) is None
        clobbered = is_own and current > packed.version
        is_output = graph.output_of(node, field) is not None
        save = Save(name, field, known, packed.version, site_of(packed.place), is_output, "hooks" if clobbered else "")
        if clobbered and key is not None:
            writes = self._writes_to(Witness(key, tensor), tensor, packed.version)
            self.context.bus.tell([Clobber(save, writes or (Write("", via="foreign"),), read, current)], None)
        elif unfilled:
            self.context.bus.notice(Drift(site_of(self.place), save, (), read, reentrant, unfilled))
        elif (found := self._changed()) is not None:
            self.context.bus.tell([found], None)
        else:
            self.context.bus.notice(self._drift(save, self.causes(tensor), read, reentrant=reentrant))

    def _changed(self) -> Clobber | None:
        return next(filter(None, clobbers.settled(self.changed)), None)

    def ask_later(
        self, call: Backward, node: Node | None, field: str, packed: RegionSave, tensor: torch.Tensor
    ) -> None:
        """Compare a tensor on a device when the backward call has ended, and report it then if it differs. Keeps no
        memory of the tensor alive."""
        digest = self.digest(tensor) if packed.rough is None else None
        if digest is None and packed.rough is None:
            return
        shown, described = clobbers.weak(tensor, geometry(tensor)), clobbers.later_of(tensor)
        name, is_output = node.name() if node is not None else "", graph.output_of(node, field) is not None

        def tell() -> Clobber | None:
            if self.told:
                return None
            self.told = True
            if (found := self._changed()) is not None:
                return found
            still = shown()
            save = Save(name, field, described(), packed.version, site_of(packed.place), is_output)
            causes = _UNKNOWN if still is None else self.causes(still)
            read = clobbers.read_of(call, name)
            self.context.bus.notice(self._drift(save, causes, read))
            return None

        if packed.rough is not None:
            other = far(packed.rough, tensor)
        else:
            other = clobbers.is_other_later(node, field, digest, packed.digest)
        call.later.append(clobbers.Later(other, tell, packed.order))

    def must_read_as_it_is(self) -> None:
        """Raise ClobberError if the bytes of forward cannot be put back and the program may have overwritten them."""
        if self.past is not None and any(needed.suspect is not None for needed in list(self.past.reached)):
            raise ClobberError(forward_bytes.LOST)

    def must_raise(self) -> bool:
        """Return True if an error must be raised for what was reported: bytes had to be preserved, and are lost."""
        return self.told and (self.context.keeping or self.past is not None)


def outside(context: Context, read: reads.Reads) -> dict[int, Witness]:
    """Return a witness for each storage that a region reads from outside, by its key."""
    native = context.native
    found = None if native is None else native.outside(Witness, read.tensors, read.given)
    if found is None:
        found = {}
        for tensor in (*read.tensors, *read.given):
            key = storages.storage_key(tensor)
            if key is not None and key not in found:
                found[key] = Witness(key, tensor)
    return found


def _is_all(tensor: torch.Tensor) -> bool:
    """Return True if a tensor shows each byte of its storage."""
    return tensor.numel() * tensor.element_size() == storages.storage(tensor).nbytes()


def _sources(place: Place | None) -> tuple[str, ...]:
    """Return the files of the user's code that have run, that of `place` first."""
    paths = [place[0].co_filename] if place is not None else []
    paths += [path for one in list(sys.modules.values()) if isinstance(path := vars(one).get("__file__"), str)]
    return tuple(dict.fromkeys(path for path in paths if owner_of(path) is Owner.USER))


def _is_now_at(reread: Witness, key: int) -> bool:
    """Return True if the tensor was given other memory since (`t.data = u`), and `key` is that memory's storage."""
    tensor = reread.tensor()
    return tensor is not None and storages.storage_key(tensor) == key


_SAMPLE = 256
_SUMMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Not those of 8 bits: they cannot be added up."""


def rough(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a summary of a tensor: up to 256 of its numbers, and the mean and the root mean square of them
    all, as doubles (as single numbers on MPS).

    Returns None for an empty tensor, for one of other numbers than `_SUMMED`, and for one whose dimensions have names,
    which few operators take (torch 2.10 to 2.12).
    """
    if any(getattr(tensor, "names", ())) or not tensor.numel() or tensor.dtype not in _SUMMED:
        return None
    with modes.aside():
        plain = tensor_state.detach(tensor)
        real = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
        size = real.numel()
        wide = torch.float32 if real.device.type == "mps" else torch.float64  # which MPS does not have
        sample = real.take(torch.linspace(0, size - 1, min(size, _SAMPLE), device=real.device).long()).to(wide)
        mean = real.sum(dtype=wide) / size
        return torch.cat([sample, torch.stack([mean, real.norm(dtype=wide) / size**0.5])])


def far(summary: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor | bool:
    """Return whether a tensor has other numbers, by more than rounding, than the tensor of the summary.

    The answer stays on the tensor's device, for `all_known`.
    """
    other = rough(tensor)
    if other is None or summary.shape != other.shape:
        return True
    error = math.sqrt(torch.finfo(tensor.dtype).eps)
    with modes.aside():
        # A mask that sets scores to -inf leaves no mean of them.
        scale = summary[-1].nan_to_num(1, 1).clamp_min(1e-20)
        return ~torch.isclose(other / scale, summary / scale, error, error, equal_nan=True).all()
