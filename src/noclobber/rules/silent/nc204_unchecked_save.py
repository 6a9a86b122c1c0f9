"""NC204 unchecked-save: an in-place write changes a tensor that backward needs, where PyTorch's check is off

What happens
    The write is an ordinary one that would raise. But the tensor was saved under saved-tensor hooks
    (`saved_tensors_hooks`, `save_on_cpu`), or a custom Function keeps it as an attribute of its `ctx`. Backward
    reads changed bytes, and nothing is raised.

Why
    PyTorch compares versions when it unpacks what it saved itself. It does not check what a hook has packed, even
    if the hook returns the tensor unchanged. It does not know about `ctx.x = x` at all: it checks only what went
    through `ctx.save_for_backward`.

Example
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = h**2
    h.zero_()
    y.sum().backward()
    print(x.grad)  # gives 0, 0, 0; right is 8, 8, 8

Instead
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = h**2
    h = torch.zeros_like(h)
    y.sum().backward()
    print(x.grad)  # gives 8, 8, 8

Notes
    Hooks that measure memory, offload to the CPU or compress all have this effect. `save_on_cpu` copies tensors
    that are on a device, and no later write reaches the copy. It does not copy a tensor that is already on the CPU.
    The same holds for memory that your own pack hook returns: a buffer that is used for the next save, before backward
    has read this one, gives backward the bytes of the next.
    In a Function, use `ctx.save_for_backward(x)` for inputs and outputs, and attributes for everything that is not
    a tensor. `save_for_backward` also frees the tensor in time and avoids a reference cycle with outputs.
    You still have to remove the write itself, as in NC101: the check would only turn the wrong gradient into an
    error.
"""

from __future__ import annotations

from collections.abc import Sequence

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Write
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.causes import COUNTED, cause, is_step, overlapping
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.labels import known, same_line
from noclobber.rules.shared.stepping import step_cures
from noclobber.rules.shared.story import story
from noclobber.rules.shared.wording import node_in_words


def find(event: Event) -> Finding | None:
    """The finding for a clobber that PyTorch would notice, if hooks or a `ctx` did not switch its check off."""
    if not isinstance(event, Clobber) or cause(event) != "unchecked":
        return None
    writes = sorted(overlapping(event), key=lambda write: write.via not in COUNTED)
    kind = event.save.tensor.kind
    where = _WHERE[event.save.unchecked]
    who = f"the backward of {node_in_words(event.save.node)}" if event.save.unchecked == "ctx" else "backward"
    helps = step_cures(event, writes[0]) if writes and is_step(writes[0]) else ()
    applied = None if same_line(event.save.applied, event.save.site) else event.save.applied
    return story(
        f"silent in-place write to a {kind} that {who} {where}",
        event,
        writes,
        notes=[_silenced(event, writes), reason(event.save)],
        helps=helps,
        beside=known("save", applied, f"{node_in_words(event.save.node)} is applied here"),
    )


_WHERE = {
    "ctx": "keeps on its `ctx`",
    "hooks": "needs, unchecked under saved-tensor hooks",
    "packed": "needs: the program's pack hook returned it",
}


def _silenced(clobber: Clobber, writes: Sequence[Write]) -> str:
    if clobber.save.unchecked == "packed":
        return "PyTorch does not check what a pack hook returns"
    if clobber.save.unchecked == "ctx":
        return (
            f"PyTorch checks only what `ctx.save_for_backward` keeps, and not `{clobber.save.field}`, so it raises "
            "nothing"
        )
    off = "saved-tensor hooks switch PyTorch's version check off"
    # Without them a region would not run again.
    return off if writes and writes[0].again else f"{off}; without them this program raises"
