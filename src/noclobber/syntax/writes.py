"""The text of a write in place: which form it has, what tensor it writes, and the same out of place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from noclobber.model.reports.finding import Edit
from noclobber.model.seen.operators import RANDOM_FILLS, SPLITS, VIEWS, WITHOUT_TWIN
from noclobber.model.source import Span
from noclobber.syntax.edits import insert, replace, rewritten, without_argument
from noclobber.syntax.names import (
    arguments,
    bound_by_loop,
    call_of,
    called,
    definition,
    dotted,
    first_name,
    is_of_gradients,
    is_read_again,
    is_stored,
    is_true,
    keyword,
    last_name,
    names_in,
    owner,
    parameters,
    uses_in,
    values,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Place, Placed, walk

OPERATORS: dict[type[ast.operator], tuple[str, int, str]] = {
    ast.BitOr: ("|", 1, "bitwise_or"),
    ast.BitXor: ("^", 2, "bitwise_xor"),
    ast.BitAnd: ("&", 3, "bitwise_and"),
    ast.LShift: ("<<", 4, "bitwise_left_shift"),
    ast.RShift: (">>", 4, "bitwise_right_shift"),
    ast.Add: ("+", 5, "add"),
    ast.Sub: ("-", 5, "sub"),
    ast.Mult: ("*", 6, "mul"),
    ast.Div: ("/", 6, "div"),
    ast.FloorDiv: ("//", 6, "floor_divide"),
    ast.Mod: ("%", 6, "remainder"),
    ast.MatMult: ("@", 6, "matmul"),
    ast.Pow: ("**", 8, "pow"),
}
"""Symbol, how tightly it binds, and the method of tensors that does the same."""
_UNARY, ATOM = 7, 9
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Dict, ast.Set, ast.JoinedStr)
PLAIN = {f"{OPERATORS[one][2]}_": one for one in (ast.Add, ast.Sub, ast.Mult, ast.Div)}
"""Methods that write in place, and that an operator says as well."""
NAMESPACES = ("torch", "F", "functional")
"""The last name of what holds functions that take the tensor first and have a twin."""
_NO_TENSORS = (*NAMESPACES, "nn", "init", "utils", "math", "np", "numpy")
"""The first name of what is no tensor: `torch.nn.init.ones_` has no twin that returns another."""
FLAG_AT = {
    **dict.fromkeys(("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid"), 0),
    **dict.fromkeys(("LeakyReLU", "ELU", "CELU", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"), 1),
    "FeatureAlphaDropout": 1,
    **dict.fromkeys(("Hardtanh", "Threshold", "RReLU"), 2),
    **dict.fromkeys(("relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid"), 1),
    **dict.fromkeys(("leaky_relu", "elu", "celu"), 2),
    **dict.fromkeys(("hardtanh", "threshold", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), 3),
    "feature_alpha_dropout": 3,
    "rrelu": 4,
}
"""The place of the argument `inplace` of modules and functions."""


class Form(Enum):
    """How the text of a write looks: `h += e`, `t.add_(x)`, `f(x, inplace=True)`, `h[i] = e`, a mere call, or else."""

    AUGMENTED = "augmented"
    METHOD = "method"
    FLAG = "flag"
    ITEM = "item"
    CALL = "call"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class WriteSyntax:
    """A write in the source. `target` is the expression written; `call` the writing call, None for an assignment."""

    file: File
    node: ast.AST
    statement: ast.stmt
    target: ast.expr | None
    call: ast.Call | None

    @property
    def form(self) -> Form:
        """The form of the text; OTHER for what is no write, as the head of a loop."""
        if hasattr(self.statement, "body"):
            return Form.OTHER
        if self.call is not None:
            if is_flagged(self.call):
                return Form.FLAG
            return Form.METHOD if writes(self.call) else Form.CALL
        if isinstance(self.node, ast.Subscript) and isinstance(self.node.ctx, ast.Store):
            return Form.ITEM
        return Form.AUGMENTED if isinstance(self.statement, ast.AugAssign) else Form.OTHER

    @property
    def value(self) -> ast.expr | None:
        """What an assignment gives; else the writing call."""
        return self.statement.value if isinstance(self.statement, (ast.Assign, ast.AugAssign)) else self.call

    @property
    def base(self) -> ast.expr | None:
        """Return the name or attribute below the target: `h` of `h[0].view(-1)`."""
        return base_of(self.target)

    @property
    def name(self) -> str:
        """The base as dotted text, such as "self.buf"; empty where it has none."""
        return dotted(self.base)


def write_at(place: Place) -> WriteSyntax:
    """The write at a place: an augmented assignment, an assignment to a part, or a writing call."""
    file, node, statement = place.file, place.node, place.row
    if isinstance(statement, ast.AugAssign) and not isinstance(node, ast.Call):
        return WriteSyntax(file, node, statement, statement.target, None)
    call = file.nearest(node, ast.Call)
    if call is not None and (call is node or writes(call)):
        return WriteSyntax(file, call, statement, written_by(call), call)
    if isinstance(statement, ast.Assign):
        parts = [one for one in statement.targets if isinstance(one, (ast.Subscript, ast.Attribute))]
        target = node if node in statement.targets else next(iter(parts), None)
        if isinstance(target, ast.expr):
            return WriteSyntax(file, node, statement, target, None)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and writes(statement.value):
        return WriteSyntax(file, statement.value, statement, written_by(statement.value), statement.value)
    return WriteSyntax(file, node, statement, None, None)


def write_in(file: File, row: ast.stmt) -> WriteSyntax:
    """The write that a simple statement makes: to an item, or by the call that gives its value."""
    if isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Subscript):
        return write_at(Place(file, row.targets[0]))
    value = row.value if isinstance(row, (ast.Assign, ast.Expr, ast.Return)) else None
    return write_at(Place(file, value or row))


def value_of(write: WriteSyntax) -> str:
    """The new value of all that is written, as an expression; empty where the text has none."""
    file, row, call = write.file, write.statement, write.call
    is_whole = isinstance(write.target, ast.Attribute) or file.source(write.target or row).endswith(("[:]", "[...]"))
    if isinstance(row, ast.Assign) and call is None and is_whole:
        return file.source(row.value)
    if call is not None and called(call) == "copy_" and call is call_of(row) and call.args:
        return file.source(call.args[0])
    edits = out_of_place(write)
    return edits[0].replacement.partition(" = ")[2] if len(edits) == 1 else ""


def writes(call: ast.Call) -> bool:
    """Whether a call has the name of a writing one, `out=`, or `inplace=True`."""
    name = called(call)
    return (name.endswith("_") and not name.startswith("_")) or keyword(call, "out") is not None or is_flagged(call)


def has_twin(call: ast.Call) -> bool:
    """Whether the same call without the underscore returns what it would write."""
    name = called(call)
    if not isinstance(call.func, ast.Attribute) or not name.endswith("_") or name.startswith("_"):
        return False
    owner = call.func.value
    return name not in WITHOUT_TWIN and (last_name(owner) in NAMESPACES or not is_namespace(owner))


def is_namespace(owner: ast.expr) -> bool:
    """Return True if the owner of a method is a module such as `torch.nn.init`, and no tensor."""
    return first_name(owner) in _NO_TENSORS


def tensors_given(call: ast.Call) -> list[ast.expr]:
    """What a function is given, or a method after the tensor that it is called on: `x` and `1` of `x.unbind(1)` and of
    `torch.unbind(x, 1)`."""
    held = owner(call)
    return values(call) if held is None or is_namespace(held) else [held, *values(call)]


def values_written(row: ast.stmt) -> list[ast.expr]:
    """The values that an in-place statement writes; none if it is no in-place write."""
    if isinstance(row, ast.AugAssign):
        return [row.value]
    call = call_of(row)
    if call is None or called(call) not in _METHODS:
        return []
    return [*call.args, *(one.value for one in call.keywords if one.arg != "alpha")]


OF_NUMBERS = ("clamp_", "clamp_min_", "clamp_max_", "normal_", "uniform_")
"""Methods that clip weights or set them: what they are given is numbers."""
_METHODS = (
    *OF_NUMBERS, "add_", "sub_", "mul_", "div_", "addcdiv_", "addcmul_", "fill_", "zero_", "lerp_", "copy_",
)  # fmt: skip
"""Methods that may be an update."""


def descends(file: File, row: ast.stmt) -> bool:
    """Whether a statement is a step by gradients: `w -= 0.1 * w.grad`."""
    given = values_written(row)
    return bool(given) and all(is_of_gradients(file, one) for one in given)


def is_average(write: ast.stmt) -> bool:
    """`t.mul_(decay).add_(s, alpha=1 - decay)`: a moving average of parameters, which needs no gradient."""
    return isinstance(write, ast.Expr) and bool(re.search(r"\.mul_\(.*\)\.add_\(|\.lerp_\(", ast.unparse(write)))


def is_of_loss(file: File, call: ast.Call) -> bool:
    """Return True for a function of PyTorch, and for a loss by its class or its name: neither has weights."""
    is_known = first_name(owner(call)) in NAMESPACES or called(definition(file, call.func, call)).endswith("Loss")
    return is_known or any(word in called(call).lower() for word in ("loss", "criterion"))


def is_flagged(call: ast.Call) -> bool:
    """Whether a call has `inplace=True`, or `True` in its place: `nn.ReLU(True)`, `F.relu(x, True)`."""
    flag, at = keyword(call, "inplace"), FLAG_AT.get(called(call))
    if flag is not None or at is None:
        return flag is not None and is_true(flag.value)
    is_known = called(call)[:1].isupper() or (isinstance(call.func, ast.Attribute) and is_namespace(call.func.value))
    return is_known and len(call.args) == at + 1 and is_true(call.args[at])


def chain(call: ast.AST | None) -> list[ast.Call]:
    """`t.mul_(2).add_(x)`: the call of `add_`, then that of `mul_`; empty for what is no method call."""
    calls: list[ast.Call] = []
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        if is_namespace(call.func.value):
            break
        calls.append(call)
        call = call.func.value
    return calls


def reads_between(calls: list[ast.Call]) -> bool:
    """`t.mul_(2).add_(t)`: whether a later call of a chain is given what an earlier one has written."""
    names = {last_name(base_of(written_by(one))) for one in calls[-1:]} - {""}
    given = [each for one in calls[:-1] for each in arguments(one)]
    return any(last_name(one) in names for each in given for one in walk(each, ast.Name, ast.Attribute))


def base_of(target: ast.AST | None) -> ast.expr | None:
    """Strip indexes, views and `.data`: `h` of `h[0].view(-1)`, `self.buf` of `self.buf.data[i]`."""
    while target is not None:
        if isinstance(target, ast.Subscript):
            target = target.value
        elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            if called(target) not in VIEWS and not writes(target):
                return None
            given = tensors_given(target) if is_namespace(target.func.value) else []  # `torch.squeeze(h)`
            target = given[0] if given else target.func.value
        elif isinstance(target, ast.Attribute) and target.attr in VIEWS:
            target = target.value
        else:
            break
    return target if isinstance(target, ast.expr) and dotted(target) else None


def written_by(call: ast.Call) -> ast.expr | None:
    """The tensor that a call writes: `t` of `t.add_(x)`, `torch.add_(t, x)`, `f(t, inplace=True)` and `f(x, out=t)`."""
    out = keyword(call, "out")
    if out is not None:
        return out.value
    if isinstance(call.func, ast.Attribute) and called(call).endswith("_") and not is_namespace(call.func.value):
        lowest = next((one for one in reversed(chain(call)) if writes(one)), call)
        return lowest.func.value if isinstance(lowest.func, ast.Attribute) else None
    first = call.args[0] if call.args else None
    return None if isinstance(first, ast.Starred) else first


def changed_by(*rows: ast.stmt) -> set[str]:
    """The names that some statements bind, delete, or write in place: `h` for `h[i] = e` and `h.data.add_(1)`."""
    found = set[str]()
    for row in rows:
        bound = (one for one in walk(row, ast.expr) if not isinstance(getattr(one, "ctx", ast.Load()), ast.Load))
        found |= {first_name(base_of(one)) for one in bound}
        found |= {first_name(base_of(written_by(one))) for one in walk(row, ast.Call) if writes(one)}
    return found - {""}


def out_of_place(write: WriteSyntax) -> list[Edit]:
    """Return the edits that turn a write into a new tensor under the old name; empty if the text allows none.

    `x = x + y` for `x += y`, `t = t.op()` for `t.op_()`, `h = h.masked_fill(h < 0, 0)` for `h[h < 0] = 0`, and calls
    without `inplace` and `out`. Where the value of the call is used, as in `y = t.op_()`, only the call changes.
    """
    file, statement = write.file, write.statement
    if write.form is Form.ITEM and isinstance(statement, ast.Assign):
        text = _filled(write, statement)
        return [replace(file, statement, text)] if text else []
    if isinstance(statement, ast.AugAssign) and write.call is None:
        target = seen(file.source(statement.target))
        text = f"{target} = {_operation(file, target, type(statement.op), statement.value)}"
        return [replace(file, statement, text)] if can_bind(statement.target) else []
    if write.call is None:
        return []
    if (out := keyword(write.call, "out")) is not None:
        return _without_out(write, write.call, out)
    if is_flagged(write.call):
        return _without_flag(write, write.call)
    return _without_underscore(write, write.call)


def writes_for_caller(write: WriteSyntax) -> str:
    """Return the function that writes into an argument which it neither reads afterwards nor returns; "" if none.

    A new tensor in its place would reach nobody.
    """
    base, found, call = base_of(write.target), write.statement, write.call
    if not isinstance(base, ast.Name) or isinstance(found, ast.Return):
        return ""
    if call is not None and not (isinstance(found, ast.Expr) and call in (found.value, *chain(found.value))):
        return ""  # what the call gives is used
    scope = write.file.scope(found)
    if not isinstance(scope, FUNCTION) or base.id not in parameters(scope):
        return ""
    is_bound = any(is_stored(write.file, one) for one in uses_in(scope, base.id))
    return "" if is_bound or is_read_again(write.file, base.id, found) else scope.name


def loses_write(write: WriteSyntax) -> bool:
    """Return True if a new tensor under the written name would not reach all that goes on with the old tensor.

    That is the caller of an argument, the object or container that the name was taken from or put into, and what a
    loop goes through. A name that is an attribute or an item is a place of its own: a binding stores the tensor there.
    """
    base, found = base_of(write.target), write.statement
    if not isinstance(base, ast.Name) or isinstance(found, ast.Return):
        return False
    file, is_over = write.file, not is_read_again(write.file, base.id, found)
    if writes_for_caller(write) or (is_over and base.id in bound_by_loop(file, found)):
        return True
    if any(is_read_again(file, other, found) for other in _other_names(file, base.id, found)):
        return True
    made = definition(file, base, found)
    if isinstance(made, ast.Attribute) and made.attr not in VIEWS:
        return True
    root = viewed_by(write)
    if root is not None and is_read_again(file, dotted(root), found):
        return True
    if isinstance(made, (ast.Attribute, ast.Subscript)):
        return is_over or isinstance(root, ast.Attribute)
    return is_over and _is_handed_out(file, base.id, found)


def is_read_on(write: WriteSyntax) -> bool:
    """Return True if the statement uses the result, or if what it writes is an attribute, or a name that is read again,
    in the next turn of a loop too. The variable of a loop is not, but for views that nothing else holds."""
    file, found = write.file, write.statement
    if not isinstance(write.base, ast.Name) or (write.call is not None and not isinstance(found, ast.Expr)):
        return True
    heads = [one for one in file.around(found) if isinstance(one, FOR)]
    taken = (one.iter for one in heads if write.name in names_in(one.target))
    is_again = is_read_again(file, write.name, found) or file.loops(found) != []
    return is_again and all(called(one) in SPLITS for one in taken)


def viewed_by(write: WriteSyntax) -> ast.expr | None:
    """Return `att` for a write to `head` after `head = att[:, i]` or `head = att.view(-1)`."""
    made = definition(write.file, write.base, write.statement)
    is_view = isinstance(made, (ast.Subscript, ast.Attribute)) or called(made) in VIEWS
    return base_of(made) if is_view else None


def _other_names(file: File, name: str, statement: ast.stmt) -> Iterator[str]:
    """`kept` after `kept = h` above a statement that writes `h`."""
    for one in uses_in(file.scope(statement), name):
        row = file.above[one]
        if isinstance(row, ast.Assign) and row.value is one and row.lineno < statement.lineno:
            yield from (target.id for target in row.targets if isinstance(target, ast.Name) and target.id != name)


def _is_handed_out(file: File, name: str, statement: ast.stmt) -> bool:
    """Return True if a name's tensor also gets another name, or a place in a container, above a statement."""
    for one in (one for one in uses_in(file.scope(statement), name) if one.lineno < statement.lineno):
        around = file.above[one]
        if is_stored(file, one):
            if isinstance(around, ast.Assign) and len(around.targets) > 1:
                return True
        elif isinstance(around, (ast.Assign, ast.List, ast.Tuple, ast.Dict)) or called(around) == "append":
            return True
    return False


