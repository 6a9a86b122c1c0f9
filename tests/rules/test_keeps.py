"""The table of what operators keep, and the list of methods without a twin, against the installed torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from noclobber.model.seen.events import Save, Tensor
from noclobber.model.seen.operators import NODES, WITHOUT_TWIN, nodes_of
from noclobber.rules.shared.keeps import ROWS, reason, row_of

Make = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MAKES: dict[str, Make] = {
    "Relu": lambda x, w: x.relu(),
    "Sigmoid": lambda x, w: x.sigmoid(),
    "Tanh": lambda x, w: x.tanh(),
    "Exp": lambda x, w: x.exp(),
    "Expm1": lambda x, w: x.expm1(),
    "Sqrt": lambda x, w: x.sqrt(),
    "Rsqrt": lambda x, w: x.rsqrt(),
    "Reciprocal": lambda x, w: x.reciprocal(),
    "Tan": lambda x, w: x.tan(),
    "Softmax": lambda x, w: x.softmax(-1),
    "LogSoftmax": lambda x, w: x.log_softmax(-1),
    "EluBackward1": lambda x, w: F.elu_(x * 1),
    "LeakyReluBackward1": lambda x, w: F.leaky_relu_(x * 1),
    "Elu": lambda x, w: F.elu(x),
    "LeakyRelu": lambda x, w: F.leaky_relu(x),
    "Gelu": lambda x, w: F.gelu(x),
    "Silu": lambda x, w: F.silu(x),
    "Mish": lambda x, w: F.mish(x),
    "Softplus": lambda x, w: F.softplus(x),
    "Hardtanh": lambda x, w: F.hardtanh(x),
    "Clamp": lambda x, w: x.clamp(0, 1),
    "Abs": lambda x, w: x.abs(),
    "Sin": lambda x, w: x.sin(),
    "Cos": lambda x, w: x.cos(),
    "Log": lambda x, w: x.log(),
    "Log1P": lambda x, w: x.log1p(),
    "Var": lambda x, w: x.var(),
    "PowBackward0": lambda x, w: x**3,
    "PowBackward1": lambda x, w: x**w,
    "Std": lambda x, w: x.std(),
    "Logsumexp": lambda x, w: x.logsumexp(0),
    "Prod": lambda x, w: x.prod(),
    "LinalgVectorNorm": lambda x, w: torch.linalg.vector_norm(x),
    "Norm": lambda x, w: torch.ops.aten.norm(x, 3),
    "MaxBackward1": lambda x, w: x.max(),
    "Amax": lambda x, w: x.amax(0),
    "Mul": lambda x, w: x * w,
    "Div": lambda x, w: x / w,
    "Addmm": lambda x, w: F.linear(x, w, w[0]),
    "Mm": lambda x, w: x @ w,
    "Bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "Mv": lambda x, w: x @ w[0],
    "Dot": lambda x, w: x[0].dot(w[0]),
    "Convolution": lambda x, w: F.conv1d(x[None], w[:, :, None]),
    "NativeLayerNorm": lambda x, w: F.layer_norm(x, (4,), w[0]),
    "NativeGroupNorm": lambda x, w: F.group_norm(x[None], 2, w[0]),
    "NativeBatchNorm": lambda x, w: F.batch_norm(x, torch.zeros(4), torch.ones(4), w[0], w[1]),
    "MaxPool2DWithIndices": lambda x, w: F.max_pool2d(x[None], 2),
    "NativeDropout": lambda x, w: torch.native_dropout(x, 0.5, True)[0],
    "LerpBackward1": lambda x, w: x.lerp(w, x),
    "Embedding": lambda x, w: F.embedding(torch.tensor([1, 2]), w),
    "Gather": lambda x, w: x.gather(0, torch.zeros(1, 4, dtype=torch.long)),
    "Index": lambda x, w: x[torch.tensor([0, 1])],
    "MaskedFill": lambda x, w: x.masked_fill(x > 1, 0),
    "Where": lambda x, w: torch.where(x > 1, x, w),
    "NllLoss": lambda x, w: F.nll_loss(x, torch.zeros(4, dtype=torch.long)),
    "MseLoss": lambda x, w: F.mse_loss(x, w),
    "SmoothL1Loss": lambda x, w: F.smooth_l1_loss(x, w),
    "BinaryCrossEntropy": lambda x, w: F.binary_cross_entropy(x.sigmoid(), w.sigmoid()),
    "BinaryCrossEntropyWithLogits": lambda x, w: F.binary_cross_entropy_with_logits(x, w.detach()),
}


def test_every_row_has_a_program() -> None:
    assert set(MAKES) == set(ROWS)


@pytest.mark.parametrize("key", list(ROWS))
def test_a_row_names_every_tensor_that_the_node_keeps(key: str) -> None:
    torch.manual_seed(0)
    x, w = (torch.rand(4, 4, requires_grad=True) for _ in range(2))
    node = MAKES[key](x, w).grad_fn
    assert node is not None
    assert row_of(node.name()) is ROWS[key], node.name()
    fields = set(ROWS[key].fields.split())
    kept = set()
    for name in dir(node):
        if name.startswith("_saved_"):
            value = getattr(node, name)
            if isinstance(value, torch.Tensor) or (
                isinstance(value, tuple) and any(isinstance(one, torch.Tensor) for one in value)
            ):
                kept.add(name.removeprefix("_saved_"))
    unsaid = kept - fields
    assert fields <= kept, f"{node.name()} does not keep {fields - kept}"
    assert unsaid <= {"bias", "total_weight", "weight"}, f"{node.name()} also keeps {unsaid}"


GIVEN = {
    "bmm": (torch.ones(4, 4, 4),), "pow": (3,), "linear": (torch.ones(4, 4), torch.ones(4)), "mv": (torch.ones(4),),
    "dot": (torch.ones(4),), "softmax": (-1,), "log_softmax": (-1,), "conv1d": (torch.ones(4, 4, 1),),
    "conv2d": (torch.ones(4, 4, 1, 1),), "conv3d": (torch.ones(4, 4, 1, 1, 1),), "Linear": (4, 4), "LayerNorm": (4,),
    "BatchNorm1d": (4,), "BatchNorm2d": (4,), "Softmax": (-1,), "LogSoftmax": (-1,), "Conv1d": (4, 4, 1),
    "Conv2d": (4, 4, 1), "Conv3d": (4, 4, 1), "clip": (0.1, 0.9),
    "cross": (torch.ones(3, 4), 0), "outer": (torch.ones(4),), "prelu": (torch.ones(1),), "max_pool2d": (2,),
    "avg_pool2d": (2,), "conv_transpose2d": (torch.ones(4, 4, 1, 1),), "grid_sample": (torch.zeros(4, 4, 4, 2),),
}  # fmt: skip
"""What functions and modules are called with, where that is not another matrix."""
DIMENSIONS = {
    "dot": 1, "bmm": 3, "conv1d": 3, "conv2d": 4, "conv3d": 5, "batchnorm2d": 4, "outer": 1, "max_pool2d": 4,
    "avg_pool2d": 4, "conv_transpose2d": 4, "grid_sample": 4,
}  # fmt: skip
"""Of the input, where it is no matrix."""
BINARY = ("mul", "multiply", "div", "divide", "true_divide", "matmul", "mm", "mse_loss", "arctan2")


NAMED = (
    *NODES, "mul", "div", "mm", "bmm", "mv", "dot", "pow", "sin", "cos", "log", "abs", "mse_loss", "gelu", "silu",
    "softplus", "leaky_relu", "tanh", "sigmoid", "exp", "softmax", "log_softmax", "relu", "sqrt", "rsqrt", "reciprocal",
    "tan", "expm1", "Tanh", "Sigmoid", "Softmax", "LogSoftmax",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_a_function_or_module_is_recorded_by_its_node(name: str) -> None:
    x = torch.rand([4] * DIMENSIONS.get(name.lower(), 2), requires_grad=True)
    given = GIVEN.get(name, (torch.ones(4, 4),) if name in BINARY else ())
    if name[:1].isupper():
        result = getattr(torch.nn, name)(*given)(x)
    else:
        x = x[:3] if name == "cross" else x
        result = getattr(F if hasattr(F, name) else torch, name)(x, *given)
    result = result if isinstance(result, torch.Tensor) else result[0]
    assert result.grad_fn.name().rpartition("Backward")[0] in nodes_of(name)


def overwritable(make: Make, which: str) -> bool:
    """Whether backward accepts a write to the result, or to a first operand that is no leaf."""
    x, w = (torch.rand(4, 4, requires_grad=True) for _ in range(2))
    operand = x * 1
    result = make(operand, w)
    with torch.no_grad():
        (result if which == "result" else operand).add_(1)
    try:
        result.sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row.free.startswith(("the input", "the result"))])
def test_what_may_be_overwritten_may_be_overwritten(key: str) -> None:
    which = "result" if ROWS[key].free.startswith("the result") else "input"
    assert overwritable(MAKES[key], which)
    if len(ROWS[key].fields.split()) == 1:
        assert not overwritable(MAKES[key], "input" if which == "result" else "result")


def test_an_in_place_method_that_is_rewritten_has_a_twin() -> None:
    written = [name for name in dir(torch.Tensor) if name.endswith("_") and not name.startswith("_")]
    missing = [name for name in written if name not in WITHOUT_TWIN and not hasattr(torch.Tensor, name[:-1])]
    assert not missing
    assert len(written) > 150


def test_an_unknown_node_and_a_custom_function_have_words_too() -> None:
    assert reason(Save("AlignmentLossBackward", "", Tensor(), 0)).startswith(
        "what `AlignmentLoss` saves must not change"
    )
    words = reason(Save("LogaddexpBackward0", "other", Tensor(), 0))
    assert words == "the backward of logaddexp computes with its operand `other` as it was in forward"
