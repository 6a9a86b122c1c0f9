"""Names in expressions: what is called, what a name stands for, where it is read and bound."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from noclobber.model.seen.operators import UNTRACKED
from noclobber.syntax.tree import FOR, FUNCTION, LOOP, File, Scope, functions, last_line, nested, starts, walk, within

Name = ast.Name | ast.Attribute
UNRECORDING = ("no_grad", "enable_grad", "set_grad_enabled", "is_grad_enabled", "requires_grad", "requires_grad_")
"""Names of what says whether gradients are recorded, and touches none."""


def dotted(node: ast.AST | None) -> str:
    """ "self.conv.weight" for a name or a chain of attributes; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def last_name(node: ast.AST | None) -> str:
    """The last name of a dotted name: "functional" for `torch.nn.functional`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def first_name(node: ast.AST | None) -> str:
    """The first name of a dotted name: "torch" for `torch.nn.functional`; empty for anything else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_part(one: str, other: str) -> bool:
    """Whether one of two dotted names is, or leads to, the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def called(node: ast.AST | None) -> str:
    """The last name of what is called: "add_" for `h[0].add_(x)`; empty for what is no call."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def is_untracked(call: ast.Call) -> bool:
    """Return True if no gradient flows through what a call gives: `t.item()`, `math.log(x)`, `torch.zeros(3)`."""
    if isinstance(call.func, ast.Attribute) and last_name(call.func.value) in ("math", "np", "numpy", "random"):
        return True
    return called(call) in UNTRACKED or dotted(call.func) in ("float", "int")  # `t.float()` is another matter


def owner(node: ast.AST | None) -> ast.expr | None:
    """What a method is called on: `h[0]` for `h[0].add_(x)`, `torch` for `torch.add(h, x)`; None for anything else."""
    return node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


def calls(node: ast.AST | None, *names: str) -> list[ast.Call]:
    """The calls in a node of functions or methods of some names: of `step` in `opt.step()`."""
    return [one for one in walk(node, ast.Call) if called(one) in names] if node is not None else []


def call_of(row: ast.AST | None) -> ast.Call | None:
    """The call that a statement consists of; None for any other statement."""
    return row.value if isinstance(row, ast.Expr) and isinstance(row.value, ast.Call) else None


def called_by(file: File, node: ast.AST) -> ast.Call | None:
    """The call of what a node names: `h.add_(x)` for `h.add_`; None where it is not called."""
    call = file.above[node]
    return call if isinstance(call, ast.Call) and call.func is node else None


