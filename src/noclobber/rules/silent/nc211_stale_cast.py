"""NC211 stale-cast: autocast uses an old cast of a weight that has changed since

What happens
    One `torch.autocast` region is around several steps, often around the whole training loop. From the second step
    on, forward and backward use the weights of the first step. The loss and the gradients stand still, and nothing is
    raised.

Why
    Autocast keeps its cast of each weight, so that a forward that uses the weight twice casts it once. It drops the
    casts when the outermost region ends. Until then it does not look whether the weight has changed.

Example
    import torch

    w = torch.ones(3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(2):
            w.grad = None
            (w @ torch.eye(3)).float().square().sum().backward()
            with torch.no_grad():
                w -= 0.25 * w.grad
    print(w.grad)  # gives 2, 2, 2; right is 1, 1, 1

Instead
    import torch

    w = torch.ones(3, requires_grad=True)
    for step in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (w @ torch.eye(3)).float().square().sum()
        w.grad = None
        loss.backward()
        with torch.no_grad():
            w -= 0.25 * w.grad
    print(w.grad)  # gives 1, 1, 1

Notes
    PyTorch advises to put only the forward and the loss into the region. `torch.clear_autocast_cache()` after the write
    works too, and so does `torch.autocast(..., cache_enabled=False)`.
    Autocast keeps casts of float32 leaves that require a gradient. It casts activations and frozen weights each time.
    A write that is too small to change the cast is not reported.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.silent import Event, StaleCast
from noclobber.rules.shared.account import account
from noclobber.rules.shared.labels import known, same_line, spelled, where, write_and_read
from noclobber.rules.shared.wording import name_in_words

SEVERITY = "warning"


def find(event: Event) -> Finding | None:
    """The finding for a cast that autocast used again after its weight had changed."""
    if not isinstance(event, StaleCast):
        return None
    what = name_in_words(event.tensor)
    made = f"autocast casts {spelled(event.tensor, event.cast)} to {event.dtype} here and keeps the cast"
    cast = known("save", event.cast, made)
    is_elsewhere = event.used is not None and not same_line(event.used, event.cast)
    again = f", as the forward at {where(event.used)} did" if is_elsewhere else ""
    return account(
        f"autocast uses an old cast of {what}, which has changed since: loss and gradient are those of the old values",
        [*cast, *write_and_read(event.write, event.read, writes="changes it", reads="uses the old cast")],
        notes=[f"autocast keeps its cast of a weight until the outermost region ends{again}"],
        helps=[
            "enter `torch.autocast` again in each iteration, around the forward and the loss only",
            "or call `torch.clear_autocast_cache()` after the write",
            Suggestion("or let autocast keep no casts: `cache_enabled=False`", cure=Cure.FLAG),
        ],
    )
