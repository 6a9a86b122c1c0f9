"""What common operators keep for backward, why, and what may be overwritten: a row for each node."""

from __future__ import annotations

from dataclasses import dataclass

from noclobber.model.seen.events import Save
from noclobber.rules.shared.wording import field_in_words, is_compiled, is_custom, node_in_words, stem


@dataclass(frozen=True, slots=True)
class Row:
    """`fields` are what the node keeps, "self result"; `why` gives the formula; `free` says what may be overwritten."""

    fields: str
    why: str
    free: str = ""


def _result(name: str, formula: str) -> Row:
    why = f"{formula}, so autograd keeps y"
    return Row("result", why, f"the input of {name} is not kept and may be overwritten")


def _input(name: str, formula: str) -> Row:
    why = f"{formula}, so autograd keeps x"
    return Row("self", why, f"the result of {name} is not kept and may be overwritten")


def _normalised(name: str) -> Row:
    why = f"{name} keeps its input with mean and deviation, to normalise again in backward"
    return Row("input result1 result2 weight", why, f"the result of {name} is not kept and may be overwritten")


_PRODUCT = "the result of the product is not kept and may be overwritten"
_LOSS = Row("self target", "the gradient of this loss is a function of prediction and target, so autograd keeps both")
_POOL = Row("self result1", "max_pool2d keeps its input and the places of the maxima, to send the gradient back there")
_NORM = Row("self result", "d |x|/dx = x / |x|, so autograd keeps the input and the norm")
_FACTORS = "the gradient of a in a @ b is computed from b, that of b from a, so autograd keeps both"
_MATMUL = Row("self mat2", _FACTORS, _PRODUCT)
_WEIGHTED = "the gradient of the weight is computed from the input, that of the input from the weight"