def is_in_vain(write: WriteSyntax, edits: Iterable[Edit]) -> bool:
    """Return True if edits bind the written name to a new tensor, and that loses the write."""
    binding = any(one.replacement.startswith(f"{write.name} = ") for one in edits)
    return binding and loses_write(write)


def mask_of(write: WriteSyntax) -> ast.expr | None:
    """Return the index of `h[mask] = e` if the text shows that it is a mask: a comparison, or a name such as `mask`."""
    index = write.target.slice if isinstance(write.target, ast.Subscript) else None
    made = definition(write.file, index, write.statement) or index
    is_mask = isinstance(made, ast.Compare) or (isinstance(made, ast.UnaryOp) and isinstance(made.op, ast.Invert))
    is_mask |= isinstance(made, ast.BinOp) and isinstance(made.op, (ast.BitAnd, ast.BitOr))
    is_mask |= called(made) in _MASKS or "mask" in last_name(index).lower()
    return index if is_mask else None


_MASKS = "isnan isinf isfinite lt le gt ge eq ne logical_not logical_and logical_or bool".split()  # noqa: SIM905
"""Functions and methods that give a mask."""


def is_number(value: ast.AST | None) -> bool:
    """Whether an expression is a number: `0`, `-1.0`, `float("-inf")`."""
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        return is_number(value.operand)
    if isinstance(value, ast.Call) and not isinstance(value.func, ast.Attribute) and called(value) == "float":
        return len(value.args) == 1 and isinstance(value.args[0], ast.Constant)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _filled(write: WriteSyntax, statement: ast.Assign) -> str:
    """`h = h.masked_fill(h < 0, 0)` for `h[h < 0] = 0`; empty where the mask may be of another shape."""
    file, target = write.file, write.target
    if not isinstance(target, ast.Subscript) or len(statement.targets) > 1 or not is_number(statement.value):
        return ""
    name, mask = dotted(target.value), target.slice
    if not name or not isinstance(mask, ast.Compare) or len(mask.comparators) > 1:
        return ""
    sides = (mask.left, mask.comparators[0])
    if name not in map(dotted, sides) or not any(map(is_number, sides)):
        return ""
    return f"{name} = {name}.masked_fill({file.source(mask)}, {file.source(statement.value)})"


