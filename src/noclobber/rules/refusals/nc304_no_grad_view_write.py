"""NC304 no-grad-view-write: in-place write, with gradients on, to a view that was made with gradients off

What happens
    A view is made inside `torch.no_grad()` or `torch.inference_mode()`. Outside of it, the view or its base is
    written in place. PyTorch refuses: "A view was created in no_grad mode and is being modified inplace with grad
    mode enabled".

Why
    The view was made with gradients off, but the write happens with gradients on. It is not clear whether autograd
    should track the write, and PyTorch does not guess.

Example
    import torch

    canvas = torch.ones(4, requires_grad=True) * 2
    with torch.no_grad():
        tile = canvas[:2]
    tile += 1

Instead
    import torch

    canvas = torch.ones(4, requires_grad=True) * 2
    tile = canvas[:2]
    tile += 1

Notes
    Usual sources are functions decorated with `@torch.no_grad()` that return views, caches filled during a warm-up,
    and slots of a buffer kept from `__init__`. If autograd should not track the write, put it under
    `torch.no_grad()` too.
    A checkpointed forward (the re-entrant kind) first runs without gradients, so its views are of this kind.
    If the error says "its base or another view of its base", PyTorch raises it after the write, where the view is
    used again.
"""

from __future__ import annotations

from noclobber.model.finding import Finding
from noclobber.model.silent import Event
from noclobber.rules.shared.refusing import is_below, of_refusal, recognised, says, writes_it

MESSAGES = (r"view (?:which )?was created in (?:no_grad|inference) mode",)


def find(event: Event) -> Finding | None:
    """A refused write to, or below, a view that was made with gradients off."""
    refusal = recognised(event, MESSAGES)
    if refusal is None:
        return None
    mode = "inference_mode" if says(refusal, "created in inference mode") else "no_grad"
    below = is_below(refusal)
    untracked = "make the view after the write, or clone it" if below else "write inside `with torch.no_grad():` too"
    return of_refusal(
        refusal,
        f"in-place write, with gradients on, to {'the base of ' * below}a view made under `{mode}`",
        told=writes_it(refusal, f"{'the base of ' * below}the view"),
        created=f"the view is made here, under `{mode}`",
        notes=[f"the view was made under `{mode}`, but the write happens with gradients on"],
        helps=[
            f"if autograd should track the write, make the view outside of `{mode}`",
            f"if not, {untracked}",
        ],
    )
