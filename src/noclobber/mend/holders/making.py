"""Tables of calls that give a new tensor with its own memory, and of calls that keep nothing of their arguments.

The tables are closed: a name that is in none of them may do anything, unless it is a function or class of the file,
which is then looked into. Functions and methods that return their argument in some case (`reshape`, `to`,
`contiguous`, `dropout`) are left out on purpose (torch 2.13; tests/mend/test_making.py asks the installed torch).
"""

from __future__ import annotations

import ast

from noclobber.mend.holders.resolving import module_called
from noclobber.model.operators import MAYBE_SAME, VIEWS
from noclobber.syntax.names import called, last_name
from noclobber.syntax.tree import File
from noclobber.syntax.writes import NAMESPACES, is_flagged

FUNCTIONS = frozenset(
    """
    abs acos add addbmm addcdiv addcmul addmm addmv addr amax amin arange argmax argmin asin atan atan2 avg_pool1d
    avg_pool2d avg_pool3d baddbmm batch_norm bernoulli bilinear binary_cross_entropy binary_cross_entropy_with_logits
    bmm cat cdist ceil celu clamp clamp_max clamp_min clone concat conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d cos cosh cosine_similarity cross_entropy cross cumprod cumsum div dot elu empty
    empty_like eq erf erfc exp expm1 eye flip floor fmod frac full full_like gather ge gelu glu group_norm gt hardtanh
    huber_loss index_add index_copy index_fill index_select interpolate isfinite isinf isnan kl_div kron l1_loss
    layer_norm le leaky_relu lerp linear linspace log log10 log1p log2 log_softmax logaddexp logical_and logical_not
    logical_or logsigmoid logsumexp lt masked_fill masked_scatter masked_select matmul max_pool1d max_pool2d max_pool3d
    maximum mean minimum mish mm mse_loss mul multinomial mv ne neg nll_loss norm normalize one_hot ones ones_like
    outer pow prelu prod rand rand_like randint randint_like randn randn_like randperm reciprocal relu relu6 remainder
    repeat repeat_interleave roll round rsqrt scaled_dot_product_attention scatter scatter_add selu sigmoid sign silu
    sin sinh smooth_l1_loss softmax softmin softplus softsign sqrt square stack std sub sum take tan tanh tensor
    threshold tile tril triu trunc var where zeros zeros_like
    """.split()  # noqa: SIM905
)
"""Of `torch` and `torch.nn.functional`."""
METHODS = FUNCTIONS - frozenset("cat concat empty full stack take tensor where".split())  # noqa: SIM905
"""Of what is taken for a tensor. Those left out belong to other things as well, and give what these hold."""
TAKING = frozenset(
    """
    add_ addcdiv_ addcmul_ addmm_ bmm copy_ div div_ dot index_add_ lerp_ masked_fill_ matmul mm mul mul_ mv pow
    scatter_add_ sub_
    """.split()  # noqa: SIM905
)
"""Methods that are a tensor's whatever they are given: a set, a log or a memory has an `add` too, and keeps it."""
KEEPING_NOTHING = frozenset(
    """
    backward dim item is_contiguous new_empty new_full new_ones new_tensor new_zeros numel register_hook requires_grad_
    size tolist
    """.split()  # noqa: SIM905
)
"""Methods of tensors that keep nothing of them."""
HANDING_ON = VIEWS | MAYBE_SAME
"""Methods and attributes of a tensor that may give the tensor or a view of it."""
MODULES = frozenset(
    """
    AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU Conv1d
    Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CrossEntropyLoss ELU Embedding GELU GLU GRUCell
    GroupNorm Hardtanh HuberLoss InstanceNorm1d InstanceNorm2d InstanceNorm3d L1Loss LayerNorm LeakyReLU Linear
    LogSigmoid LogSoftmax MSELoss MaxPool1d MaxPool2d MaxPool3d Mish NLLLoss PReLU RNNCell ReLU ReLU6 SELU SiLU Sigmoid
    SmoothL1Loss Softmax Softplus Tanh
    """.split()  # noqa: SIM905
)
"""Of `torch.nn`: a call gives a new tensor, where it is not in place."""
PASSING = frozenset("AlphaDropout Dropout Dropout1d Dropout2d Dropout3d Flatten Identity Unflatten".split())  # noqa: SIM905
"""Of `torch.nn`: a call may give its argument, or a view of it."""
BUILTINS = frozenset("print len float int bool str repr isinstance type id range".split())  # noqa: SIM905