def seen(text: str) -> str:
    """A tensor's text without the `.data` or `.detach()` that hides it from autograd."""
    return text.removesuffix(".data").removesuffix(".detach()")


def expression(file: File, call: ast.Call) -> str | None:
    """`g * k` for `g.mul_(k)`, `g.clamp(0)` for `g.clamp_(0)`; None for a method that has no twin."""
    if not has_twin(call) or not isinstance(call.func, ast.Attribute):
        return None
    plain = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
    operator = PLAIN.get(called(call))
    if operator is not None and plain and dotted(call.func.value) and not is_namespace(call.func.value):
        return _operation(file, file.source(call.func.value), operator, call.args[0])
    return without_underscores(file, call, [call])


def without_underscores(file: File, whole: Placed, calls: list[ast.Call]) -> str:
    """The text of an expression with the underscore taken from the names of some calls in it."""
    ends = [file.span(one.func) for one in calls]
    gone = (Edit(Span(file.path, one.end_line, one.end_column - 1, one.end_line, one.end_column), "") for one in ends)
    return rewritten(file, file.span(whole), gone)


def _operation(file: File, left: str, operator: type[ast.operator], value: ast.expr) -> str:
    """`left * value`, the value in parentheses where it needs them."""
    symbol, strength, _ = OPERATORS[operator]
    text = file.source(value)
    if binding(value) < (_UNARY if strength > _UNARY else strength + 1) or "\n" in text:
        text = f"({text})"
    return f"{left} {symbol} {text}"


