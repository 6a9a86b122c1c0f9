"""Tables of calls that give a new tensor with its own memory, and of calls that keep nothing of their arguments.

The tables are closed: a name that is in none of them may do anything, unless it is a function or class of the file,
which is then looked into. Functions and methods that return their argument in some case (`reshape`, `to`,
`contiguous`, `dropout`) are left out on purpose (torch 2.13; tests/mend/test_making.py asks the installed torch).
What a call calls is the module that a name is bound to, or a function of the file.
"""

from __future__ import annotations

import ast
import builtins
from functools import partial

from noclobber.mend.holders.giving import asking, given_for
from noclobber.model.seen.operators import MAYBE_SAME, VIEWS
from noclobber.syntax.names import (
    TAKING_OUT,
    attributes,
    attributes_set,
    called,
    definition,
    dotted,
    first_name,
    is_declared,
    is_stored,
    is_untracked,
    last_name,
    owner,
    taken_out,
    unindexed,
    uses,
    uses_in,
    value_given,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Function, Scope, functions, walk, within
from noclobber.syntax.writes import NAMESPACES, is_flagged, writes

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
METHODS = FUNCTIONS - frozenset("cat concat empty full stack take tensor where".split()) | frozenset(  # noqa: SIM905
    "new_empty new_full new_ones new_tensor new_zeros".split()  # noqa: SIM905
)
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
    backward dim item is_contiguous numel register_hook requires_grad_ size tolist
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
    is_there = last_name(owner(call)) in NAMESPACES and called(call) in FUNCTIONS
    return is_there and not any(one.arg in ("out", "inplace", None) for one in call.keywords)


def is_method(call: ast.Call, *, of: frozenset[str] = METHODS) -> bool:
    """Whether it is a method of a table, on what is no namespace and no `self`."""
    if not isinstance(call.func, ast.Attribute) or last_name(call.func.value) in (*NAMESPACES, "nn", "np", "self"):
        return False
    return called(call) in of and not any(one.arg in ("out", None) for one in call.keywords)


def is_tensors(file: File, call: ast.Call, *, of: frozenset[str] = METHODS) -> bool:
    """Whether it is a method of a table, and of no object of the file: none has such a method or attribute, and what
    it is called on is bound to no object of a class."""
    if not is_method(call, of=of):
        return False
    name, on = called(call), owner(call)
    own = (each.name for one in walk(file.tree, ast.ClassDef) for each in functions(one))
    made = bound_to(file, on, call) if on is not None else None
    is_class = called(made)[:1].isupper() and (made is None or not _is_of_module(file, made))
    is_object = is_class and not called(made).endswith(("Parameter", "Buffer", "Tensor", "Variable"))
    return not is_object and name not in own and not attributes_set(file, name)


def _is_of_module(file: File, call: ast.Call) -> bool:
    """Whether what is called is a module, as in `D = nn.Linear(2, 1)` and `D(x)`, and no class."""
    made = module_called(file, call)
    return called(made) in MODULES | PASSING | {"Sequential"} or forward_of(file, called(made)) is not None


def is_item_of_new(file: File, target: ast.expr, where: ast.AST) -> bool:
    """Whether it is `fast[name]` of a dict or a list that the function itself has made: `fast = dict(...)`."""
    made = definition(file, target.value if isinstance(target, ast.Subscript) else None, where)
    return isinstance(made, CONTAINERS) or called(made) in ("dict", "list", "OrderedDict")


CONTAINERS = (ast.Dict, ast.List, ast.DictComp, ast.ListComp)


def parts_of(made: ast.Call) -> list[ast.expr]:
    """The modules of an `nn.Sequential`, also of those in it, else the module itself."""
    if called(made) != "Sequential" or made.keywords:
        return [made]
    return [part for one in made.args for part in (parts_of(one) if isinstance(one, ast.Call) else [one])]


def module_gives_new(made: ast.Call) -> bool:
    """Whether a module of `torch.nn` gives a new tensor, whatever it is called with."""
    parts = [one for one in parts_of(made) if isinstance(one, ast.Call)]
    return module_passes(made) and any(called(one) in MODULES and not is_flagged(one) for one in parts)


def module_passes(made: ast.Call) -> bool:
    """Whether a module of `torch.nn` gives a new tensor or its argument; a bare `Linear` may be the file's."""
    return all(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and called(one) in MODULES | PASSING
        for one in parts_of(made)
    )


def module_writes(made: ast.Call) -> bool:
    """Whether a module of `torch.nn` may write what it is called with."""
    parts = [one for one in parts_of(made) if isinstance(one, ast.Call)]
    first = next((one for one in parts if is_flagged(one) or called(one) in MODULES), None)
    return first is not None and is_flagged(first)


def passes_on(file: File, value: ast.expr) -> ast.expr | None:
    """What an expression may hand on as it is, or as a view: `h` of `h.view(-1)`, `self.drop(h)` and `F.relu(h, True)`;
    None where it is no such expression."""
    if isinstance(value, ast.Attribute) and value.attr in HANDING_ON:
        return value.value
    if not isinstance(value, ast.Call):
        return None
    of, name = owner(value), called(value)
    is_handing = name in HANDING_ON or (name.endswith("_") and not name.startswith("_"))
    if of is not None and last_name(of) not in (*NAMESPACES, "nn", "self") and is_handing:
        return of
    made = module_called(file, value)
    if made is not None and module_passes(made) and not module_gives_new(made) and len(value.args) == 1:
        return value.args[0]
    is_passing = is_flagged(value) and name in FUNCTIONS | {"dropout"}
    is_passing |= last_name(of) in NAMESPACES and name in _PASSING_FUNCTIONS
    return value.args[0] if value.args and is_passing else None


_PASSING_FUNCTIONS = ("dropout", "dropout2d", "relu_", "sigmoid_", "tanh_", "elu_", "leaky_relu_")
_UNKNOWN = (
    "register_forward", "register_module_forward", ".inplace", "setattr(", "set_submodule", "add_module", ".forward =",
)  # fmt: skip
"""What lets a program see what any module is given and gives, or make modules other than they were built."""
_OF_MODULES = ("to", "cuda", "cpu", "double", "float", "half", "bfloat16", "eval", "train", "requires_grad_")
"""Methods that give the module that they are called on."""
_PLAIN = ("staticmethod", "no_grad", "enable_grad")
"""Decorators that leave a function what it is."""


def module_called(file: File, call: ast.Call) -> ast.Call | None:
    """`nn.Linear(2, 3)` for `self.fc(x)`, where the class binds `self.fc` to that once and to nothing else; the same
    for a name of the function or the module."""
    return _module(file, call.func, call)


def _module(file: File, callee: ast.expr, where: ast.AST) -> ast.Call | None:
    """What makes a module: `nn.Linear(2, 3)` also for `nn.Linear(2, 3).to(device)`, and for each module of a list."""
    if any(words in file.text for words in _UNKNOWN):
        return None
    made = _without_moves(bound_to(file, callee, where) or _of_list(file, callee, where))
    return made if made is None else _without_moves(_built_by(file, made)) or made


def _of_list(file: File, callee: ast.expr, where: ast.AST) -> ast.Call | None:
    """`nn.Linear(2, 3)` for `self.layers[i]`, and for `layer` in `for layer in self.layers`, where that is an
    `nn.ModuleList` that nothing else is put into, and all its modules are made alike."""
    held = callee.value if isinstance(callee, ast.Subscript) else None
    if isinstance(callee, ast.Name):
        bound = [file.nearest(one, *FOR) for one in uses(file.scope(where), callee.id, ast.Store)]
        turns = bound[0] if len(bound) == 1 else None
        wholes = taken_out(turns.target, turns.iter) if isinstance(turns, FOR) and turns in file.around(where) else []
        held = next((whole for one, whole in wholes if dotted(one) == callee.id), None)
    if not isinstance(held, ast.Attribute) or called(whole := _value(file, held, where)) != "ModuleList":
        return None
    listed = [one for one in attributes(file.tree, held.attr) if not is_stored(file, one)]
    given = whole.args[0] if isinstance(whole, ast.Call) and len(whole.args) == 1 else None
    items = [given.elt] if isinstance(given, (ast.GeneratorExp, ast.ListComp)) else getattr(given, "elts", [])
    parts = [one for one in items if isinstance(one, ast.Call) and not is_flagged(one)]
    same = len({ast.unparse(one.func) for one in parts}) == 1 and len(parts) == len(items)
    is_known = same and called(parts[0]) in MODULES and isinstance(parts[0].func, ast.Attribute)
    return parts[0] if is_known and all(map(partial(_only_runs, file), listed)) else None


def _only_runs(file: File, held: ast.Attribute) -> bool:
    """Whether a use of a list of modules takes them out, one by one, and puts none into it."""
    above = file.above[held]
    if isinstance(above, ast.Subscript):
        return isinstance(above.ctx, ast.Load)
    return isinstance(above, (*FOR, ast.comprehension)) or called(above) in ("len", *TAKING_OUT)


def _without_moves(made: ast.Call | None) -> ast.Call | None:
    """`nn.Linear(2, 3)` of `nn.Linear(2, 3).to(device).eval()`; None where such methods are called on anything else."""
    while called(made) in _OF_MODULES:
        made = inner if isinstance(inner := owner(made), ast.Call) else None
    return made


def _built_by(file: File, made: ast.Call) -> ast.Call | None:
    """`nn.Sequential(...)` for `mlp(2, 3)`, where `mlp` is a function of the file that does nothing but return that."""
    found = _named(file, made.func.id) if isinstance(made.func, ast.Name) else []
    body = found[0].body if len(found) == 1 else []
    rows = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    is_plain = len(rows) == 1 and not found[0].decorator_list
    built = rows[0].value if is_plain and isinstance(rows[0], ast.Return) else None
    return built if isinstance(built, ast.Call) else None


def bound_to(file: File, callee: ast.expr, where: ast.AST) -> ast.Call | None:
    """Return the only call that a name or attribute of `self` is bound to; None if that is not certain.

    `t += 1` is no other binding: a tensor is written, and what else has calls here has no `+=`.
    """
    value = _value(file, callee, where)
    return value if isinstance(value, ast.Call) else None


def is_of_object(file: File, call: ast.Call) -> bool:
    """`cooling.step()`: whether a call is of a method of the file, on an object of the class that has it."""
    of = owner(call)
    made = called(bound_to(file, of, call)) if of is not None and of in file.above else ""
    classes = (one for one in walk(file.tree, ast.ClassDef) if made and one.name == made)
    return any(method.name == called(call) for one in classes for method in functions(one))


def _value(file: File, callee: ast.expr, where: ast.AST) -> ast.expr | None:
    """The same of any value."""
    if not isinstance(callee, (ast.Attribute, ast.Name)):
        return None
    bound = [one for one in _bindings(file, callee, where) if not isinstance(file.above[one], ast.AugAssign)]
    if len(bound) != 1:
        return None
    if isinstance(bound[0], ast.arg):
        return _handed_in(file, bound[0])
    value = value_given(file, bound[0])
    return (_value(file, value, value) or value) if isinstance(value, ast.Name) else value


def _handed_in(file: File, parameter: ast.arg) -> ast.expr | None:
    """What the file gives a function for a parameter; None where its calls do not give the same."""
    function = file.scope(parameter)
    if not isinstance(function, FUNCTION):
        return None
    with asking(function) as is_first:
        given = given_for(file, parameter.arg, function) if is_first else []
        found = [_value(file, one, one) or one for one in given]
    return found[0] if len({ast.unparse(one) for one in found}) == 1 else None


def _bindings(file: File, callee: ast.Attribute | ast.Name, where: ast.AST) -> list[ast.AST]:
    """Where an attribute of `self`, or of an object of a class of the file, is bound in that class, or a name in the
    innermost scope that binds it; where an item of it is set, too."""
    if isinstance(callee, ast.Attribute):
        of, elsewhere = callee.value, attributes_set(file, callee.attr)
        is_inside = last_name(of) == "self"
        around = file.class_of(where) if is_inside else _class(file, called(bound_to(file, of, where)))
        if not is_inside and around is not None and not _is_plain(file, around):
            return []
        if around is None or any(last_name(one.value) != "self" or _is_below(file, one, around) for one in elsewhere):
            return []
        return [one for one in walk(around, *_BOUND) if _binds(one, f"self.{callee.attr}")]
    if is_declared(file.tree, callee.id) or any(is_declared(one, callee.id) for one in functions(file.tree)):
        return []
    scopes = (one for one in file.around(where) if isinstance(one, Scope))
    bound = ([one for one in within(scope, *_BOUND) if _binds(one, callee.id)] for scope in scopes)
    return next(filter(None, bound), [])


def _is_below(file: File, node: ast.AST, around: ast.ClassDef) -> bool:
    """Whether a node is in a class that has another one as its base."""
    of = file.class_of(node)
    return of is not None and around.name in map(last_name, of.bases)


_BOUND = (ast.Name, ast.Attribute, ast.Subscript, ast.arg)


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a node is a name that is bound, an item of it that is set, or an argument of that name."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return isinstance(node.ctx, ast.Store) and dotted(unindexed(node)) == name
    return isinstance(node, ast.arg) and node.arg == name


def _is_plain(file: File, around: ast.ClassDef) -> bool:
    """Return True if the attributes of the objects of a class are what the statements of the class set."""
    bound = uses_in(file.tree, around.name, ast.Store, ast.Del)
    twice = [one for one in walk(file.tree, ast.ClassDef) if one.name == around.name and one is not around]
    bases = {last_name(one) for one in around.bases}
    hidden = any(words in file.text for words in _HIDDEN)
    return not (bound or twice or hidden or around.decorator_list) and bases <= {"Module", "object"}


_HIDDEN = (
    "__new__",
    "__setattr__",
    "__getattr",
    "__dict__",
    "__class__",
    "_parameters[",
    "_modules",
    "vars(",
    "assign=",
)
"""What lets an object have other attributes than the statements of its class set."""


def function_called(file: File, callee: ast.expr, where: ast.AST) -> ast.FunctionDef | None:
    """The function of the file that a call of something runs: by its name, a method of `self`, the `forward` of a
    module of the file, or that of an `autograd.Function` that is applied, also as `spike = Spike.apply`."""
    found: list[ast.FunctionDef] = []
    value = _value(file, callee, where)
    callee = value if isinstance(value, ast.Attribute) and value.attr == "apply" else callee
    if isinstance(callee, ast.Name) and bound_to(file, callee, where) is None:
        found = _named(file, callee.id)
    elif isinstance(callee, ast.Attribute) and callee.attr == "apply":
        found = _functions(_class(file, last_name(callee.value)), "forward")
    elif isinstance(callee, ast.Attribute) and last_name(callee.value) == "self":
        found = _functions(file.class_of(where), callee.attr)
        others = (one for one in functions(file.tree) if one.name == callee.attr and one not in found)
        if any(_inherits(file, one, file.class_of(where)) for one in others):
            return None
    made = _module(file, callee, where)
    if not found and made is not None:
        found = _functions(_class(file, called(made)), "forward")
    if len(found) != 1 or not all(any(name in ast.unparse(one) for name in _PLAIN) for one in found[0].decorator_list):
        return None
    return found[0]


def _inherits(file: File, method: Function, of: ast.ClassDef | None) -> bool:
    """Return True if the class of a method may be made of another class, as it has a base that is no plain module."""
    around = file.class_of(method)
    bases = {last_name(one) for one in around.bases} if around is not None else set[str]()
    return of is not None and around is not of and not bases <= {"Module", "Function"}


def forward_of(file: File, name: str) -> ast.FunctionDef | None:
    """The `forward` of a class of the file."""
    found = _functions(_class(file, name), "forward")
    return found[0] if len(found) == 1 and not found[0].decorator_list else None


def _class(file: File, name: str) -> ast.ClassDef | None:
    found = [one for one in file.tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    return found[0] if len(found) == 1 else None


def _named(file: File, name: str) -> list[ast.FunctionDef]:
    """The functions of a file by a name that nothing else there has: no function inside another, no variable."""
    found = _functions(file.tree, name)
    inner = (one for one in functions(file.tree) if one.name == name and file.class_of(one) is None)
    return found if all(one in found for one in inner) and not uses(file.tree, name, ast.Store) else []


def _functions(around: ast.Module | ast.ClassDef | None, name: str) -> list[ast.FunctionDef]:
    rows = around.body if around is not None else []
    return [one for one in rows if isinstance(one, ast.FunctionDef) and one.name == name]


def only_computes(call: ast.Call) -> bool:
    """Return True for operators on tensors, builtins, and what goes through a dict."""
    name = called(call)
    if isinstance(call.func, ast.Name):
        return hasattr(builtins, name) and name != "setattr"
    is_known = is_function(call) or is_method(call, of=METHODS | HANDING_ON) or writes(call) or is_untracked(call)
    return is_known or name in _OF_CONTAINERS or (name.endswith("Tensor") and first_name(call.func) == "torch")


_OF_CONTAINERS = ("items", "keys", "values", "get", "parameters", "named_parameters", "dim", "size", "numel")