def is_function(call: ast.Call) -> bool:
    """Whether it is a function of the table, and neither in place nor into `out=`."""
    if not isinstance(call.func, ast.Attribute) or last_name(call.func.value) not in NAMESPACES:
        return False
    return called(call) in FUNCTIONS and not any(one.arg in ("out", "inplace", None) for one in call.keywords)


def is_method(call: ast.Call, *, of: frozenset[str] = METHODS) -> bool:
    """Whether it is a method of a table, on what is no namespace and no `self`."""
    if not isinstance(call.func, ast.Attribute) or last_name(call.func.value) in (*NAMESPACES, "nn", "np", "self"):
        return False
    return called(call) in of and not any(one.arg in ("out", None) for one in call.keywords)


def parts_of(made: ast.Call) -> list[ast.expr]:
    """The modules of an `nn.Sequential`, else the module itself."""
    return list(made.args) if called(made) == "Sequential" and not made.keywords else [made]


def module_gives_new(made: ast.Call) -> bool:
    """Whether a module of `torch.nn` gives a new tensor, whatever it is called with."""
    parts = parts_of(made)
    return module_passes(made) and any(
        isinstance(one, ast.Call) and called(one) in MODULES and not is_flagged(one) for one in parts
    )


def module_passes(made: ast.Call) -> bool:
    """Whether a module of `torch.nn` gives a new tensor or its argument; a bare `Linear` may be the file's."""
    return all(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and called(one) in MODULES | PASSING
        for one in parts_of(made)
    )


def module_writes(made: ast.Call) -> bool:
    """Whether a module of `torch.nn` may write what it is called with."""
    for one in parts_of(made):
        if isinstance(one, ast.Call) and is_flagged(one):
            return True
        if isinstance(one, ast.Call) and called(one) in MODULES:
            return False
    return False


def passes_on(file: File, value: ast.expr) -> ast.expr | None:
    """What an expression may hand on as it is, or as a view: `h` of `h.view(-1)`, `self.drop(h)` and `F.relu(h, True)`;
    None where it is no such expression."""
    if isinstance(value, ast.Attribute) and value.attr in HANDING_ON:
        return value.value
    if not isinstance(value, ast.Call):
        return None
    owner = value.func.value if isinstance(value.func, ast.Attribute) else None
    if owner is not None and last_name(owner) not in (*NAMESPACES, "nn", "self") and _hands_on(called(value)):
        return owner
    made = module_called(file, value)
    if made is not None and module_passes(made) and not module_gives_new(made) and len(value.args) == 1:
        return value.args[0]
    flagged = is_flagged(value) and last_name(value.func) in FUNCTIONS | {"dropout"}
    return value.args[0] if value.args and (flagged or _is_passing_function(value)) else None


def _is_passing_function(call: ast.Call) -> bool:
    """`F.dropout(h)`, `torch.relu_(h)`."""
    named = isinstance(call.func, ast.Attribute) and last_name(call.func.value) in NAMESPACES
    return named and called(call) in ("dropout", "dropout2d", "relu_", "sigmoid_", "tanh_", "elu_", "leaky_relu_")


def _hands_on(method: str) -> bool:
    """Return True if a method may return its tensor or a view of it, as methods that write in place do."""
    return method in HANDING_ON or (method.endswith("_") and not method.startswith("_"))
