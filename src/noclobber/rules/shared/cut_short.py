"""PyTorch's error texts as they are printed, so that a piece of one is recognised: a text that a user cut short.

`*` stands for one word that differs from program to program. Each text goes as far as pieces of it are ambiguous; what
comes after that, the patterns of the rules recognise.
"""

from __future__ import annotations

import re

_FEWEST_WORDS, _FEWEST_CHARACTERS = 4, 16
"""A piece with less is not distinctive."""

_VIEW = "Output * of * is a view and is being modified inplace."
_BASE = "Output * of * is a view and its base or another view of its base has been modified inplace."
_SEVERAL = (
    "This view is the output of a function that returns multiple views. Such functions do not allow the output views "
    "to be modified inplace. You should replace the inplace operation by an out-of-place one."
)
_FUNCTION = (
    "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to "
    "handle view+inplace would override the custom backward associated with the custom Function, leading to incorrect "
    "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)
_MODE = (
    "and is being modified inplace with grad mode enabled. Given that this use case is ambiguous and error-prone, it "
    "is forbidden. You can clarify your code by moving both the view and the inplace either both inside the * block "
    "(if you don't want the inplace to be tracked) or both outside (if you want the inplace to be tracked)."
)
_LOCATION = "refer to a single memory location. Please clone() the tensor before performing the operation."
_VMAP = "*extra_args) is not possible because there exists a Tensor * in extra_args that has more elements than"
_OUT = (
    "functions with out=... arguments don't support automatic differentiation, but one of the arguments requires grad."
)
_SLOPE = (
    "backward calculation is triggered with a negative slope which is not supported. This is caused by calling "
    "in-place forward function with a negative slope, please call out-of-place version instead."
)

TEXTS: tuple[tuple[str, str], ...] = (
    (
        "NC101",
        "one of the variables needed for gradient computation has been modified by an inplace operation:",
    ),
    (
        "NC104",
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access "
        "saved tensors after calling backward.",
    ),
    ("NC301", "a leaf Variable that requires grad is being used in an in-place operation."),
    ("NC302", "a view of a leaf Variable that requires grad is being used in an in-place operation."),
    ("NC303", f"{_VIEW} {_SEVERAL}"),
    ("NC303", f"{_BASE} {_SEVERAL}"),
    ("NC304", f"Output * of * is a view of a view which was created in * mode {_MODE}"),
    ("NC304", f"A view was created in * mode {_MODE}"),
    (
        "NC304",
        "A view was created in * mode and its base or another view of its base has been modified inplace with grad "
        "mode enabled. Given that this use case is ambiguous and error-prone, it is forbidden.",
    ),
    ("NC305", f"{_VIEW} {_FUNCTION}"),
    ("NC305", f"{_BASE} {_FUNCTION}"),
    (
        "NC306",
        "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in "
        "computation tracked by autograd. To work around this, you can make a clone to get a normal tensor and use it "
        "in autograd, or use `torch.no_grad()` instead of `torch.inference_mode()`.",
    ),
    (
        "NC306",
        "Inplace update to inference tensor outside InferenceMode is not allowed.",
    ),
    ("NC306", "Tried to call * on a tensor that does not have a version counter. Was it created in inference mode?"),
    ("NC306", "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed."),
    ("NC307", f"unsupported operation: more than one element of the written-to tensor refers {_LOCATION[6:]}"),
    ("NC307", f"unsupported operation: some elements of the input tensor and the written-to tensor {_LOCATION}"),
    ("NC307", "unsupported operation: the input tensors cannot refer to any of the output memory locations."),
    (
        "NC307",
        "While executing *, functionalization encountered a tensor being mutated that has internal overlap.",
    ),
    ("NC308", "result type * can't be cast to the desired output type"),
    ("NC308", "Index put requires the source and destination dtypes match,"),
    ("NC309", f"* {_OUT}"),
    ("NC309", "Trying to use forward AD with * that does not support it because it is an out= function"),
    ("NC310", f"vmap: inplace arithmetic(self, {_VMAP}"),
    ("NC310", f"vmap: * {_VMAP}"),
    ("NC310", "vmap: Cannot ask for different inplace randomness on an unbatched tensor."),
    (
        "NC310",
        "Batch norm got a batched tensor as input while the running_mean or running_var, which will be updated in "
        "place, were not batched.",
    ),
    (
        "NC311",
        "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call in-place operation * "
        "that would mutate a captured Tensor. This is not supported; please rewrite the function being transformed to "
        "explicitly accept the mutated Tensor(s) as inputs.",
    ),
    ("NC312", "An inplace custom Function is not modifying the forward mode gradients inplace."),
    ("NC312", "An inplace custom Function is not returning the forward mode gradients as-is."),
    (
        "NC312",
        "A custom Function's forward is returning a view (or an input as-is) but the jvp is not returning a view.",
    ),
    (
        "NC312",
        "A custom Function is returning a view but the jvp is not returning a view of the same base as the given grad "
        "input.",
    ),
    (
        "NC313",
        "Some elements marked as dirty during the forward method were not returned as output. The inputs that are "
        "modified inplace must all be outputs of the Function.",
    ),
    (
        "NC313",
        "If your Function modifies inplace an input that is a view of another Tensor, your Function cannot return more "
        "than one Tensor. This is not supported by the current autograd engine. You should either make sure the input "
        "is not a view (using .clone() for example) or make your Function only return one Tensor",
    ),
    ("NC313", "autograd internal error: dirty_tensors attribute is expected to be a tuple but is"),
    ("NC313", "Functions which modify views in-place must return a single Variable"),
    ("NC399", "Calling register_hooks on a saved tensor whose hooks have already been set."),
    ("NC399", "Calling register_hooks on a saved tensor after it has been freed."),
    ("NC399", "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."),
    ("NC205", "Tensor cached during selective activation checkpoint has been mutated"),
    ("NC399", "data set to a tensor that requires gradients must be floating point or complex dtype"),
    ("NC399", f"In-place leakyReLu {_SLOPE}"),
    ("NC399", f"In-place elu {_SLOPE}"),
    (
        "NC399",
        "An input that has been returned as-is as output is being saved for backward. This is not supported if you "
        "override setup_context. You should return and save a view of the input instead,",
    ),
    ("NC399", "* is not allowed on a Tensor created from .data or .detach()."),
    ("NC399", "During torch.compile, encountered a mutation on a view chain of length"),
    ("NC399", "Found a graph input that had its metadata mutated in the backward."),
    (
        "NC399",
        "specified that the operator does not mutate the argument *, but this seems to be empirically wrong.",
    ),
    ("NC399", "Mutating the view Tensor which does not have a derivative implemented is forbidden."),
    (
        "NC399",
        "Can't detach views in-place. Use detach() instead. If you are using DistributedDataParallel (DDP) for "
        "training, and gradient_as_bucket_view is set as True, gradients are views of DDP buckets,",
    ),
    ("NC399", "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook"),
    ("NC399", "a leaf variable has been moved into the graph interior"),
    ("NC399", "you can only change requires_grad flags of leaf variables. If you want to use a computed variable"),
    ("NC399", "cannot resize variables that require grad"),
)
"""The code of a rule, and a text that it explains."""


def codes_of_piece(text: str) -> tuple[str, ...]:
    """Return the codes of the rules whose texts have this piece, sorted; none if the piece is not distinctive.

    The first and the last word may be cut as well. A text that a known one equals has only the code of that one.
    """
    piece = _words(re.sub(r"(?s).*\b\w+(?:Error|Exception): ", "", text))
    if len(piece) < _FEWEST_WORDS or len(" ".join(piece)) < _FEWEST_CHARACTERS:
        return ()
    known = [(code, _words(one)) for code, one in TEXTS]
    whole = {code for code, words in known if len(words) == len(piece) and _begins(words, piece)}
    return tuple(sorted(whole or {code for code, words in known if _has(words, piece)}))


def _words(text: str) -> list[str]:
    """The words in lower case, without what stands around them."""
    stripped = [re.sub(r"^[^\w*]+|[^\w*]+$", "", one) for one in text.lower().replace("in-place", "inplace").split()]
    return [one for one in stripped if one]


def _has(words: list[str], piece: list[str]) -> bool:
    return any(_begins(words[start:], piece) for start in range(len(words) - len(piece) + 1))


def _begins(words: list[str], piece: list[str]) -> bool:
    first, *middle, last = piece
    same = all(one in (each, "*") for one, each in zip(words[1 : len(piece) - 1], middle, strict=True))
    opens, closes = words[0], words[len(piece) - 1]
    return same and (opens == "*" or opens.endswith(first)) and (closes == "*" or closes.startswith(last))
