"""NC209 overwritten-input: a gradient is taken with respect to a tensor that was overwritten after it was made

What happens
    A forward hook or a variable keeps a tensor, to ask for its gradient later (saliency, attribution, a penalty).
    The next operation, most often a ReLU, overwrites the tensor in place. `torch.autograd.grad`, `retain_grad()` and
    `backward(inputs=...)` then give the gradient with respect to the new value, and nothing is raised.

Why
    After an in-place write, the tensor stands for its new value in the graph. No tensor stands for the old value
    any more, so you cannot ask for the gradient that belongs to it.

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
    The kept value has changed too: products such as activation times gradient are wrong in both factors.
    A hook on the in-place module itself keeps the result, and is right. If hooks keep one tensor before the write and
    after it, the same tensor stands for both; noclobber then reports it only if a call asks for both gradients.
    For a model from a library: `for m in net.modules(): m.inplace = False` where `m` has it.
    If you want the gradient of the new value, take it with respect to the result of the operation. Then the code
    says what it means.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.silent import Event, Overwritten
from noclobber.rules.shared.account import account
from noclobber.rules.shared.labels import reader_in_words, write_and_read, writer_in_words
from noclobber.rules.shared.wording import name_in_words

SEVERITY = "warning"


def find(event: Event) -> Finding | None:
    """The finding for a gradient with respect to a tensor that no longer holds its first value."""
    if not isinstance(event, Overwritten):
        return None
    write, what = event.write, name_in_words(event.tensor)
    return account(
        f"a gradient is taken with respect to {what} after an in-place write: it belongs to the new value",
        write_and_read(write, event.read, reads="asks for its gradient"),
        notes=[
            f"the write gave {what} a new place in the graph, after {writer_in_words(write)}; "
            f"{reader_in_words(event.read)} ends there"
        ],
    )
