"""NC202 foreign-write: code that torch does not see changes a tensor that backward still needs

What happens
    A tensor shares its memory with something else. This may be a numpy array that the tensor was made from
    (`torch.from_numpy`), or something that was made from the tensor (`.numpy()`, dlpack, an address given to a
    kernel), or a tensor in another process. The other side writes there between forward and backward. Backward
    reads the new bytes, and nothing is raised.

Why
    PyTorch counts the writes of its own operators. A write by numpy, by a kernel or by another process uses no
    operator of this process, so no version changes.

Example
    import numpy
    import torch

    frame = numpy.ones(3, dtype=numpy.float32)
    w = torch.ones(3, requires_grad=True)
    loss = (w * torch.from_numpy(frame)).sum()
    frame[:] = 100
    loss.backward()
    print(w.grad)  # gives 100, 100, 100; right is 1, 1, 1

Instead
    import numpy
    import torch

    frame = numpy.ones(3, dtype=numpy.float32)
    w = torch.ones(3, requires_grad=True)
    loss = (w * torch.from_numpy(frame).clone()).sum()
    frame[:] = 100
    loss.backward()
    print(w.grad)  # gives 1, 1, 1

Notes
    The usual case is an environment or a data loader that fills one buffer again and again. `torch.tensor(array)`
    copies, `torch.from_numpy` and `torch.as_tensor` do not. `t.numpy()` shares the memory of `t` too:
    `.numpy(force=True)` copies only if it must, `.numpy().copy()` always copies.
    If noclobber knows the write only from the changed bytes, the report gives the two lines between which it
    happened.
    A write that only changes the sign of zeros is not reported, unless backward divides by them. If a tensor had
    zeros of both signs, noclobber cannot decide this and reports the write.
    Weights in shared memory that several processes train without a lock (Hogwild) change between a worker's forward
    and its backward. Give each worker a local copy, and send only the gradients to the shared weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from noclobber.model.reports.finding import Cure, Finding, Label, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Handed, Write
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.causes import cause, overlapping
from noclobber.rules.shared.foreign import GIVEN_OUT, meant_or_copied
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.labels import known, same_line
from noclobber.rules.shared.story import story

_TAKEN_IN = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack", "from_file")
"""Functions that make a tensor from memory that other code already holds."""


def find(event: Event) -> Finding | None:
    """The finding for a clobber whose bytes were changed by code that torch does not see, or by an unknown write."""
    if not isinstance(event, Clobber) or cause(event) != "foreign":
        return None
    writes = overlapping(event)
    write = writes[0] if writes else Write("", via="foreign")
    who = "another process" if write.via == "process" else "code outside of torch"
    return story(
        f"{who} overwrites a {event.save.tensor.kind} that backward still needs",
        event,
        writes,
        notes=[*_hidden(write), reason(event.save)],
        helps=_cures(write),
        created=_created(write),
    )


def _created(write: Write) -> tuple[Label, ...]:
    """Where the memory was handed out, unless that is the line of the write."""
    handed = write.handed
    if handed is None or same_line(handed.site, write.site):
        return ()
    does = "shares the memory of an array" if handed.by in _TAKEN_IN else "hands its memory out"
    return known("create", handed.site, f"`{handed.by}` {does} here")


def _hidden(write: Write) -> list[str]:
    if write.via == "process":
        return [
            "the memory is shared, the version counter is not: each process counts its own writes, and none through "
            "other mappings of a file"
        ]
    notes = ["torch does not see this write, so no version is counted and PyTorch raises nothing"]
    if write.site is None and write.since is None:
        notes.append("noclobber did not see the line of this write; it ran after the save and before backward")
    return notes


def _cures(write: Write) -> Sequence[Help]:
    if write.untracked:
        return meant_or_copied(write)
    if write.via == "process":
        return (
            "run forward and backward on a local copy of what is shared: `copy.deepcopy(shared)`",
            "or hold a lock from forward to backward, in every process that writes",
        )
    handed = write.handed
    if handed is None:
        return (
            "give the tensor its own bytes: `torch.from_numpy(buf)` shares those of the array",
            "or write into a copy: `t.numpy()` shares those of the tensor, `t.numpy().copy()` does not",
        )
    if handed.by in _TAKEN_IN:
        return (f"give the tensor its own bytes: {_copied(handed)}",)
    if handed.by in GIVEN_OUT:
        return (
            "write into a copy: `t.numpy().copy()`",
            Suggestion(
                "or write with torch and out of place, so that autograd keeps the old bytes", cure=Cure.OUT_OF_PLACE
            ),
        )
    return (
        "let the code outside of torch write into its own tensor, or give autograd a `.clone()`",
        Suggestion("or let it write after the last backward that needs these bytes", cure=Cure.LATER),
    )


def _copied(handed: Handed) -> str:
    shares = {"from_dlpack": "`torch.from_dlpack(t).clone()`", "frombuffer": "`torch.frombuffer(...).clone()`"}
    return shares.get(handed.by, "`torch.tensor(buf)` copies")