def indexes(node: ast.Subscript) -> list[ast.expr]:
    """`i` and `0` of `h[i, 0]`."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def is_plain_index(index: ast.expr) -> bool:
    """Whether an index is a slice or a number, which takes a view; a name may stand for a mask, which copies."""
    return isinstance(index, (ast.Slice, ast.Constant, ast.UnaryOp))


def unindexed(node: ast.expr) -> ast.expr:
    """`self.rows` of `self.rows[0][i]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def indexed(file: File, node: ast.expr) -> ast.expr:
    """The same upwards: `b[i][0]` for its `b`."""
    while isinstance(above := file.above[node], ast.Subscript) and above.value is node:
        node = above
    return node


def root_of(node: ast.expr | None) -> ast.expr | None:
    """`h` of `h[0].view(-1).add_(1)`."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The argument of a keyword."""
    return next((one for one in call.keywords if one.arg == name), None)


def is_given(call: ast.Call, name: str, value: bool) -> bool:
    """Whether a call says `name=True`, or `name=False`."""
    given = keyword(call, name)
    return given is not None and isinstance(given.value, ast.Constant) and given.value.value is value


def has_stars(call: ast.Call) -> bool:
    """Whether a call unpacks arguments: `f(*a)`, `f(**b)`."""
    return any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)


def arguments(call: ast.Call) -> list[ast.expr | ast.keyword]:
    """The arguments of a call, those without a keyword first."""
    return [*call.args, *call.keywords]


def values(call: ast.Call) -> list[ast.expr]:
    """What a call is given, without the keywords, those without one first."""
    return [*call.args, *(one.value for one in call.keywords)]


def is_true(node: ast.AST | None) -> bool:
    """Whether an expression is `True`."""
    return isinstance(node, ast.Constant) and node.value is True


def in_tuple(texts: Sequence[str]) -> str:
    """ "(x, y)", and "(x,)" for one."""
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def parameters(scope: Scope) -> list[str]:
    """The names of a function's parameters, as they are written; empty for a module."""
    own = [] if isinstance(scope, ast.Module) else ast.iter_child_nodes(scope.args)
    return [one.arg for one in sorted((one for one in own if isinstance(one, ast.arg)), key=starts)]


def returned(function: ast.AST) -> list[ast.expr]:
    """What a function returns, each part of a tuple by itself."""
    values = (one.value for one in walk(function, ast.Return) if one.value is not None)
    return [part for one in values for part in (one.elts if isinstance(one, ast.Tuple) else [one])]


def named(node: ast.AST) -> Iterator[Name]:
    """The names and attributes in and below a node, in the order of the text."""
    return walk(node, ast.Name, ast.Attribute)


def names_used(node: ast.AST) -> set[str]:
    """Every name that stands in and below a node, those of attributes, parameters and functions among them."""
    own = {one.arg for one in walk(node, ast.arg)} | {one.name for one in functions(node)}
    return own | {last_name(one) for one in named(node)}


def only_target(row: ast.AST | None) -> ast.expr | None:
    """`h` of `h = f(x)`, `(h, y)` of `h, y = f(x)`; None for `h = y = f(x)`, and for any other statement."""
    return row.targets[0] if isinstance(row, ast.Assign) and len(row.targets) == 1 else None


def targets(row: ast.stmt) -> list[ast.expr]:
    """What an assignment binds, each part of a tuple by itself; empty for any other statement."""
    waiting = list(row.targets) if isinstance(row, ast.Assign) else [getattr(row, "target", None)]
    found: list[ast.expr] = []
    while waiting:
        target = waiting.pop(0)
        if isinstance(target, (ast.Tuple, ast.List)):
            waiting += target.elts
        elif target is not None:
            found.append(target.value if isinstance(target, ast.Starred) else target)
    return found


def binds(row: ast.AST | None, name: str) -> bool:
    """`h = f(h)`, `h, y = f(h)`: whether a statement binds a name or attribute to something."""
    return isinstance(row, ast.Assign) and name in map(dotted, targets(row))


def names_in(node: ast.AST) -> set[str]:
    """The plain names in and below a node."""
    return {one.id for one in walk(node, ast.Name)}


def names_read(node: ast.AST) -> set[str]:
    """Those that it reads; `x += 1` does not count as a read of `x`."""
    return {one.id for one in walk(node, ast.Name) if isinstance(one.ctx, ast.Load)}


def names_stored(node: ast.AST) -> set[str]:
    """Those that it binds, adds to or deletes, in functions inside it too."""
    return {one.id for one in walk(node, ast.Name) if not isinstance(one.ctx, ast.Load)}


def own_names(scope: ast.AST) -> set[str]:
    """The variables of a function."""
    own = {*parameters(scope)} if isinstance(scope, FUNCTION) else set[str]()
    own |= {one.id for one in within(scope, ast.Name) if not isinstance(one.ctx, ast.Load)}
    return {one for one in own if not is_declared(scope, one)}


def uses(scope: ast.AST, name: str, *contexts: type[ast.expr_context]) -> list[ast.Name]:
    """Where a scope itself has a plain name, in the order of the text: everywhere, or where it loads or stores it."""
    found = (one for one in within(scope, ast.Name) if one.id == name)
    return [one for one in found if isinstance(one.ctx, contexts or ast.expr_context)]


def uses_in(node: ast.AST, name: str, *contexts: type[ast.expr_context]) -> list[ast.Name]:
    """The same in and below a node, in functions inside it too."""
    return [one for one in walk(node, ast.Name) if one.id == name and isinstance(one.ctx, contexts or ast.expr_context)]


def bindings(file: File, scope: ast.AST, name: str) -> list[ast.AST]:
    """What binds a plain name in a scope, or deletes it, in the order of the text; `x += 1` does not."""
    return [file.above[one] for one in uses(scope, name) if is_stored(file, one)]


def value_given(file: File, target: ast.AST) -> ast.expr | None:
    """The value that an assignment gives a target: of `a, b = x, y` the one at the same place; None for any other."""
    held = file.above[target]
    if isinstance(held, (ast.Assign, ast.AnnAssign)):
        return held.value
    row = file.above[held] if isinstance(held, ast.Tuple) else None
    if not isinstance(held, ast.Tuple) or not isinstance(row, ast.Assign) or not isinstance(row.value, ast.Tuple):
        return None
    pairs = zip(held.elts, row.value.elts, strict=False) if len(held.elts) == len(row.value.elts) else ()
    return next((value for one, value in pairs if one is target), None)


def only_binding(file: File, scope: ast.AST, name: str) -> ast.Assign | None:
    """The statement `name = ...`, where nothing else in a scope binds the name."""
    bound = bindings(file, scope, name)
    return bound[0] if len(bound) == 1 and isinstance(bound[0], ast.Assign) and len(bound[0].targets) == 1 else None


def is_own(scope: ast.AST, name: str, but: ast.AST | None = None) -> bool:
    """Whether a variable is only that of a scope: no function in it uses it, or only one, no `match` binds it, and it
    is of no other scope."""
    if any(getattr(one, "name", "") == name for one in within(scope, ast.MatchAs, ast.MatchStar)):
        return False
    inside = (one for one in nested(scope) if one is not but and name in names_in(one))
    inside = (one for one in inside if not _has_another(one, name))
    return next(inside, None) is None and not is_declared(scope, name)


def _has_another(function: ast.AST, name: str) -> bool:
    """Return True if a function has a variable of its own under a name, and uses no other one under it."""
    if not isinstance(function, FUNCTION):
        return False
    around = (*function.decorator_list, *function.args.defaults, *(one for one in function.args.kw_defaults if one))
    said = (getattr(one, "names", ()) for one in walk(function, ast.Global, ast.Nonlocal))
    inner = {one for each in walk(function, ast.comprehension) for one in walk(each.target, ast.Name)}
    bound = name in parameters(function) or not inner.issuperset(uses(function, name, ast.Store))
    return bound and not any(name in one for one in (*said, *map(names_in, around)))


def is_declared(scope: ast.AST, name: str) -> bool:
    """Whether a scope says that a variable is not its own: `global name`, `nonlocal name`."""
    return any(name in getattr(one, "names", ()) for one in within(scope, ast.Global, ast.Nonlocal))


def attributes(node: ast.AST, *names: str) -> list[ast.Attribute]:
    """The attributes of some names, of any object, in and below a node."""
    return [one for one in walk(node, ast.Attribute) if one.attr in names]


def attributes_set(file: File, *names: str) -> list[ast.Attribute]:
    """Where a file sets such attributes, adds to them or deletes them."""
    return [one for one in attributes(file.tree, *names) if not isinstance(one.ctx, ast.Load)]


def set_later(file: File, *names: str) -> list[ast.Attribute]:
    """The same elsewhere than where an object begins."""
    return [one for one in attributes_set(file, *names) if getattr(file.scope(one), "name", "") != "__init__"]


def imported_from(file: File, module: str) -> set[str]:
    """The names that a file imports from a module, or from one inside it."""
    rows = (row for row in walk(file.tree, ast.ImportFrom) if f"{row.module}.".startswith(f"{module}."))
    return {one.asname or one.name for row in rows for one in row.names}


def imported(file: File) -> set[str]:
    """The names that a file imports anything under."""
    return {one.asname or one.name.partition(".")[0] for one in walk(file.tree, ast.alias)}


def mentions(file: File, name: str) -> list[Name]:
    """Where a file has a name, also as the last part of a longer one."""
    return [one for one in named(file.tree) if last_name(one) == name]


def mentioned(file: File, name: str) -> list[Name]:
    """The same without those that bind it."""
    return [one for one in mentions(file, name) if not is_stored(file, one)]


def is_read_besides(file: File, name: str, lines: Collection[int]) -> bool:
    """Return True if a statement that begins on none of these lines reads the `gain` of "net.gain" or "gain[0]"."""
    last = name.rpartition(".")[2].partition("[")[0]
    return any(getattr(file.statement(one), "lineno", 0) not in lines for one in mentioned(file, last))


def reads(name: str, scope: ast.AST, file: File) -> Iterator[Name]:
    """Where a dotted name is read in a scope; `x += 1` reads `x`."""
    for one in named(scope):
        if dotted(one) == name and not is_stored(file, one):
            yield one


def is_stored(file: File, node: ast.expr) -> bool:
    """Whether a name is bound or deleted, and not read: `x += 1` does both."""
    context = getattr(node, "ctx", None)
    return isinstance(context, (ast.Store, ast.Del)) and not isinstance(file.above[node], ast.AugAssign)


def has_torch(file: File) -> bool:
    """Whether the name `torch` is PyTorch in a file: it is imported so at the top, and bound to nothing else."""
    imported = [alias for row in file.tree.body if isinstance(row, ast.Import) for alias in row.names]
    is_there = any(one.asname is None and one.name.partition(".")[0] == "torch" for one in imported)
    bound = {one.id for one in walk(file.tree, ast.Name) if is_stored(file, one)}
    return is_there and "torch" not in bound | {one.arg for one in walk(file.tree, ast.arg)}


def is_read_below(file: File, name: str, row: ast.stmt) -> bool:
    """Whether a dotted name is read below a statement of its function."""
    return any(one.lineno > last_line(row) for one in reads(name, file.scope(row), file))


def is_read_again(file: File, name: str, statement: ast.stmt) -> bool:
    """Whether a dotted name is read below a statement, or elsewhere in a loop around it."""
    if is_read_below(file, name, statement):
        return True
    own, loops = list(reads(name, statement, file)), (one for one in file.around(statement) if isinstance(one, LOOP))
    return any(one not in own for loop in loops for one in reads(name, loop, file))


def bound_by_loop(file: File, node: ast.AST) -> set[str]:
    """The names that the `for` loops around a node bind."""
    return {name for one in file.around(node) if isinstance(one, FOR) for name in names_in(one.target)}


TAKING_OUT = ("list", "tuple", "reversed", "sorted", "iter", "zip", "enumerate")
"""What gives the items of containers, and nothing else does with them what it is not asked for."""


def gone_through(file: File, node: ast.AST, name: str) -> ast.expr | None:
    """What the innermost loop or comprehension around a node goes through that binds a name; None if none does."""
    around = [each for one in file.around(node) for each in getattr(one, "generators", [one])]
    turns = (one for one in around if isinstance(one, (*FOR, ast.comprehension)))
    return next((one.iter for one in turns if name in names_in(one.target)), None)


def taken_out(target: ast.expr, container: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return what a loop calls the items of a container, with the container: of each that `zip` and its like take."""
    if not isinstance(container, ast.Call) or called(container) not in TAKING_OUT:
        return [(target, container)]
    if called(container) == "enumerate":
        target = target.elts[-1] if isinstance(target, ast.Tuple) else target
    elif called(container) == "zip":
        parts = target.elts if isinstance(target, ast.Tuple) else [target] * len(container.args)
        return [pair for one, each in zip(parts, container.args, strict=False) for pair in taken_out(one, each)]
    return [pair for each in container.args for pair in taken_out(target, each)]


def made_of(names: set[str], rows: ast.AST) -> set[str]:
    """Some plain names, and all names that they are made of by the assignments and loops of a loop or function."""
    made = [(each, one.value) for one in walk(rows, ast.Assign) for each in one.targets]
    made += [(one.target, one.iter) for one in walk(rows, ast.For)]
    for _ in made:
        for target, value in made:
            if names_in(target) & names:
                names = names | names_in(value)
    return names


def optimizer_of(statement: ast.stmt) -> str:
    """ "self.opt" for the statement `self.opt.step()`, "opts[i]" for `opts[i].step()`; empty for anything else."""
    call = call_of(statement)
    stepped = owner(call) if called(call) == "step" else None
    if call is None or stepped is None:
        return ""
    stepped = call.args[0] if call.args and "scaler" in dotted(stepped) else stepped
    base = stepped.value if isinstance(stepped, ast.Subscript) else stepped
    return ast.unparse(stepped) if dotted(base) and next(walk(stepped, ast.Call), None) is None else ""


def differentiates(file: File) -> bool:
    """Whether a program differentiates through its own gradients."""
    given = (one.value for one in walk(file.tree, ast.keyword) if one.arg == "create_graph")
    return not all(isinstance(one, ast.Constant) and one.value is False for one in given)


def definition(file: File, use: ast.AST | None, at: ast.AST) -> ast.expr | None:
    """The value last assigned to a plain name above a node, in the same function; None where it is not plain."""
    stored = uses(file.scope(at), use.id, ast.Store) if isinstance(use, ast.Name) else []
    rows = [(one, file.nearest(one, ast.Assign, ast.AnnAssign)) for one in stored]
    given = [
        value_given(file, one)
        for one, row in rows
        if row is not None and row.lineno < getattr(at, "lineno", 0) and len(getattr(row, "targets", ".")) == 1
    ]
    return next((one for one in reversed(given) if one is not None), None)


def is_numeric(file: File, value: ast.expr) -> bool:
    """Return True if the source shows that a value is a number; a name may be a tensor."""
    if isinstance(value, ast.BinOp):
        return is_numeric(file, value.left) and is_numeric(file, value.right)
    if isinstance(value, ast.UnaryOp):
        return is_numeric(file, value.operand)
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Attribute) and last_name(value.func.value) in ("math", "random")
    if isinstance(value, ast.Name):
        scope = file.scope(value)
        bound = [one for at in {scope, file.tree} for one in bindings(file, at, value.id)]
        plain = all(isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant) for one in bound)
        return bool(bound) and plain and value.id not in parameters(scope)
    return isinstance(value, ast.Constant)


_PLAIN = ("sign", "sqrt", "clamp", "abs", "mul", "norm", "size", "len", "detach", "clone")
"""Calls that keep a gradient a gradient."""


def is_of_gradients(file: File, value: ast.expr, known: tuple[str, ...] = ()) -> bool:
    """Return True if a value is plain arithmetic of names, numbers and at least one gradient.

    A gradient is a `.grad`, a name that is bound to what `autograd.grad` gives without a graph of its own, or to such a
    value, or a name that is `known` to be.
    """
    nodes = list(ast.walk(value))
    plain = all(called(one) in _PLAIN for one in nodes if isinstance(one, ast.Call))
    return plain and any(_is_gradient(file, one, known) for one in nodes)


def _is_gradient(file: File, node: ast.AST, known: tuple[str, ...]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "grad"
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return False
    if node.id in known:
        return True
    scope = file.scope(node)
    bound = [file.nearest(one, ast.stmt) for one in uses(scope, node.id, ast.Store)]
    is_own = bool(bound) and node.id not in parameters(scope)
    return is_own and all(_gives_gradients(file, one, (*known, node.id)) for one in bound)


def _gives_gradients(file: File, row: ast.stmt | None, known: tuple[str, ...]) -> bool:
    """Whether a statement binds what `autograd.grad` gives, as `g, = grad(loss, w)`, or a name to a value of those; a
    loop its last known name, as `for w, g in zip(ws, grads)`."""
    if isinstance(row, FOR):
        through = [whole for one, whole in taken_out(row.target, row.iter) if dotted(one) == known[-1]]
        return bool(through) and all(_is_gradient(file, one, known) or _is_by_grad(one) for one in through)
    if not isinstance(row, ast.Assign):
        return False
    if isinstance(row.targets[0], ast.Name) and is_of_gradients(file, row.value, known):
        return True
    return _is_by_grad(unindexed(row.value))


def _is_by_grad(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or called(value) != "grad":
        return False
    return keyword(value, "create_graph") is None or is_given(value, "create_graph", False)