ROWS = {
    "Relu": Row(
        "result",
        "relu lets the gradient through where its result is above 0, so autograd keeps the result",
        "the input of relu is not kept and may be overwritten",
    ),
    "Sigmoid": _result("sigmoid", "d sigmoid(x)/dx = y (1 - y)"),
    "Tanh": _result("tanh", "d tanh(x)/dx = 1 - y^2"),
    "Exp": _result("exp", "d exp(x)/dx = y"),
    "Expm1": _result("expm1", "d expm1(x)/dx = y + 1"),
    "Sqrt": _result("sqrt", "d sqrt(x)/dx = 1 / (2 y)"),
    "Rsqrt": _result("rsqrt", "d rsqrt(x)/dx = -y^3 / 2"),
    "Reciprocal": _result("reciprocal", "d (1/x)/dx = -y^2"),
    "Tan": _result("tan", "d tan(x)/dx = 1 + y^2"),
    "Softmax": _result("softmax", "the gradient of softmax is y (g - sum(g y))"),
    "LogSoftmax": _result("log_softmax", "the gradient of log_softmax is g - exp(y) sum(g)"),
    "EluBackward1": Row("result", "elu that ran in place has overwritten its input, so autograd keeps the result"),
    "LeakyReluBackward1": Row(
        "result", "leaky_relu that ran in place has overwritten its input, so autograd keeps the result"
    ),
    "Elu": _input("elu", "d elu(x)/dx is 1 above 0 and exp(x) below"),
    "LeakyRelu": _input("leaky_relu", "the slope of leaky_relu depends on the sign of x"),
    "Gelu": _input("gelu", "d gelu(x)/dx is a function of x"),
    "Silu": _input("silu", "d silu(x)/dx is a function of x"),
    "Mish": _input("mish", "d mish(x)/dx is a function of x"),
    "Softplus": _input("softplus", "d softplus(x)/dx = sigmoid(x)"),
    "Hardtanh": _input("hardtanh", "hardtanh lets the gradient through where x is inside its range"),
    "Clamp": _input("clamp", "clamp lets the gradient through where x is inside its range"),
    "Abs": _input("abs", "d |x|/dx = sign(x)"),
    "Sin": _input("sin", "d sin(x)/dx = cos(x)"),
    "Cos": _input("cos", "d cos(x)/dx = -sin(x)"),
    "Log": _input("log", "d log(x)/dx = 1/x"),
    "Log1P": _input("log1p", "d log1p(x)/dx = 1 / (1 + x)"),
    "Var": _input("var", "d var(x)/dx grows with x - mean(x)"),
    "PowBackward0": _input("pow", "d x^n/dx = n x^(n-1)"),
    "PowBackward1": Row(
        "self exponent result", "a power of a tensor by a tensor needs base, exponent and result for its gradient"
    ),
    "Std": Row("self result", "d std(x)/dx = (x - mean(x)) / ((n-1) std), so autograd keeps the input and the result"),
    "Logsumexp": Row("self result", "d logsumexp(x)/dx = exp(x - y), so autograd keeps x and y"),
    "Prod": Row("self result", "d prod(x)/dx = prod(x) / x, so autograd keeps the input and the product"),
    "LinalgVectorNorm": _NORM,
    "Norm": _NORM,
    "MaxBackward1": Row("self result", "max sends the gradient to the elements equal to it, so autograd keeps both"),
    "Amax": Row("self result", "amax sends the gradient to the elements equal to it, so autograd keeps both"),
    "Mul": Row(
        "self other",
        "d (a b)/da = b, so autograd keeps each factor whose partner needs a gradient",
        "a factor whose partner needs none is not kept, nor is the product",
    ),
    "Div": Row(
        "self other",
        "d (a/b)/da = 1/b, so autograd keeps the divisor, and the dividend where the divisor needs a gradient",
        "the quotient is not kept and may be overwritten",
    ),
    "Addmm": Row("mat1 mat2", _WEIGHTED, _PRODUCT),
    "Mm": _MATMUL,
    "Bmm": _MATMUL,
    "Mv": Row("self vec", _FACTORS, _PRODUCT),
    "Dot": Row("self tensor", "d (a . b)/da = b and the other way round, so autograd keeps both", _PRODUCT),
    "Convolution": Row("input weight", _WEIGHTED, "the result of the convolution is not kept and may be overwritten"),
    "NativeLayerNorm": _normalised("layer_norm"),
    "NativeGroupNorm": _normalised("group_norm"),
    "NativeBatchNorm": Row(
        "input weight running_mean running_var result1 result2",
        "batch_norm keeps its input and its statistics; in eval mode those are the running ones",
        "the result of batch_norm is not kept and may be overwritten",
    ),
    "MaxPool2DWithIndices": _POOL,
    "NativeDropout": Row("result1", "dropout keeps its mask, to drop the same places of the gradient"),
    "LerpBackward1": Row("self end weight", "lerp with a tensor weight needs both ends for the gradient of the weight"),
    "Embedding": Row("indices", "embedding keeps the indices, to add the gradient to the rows that were read"),
    "Gather": Row(
        "index self",
        "gather keeps the index to add the gradient to the places that were read, and its input along with it",
    ),
    "Index": Row("indices", "indexing keeps the indices, to add the gradient to the places that were read"),
    "MaskedFill": Row("mask", "masked_fill keeps the mask, to stop the gradient where it filled"),
    "Where": Row("condition", "where keeps the condition, to send the gradient to the branch that was taken"),
    "NllLoss": Row(
        "self target",
        "nll_loss keeps the target to send the gradient to the classes picked, and its input along with it",
    ),
    "MseLoss": _LOSS,
    "SmoothL1Loss": _LOSS,
    "BinaryCrossEntropy": _LOSS,
    "BinaryCrossEntropyWithLogits": _LOSS,
}
"""By node ("PowBackward0") where the number matters, else by its stem ("Sigmoid"). tests/rules/test_keeps.py asks the
installed torch."""


def row_of(node: str) -> Row | None:
    """The row of a node; None where the table has none."""
    if is_custom(node):
        return None
    return ROWS.get(node) or ROWS.get(stem(node))


def reason(save: Save) -> str:
    """Why the saved tensor may not change, as a note."""
    if save.unchecked == "packed":
        return "backward gets the saved tensor from what the pack hook returned, through the unpack hook"
    if save.field == "argument":
        return "a checkpointed region runs again in backward, and needs what it was given as it was in forward"
    if not save.node:
        return "autograd keeps this tensor for backward and needs it unchanged"
    if is_compiled(save.node):
        return "compiled code keeps the tensors that its backward needs without copying them"
    if is_custom(save.node):
        return f"what {node_in_words(save.node)} saves must not change before its `backward` has run for the last time"
    row = row_of(save.node)
    if row is None or save.field not in row.fields.split():
        return f"the backward of {node_in_words(save.node)} computes with {field_in_words(save)} as it was in forward"
    return f"{row.why}; {row.free}" if row.free else row.why
