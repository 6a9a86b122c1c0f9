"""NC201 silent-write: a write that PyTorch does not count changes a tensor that backward still needs

What happens
    The program writes through `.data`, `t.data = u`, `set_` with another tensor's storage, `untyped_storage()` or
    `swap_tensors`. These reach the same bytes, but with their own version counter or with none. Backward reads
    changed bytes, and nothing is raised.

Why
    PyTorch's only check compares version counters. It does not see a write that moves another counter, and the
    gradient is wrong.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    y = h**2
    h.data.zero_()
    y.sum().backward()
    print(x.grad)  # gives 0, 0, 0; right is 8, 8, 8

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    y = h**2
    h = torch.zeros_like(h)
    y.sum().backward()
    print(x.grad)  # gives 8, 8, 8

Notes
    If you replace `.data` by `.detach()` or by `torch.no_grad()`, PyTorch notices the write and raises. You still
    have to remove the write.
    If the gradient should not see the change, compute with a new tensor: `h = h + (h * 2 - h).detach()`.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Save, Write
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.causes import cause, overlapping
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.story import story
from noclobber.rules.shared.wording import is_compiled, op_in_words


def find(event: Event) -> Finding | None:
    """A clobber that PyTorch does not notice: a write through another counter, `t.data = u` or a swap."""
    if not isinstance(event, Clobber) or cause(event) != "silent":
        return None
    writes = overlapping(event)
    return story(
        "silent in-place write: backward reads other bytes than were saved",
        event,
        writes,
        notes=[_hidden(writes[0], event.save), reason(event.save)],
    )


def _hidden(write: Write, save: Save) -> str:
    if write.via == "set_data":
        return "`t.data = u` gives the tensor other bytes and counts no version, so PyTorch raises nothing"
    if write.via == "swap":
        return "`swap_tensors` moves the bytes and their counter together, so PyTorch raises nothing"
    if is_compiled(save.node):
        return "compiled code keeps an alias with its own version counter, so PyTorch raises nothing"
    what = f"`{op_in_words(write.op)}` wrote through an alias that has its own version counter"
    return f"{what} (`.data`, `set_`, a storage), so PyTorch raises nothing"
