"""Which cause a clobber has: every clobber has exactly one, so that every rule can ask for its own."""

from __future__ import annotations

from typing import Literal

from noclobber.model.clobber import Clobber
from noclobber.model.events import Write
from noclobber.model.source import Owner, Site, owner_of
from noclobber.rules.shared.writetext import form
from noclobber.syntax.writes import Form

Cause = Literal[
    "stale", "disjoint", "step", "sync", "unchecked", "foreign", "unversioned", "undeclared", "backward", "silent"
]
_PARALLEL = ("distributed", "parallel", "c10d")
COUNTED = ("operator", "step")
"""How a write came about that PyTorch could have noticed, had it looked."""
_FOREIGN = ("foreign", "process")


def cause(clobber: Clobber) -> Cause | None:
    """The cause; None where the writes that are known left the saved bytes alone and PyTorch does not mind either."""
    writes = overlapping(clobber)
    if clobber.writes and not writes:
        return "disjoint" if clobber.raised else None
    stepped = any(is_step(write) for write in writes)
    if stepped and clobber.raised:
        return "step"
    if clobber.save.tensor.kind == "buffer" and writes and is_sync(writes[0]):
        return "sync"
    if clobber.raised:
        return "stale"
    if clobber.save.unchecked and (any(write.via in COUNTED for write in writes) or _moved(clobber)):
        return "unchecked"
    if all(write.via in _FOREIGN for write in writes):
        return "foreign"
    if stepped or any(write.via == "unversioned" for write in writes):
        return "unversioned"
    if any(write.via == "undeclared" for write in writes):
        return "undeclared"
    return "silent" if any(write.in_forward for write in writes) else "backward"


def overlapping(clobber: Clobber) -> tuple[Write, ...]:
    """The writes that changed saved bytes, in the order of time."""
    return tuple(sorted((write for write in clobber.writes if write.overlaps), key=lambda write: write.order))


def _moved(clobber: Clobber) -> bool:
    """Whether the version moved on though no write is known."""
    return clobber.current != clobber.save.version and not any(write.site for write in clobber.writes)


def is_step(write: Write) -> bool:
    """Whether an optimizer did it."""
    return write.via == "step" or write.step is not None


def is_sync(write: Write) -> bool:
    """Whether a module's own upkeep did it during a forward: a broadcast, or code below a mere call of a module.

    Batch-norm statistics are not meant: their operator counts no version, which is another rule's matter.
    """
    if not write.in_forward or is_step(write) or is_statistics(write):
        return False
    if write.op.startswith("c10d::") or "broadcast" in write.op:
        return True
    site = write.site
    if site is None or write.via not in ("operator", "unversioned"):
        return False
    if site.inside is not None or in_parallel(site) or owner_of(site.code.co_filename) is not Owner.USER:
        return True
    return form(site) is Form.CALL


def in_parallel(site: Site) -> bool:
    """Whether a site lies in code that spreads a model over processes."""
    paths = [one.code.co_filename.lower() for one in (site, site.inside) if one is not None]
    owned = [path for path in paths if owner_of(path) is not Owner.USER]
    return any(word in path for path in owned for word in _PARALLEL)


def is_statistics(write: Write) -> bool:
    """Whether a batch norm in training mode rewrote its running statistics."""
    return "batch_norm" in write.op