def binding(value: ast.expr) -> int:
    """Return how tightly the outermost operator of an expression binds; 0 if it always needs parentheses."""
    if isinstance(value, ast.BinOp):
        return OPERATORS[type(value.op)][1]
    if isinstance(value, ast.UnaryOp) and not isinstance(value.op, ast.Not):
        return _UNARY
    return ATOM if isinstance(value, _ATOMS) else 0


def _without_underscore(write: WriteSyntax, call: ast.Call) -> list[Edit]:
    file, statement = write.file, write.statement
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign, ast.Return)) else None
    calls = chain(value)
    outermost = value if call in calls and isinstance(value, ast.Call) else call
    writing = [one for one in (calls if call in calls else chain(call) or [call]) if writes(one)]
    drawn = writing[-1:] if len(writing) > 1 and called(writing[-1]) in RANDOM_FILLS else []
    twins = [one for one in writing if one not in drawn]
    if not writing or not all(has_twin(one) for one in twins) or reads_between(writing):
        return []
    text = without_underscores(file, outermost, twins)
    if not isinstance(statement, ast.Expr) or value is not outermost:
        return [] if drawn else [replace(file, outermost, text)]
    target = write.target
    if target is None or not can_bind(target):
        return []
    if len(writing) == 1 and len(calls) == 1 and dotted(call.func) and dotted(target):
        text = expression(file, call) or text
    owner = file.source(target)
    held = f"torch.empty_like({seen(owner)})" if drawn else seen(owner)
    return [replace(file, statement, f"{seen(owner)} = {text.replace(owner, held, 1)}")]


