"""The words that every rule shares: names of operators and nodes, what a node keeps, versions, bytes, tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from noclobber.model.seen.events import Save, Tensor, Write

WRITE_TO_VIEW = "torch::autograd::CopySlices"
"""The node of a write to a view, by whatever operator."""
_BACKWARD = re.compile(r"Backward(?P<index>\d*)(_copy)?$")
_PLAIN_NAMES = {
    "Addmm": "linear (addmm)",
    "Mm": "matmul (mm)",
    "Bmm": "matmul (bmm)",
    "Mv": "matmul (mv)",
    "Dot": "matmul (dot)",
    "T": "transpose (t)",
    "LinalgVectorNorm": "norm",
    "FusedRmsNorm": "rms_norm",
    "MaxPool2DWithIndices": "max_pool2d",
    "MaxPool3DWithIndices": "max_pool3d",
    "ThnnFusedLstmCell": "lstm_cell",
    "ThnnFusedGruCell": "gru_cell",
    "RnnLayer": "lstm",
    "Convolution": "conv",
    "torch::autograd::CopyBackwards": "copy_",
    "CopyBackwards": "copy_",
    WRITE_TO_VIEW: "a write to a view",
    "AccumulateGrad": "gradient accumulation",
}
_TRUE_DIGITS = ("Expm1", "Log2", "Exp2", "Log10", "Atan2", "Logaddexp2")
_BUILD = re.compile(r"^(?:Native|Mkldnn|Cudnn|Miopen|Mps)(?=.)")
_RESULTS = re.compile(r"(result|output|values)\d*$")
_INPUTS = ("self", "mat1", "x", "x1", "A", "logits")
_STATISTICS = {"result1": "the mean of its input", "result2": "the variance of its input"}


def op_in_words(op: str) -> str:
    """`add_` for "aten::add_" and "aten.add_.Tensor"; another namespace is kept ("mylib::scale_")."""
    name = op.removeprefix("aten::").removeprefix("aten.")
    return name.split(".")[0]


def stem(node: str) -> str:
    """ "Sigmoid" for "SigmoidBackward0", "SigmoidBackward", "Sigmoid" and "Sigmoid1" alike."""
    if _BACKWARD.search(node):
        return _BACKWARD.sub("", node)
    return node if node in _TRUE_DIGITS else node.rstrip("0123456789")


def is_custom(node: str) -> bool:
    """Whether a node belongs to an `autograd.Function`: PyTorch numbers its own ("ExpBackward0"), no Function's."""
    found = _BACKWARD.search(node)
    return found is not None and not found["index"] and "::" not in node


def is_compiled(node: str) -> bool:
    """Return True for a node of torch.compile: its saves are aliases of what it read, with their own counters
    (torch 2.13; tests/observe/core/test_compiled.py)."""
    return node == "CompiledFunctionBackward"


def node_in_words(node: str) -> str:
    """ "sigmoid" for "SigmoidBackward0", "linear (addmm)" for "AddmmBackward0", "`Loss`" for the Function `Loss`."""
    if is_compiled(node):
        return "compiled code"
    if is_custom(node):
        return f"`{stem(node)}`"
    name = stem(node)
    if name.endswith("Backward"):
        return f"the backward of {node_in_words(name + '0')}"
    if name.startswith("ScaledDotProduct"):
        return "scaled_dot_product_attention"
    name = _BUILD.sub("", name)
    if "BatchNorm" in name:
        return "batch_norm"
    return _PLAIN_NAMES.get(name) or snake(name)


def snake(camel: str) -> str:
    """ "log_softmax" for "LogSoftmax", "max_pool2d" for "MaxPool2D", "log1p" for "Log1P"."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z](?![a-z]))", "_", camel)
    return re.sub(r"(?<=\d)_(?=[a-z]$)", "", parted.lower())


def field_in_words(save: Save) -> str:
    """What a node keeps: "its result", "its input `self`", "its weight", "the mean of its input", "a tensor"."""
    field = save.field
    if is_custom(save.node) or not field or field.startswith("saved"):
        return "a tensor"
    if "Norm" in save.node and field in _STATISTICS and stem(save.node) != "FusedRmsNorm":
        return _STATISTICS[field]
    if field in ("indices", "index", "mask", "running_mean", "running_var", "weight", "target"):
        return f"its {field.replace('running_', 'running ')}"
    if field == "mat2" and save.tensor.kind == "parameter":
        return "its weight"
    if field == "input":
        return "its input"
    if save.is_output or _RESULTS.match(field):
        return "its result"
    if field in _INPUTS:
        return f"its input `{field}`"
    return f"its operand `{field}`"


def keeps(save: Save) -> str:
    """ "sigmoid keeps its result", "`Square` keeps it as `ctx.x`"."""
    if save.field == "argument":
        return "the checkpointed region keeps what it is given"
    if save.unchecked == "ctx":
        return f"{node_in_words(save.node)} keeps it as `{save.field}`"
    if save.unchecked == "packed":
        return f"the pack hook returns it for what {node_in_words(save.node)} keeps"
    return f"{node_in_words(save.node)} keeps {field_in_words(save)}"


def name_in_words(tensor: Tensor, otherwise: str = "a tensor") -> str:
    """ "`h`", or "a tensor of shape (2, 3)" where no name is known."""
    if tensor.name:
        return f"`{tensor.name}`"
    return f"{otherwise} of shape {shape_in_words(tensor.shape)}" if tensor.shape else otherwise


def shape_in_words(shape: Sequence[int]) -> str:
    """ "(2, 3)", "(4,)"."""
    return str(tuple(shape))


def version_in_words(write: Write) -> str:
    """ " (version 0 -> 1)" with its leading blank; empty where no counter moved or none is known."""
    before, after = write.version_before, write.version_after
    if before is None or after is None or before == after:
        return ""
    return f" (version {before} -> {after})"
