"""The one table of what operators are, by name: plain data, which rules, cures and detectors share.

A method that writes in place is named with its underscore, an activation without.
"""

from __future__ import annotations

ACTIVATIONS = frozenset(
    """
    alpha_dropout celu dropout elu feature_alpha_dropout feature_dropout hardsigmoid hardswish hardtanh leaky_relu mish
    relu relu6 rrelu rrelu_with_noise selu silu threshold
    """.split()  # noqa: SIM905
)
"""What `inplace=True` of torch.nn stands for: the caller goes on with the result, and may keep the input's name."""
SMOOTH = frozenset({"sigmoid", "softplus", "tanh"})
"""Activations that torch.nn has no such flag for."""
RANDOM_FILLS = frozenset(
    """
    bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_
    """.split()  # noqa: SIM905
)
"""Methods that fill a tensor with random numbers, whatever it held."""
WITHOUT_TWIN = RANDOM_FILLS | frozenset(
    """
    apply_ copy_ fill_ fill_diagonal_ map2_ map_ rename_ requires_grad_ resize_ resize_as_ resize_as_sparse_ set_
    share_memory_ sparse_resize_ sparse_resize_and_clear_ zero_
    eq_ ge_ greater_ greater_equal_ gt_ le_ less_ less_equal_ logical_and_ logical_not_ logical_or_ logical_xor_ lt_ ne_
    not_equal_
    """.split()  # noqa: SIM905
)
"""Methods whose name without the underscore is missing, means something else or gives another element type."""
TWIN_IS_VIEW = frozenset("as_strided_ detach_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_".split())  # noqa: SIM905
"""Methods whose twin gives a view of the same bytes."""
VIEWS = frozenset(
    """
    data detach diagonal expand expand_as flatten H imag movedim mT narrow permute real reshape select squeeze swapaxes
    swapdims T t transpose unflatten unsqueeze view view_as view_as_complex view_as_real
    """.split()  # noqa: SIM905
)
"""Methods, attributes and functions that give a view of the same bytes; `flatten` and `reshape` do where they can."""
SPLITS = frozenset("chunk split tensor_split unbind".split())  # noqa: SIM905
"""Methods that give several views at once."""
MAYBE_SAME = frozenset("contiguous float to".split())  # noqa: SIM905
"""Methods that give the tensor itself where it is what they are asked for."""
UNTRACKED = frozenset(
    """
    arange eye full full_like item len linspace numel numpy ones ones_like rand rand_like randn randn_like range size
    tensor zeros zeros_like
    """.split()  # noqa: SIM905
)
"""Functions and methods through whose result no gradient flows."""
FLAT = frozenset(
    """
    all any argmax argmin argsort bernoulli bool ceil dim eq element_size floor ge gt heaviside int isfinite isinf isnan
    le len logical_and logical_not logical_or long lt multinomial ndimension ne nelement nonzero numel round sgn sign
    size trunc
    """.split()  # noqa: SIM905
)
"""Functions and methods whose result changes in steps with the values they are given, or not at all."""
FACTORIES = frozenset(
    """
    arange as_tensor empty eye from_numpy full linspace logspace ones rand randint randn randperm tensor zeros
    """.split()  # noqa: SIM905
)
"""Functions that make a tensor on the CPU, or on the default device, if no device is given."""
DRAWING = frozenset(
    "bernoulli multinomial rand rand_like randint randint_like randn randn_like randperm".split()  # noqa: SIM905
)
"""Functions that draw random numbers."""
NODES: dict[str, tuple[str, ...]] = {
    "multiply": ("Mul",), "matmul": ("Mm", "Bmm", "Mv", "Dot"), "square": ("Pow",),
    "linear": ("Addmm", "Mm", "Linear"), "conv1d": ("Convolution",), "conv2d": ("Convolution",),
    "conv3d": ("Convolution",), "Linear": ("Addmm", "Mm", "Linear"), "Conv1d": ("Convolution",),
    "Conv2d": ("Convolution",), "Conv3d": ("Convolution",), "GELU": ("Gelu",), "SiLU": ("Silu",), "ELU": ("Elu",),
    "SELU": ("Elu",), "selu": ("Elu",), "CELU": ("Celu",), "ReLU": ("Relu",), "LeakyReLU": ("LeakyRelu",),
    "LayerNorm": ("NativeLayerNorm",), "BatchNorm1d": ("NativeBatchNorm",), "BatchNorm2d": ("NativeBatchNorm",),
    "max": ("Max", "Maximum"), "min": ("Min", "Minimum"), "absolute": ("Abs",), "divide": ("Div",), "clip": ("Clamp",),
    "true_divide": ("Div",), "arctan": ("Atan",), "arcsin": ("Asin",), "arccos": ("Acos",), "arctan2": ("Atan2",),
    "log1p": ("Log1P",), "norm": ("LinalgVectorNorm",), "cross": ("LinalgCross",), "outer": ("Mul",),
    "prelu": ("PreluKernel",), "relu6": ("Hardtanh",), "max_pool2d": ("MaxPool2DWithIndices",),
    "avg_pool2d": ("AvgPool2D",), "conv_transpose2d": ("Convolution",), "grid_sample": ("GridSampler2D",),
}  # fmt: skip
"""The nodes by which autograd records a function, a method or a module of torch.nn, without "Backward"; of others
`nodes_of` tells."""
OPERANDS = {
    **dict.fromkeys(("addcdiv", "addcmul"), "self tensor1 tensor2"), "addmm": "self mat1 mat2", "addmv": "self mat vec",
    "addr": "self vec1 vec2", **dict.fromkeys(("addbmm", "baddbmm"), "self batch1 batch2"), "lerp": "self end weight",
    **dict.fromkeys(("masked_fill", "masked_scatter", "masked_select"), "self mask"), "take": "self index",
    **dict.fromkeys(("gather", "index_select", "scatter", "scatter_add"), "self dim index"), "cdist": "x1 x2",
    **dict.fromkeys(("index_add", "index_copy"), "self dim index source"), "where": "condition self other",
    "grid_sample": "input grid",
}  # fmt: skip
"""The first arguments of operators that save others than the first two, by the names of their schema."""


def nodes_of(name: str) -> tuple[str, ...]:
    """Return the nodes by which autograd records a function, method or module: mostly the one that has its name."""
    return NODES.get(name) or ("".join(word[:1].upper() + word[1:] for word in name.split("_")),)
