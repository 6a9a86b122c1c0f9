"""Decides whether a name alone holds the memory that is written through it. Then the name can get another tensor, and
nothing else in the program sees the difference."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from noclobber.mend.holders.giving import asking, given_by, given_for, put_back, run_by
from noclobber.mend.holders.making import (
    BUILTINS,
    CONTAINERS,
    HANDING_ON,
    KEEPING_NOTHING,
    METHODS,
    TAKING,
    forward_of,
    function_called,
    is_function,
    is_method,
    is_tensors,
    module_called,
    module_gives_new,
    module_writes,
    parts_of,
    passes_on,
)
from noclobber.mend.holders.seen import Holders, are_over, is_of, is_over, node_at
from noclobber.model.seen.operators import SPLITS
from noclobber.syntax.names import (
    attributes_set,
    called,
    called_by,
    dotted,
    has_stars,
    is_given,
    is_own,
    keyword,
    last_name,
    names_used,
    only_target,
    owner,
    parameters,
    root_of,
    taken_out,
    targets,
    uses,
    value_given,
    values,
)
from noclobber.syntax.tree import (
    FOR,
    FUNCTION,
    LOOP,
    WITH,
    File,
    Function,
    Scope,
    ends,
    functions,
    starts,
    walk,
    within,
)
from noclobber.syntax.writes import base_of, is_flagged, is_namespace, is_number, tensors_given, writes

_ABOUT = ("shape", "dtype", "device", "ndim", "requires_grad", "grad_fn", "is_leaf", "itemsize", "nbytes")
"""Attributes of a tensor that are no tensor."""
_READING = (ast.BinOp, ast.Compare, ast.UnaryOp, ast.FormattedValue, ast.Expr, ast.Assert, ast.AugAssign)
"""What reads a tensor and keeps nothing of it."""


def holds_alone(
    file: File,
    name: str,
    write: ast.stmt,
    given: ast.expr | None = None,
    holders: Holders | None = None,
    whole: str = "",
) -> bool:
    """Return True if no other name or container that is read again holds the tensor of a name when a statement writes
    through it. If it was seen who held it (`holders`), that decides (seen.py). Else the source alone does:

    Known where a binding of the name that gives a new tensor leads to the statement, every other binding on the way
    does as well, and until the write the tensor is used only by what keeps nothing of it. A name that functions inside
    use, an argument, or the variable of a loop is never known. Nor is one that is written in a `with` block that it was
    not bound in: under `no_grad` what is written in place stays in the graph, and a new tensor does not.
    `given` is what the writing call itself is called with, `whole` a name of what the written tensor is a part of: it
    gets another tensor as well.
    """
    scope, held = file.scope(write), [name, whole] if whole else [name]
    if not all(is_own(scope, one) for one in held):
        return False
    if holders is not None:
        holders = [one for one in holders if not whole or one.name != whole or not is_of(one, file, write)]
        at = node_at(file, write, holders)
        known = {one.name for one in holders if is_of(one, file, write)} & {*parameters(scope)}
        handed_in = [one for one in known.difference(held) if _binding(file, one, write) is None]
        return (
            all(may_get_another(file, one, write, held, at) for one in held)
            and all(is_given_alone(file, one, scope) for one in handed_in)
            and are_over(file, name, write, _not_put_back(file, name, scope, holders))
        )
    leading = _binding(file, name, write)
    if leading is None or not is_new(file, value_given(file, leading[0])):
        return False
    bound, loops = leading
    binding = file.nearest(bound, ast.Assign) or write
    if not set(_blocks_with(file, write)) <= set(_blocks_with(file, binding)):
        return False
    on_the_way = [one for one in uses(scope, name) if _is_on_the_way(one, binding, write, loops)]
    return all(
        _binds_new(file, one) if isinstance(one.ctx, ast.Store) else keeps_nothing(file, one)
        for one in on_the_way
        if one is not bound and one is not given
    )


def may_get_another(file: File, name: str, write: ast.stmt, names: Sequence[str], at: ast.AST | None) -> bool:
    """Return True if, by the source, the name holds what its own scope has bound it to, and what that may also be bound
    to, beside some names, is not read again after the node `at`: other runs of the line may see another tensor than
    those looked at."""
    stored, loops = uses(file.scope(write), name, ast.Store, ast.Del), set(file.loops(write))
    bound = [one for one in stored if starts(one) < starts(write) or not loops.isdisjoint(file.around(one))]
    bound = [one for one in bound if file.statement(one) is not write]
    if name in parameters(file.scope(write)) and _binding(file, name, write) is None:
        if not is_given_alone(file, name, file.scope(write)):
            return False
    elif not bound:
        return False
    around, also = set(_blocks_with(file, write)), set[str]()
    for one in bound:
        row, others = file.nearest(one, ast.stmt), _bound_with(file, one)
        if row is None or others is None or not around <= set(_blocks_with(file, row)):
            return False
        made = value_given(file, one)
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Subscript) and module_called(file, made) is None:
            return False  # another item may give what it is given
        also |= others
    rows = [(value_given(file, one), getattr(file.statement(one), "value", None)) for one in bound]
    taken = {name for value, whole in rows for name in _taken_over(file, value or _divided(whole))}
    given = [one for one in taken.intersection(parameters(file.scope(write))) if _binding(file, one, write) is None]
    is_left = all(is_over(file, one, write, at or write) for one in also.difference(names))
    return is_left and all(is_given_alone(file, one, file.scope(write)) for one in given)


def _divided(value: ast.expr | None) -> ast.expr | None:
    """`h` of `h.chunk(2)` and of `torch.chunk(h, 2)`; None for what divides nothing."""
    if not isinstance(value, ast.Call) or called(value) not in SPLITS or owner(value) is None:
        return None
    return next(iter(tensors_given(value)), None)


def _taken_over(file: File, value: ast.expr | None) -> set[str]:
    """Return the names of which an expression surely gives the tensor, or a view of it, in one of its branches."""
    if isinstance(value, ast.IfExp):
        return _taken_over(file, value.body) | _taken_over(file, value.orelse)
    if isinstance(value, ast.Call):
        return _taken_over(file, passes_on(file, value))
    return (aliases(file, value) or set()) if value is not None else set()


def is_given_alone(file: File, name: str, function: Scope) -> bool:
    """Return True if the file mentions a function only to call it, and reads nothing again of what is given to it."""
    around = file.class_of(function)
    given: list[ast.expr | None] = [*given_for(file, name, function)] or [None]
    if isinstance(function, FUNCTION) and function.name == "forward" and around and not function.decorator_list:
        runs = (one.func for one in walk(file.tree, ast.Call) if _may_run(file, one, function, around))
        given = [given_by(file, one, name, function) for one in runs]
    with asking(function) as is_first:
        back = _put_back(file, name, function)
        return is_first and all(
            one is not None and (last_name(one) in back or is_given_last(file, one)) for one in given
        )


def _put_back(file: File, name: str, function: Scope) -> set[str]:
    """What `put_back` says of a function that only computes: nothing else could read the attribute meanwhile."""
    computes = HANDING_ON | KEEPING_NOTHING | METHODS
    known = (
        is_function(one)
        or is_tensors(file, one, of=computes)
        or writes(one)
        or called(one) in BUILTINS
        or called(one).endswith("Error")
        for one in walk(function, ast.Call)
    )
    return put_back(file, name, function) if isinstance(function, FUNCTION) and all(known) else set()


def _not_put_back(file: File, name: str, function: Scope, holders: Holders) -> Holders:
    """The holders but for an attribute that each call of a function binds anew; all, where two objects have it."""
    back = _put_back(file, name, function) if name in parameters(function) else set[str]()
    those = [one for one in holders if "." in one.name and one.name.rpartition(".")[2] in back]
    return [one for one in holders if one not in those] if len({one.name for one in those}) == 1 else holders


def _may_run(file: File, call: ast.Call, forward: Function, around: ast.ClassDef) -> bool:
    """Return True if a call with arguments may run the `forward` of this class, also as a part of another module."""
    func = run_by(call)
    if func is call.func and not _fits(file, call, forward):
        return False
    if (found := function_called(file, func, call)) is not None:
        return found is forward
    if func is call.func and (made := module_called(file, call)) is not None:
        of_torch = isinstance(made.func, ast.Attribute) and last_name(made.func.value) == "nn"
        return around.name in names_used(made) or has_stars(made) or not of_torch
    if isinstance(func, ast.Name):
        classes = (one.name for one in walk(file.tree, ast.ClassDef))
        return not (hasattr(builtins, func.id) or func.id in classes)
    is_known = is_function(call) or is_method(call) or is_method(call, of=TAKING | KEEPING_NOTHING)
    if last_name(func) in HANDING_ON | SPLITS or any(hasattr(one, last_name(func)) for one in (list, dict, str)):
        is_known |= not attributes_set(file, last_name(func))
    return not (is_known or (isinstance(func, ast.Attribute) and is_namespace(func.value)))


def _fits(file: File, call: ast.Call, method: Function) -> bool:
    """Return True if a method may be called with the arguments of a call."""
    if last_name(call.func) == method.name or any(one in file.text for one in ("pre_hook", "__call__", "partial")):
        return True  # these may give a method other arguments than those of the call
    of = method.args
    places = [one.arg for one in (*of.posonlyargs, *of.args)][1:]
    names = {one.arg for one in call.keywords if one.arg}
    needed = {*places[: len(places) - len(of.defaults)]} - names - {*places[: len(call.args)]}
    known = {*places, *(one.arg for one in of.kwonlyargs)}
    many = len(call.args) > len(places) and of.vararg is None
    return has_stars(call) or not (needed or many or (of.kwarg is None and names - known))


def is_given_last(file: File, given: ast.expr) -> bool:
    """Return True if what is given to a function is not read again."""
    row, names = file.statement(given), aliases(file, given)
    if row is None or names is None or not all(is_over(file, one, row) for one in names):
        return False
    scope = file.scope(row)
    handed_on = [one for one in names.intersection(parameters(scope)) if _binding(file, one, row) is None]
    return all(is_given_alone(file, one, scope) for one in handed_on)


def is_read_last(file: File, use: ast.Name) -> bool:
    """Return True if the program reads the tensor of a name for the last time in a use of the name, whatever else holds
    it: what autograd has saved aside. An argument is given by names of which that is true too."""
    row, scope, name = file.statement(use), file.scope(use), use.id
    if row is None or isinstance(scope, ast.Lambda) or not is_over(file, name, row):
        return False
    if isinstance(scope, ast.Module) or name not in parameters(scope) or uses(scope, name, ast.Store):
        return holds_alone(file, name, row, use)
    if not all(one is use or keeps_nothing(file, one, returned=False) for one in uses(scope, name)):
        return False
    with asking(scope) as is_first:
        given = given_for(file, name, scope) if is_first else []
        return bool(given) and all(isinstance(one, ast.Name) and is_read_last(file, one) for one in given)


def _bound_with(file: File, name: ast.Name) -> set[str] | None:
    """Return the names that may hold the same tensor after a binding of a name; None if it may be any."""
    above = file.above[name]
    if isinstance(above, ast.AugAssign):
        return set()
    row = above
    while isinstance(row, (ast.Tuple, ast.List)):
        row = file.above[row]
    if isinstance(row, FOR):
        wholes = [whole for one, whole in taken_out(row.target, row.iter) if name in ast.walk(one)]
        return aliases(file, wholes[0]) if len(wholes) == 1 else None
    if not isinstance(row, (ast.Assign, ast.AnnAssign)) or row.value is None:
        return None
    given = aliases(file, row.value)
    more = row.targets if isinstance(row, ast.Assign) and len(row.targets) > 1 else []
    plain = all(isinstance(one, ast.Name) for one in more)
    return given | {one.id for one in more if isinstance(one, ast.Name)} if given is not None and plain else None


def aliases(file: File, value: ast.expr) -> set[str] | None:
    """Return the names whose tensors an expression may give, also as a view; None if it may give any other one."""
    if isinstance(value, ast.Constant) or is_new(file, value):
        return set()
    if (handed := passes_on(file, value) or _divided(value)) is not None:
        return aliases(file, handed)
    if isinstance(value, ast.Name):
        return {value.id}
    parts: list[ast.expr] = []
    if isinstance(value, ast.Call):
        run = run_by(value)
        parts = [one for one in values(value) if one is not run]
    elif isinstance(value, (ast.Tuple, ast.List)):
        parts = value.elts
    elif isinstance(value, ast.IfExp):
        parts = [value.body, value.orelse]
    elif isinstance(value, (ast.Subscript, ast.Starred, ast.Attribute)):
        root = root_of(value.value)
        return {root.id} if isinstance(root, ast.Name) and root.id != "self" else None
    else:
        return None
    found = [aliases(file, one) for one in parts]
    return {name for one in found if one is not None for name in one} if None not in found else None


def is_held_by_engine(file: File, name: str, write: ast.stmt, written: ast.Name | None = None) -> bool:
    """Return the same for a gradient or a save in a `backward` or hook: no other code should see these writes.

    So it is enough that no other name of the function holds it, but for what holds the result of what is `written`.
    """
    scope = file.scope(write)
    is_known = name in parameters(scope) or uses(scope, name, ast.Store) != []
    but = [written, *(one for one in uses(scope, name, ast.Store) if _is_unpacked(file, one))]
    return is_known and _is_only_held_by(file, scope, name, but, returned=True)


def owns(file: File, name: str, where: ast.AST) -> bool:
    """Return True if a name holds only numbers and tensors that nothing else ever holds, in the scope of a node."""
    scope = file.scope(where)
    is_bound = name not in parameters(scope) and uses(scope, name, ast.Store, ast.Del) != []
    numbers = [one for one in uses(scope, name, ast.Store) if _binds_number(file, one)]
    return is_bound and _is_only_held_by(file, scope, name, numbers, returned=False)


def _is_only_held_by(file: File, scope: Scope, name: str, but: Sequence[ast.Name | None], *, returned: bool) -> bool:
    """Return True if, but for some uses of it, a name is bound to new tensors alone, and no use keeps them."""
    return is_own(scope, name) and all(
        keeps_nothing(file, one, returned=returned) if isinstance(one.ctx, ast.Load) else _binds_new(file, one)
        for one in uses(scope, name)
        if one not in but
    )


def _binds_number(file: File, name: ast.Name) -> bool:
    """`lr = 0.1`, `for step in range(9):`."""
    above = file.above[name]
    if isinstance(above, FOR):
        return above.target is name and called(above.iter) == "range"
    return isinstance(above, ast.Assign) and is_number(above.value)


def is_new(file: File, value: ast.expr | None) -> bool:
    """Return True if an expression gives a new tensor each time."""
    if isinstance(value, (ast.BinOp, ast.Compare)):
        return True
    if isinstance(value, ast.UnaryOp):
        return not isinstance(value.op, ast.UAdd)
    if isinstance(value, ast.IfExp):
        return is_new(file, value.body) and is_new(file, value.orelse)
    if not isinstance(value, ast.Call):
        return False
    made = module_called(file, value)
    if (made is not None and module_gives_new(made)) or is_function(value) or is_tensors(file, value):
        return True
    handed = passes_on(file, value)
    if handed is not None:
        return is_new(file, handed)
    run = run_by(value)
    if isinstance(run, ast.Lambda):
        return is_new(file, run.body)
    function = function_called(file, run, value) or _last_of(file, made)
    return function is not None and _gives_new(file, function)


def _last_of(file: File, made: ast.Call | None) -> ast.FunctionDef | None:
    """The `forward` of the last module of an `nn.Sequential`, where that is one of the file."""
    last = parts_of(made)[-1] if made is not None and called(made) == "Sequential" and made.args else None
    return forward_of(file, called(last)) if isinstance(last, ast.Call) else None


def only_reads(file: File, call: ast.Call, argument: ast.expr | None = None) -> bool:
    """Whether a call keeps nothing of what it is called on, or of an argument, gives it back in no form and writes none
    of it."""
    made = module_called(file, call)
    if made is not None and module_gives_new(made):
        return not module_writes(made)
    of = TAKING if argument is not None else METHODS | KEEPING_NOTHING
    if is_function(call) or is_tensors(file, call, of=of):
        return True
    if dotted(call.func) in BUILTINS | {"torch.autograd.grad", "autograd.grad"} or _is_functional_call(file, call):
        return True
    function = function_called(file, run_by(call), call)
    return function is not None and _gives_new(file, function) and _keeps_no_argument(file, function)


def _is_functional_call(file: File, call: ast.Call) -> bool:
    """`functional_call(net, weights, (x,))`, where no `forward` of the file keeps anything."""
    if dotted(call.func) not in ("functional_call", "torch.func.functional_call", "func.functional_call"):
        return False
    made = [one for one in functions(file.tree) if one.name in ("forward", "functional_call")]
    used = [getattr(one, "ctx", None) for each in made for one in walk(each, ast.Attribute, ast.Subscript)]
    return all(one.name == "forward" for one in made) and all(isinstance(one, ast.Load) for one in used)


def keeps_nothing(file: File, node: ast.expr, *, returned: bool = True) -> bool:
    """Return True if nothing holds the memory of a tensor after this use, except what is `returned`."""
    above = file.above[node]
    if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.UAdd):
        return keeps_nothing(file, above, returned=returned)
    if isinstance(above, ast.AugAssign) and node is above.value and _is_list(file, above):
        return False
    if isinstance(above, _READING):
        return True
    if isinstance(above, ast.Return) or (isinstance(above, ast.Tuple) and isinstance(file.above[above], ast.Return)):
        return returned
    if isinstance(above, (ast.If, ast.While)):
        return node is above.test
    if isinstance(above, ast.Subscript):
        if node is not above.value or not isinstance(above.ctx, ast.Load):
            return True
        return keeps_nothing(file, above, returned=returned)
    if isinstance(above, (ast.List, ast.Tuple)):  # of `torch.cat([a, b])`
        outer = file.above[above]
        return isinstance(outer, ast.Call) and above in outer.args and only_reads(file, outer, node)
    if isinstance(above, ast.Attribute):
        return _keeps_nothing_by_name(file, above, returned)
    call = file.above[above] if isinstance(above, ast.keyword) else above
    if not isinstance(call, ast.Call) or node is call.func:
        return False
    if passes_on(file, call) is node and not _is_in_place(file, call):
        return _is_taken_back(file, call) or keeps_nothing(file, call, returned=returned)
    return _is_taken_back(file, call) or only_reads(file, call, node)


def _is_list(file: File, added: ast.AugAssign) -> bool:
    """Return True if `+=` may add the parts of a tensor to a list: what it writes to is bound somewhere to one, or is
    an item of what is bound to a container."""
    name = last_name(base_of(added.target))
    rows = (one for one in walk(file.tree, ast.Assign) if name in map(last_name, targets(one)))
    made = [one for row in rows for one in ast.walk(row.value)]
    return any(isinstance(one, CONTAINERS) or called(one) in ("list", "deque", "dict", "defaultdict") for one in made)


def _keeps_nothing_by_name(file: File, use: ast.Attribute, returned: bool) -> bool:
    """The same for `h.shape`, `h.mean()`, `h.add_(1)` and `h.view(-1)`."""
    call = called_by(file, use)
    if call is None:
        if use.attr in HANDING_ON and isinstance(use.ctx, ast.Load):
            return keeps_nothing(file, use, returned=returned)
        return use.attr in _ABOUT
    if only_reads(file, call):
        return True
    is_handed_on = passes_on(file, call) is use.value
    return is_handed_on and (_is_taken_back(file, call) or keeps_nothing(file, call, returned=returned))


def _is_in_place(file: File, call: ast.Call) -> bool:
    made = module_called(file, call)
    return made is not None and module_writes(made)


def _is_taken_back(file: File, call: ast.expr) -> bool:
    """`h = h.add_(1)`, `h = self.drop(h)`: what is handed on is bound to the name that it came from."""
    target = only_target(file.above[call])
    handed: ast.expr | None = call if isinstance(call, (ast.Call, ast.Attribute)) else None
    while handed is not None and not isinstance(handed, ast.Name):
        handed = passes_on(file, handed)
    return isinstance(handed, ast.Name) and dotted(target) == handed.id


def _gives_new(file: File, function: ast.FunctionDef) -> bool:
    """Return True if a function of the file returns one new tensor that nothing else holds."""
    with asking(function) as is_first:
        returns = list(within(function, ast.Return))
        plain = is_first and bool(returns) and next(walk(function, ast.Yield, ast.YieldFrom), None) is None
        return plain and all(
            holds_alone(file, one.value.id, one) if isinstance(one.value, ast.Name) else is_new(file, one.value)
            for one in returns
        )


def _keeps_no_argument(file: File, function: ast.FunctionDef) -> bool:
    """Return True if a function neither keeps nor writes its arguments, except what an `autograd.Function` saves."""
    with asking(function) as is_first:
        if not is_first:
            return False
        given = [name for name in parameters(function) if name not in ("self", "ctx")]
        for name in given:  # which grows by the names that parts of an argument get
            if not is_own(function, name) or any(True for _ in writes_through(file, function, name)):
                return False
            for one in uses(function, name, ast.Load):
                parts = _names_of_parts(file, one)
                if not parts and not keeps_nothing(file, one, returned=False) and not _is_saved(file, one):
                    return False
                given += parts - {*given}
        return True


def _names_of_parts(file: File, use: ast.Name) -> set[str]:
    """`first` and `second` of `first, second = weights if given else own` and of `for first, second in weights`."""
    node: ast.AST = use
    while isinstance(file.above[node], ast.IfExp):
        node = file.above[node]
    above, bound = file.above[node], list[ast.expr]()
    if isinstance(above, ast.Assign) or (isinstance(above, FOR) and node is above.iter):
        bound = above.targets if isinstance(above, ast.Assign) else [above.target]
    parts = [part for one in bound for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
    names = {one.id for one in parts if isinstance(one, ast.Name)}
    return names if len(names) == len(parts) else set()


def _is_saved(file: File, name: ast.Name) -> bool:
    """`ctx.x = x` and `ctx.save_for_backward(x)`."""
    above = file.above[name]
    if isinstance(above, ast.Call) and called(above) == "save_for_backward":
        return True
    target = only_target(above)
    return isinstance(target, ast.Attribute) and dotted(target.value) == "ctx"


def _blocks_with(file: File, node: ast.stmt) -> Iterator[ast.AST]:
    scope = file.scope(node)
    return (o for o in file.around(node) if isinstance(o, WITH) and file.scope(o) is scope)


def _binding(file: File, name: str, write: ast.stmt) -> tuple[ast.Name, list[ast.AST]] | None:
    """Where an assignment binds the name that leads to a statement, and the loops that stand between both.

    One that binds the name to what it held before, as `h = h.view(-1)`, leads on to the one before it.
    """
    scope, loops = file.scope(write), list[ast.AST]()
    here: ast.AST = write
    while here is not scope:
        if isinstance(here, ast.stmt):
            rows = file.block(here)
            for one in reversed(rows[: rows.index(here)]):
                target = _target(one, name)
                value = value_given(file, target) if target is not None else None
                if target is not None and value is not None and not _is_taken_back(file, value):
                    return target, loops
        here = file.above[here]
        if isinstance(here, LOOP):
            loops.append(here)
    return None


def _target(row: ast.stmt, name: str) -> ast.Name | None:
    """Where an assignment binds a name, alone or in a tuple."""
    target = only_target(row)
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    found = [one for one in parts if isinstance(one, ast.Name) and one.id == name]
    return found[0] if len(found) == 1 else None


def _is_on_the_way(name: ast.Name, binding: ast.stmt, write: ast.stmt, loops: list[ast.AST]) -> bool:
    """Return True if a use is between a binding and the end of a write, or anywhere in a loop around the write."""
    if ends(binding) <= starts(name) < ends(write):
        return True
    return any(starts(loop) <= starts(name) < ends(loop) for loop in loops if isinstance(loop, ast.stmt))


def _binds_new(file: File, name: ast.Name) -> bool:
    """Return True if a binding gives the name a new tensor, or the tensor that it held before."""
    above = file.above[name]
    if isinstance(above, ast.AugAssign):
        return True
    row, value = file.nearest(name, ast.Assign), value_given(file, name)
    if row is None or value is None or _target(row, name.id) is not name:
        return False
    return is_new(file, value) or _is_taken_back(file, value)


def _is_unpacked(file: File, name: ast.Name) -> bool:
    """`a, b = ctx.saved_tensors`."""
    above = file.above[name]
    above = file.above[above] if isinstance(above, ast.Tuple) else above
    return isinstance(above, ast.Assign) and "saved_tensors" in ast.unparse(above.value)


def writes_through(file: File, scope: Scope, name: str) -> Iterator[ast.stmt]:
    """The statements of a scope that write in place through a name."""
    rows = (file.statement(one) for one in uses(scope, name) if _is_written(file, one))
    return (one for one in rows if one is not None)


def _is_written(file: File, name: ast.Name) -> bool:
    node: ast.expr = name
    above = file.above[node]
    while isinstance(above, (ast.Attribute, ast.Subscript)) and above.value is node:
        if isinstance(above, ast.Subscript) and not isinstance(above.ctx, ast.Load):
            return True
        call = called_by(file, above)
        if isinstance(above, ast.Attribute) and call is not None:
            if above.attr.endswith("_") and not above.attr.startswith("_") and above.attr not in KEEPING_NOTHING:
                return True
            if above.attr not in HANDING_ON:
                return False
            node, above = call, file.above[call]
            continue
        if isinstance(above, ast.Attribute) and above.attr == "grad":
            return False  # another tensor
        node, above = above, file.above[above]
    if isinstance(above, ast.AugAssign):
        return above.target is node
    if isinstance(above, ast.keyword):
        return above.arg == "out"
    if not isinstance(above, ast.Call) or node not in above.args[:1]:
        return False
    flagged = is_flagged(above) or (keyword(above, "inplace") is not None and not is_given(above, "inplace", False))
    return flagged or called(above).rstrip("_") != called(above) or _is_in_place(file, above)
