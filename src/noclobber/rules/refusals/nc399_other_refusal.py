"""NC399 other-refusal: PyTorch refuses an in-place operation for a reason that has no other page

What happens
    An in-place operation, a saved tensor, a view or a version counter reaches a limit of PyTorch: `detach_` on a
    view ("Can't detach views in-place"), `resize_` on a tensor that requires grad, an in-place activation with a
    negative slope, a pack hook that writes to its input, a write that `torch.compile` cannot express.

Why
    The reasons differ. The report of a run says in its note which reason applies.

Example
    import torch

    x = torch.ones(2, 3, requires_grad=True) * 2
    hidden = x[:, -1]
    hidden.detach_()

Instead
    import torch

    x = torch.ones(2, 3, requires_grad=True) * 2
    hidden = x[:, -1]
    hidden = hidden.detach()

Notes
    Nearly always the out-of-place version does what you meant: `detach` for `detach_`, `squeeze` for `squeeze_`,
    `inplace=False` for an activation.
"""

from __future__ import annotations

from functools import partial

from noclobber.model.seen.events import Refusal
from noclobber.rules.shared.refusing import READERS, Text, writes_it
from noclobber.rules.shared.wording import op_in_words

_CUT_OFF = "backward would continue into the history that `detach_` cut off"
_UNSEEN = "noclobber did not see the write. It happened after the save and before backward"
_WORDS = {**READERS, "save": "it is saved here", "access": "it is used here"}


def _told(refusal: Refusal) -> str:
    if refusal.written is not None:
        return writes_it(refusal)
    if refusal.call != "write":
        return _WORDS[refusal.call]
    return f"`{op_in_words(refusal.op)}` is refused here" if refusal.op else "this is refused"


_SLOPE = (
    "backward needs the sign of the input; in place only the result is left, and with a negative slope the sign cannot "
    "be recovered from it"
)
_COMPILED = "`torch.compile` turns writes into operations without side effects; it cannot do so for this write"