def _without_flag(write: WriteSyntax, call: ast.Call) -> list[Edit]:
    file, statement = write.file, write.statement
    gone = without_argument(file, call, keyword(call, "inplace") or call.args[-1])
    if gone is None or not isinstance(statement, ast.Expr):
        return [gone] if gone is not None else []
    if write.target is None or not can_bind(write.target) or statement.value is not call:
        return []
    span = file.span(call)
    return [insert(file, span.line, span.column, f"{file.source(write.target)} = "), gone]


def _without_out(write: WriteSyntax, call: ast.Call, out: ast.keyword) -> list[Edit]:
    file, statement, gone = write.file, write.statement, without_argument(write.file, call, out)
    if gone is None or not isinstance(out.value, (ast.Name, ast.Attribute, ast.Subscript)):
        return []
    if isinstance(statement, (ast.Expr, ast.Assign)) and statement.value is call:
        span = file.span(call)
        return [insert(file, span.line, span.column, f"{file.source(out.value)} = "), gone]
    return [gone]


def can_bind(target: ast.expr) -> bool:
    """Return True if a statement may bind a value to this target without computing something twice."""
    if isinstance(target, ast.Subscript):
        return next(walk(target, ast.Call, ast.Await, ast.NamedExpr, ast.Yield), None) is None
    return bool(dotted(target))
