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

from functools import partial

from noclobber.rules.shared.refusing import Text, writes_it

_FORBIDDEN = "Given that this use case is ambiguous and error-prone, it is forbidden."
_CLARIFY = (
    "You can clarify your code by moving both the view and the inplace either both inside the * block (if you don't "
    "want the inplace to be tracked) or both outside (if you want the inplace to be tracked)."
)


def _text(printed: str, mode: str, base: str, untracked: str) -> Text:
    """What is said of a view, or of its base, that is written with gradients on."""
    words = f"created in {printed} mode and {'its base' if base else 'is'}"
    rest = "or another view of its base has been modified" if base else "being modified"
    return Text(
        [
            f"{before} [view{which} was {words}] {rest} inplace with grad mode enabled. {_FORBIDDEN} {_CLARIFY}"
            for before, which in (("A", ""), ("Output * of * is a view of a", " which"))
        ],
        f"in-place write, with gradients on, to {base}a view made under `{mode}`",
        [
            f"if autograd should track the write, make the view outside of `{mode}`",
            f"if autograd should not track it, {untracked}",
        ],
        f"the view was made under `{mode}`, but the write happens with gradients on",
        told=partial(writes_it, target=f"{base}the view"),
        created=f"the view is made here, under `{mode}`",
    )


_MODES = (("no_grad", "no_grad"), ("inference", "inference_mode"))
TEXTS = (
    *(_text(*one, "the base of ", "make the view after the write, or clone it") for one in _MODES),
    *(_text(*one, "", "write inside `with torch.no_grad():` too") for one in _MODES),
)
