"""NC102 disjoint-write: PyTorch refuses a write that does not touch the bytes that backward needs

What happens
    Backward needs a slice of a tensor. Later code writes another slice of the same storage, and PyTorch raises
    "modified by an inplace operation". A typical case is `h[t] = f(h[t - 1])` over a preallocated buffer, where
    each slot is written once.

Why
    A tensor and all its views share one version counter. PyTorch does not count bytes, so it cannot see that the
    two slices are different. The gradient would have been right.

Example
    import torch

    w = torch.ones(2, requires_grad=True)
    h = torch.ones(4, 2)
    for t in range(1, 4):
        h[t] = h[t - 1] * w
    h.sum().backward()

Instead
    import torch

    w = torch.ones(2, requires_grad=True)
    h = [torch.ones(2)]
    for t in range(1, 4):
        h.append(h[t - 1] * w)
    torch.stack(h).sum().backward()

Notes
    - If the buffer must stay, save a copy of the slice: `h[t] = h[t - 1].clone() * w`. This costs the memory of the
      slice.
    - Advanced indexing (`h[torch.tensor(t)]`) makes a copy as well.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.causes import cause
from noclobber.rules.shared.labels import spelled
from noclobber.rules.shared.story import story
from noclobber.rules.shared.writetext import fills_by_loop, write_of


def find(event: Event) -> Finding | None:
    """A clobber that PyTorch raises although every write missed the saved bytes."""
    if not isinstance(event, Clobber) or cause(event) != "disjoint":
        return None
    note = (
        "a tensor and its views share one version counter; this write did not touch the saved bytes, so the gradient "
        "would have been right"
    )
    name = event.save.tensor.name
    clone = Suggestion("save a copy of the slice that is read: `.clone()`", cure=Cure.CLONE_FOR_READER)
    stack = "collect the parts in a list and `torch.stack` them after the loop"
    writes = tuple(sorted(event.writes, key=lambda write: write.order))
    return story(
        "in-place write beside bytes that backward needs: PyTorch refuses, though the gradient would be right",
        event,
        writes,
        notes=[note],
        helps=[stack, clone] if fills_by_loop(write_of(writes[0].site)) else [clone],
        verb=f"writes elsewhere in {spelled(event.save.tensor, writes[0].site, 'it')}" if name else "writes beside it",
    )
