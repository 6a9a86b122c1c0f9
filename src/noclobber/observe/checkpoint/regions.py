"""One region of torch.utils.checkpoint: what it reads from outside, what it saved in forward, and why it drifted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from noclobber.model.clobber import Clobber
from noclobber.model.events import Read, Save, Write
from noclobber.model.silent import Drift
from noclobber.observe.checkpoint import reruns
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.fingerprints import Digest, differ, fingerprint, same_but_for_zeros
from noclobber.observe.core.history import Reread
from noclobber.observe.core.records import Backward, moment, reading
from noclobber.observe.core.sites import Place, site_of
from noclobber.observe.describe import clobbers, write_history
from noclobber.observe.torch_api import graph, private


class RegionSave:
    """One tensor as it was in forward, without a reference to it."""

    is_copy = False
    __slots__ = ("__weakref__", "digest", "filled_last", "key", "node", "order", "place", "rough", "version")

    def __init__(self, tensor: torch.Tensor, place: Place | None, digest: Digest, order: int = 0) -> None:
        self.digest = digest
        self.order = order
        self.rough: torch.Tensor | None = None
        self.version = private.version_of(tensor) or 0
        self.place = place
        self.node = private.next_node() - 1
        self.key = private.storage_key(tensor)
        self.filled_last = False
        """Whether the operator makes it only once all is saved (late_fills.py)."""


class CheckpointRegion:
    """One call of `checkpoint`: where it is, what it reads from outside, and what it saved.

    Of what it computes only fingerprints are kept, for a checkpoint is there to give that memory back.
    """

    def __init__(self, context: Context, way: Way, place: Place | None, outside: Iterable[torch.Tensor]) -> None:
        self.context, self.way = context, way
        self.memory = context.memory
        self.place = place
        self.begin = self.end = self.again = moment()
        """When forward began, when it last saved, and when it was run anew."""
        self.outside: dict[int, Reread] = {}
        for tensor in outside:
            key = private.storage_key(tensor)
            if key is not None and key not in self.outside:
                self.outside[key] = reread = Reread(key, tensor)
                self.memory.expect(reread)
        self.used: set[int] = set()
        """The storages among `outside` of which something was saved inside: the others may not matter."""
        self.saved: WeakKeyDictionary[Any, RegionSave] = WeakKeyDictionary()
        """By the object that PyTorch keeps in the place of the tensor."""
        self.count = 0
        """How many tensors were saved."""
        self._of_last: list[RegionSave] = []
        """What the node has saved that saved last."""
        self.told = False
        self.past: reruns.Past | None = None
        """What it read in forward, where bytes are preserved."""
        self._digests = context.contents is not None

    def output(self, tensor: torch.Tensor) -> RegionSave:
        """Note what a reentrant region returns in forward."""
        packed = RegionSave(tensor, self.place, self.digest(tensor))
        packed.rough = None if packed.digest is None else rough(tensor)
        return packed

    def digest(self, tensor: torch.Tensor) -> Digest:
        """The fingerprint of a tensor where contents are watched. A device may round otherwise when it computes anew:
        there only bytes tell that the region found as they were, outside."""
        if not self._digests or not (tensor.is_cpu or self.source(tensor) is not None):
            return None
        with private.no_modes():
            return fingerprint(tensor)

    def save(self, holder: Any, tensor: torch.Tensor, place: Place | None) -> None:
        """Note what is saved in forward."""
        self.count += 1
        self.saved[holder] = packed = RegionSave(tensor, place, self.digest(tensor), self.count)
        self.end = moment()
        if self._of_last and self._of_last[-1].node != packed.node:
            self._of_last = []
        self._of_last.append(packed)
        self.context.thread.packed.append(ref(packed))
        if packed.key in self.outside:
            self.used.add(packed.key)
        history = self.context.thread.history
        history.nodes.append(packed.node)
        history.places.append(place)

    def unfilled(self) -> list[RegionSave]:
        """What has no value where the region stops, run anew, once all has been saved: its operator makes it only then
        (torch 2.13; tests/observe/core/test_filled.py)."""
        return [one for one in self._of_last if one.filled_last]

    def differs(self, packed: RegionSave, tensor: torch.Tensor) -> bool:
        """Whether a recomputed tensor is another than in forward: by its bytes, else by its version.

        A version alone says nothing where the writes that moved it are known and went elsewhere in the storage, nor
        where the region itself moved it in a way that is not known.
        """
        if packed.digest is not None:
            return differ(self.digest(tensor), packed.digest)
        current, key = private.version_of(tensor) or 0, private.storage_key(tensor)
        if current <= packed.version or key is None:
            return False
        reread = self.source(tensor)
        if reread is not None:
            writes = self._writes_to(reread, tensor, packed.version)
            return not writes or any(write.overlaps for write in writes)
        return any(write.overlaps for write in self._writes_to(Reread(key, tensor), tensor, packed.version))

    def source(self, tensor: torch.Tensor) -> Reread | None:
        """The memory outside that a recomputed tensor shows; None where the region computed it."""
        key = private.storage_key(tensor)
        if key is None:
            return None
        return self.outside.get(key) or next((one for one in self.outside.values() if _is_now_at(one, key)), None)

    def _writes_to(self, reread: Reread, tensor: torch.Tensor, version: int) -> tuple[Write, ...]:
        known = clobbers.tensor_of(tensor, reread.alias)
        begin = self.again if reread.alias not in self.outside else self.begin
        reread.version = version
        return write_history.writes_to(
            reread, write_history.since(self.memory, begin), known, private.version_of(tensor) or 0
        )

    def _kept_again(self) -> Iterator[tuple[Reread, torch.Tensor]]:
        """What a reentrant region, run anew, has saved of the memory outside."""
        for key, reread in self.outside.items():
            for handle in self.context.live.at(key):
                if handle.moment >= self.again:
                    yield reread, handle.alias

    def _was_written(self) -> bool:
        """Whether a reentrant region, run anew, has saved what was overwritten since forward: known without bytes."""
        records = [
            one for one in write_history.since(self.memory, self.end, self.again) if not one.written.is_statistics
        ]
        return any(
            write.overlaps and write.version_before != write.version_after
            for reread, alias in self._kept_again()
            for write in write_history.writes_to(
                reread, records, clobbers.tensor_of(alias, reread.alias), int(alias._version)
            )
        )

    def statistics(self) -> set[int]:
        """The storages among `outside` to which nothing but batch norm has written since forward began."""
        records = write_history.since(self.memory, self.begin, self.again)
        written = {one.key: True for one in records if one.key in self.outside}
        for one in records:
            if one.key in written and not one.written.is_statistics:
                written[one.key] = False
        return {key for key, only in written.items() if only}

    def was_written(self, keys: set[int]) -> bool:
        """Whether a write to one of these storages, `detach_` among them, is known since forward began."""
        return any(one.key in keys for one in write_history.since(self.memory, self.begin, self.again))

    def returns_other(self, packed: RegionSave, tensor: torch.Tensor) -> bool:
        """Whether a reentrant region, run anew, returns something else.

        With gradients on, some operators compute by another algorithm (singular values, norms), so that bytes which
        differ mean nothing as long as the numbers are close and nothing is known to have been written.
        """
        if packed.digest is None:
            return self.past is None and self._was_written()
        if not differ(self.digest(tensor), packed.digest) or same_but_for_zeros(tensor, packed.digest):
            return False
        return bool(self.causes(tensor)) or packed.rough is None or not close(packed.rough, tensor)

    def causes(self, tensor: torch.Tensor) -> tuple[Write, ...]:
        """The writes that made a tensor differ, as far as known: to the memory that it shows, else to what the region
        saved of, else to all that it can reach; those made by its own forward only where there were none since."""
        own = self.source(tensor)
        used = self.used | {reread.alias for reread, _ in self._kept_again()}
        groups = [[own]] if own is not None else []
        groups += [[self.outside[key] for key in used], list(self.outside.values())]
        for begin in (self.end, self.begin):
            records = write_history.since(self.memory, begin, self.again)
            weighty = [one for one in records if not one.written.is_statistics]
            for group in groups:
                found = write_history.writes_to_any(group, weighty) or write_history.writes_to_any(group, records)
                if found:
                    return found
        return ()

    def tell(
        self,
        node: Any,
        field: str,
        packed: RegionSave,
        tensor: torch.Tensor,
        *,
        reentrant: bool = False,
        unfilled: bool = False,
    ) -> None:
        """Tell once that `tensor`, read by `node`, differs from forward, or is still `unfilled`.

        One that the region computed, and whose version moved, was computed right and then overwritten: a clobber.
        """
        self.told = True
        backward = reading()
        key, current = private.storage_key(tensor), private.version_of(tensor) or 0
        known, name = clobbers.tensor_of(tensor, key), node.name() if node is not None else ""
        read = Read(name, site_of(backward.place), clobbers.call_of(backward))
        is_own = not reentrant and not unfilled and key is not None and self.source(tensor) is None
        clobbered = is_own and current > packed.version
        is_output = graph.output_of(node, field) is not None
        save = Save(name, field, known, packed.version, site_of(packed.place), is_output, "hooks" if clobbered else "")
        if clobbered and key is not None:
            writes = self._writes_to(Reread(key, tensor), tensor, packed.version)
            self.context.bus.tell([Clobber(save, writes or (Write("", via="foreign"),), read, current)], None)
        else:
            causes = () if unfilled else self.causes(tensor)
            self.context.bus.notice(Drift(site_of(self.place), save, causes, read, reentrant, unfilled))

    def ask_later(self, call: Backward, node: Any, field: str, packed: RegionSave, tensor: torch.Tensor) -> None:
        """Compare what shows memory outside on a device once the call has ended, and tell then, as `tell` does. Holds
        nothing of the tensor."""
        digest = self.digest(tensor)
        if digest is None:
            return
        shown, key, unnamed = clobbers.weak(tensor), private.storage_key(tensor), clobbers.unnamed(tensor)
        name, is_output = node.name() if node is not None else "", graph.output_of(node, field) is not None

        def tell() -> None:
            if self.told:
                return
            self.told = True
            still = shown()
            known = unnamed if still is None else clobbers.tensor_of(still, key)
            save = Save(name, field, known, packed.version, site_of(packed.place), is_output)
            causes = () if still is None else self.causes(still)
            read = Read(name, site_of(call.place), clobbers.call_of(call))
            self.context.bus.notice(Drift(site_of(self.place), save, causes, read))

        other = clobbers.is_other_later(node, field, tensor, digest, packed.digest)
        call.later.append(clobbers.Later(other, tell, packed.order))

    def must_raise(self) -> bool:
        """Whether what was told can't be made good: bytes are to be preserved, and these are lost."""
        return self.told and (self.context.keeping or self.past is not None)


def _is_now_at(reread: Reread, key: int) -> bool:
    """Whether the tensor was given other memory since (`t.data = u`), and that is it."""
    tensor = reread.tensor()
    return tensor is not None and private.storage_key(tensor) == key


_SAMPLE = 256


def rough(tensor: torch.Tensor) -> torch.Tensor | None:
    """Up to 256 of a tensor's numbers, the mean of all and their root mean square, as doubles; None of no numbers."""
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    with private.aside():
        real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
        size = real.numel()
        sample = real.take(torch.linspace(0, size - 1, min(size, _SAMPLE)).long()).double()
        mean = real.sum(dtype=torch.float64) / size
        return torch.cat([sample, torch.stack([mean, real.norm(dtype=torch.float64) / size**0.5])])


def close(summary: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor has the same numbers as the one of the summary but for rounding."""
    other = rough(tensor)
    if other is None or summary.shape != other.shape:
        return False
    error = math.sqrt(torch.finfo(tensor.dtype).eps)
    with private.aside():
        return torch.allclose(summary, other, error, error * float(summary[-1].nan_to_num()), equal_nan=True)
