"""NC210 lost-hook: an in-place write to a view drops the hooks that were registered on it

What happens
    A hook is registered on a tensor that is a view of another (the result of `flatten`, `view`, a slice), and the
    view is then written in place. In backward the hook does not run: the gradient is neither scaled, clipped nor
    recorded. Nothing is raised.

Why
    After a write to a view, autograd builds a new history for the view from its base. Hooks stay with the old
    history. On a tensor that is not a view they move along. So the same code works or fails, depending on how the
    tensor was made.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    h = (2 * x).view(3)
    h.register_hook(lambda g: g * 10)
    h += 1
    h.sum().backward()
    print(x.grad)  # gives 2, 2, 2; right is 20, 20, 20

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    h = (2 * x).view(3)
    h.register_hook(lambda g: g * 10)
    h = h + 1
    h.sum().backward()
    print(x.grad)  # gives 20, 20, 20

Notes
    `flatten` and `reshape` return a view if they can, and a copy if they cannot, so the layout of the input
    decides. If you register the hook after the write, it stays. It is then a hook on the new value.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.silent import Event, LostHook
from noclobber.rules.shared.account import account
from noclobber.rules.shared.labels import known, write_and_read
from noclobber.rules.shared.wording import name_in_words

SEVERITY = "warning"


def find(event: Event) -> Finding | None:
    """Hooks on a view that was written in place after they were registered."""
    if not isinstance(event, LostHook):
        return None
    what = name_in_words(event.tensor, "a view")
    hook = known("create", event.hook, f"the hook on {what} is registered here")
    view = f"the view {what}" if event.tensor.name else "a view"
    return account(
        f"an in-place write to {view} drops the hooks registered on it",
        [*hook, *write_and_read(event.write, event.read, writes="drops the hook", reads="skips the hook")],
        notes=["a write to a view builds a new history for it from its base; hooks stay with the old history"],
    )
