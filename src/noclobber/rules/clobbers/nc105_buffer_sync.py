"""NC105 buffer-sync: a module rewrites its buffer on every forward, while backward still needs the old one

What happens
    Some modules rewrite a buffer in each forward: DistributedDataParallel broadcasts the buffers of rank 0,
    observers and normalisations update a statistic. If two forwards run before one backward, the buffer of the
    first forward is gone.

Why
    The first forward kept the buffer for its backward. If the operator that writes counts a version, PyTorch
    raises. Newer releases hide the broadcast of DistributedDataParallel from the version counter. Then the gradient
    is silently wrong on every rank whose buffers differ from those of rank 0.

Example
    import torch
    from torch.ao.quantization.observer import MinMaxObserver

    observer = MinMaxObserver()
    x = torch.rand(3, requires_grad=True)
    first = observer(x) / observer.max_val
    observer(x + 1)
    first.sum().backward()

Instead
    import torch
    from torch.ao.quantization.observer import MinMaxObserver

    observer = MinMaxObserver()
    x = torch.rand(3, requires_grad=True)
    first = observer(x) / observer.max_val.clone()
    observer(x + 1)
    first.sum().backward()

Notes
    With DistributedDataParallel: concatenate the batches and run one forward. Or pass `broadcast_buffers=False` if
    the buffers need not be equal on all ranks. Or rebind the buffer in the module instead of writing into it.
    The running statistics of a batch norm are NC203. A buffer that the program itself writes (a queue, a memory
    bank, power iteration) is NC101.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Write
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.causes import cause, in_parallel, overlapping
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.labels import subject
from noclobber.rules.shared.story import story


def find(event: Event) -> Finding | None:
    """The finding for a buffer that a module rewrote between the forward that kept it and the backward."""
    if not isinstance(event, Clobber) or cause(event) != "sync":
        return None
    writes = overlapping(event)
    silently = "" if event.raised else "silently "
    headline = (
        f"a forward {silently}rewrites {subject(event.save.tensor)}, which an earlier forward's backward still needs"
    )
    once = "run one forward for each backward: concatenate the batches instead of calling the module twice"
    copy = Suggestion(
        "let the forward read a copy of the buffer (`.clone()`), or rebind it instead of writing into it",
        cure=Cure.CLONE_FOR_READER,
    )
    helps: list[Help] = [copy, once]
    notes = [reason(event.save)]
    if _is_spread(writes[0]):
        helps = [once, "or pass `broadcast_buffers=False` to `DistributedDataParallel`"]
        notes.append(
            "DistributedDataParallel copies the buffers of rank 0 into every rank at the start of each forward"
        )
        # A lone buffer is received in place and then copied onto itself: one write of the two is shown.
        writes = tuple(one for one in writes if one.op.startswith("c10d::") or not _is_spread(one)) or writes
    return story(headline, event, writes, notes=notes, helps=helps)


def _is_spread(write: Write) -> bool:
    """Return True if the write made ranks equal: buffers travel as one, then an uncounted copy fills each."""
    if write.op.startswith("c10d::") or "broadcast" in write.op:
        return True
    if write.op == "aten::copy_" and write.via == "unversioned":
        return True
    return write.site is not None and in_parallel(write.site)