_text = partial(Text, told=_told, created="it is made here")
TEXTS = (
    _text(
        ["Trying to use a [saved tensor that has been detached in-place], i.e. with .detach_()."],
        "`detach_` on a tensor that backward still needs",
        ["use `detach()`, which makes a new tensor: `h = h.detach()`"],
        lambda refusal: [_CUT_OFF, *[_UNSEEN] * (refusal.written is None)],
    ),
    _text(
        [
            "[Can't detach views in-place]. Use detach() instead. If you are using DistributedDataParallel (DDP) for "
            "training, and gradient_as_bucket_view is set as True, gradients are views of DDP buckets,"
        ],
        "`detach_` on a view",
        ["use `detach()`, which makes a new tensor: `h = h.detach()`; for gradients `zero_grad(set_to_none=True)`"],
        "a view shares its history with the tensor it was taken from; it cannot be cut off alone",
    ),
    _text(
        ["A [saved tensor pack hook is modifying its input in place]. Tensors provided as input to pack hook"],
        "a pack hook writes to the tensor that it has to save",
        ["return a new tensor from the hook: write out of place, or into a clone"],
        "the hook gets the same tensor that the forward goes on with",
    ),
    _text(
        [
            "[Calling register_hooks on a saved tensor whose hooks have already] been set.",
            "Calling register_hooks on a saved tensor after it has been freed.",
            "Calling register_hooks on a saved tensor with value None",
        ],
        "hooks set on a saved tensor that accepts none",
        ["set the hooks once, between the forward and its backward, or use `saved_tensors_hooks` around the forward"],
        "a saved tensor accepts one pair of hooks, before it is freed, and only if it holds a tensor",
    ),
    _text(
        ["a [leaf variable has been moved into the graph interior]"],
        "a write in place turned a leaf into the result of an operation",
        ["write out of place, or under `torch.no_grad()` before the forward"],
        "its gradient would belong to a value that is gone",
    ),
    _text(
        [
            "An [input that has been returned as-is as output is being saved for backward]. This is not supported if "
            "you override setup_context. You should return and save a view of the input instead,"
        ],
        "a Function saves an input that it also returns",
        ["return a view of the input, `x.view_as(x)`, or save it inside `forward`"],
        "input and result are one tensor, and autograd cannot know which of them is saved",
    ),
    _text(
        ["cannot resize variables that require grad"],
        "`resize_` on a tensor that requires grad",
        ["use `reshape`, a slice or `torch.nn.functional.pad`, or make a new tensor of the new size"],
        "resizing has no derivative, and it would change what backward has saved",
    ),
    _text(
        ["[you can only change requires_grad flags of leaf variables]. If you want to use a computed variable"],
        "`requires_grad` changed on the result of an operation",
        ["use `detach()`, which makes a new tensor without history"],
        "the result of an operation requires grad because its operands do",
    ),
    _text(
        ["* is [not allowed on a Tensor created from .data or .detach()]."],
        "the storage or the shape of a detached alias is changed in place",
        ["change a copy, `x.detach().clone()`, or the tensor itself under `torch.no_grad()`"],
        "the alias would then no longer show the same data as the tensor it came from",
    ),
    _text(
        ["[data set to a tensor that requires gradients must be floating point or complex] dtype"],
        "`.data` set to integers on a tensor that requires grad",
        ["convert the new value first: `new.to(x.dtype)`"],
        "only numbers of a continuous type have a gradient",
    ),
    _text(
        [
            f"[In-place {one} backward calculation is triggered with a negative slope] which is not supported. This is "
            "caused by calling in-place forward function with a negative slope, please call out-of-place version "
            "instead."
            for one in ("leakyReLu", "elu")
        ],
        "in-place activation with a negative slope",
        ["let the activation write a new tensor: `inplace=False`"],
        _SLOPE,
    ),
    _text(
        ["derivative for inplace version of"],
        "an in-place operation that has no derivative",
        ["write out of place"],
        "PyTorch has a derivative only for the out-of-place version",
    ),
    _text(
        ["In-place abs is not supported for complex tensors"],
        "`abs_` on a complex tensor",
        ["write out of place: `x = x.abs()`"],
        "the absolute value of a complex number is a real one, which has another type",
    ),
    _text(
        [
            "in-place mkldnn operations are not supported",
            "coalesced tensor for inplace operation",
            "requires coalesced input",
            "Cannot inplace into non-meta tensor",
        ],
        "an in-place operation that this kind of tensor does not have",
        ["write out of place, or convert the tensor first (`coalesce()`, `to_dense()`, the same device for both)"],
        "a tensor of this layout or device cannot be written in place",
    ),
    _text(
        [
            "During torch.compile, encountered a [mutation on a view chain of length]",
            "mutate tensors with frozen storage",
            "resize a view tensor to a larger size",
        ],
        "a write that `torch.compile` cannot express",
        ["write out of place in the compiled part, or clone what `as_strided` or a view gave"],
        _COMPILED,
    ),
    _text(
        [
            "Inplace op on input tensor",
            "Failed to mutate tensor data attribute",
            "pending mutation on parameter",
            "Encountered input mutation during higher order op",
            "Found a graph input that had its [metadata mutated in the backward].",
            "hooks with inputs mutations are not allowed",
        ],
        "a write to an input of a compiled function",
        ["write out of place in the compiled part, and return the new value"],
        _COMPILED,
    ),
    _text(
        [
            "Undeclared in-place mutation on input tensor",
            "is not defined as mutable but was mutated",
            "specified that the operator does not mutate the argument *, but this seems to be [empirically wrong].",
        ],
        "a custom operator writes an argument that it does not declare, or declares one that it does not write",
        ["name the argument in `mutates_args=`, or write to a clone of it"],
        "autograd and `torch.compile` trust the schema; a write that it does not name gives wrong gradients",
    ),
    _text(
        ["Mutating the view Tensor [which does not have a derivative implemented is forbidden]."],
        "an operator without a derivative writes to a view",
        ["write to a clone of the view, or register a derivative for the operator"],
        "autograd would have to give the base a history that does not exist",
    ),
    _text(
        ["Gradient became undefined between", "gradients should not be modified during backward"],
        "a gradient changed while backward was under way",
        ["change gradients after backward, and return new ones from hooks"],
        "distributed training relies on the gradient that autograd has accumulated",
    ),
)
