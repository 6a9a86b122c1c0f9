"""NC209 overwritten-input: a gradient is asked with respect to a tensor that was overwritten since it was made

What happens
    A tensor is kept aside, by a forward hook or a variable, to ask for its gradient later (saliency, attribution,
    a penalty). The next operation overwrites it in place, most often a ReLU. `torch.autograd.grad` then gives the
    gradient with respect to the new value, and nothing is raised.

Why
    A tensor that is written in place takes the place in the graph of what was written. Its old value, and the
    gradient that belongs to it, can no longer be named.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    h = x - 2
    y = torch.relu_(h).sum()
    (grad,) = torch.autograd.grad(y, h)
    print(grad)  # gives 1, 1, 1; right is 0, 0, 0

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    h = x - 2
    y = torch.relu(h).sum()
    (grad,) = torch.autograd.grad(y, h)
    print(grad)  # gives 0, 0, 0

Notes
    The value kept aside has changed too: products such as activation times gradient are wrong in both factors.
    For a model from a library: `for m in net.modules(): m.inplace = False` where `m` has it.
    Where the gradient of the new value is wanted, ask with the result of the operation, which says so.
"""

from __future__ import annotations

from noclobber.model.clobber import Clobber
from noclobber.model.events import Save
from noclobber.model.finding import Finding, Severity, Suggestion
from noclobber.model.silent import Event, Overwritten
from noclobber.rules.shared.cures import cures
from noclobber.rules.shared.labels import (
    inside_label,
    read_label,
    reader_in_words,
    site_of,
    write_label,
    writer_in_words,
)
from noclobber.rules.shared.story import account
from noclobber.rules.shared.wording import name_in_words

CODE = "NC209"
NAME = "overwritten-input"
SEVERITY: Severity = "warning"
MESSAGES = ()


def find(event: Event) -> Finding | None:
    """A gradient with respect to a tensor that no longer holds what it was made with."""
    if not isinstance(event, Overwritten):
        return None
    write, what = event.write, name_in_words(event.tensor)
    site = site_of(write)
    labels = [
        *write_label(write),
        *read_label(event.read, after=site, verb="asks for its gradient"),
        *inside_label(site, f"{writer_in_words(write)} runs here"),
    ]
    # The help is that for a write to what backward needs: here it is the reader who needs the old value.
    wanted = Clobber(Save("", "", event.tensor, 0), (write,), event.read, 0)
    return account(
        (CODE, NAME, SEVERITY),
        f"a gradient is asked with respect to {what}, which was overwritten in place: it is that of the new value",
        labels,
        event.tensor,
        (write,),
        notes=[
            f"the write gave {what} a new place in the graph, behind {writer_in_words(write)}; "
            f"{reader_in_words(event.read)} ends there"
        ],
        suggestions=[
            *cures(wanted),
            Suggestion("or let the write take a clone: what is asked for then stays as it was"),
        ],
    )
