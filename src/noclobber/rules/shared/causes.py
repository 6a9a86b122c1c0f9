"""The cause of a clobber. Every clobber has exactly one, so each rule can ask for its own cause."""

from __future__ import annotations

from typing import Literal

from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Write
from noclobber.model.source import Owner, Site, owner_of
from noclobber.rules.shared.writetext import write_of
from noclobber.syntax.writes import Form

Cause = Literal[
    "policy",
    "stale",
    "disjoint",
    "step",
    "sync",
    "unchecked",
    "foreign",
    "unversioned",
    "undeclared",
    "backward",
    "silent",
]
_PARALLEL = ("distributed", "parallel", "c10d")
COUNTED = ("operator", "step")
"""Kinds of writes that PyTorch could have noticed, if it had checked."""
_FOREIGN = ("foreign", "process")


def cause(clobber: Clobber) -> Cause | None:
    """Return the cause; None if no known write changed saved bytes and PyTorch raises nothing."""
    if clobber.save.unchecked == "policy":
        return "policy"
    writes = overlapping(clobber)
    if clobber.writes and not writes:
        return "disjoint" if clobber.raised else None
    stepped = any(is_step(write) for write in writes)
    if (stepped and clobber.raised) or any(write.via == "gathered" for write in writes):
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
    """Return True if the version changed but no write is known."""
    return clobber.current != clobber.save.version and not any(write.site for write in clobber.writes)


def is_step(write: Write) -> bool:
    """Return True if an optimizer made the write."""
    return write.via in ("step", "gathered") or write.step is not None


def is_sync(write: Write) -> bool:
    """Return True if a module updated its own state in a forward: by a broadcast, or in the code of its call.

    Return False for batch-norm statistics: their operator counts no version, and another rule explains that.
    """
    if not write.in_forward or is_step(write) or write.is_statistics:
        return False
    if write.op.startswith("c10d::") or "broadcast" in write.op:
        return True
    site = write.site
    if site is None or write.via not in ("operator", "unversioned"):
        return False
    if site.inside is not None or in_parallel(site) or owner_of(site.code.co_filename) is not Owner.USER:
        return True
    return write_of(site).form is Form.CALL


def in_parallel(site: Site) -> bool:
    """Return True if a site is in library code that runs a model on several processes."""
    paths = [one.code.co_filename.lower() for one in (site, site.inside) if one is not None]
    owned = [path for path in paths if owner_of(path) is not Owner.USER]
    return any(word in path for path in owned for word in _PARALLEL)
