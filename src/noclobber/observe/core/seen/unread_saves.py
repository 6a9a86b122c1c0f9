"""What a node saves but does not read: tensors in some modes, all but the shape of some, what a gradient needs that
nobody asks for, and mostly the sign of zeros.

This follows derivatives.yaml and the kernels of torch 2.13; tests/observe/core/test_unread.py. For cuDNN's RNN, see
`recurrent_dropout` of tests/device/test_right_programs.py, on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from noclobber.observe.torch_api.autograd import graph

_TRAINS = ("_saved_training", "_saved_train", "_saved_update")
_OF_TRAINING = (
    "BatchNormWithUpdateBackward0",
    "CudnnBatchNormBackwardBackward0",
    "MiopenBatchNormBackwardBackward0",
)
_STATISTICS = ("running_mean", "running_var")
_POOLS = ("AvgPool{}D", "AdaptiveAvgPool{}D", "MaxPool{}DWithIndices", "AdaptiveMaxPool{}D", "FractionalMaxPool{}D")
_SHAPE_ONLY = {
    **{f"{how}Pad{dims}DBackward0": ("self",) for how in ("Reflection", "Replication") for dims in (1, 2, 3)},
    **{f"{pool.format(dims)}Backward0": ("self",) for pool in _POOLS for dims in (2, 3)},
    **dict.fromkeys(("GatherBackward0", "TakeBackward0", "MaskedSelectBackward0"), ("self",)),
    **dict.fromkeys(("CummaxBackward0", "CumminBackward0", "NllLossBackward0", "NllLoss2DBackward0"), ("self",)),
    **dict.fromkeys(("IndexAddBackward0", "IndexCopyBackward0", "PutBackward0"), ("source",)),
    "NativeLayerNormBackward0": ("bias",),
}
_OF_PRODUCTS = {
    "AddbmmBackward0": {"batch1": 2, "batch2": 1},
    "AddcmulBackward0": {"tensor1": 2, "tensor2": 1},
    "AddmmBackward0": {"mat1": 2, "mat2": 1},
    "AddmvBackward0": {"mat": 2, "vec": 1},
    "BaddbmmBackward0": {"batch1": 2, "batch2": 1},
    "BmmBackward0": {"self": 1, "mat2": 0},
    "ConvolutionBackward0": {"input": 1, "weight": 0},
    "DivBackward0": {"self": 1},
    "DotBackward0": {"self": 1, "tensor": 0},
    "MmBackward0": {"self": 1, "mat2": 0},
    "MulBackward0": {"self": 1, "other": 0},
    "MvBackward0": {"self": 1, "vec": 0},
    "NativeLayerNormBackward0": {"weight": 0},
}
"""Fields that only the gradient of one input needs, and the number of that input."""
_DEVICES = ("cpu", "cuda")
"""On other devices (MPS) the backward of a pool may be a graph of operators that computes the forward again."""
_DIVIDES = {
    "AddcdivBackward0": ("tensor2",),
    "DivBackward0": ("other",),
    "FmodBackward1": ("other",),
    "LgammaBackward0": ("self",),
    **{f"Log{base}Backward0": ("self",) for base in ("", "2", "10", "it")},
    "PowBackward1": ("self",),
    "RemainderBackward1": ("other",),
    "SqrtBackward0": ("result",),
    "TriangularSolveBackward0": ("self", "A"),
    "XlogyBackward0": ("other",),
}
_LINEAR_ALGEBRA = ("Linalg", "Lu", "Cholesky")
_NO_DIVISION = ("LinalgCrossBackward0", "LinalgVectorNormBackward0")


def fields(node: Any) -> tuple[str, ...]:
    """Return the fields that a node saves but does not need for its gradient, by the names of derivatives.yaml."""
    name = node.name() if node is not None else ""
    if name.startswith("RreluWithNoise"):
        return () if node._saved_training else ("noise",)
    if name == "MkldnnRnnLayerBackward0":
        return ("result3",)  # the workspace: only the node has it, and backward itself writes into it
    if name in ("CudnnRnnBackward0", "MiopenRnnBackward0"):
        return ("dropout_state",)  # of the random numbers, which each forward moves on; the masks are in the reserve
    if name in _OF_TRAINING or any(getattr(node, flag, False) for flag in _TRAINS):
        return _STATISTICS
    if name in ("DivBackward2", "DivBackward3"):
        return ("self", "other") if node._saved_rounding_mode is not None else ()
    if name in _SHAPE_ONLY and node._input_metadata[0].device.type in _DEVICES:
        return _SHAPE_ONLY[name]
    return ()


def unasked(node: Any, inputs: Sequence[Any]) -> tuple[str, ...]:
    """Return the fields that a node saves only for gradients which a backward call for these inputs does not compute.

    `inputs` is empty where the gradients of all leaves are asked for.
    """
    only_for = _OF_PRODUCTS.get(node.name(), {}) if node is not None and inputs else {}
    edges = node.next_functions if only_for else ()
    return tuple(
        field
        for field, number in only_for.items()
        if number < len(edges) and not graph.leads_to(edges[number][0], inputs)
    )


def minds_sign_of_zero(node: Any, field: str) -> bool:
    """Return True if the gradient that a node computes may depend on the sign of a zero in a saved field.

    It does if the node divides by the zero, which gives infinity. Python code may ask for the sign too.
    """
    name = node.name() if node is not None else ""
    if type(node) is not getattr(torch._C._functions, name, None):
        return True
    if name == "PowBackward0":
        return not isinstance(node._saved_exponent, (int, float)) or node._saved_exponent < 1
    return field in _DIVIDES.get(name, ()) or (name.startswith(_LINEAR_ALGEBRA) and name not in _NO_DIVISION)
