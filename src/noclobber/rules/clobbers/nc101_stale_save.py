"""NC101 stale-save: an in-place write changes a tensor that backward still needs

What happens
    An operation keeps a tensor for backward: exp keeps its result, sin its input, a product both factors. Later
    code writes into that tensor: `+=`, a method that ends in an underscore, an assignment to a slice,
    `inplace=True`, an update under `torch.no_grad()`. Backward then finds changed bytes, and PyTorch raises "one of
    the variables needed for gradient computation has been modified by an inplace operation".

Why
    With the new bytes the gradient would be wrong. A tensor and all its views share one version counter, and
    PyTorch compares it when backward reads the tensor. The error message names the operation that produced the
    tensor as it is now. That is often the last write. It is not the line that saved the tensor, and not always the
    line that wrote.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    h = torch.sigmoid(x)
    h += 1
    h.sum().backward()

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    h = torch.sigmoid(x)
    h = h + 1
    h.sum().backward()

Notes
    - Only a tensor that an operation keeps must stay unchanged. Every other tensor may be overwritten.
    - sigmoid, exp, tanh, sqrt and softmax keep their result. relu does too. Their input may be overwritten.
    - sin, log, gelu and a power by a number keep their input. Their result may be overwritten.
    - `2**h` keeps exponent and result; a power of a tensor by a tensor keeps base, exponent and result.
    - linear keeps its weight. It keeps its input only if the weight needs a gradient. Convolutions keep both.
    - norm, std, amax, prod, cumprod and logsumexp keep their input and their result.
    - `torch.no_grad()` and `.detach()` do not help: they share the version counter.
    - `.data` has its own counter, so it only hides the error. The gradient is still wrong.
    - A moving average of weights (a teacher, a target network): update it after the last backward. If its output needs
      no gradient, run its forward inside `with torch.no_grad():`, and nothing is saved.
    - If weights change between forward and backward, the cause is mostly an optimizer: see NC103.
"""

from __future__ import annotations

from noclobber.model.reports.finding import PUT_BACK, Finding
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.silent import Event
from noclobber.model.units import counted
from noclobber.rules.shared.causes import cause, overlapping
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.message import parse
from noclobber.rules.shared.story import story
from noclobber.rules.shared.wording import WRITE_TO_VIEW, node_in_words, op_in_words, stem

MESSAGES = ("one of the variables [needed for gradient computation has been modified by an inplace operation]:",)


def find(event: Event) -> Finding | None:
    """The finding for a clobber that PyTorch raises, if no other rule has a more special cause for it."""
    if not isinstance(event, Clobber) or cause(event) != "stale":
        return None
    writes = overlapping(event)
    kind = event.save.tensor.kind
    headline = f"in-place write to a {kind} that backward still needs"
    if not writes:
        headline = f"a {kind} that backward still needs was written in place"
    notes = [reason(event.save), *[PUT_BACK] * event.restored, *_unseen(event), *_misnamed(event)]
    return story(headline, event, writes, notes=notes)


def _unseen(clobber: Clobber) -> list[str]:
    if clobber.writes:
        return []
    number = clobber.current - clobber.save.version
    times = f" (the version counter shows {counted(number, 'write')})" if number > 0 else ""
    return [f"noclobber did not see this write{times}; it happened after the save and before backward"]


def _misnamed(clobber: Clobber) -> list[str]:
    """A note where PyTorch's message names the write itself, as the last operation that produced the tensor."""
    node = getattr(parse(clobber.message or ""), "node", "")
    if not node or stem(node) == stem(clobber.save.node):
        return []
    writers = {op_in_words(write.op).rstrip("_") for write in clobber.writes}
    named = node_in_words(node if "::" in node else stem(node) + "Backward0").rstrip("_")
    if not writers or (named not in writers and node != WRITE_TO_VIEW):
        return []
    needs = "the checkpointed region" if clobber.save.field == "argument" else clobber.save.node or "backward"
    return [f"PyTorch's message names {node}: that is the write, and {needs} needs the tensor"]
