"""Which statements of a file write a leaf that requires a gradient, and what they write to it."""

from __future__ import annotations

import ast
from typing import TypeGuard

from noclobber.mend.holders.giving import asking, given_by, given_for
from noclobber.mend.holders.making import bound_to, only_computes
from noclobber.mend.scene import hides
from noclobber.model.seen.operators import SPLITS
from noclobber.syntax.names import (
    attributes_set,
    bindings,
    call_of,
    called,
    called_by,
    calls,
    definition,
    dotted,
    has_stars,
    is_given,
    is_numeric,
    is_of_gradients,
    is_stored,
    is_untracked,
    last_name,
    mentioned,
    parameters,
    root_of,
    taken_out,
    unindexed,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Node, Scope, walk
from noclobber.syntax.writes import (
    OF_NUMBERS,
    WriteSyntax,
    is_namespace,
    is_number,
    values_written,
    write_in,
    writes,
)


def may_be_refused(file: File, write: WriteSyntax, row: ast.stmt) -> bool:
    """Whether a statement may write a leaf, or one of several parts of one, so that PyTorch refuses it next: a
    parameter, what a function is given for one, and what it, or a loop, takes out of what `write` takes its leaf of."""
    call = call_of(row)
    if not (sets_item(row) or isinstance(row, ast.AugAssign) or (call is not None and writes(call))):
        return False
    other = write_in(file, row)
    if other.target is None or hides(other.target) or not is_refused_too(file, row):
        return False
    if any(called(one) in (*SPLITS, *OF_WEIGHTS) for one in walk(other.target, ast.Call)):
        return True
    root, through = root_of(other.target), wholes(other)
    of = {one.id for one in map(root_of, wholes(write)) if isinstance(one, ast.Name) and write.file is file}
    held = [each for one in through for each in (one.elts if isinstance(one, (ast.List, ast.Tuple)) else [one])]
    return (
        any(_may_be_parameter(file, one, row) for one in (other.base, unindexed(other.target)) if one is not None)
        or any(called(one) in OF_WEIGHTS or _may_be_parameter(file, one, row) for one in held)
        or any(isinstance(one, ast.Name) and one.id in of for one in (root, *map(root_of, through)))
        or (write.file is file and "" != other.name == write.name)
    )


def wholes(write: WriteSyntax) -> list[ast.expr]:
    """What the loops around a write go through for its name: `ws` of `for w, g in zip(ws, grads)`."""
    loops = (one for one in write.file.loops(write.statement) if isinstance(one, FOR))
    taken = (pair for one in loops for pair in taken_out(one.target, one.iter))
    return [whole for one, whole in taken if write.name and write.name in map(dotted, walk(one, ast.Name))]


def _may_be_parameter(file: File, base: ast.expr, where: ast.AST) -> bool:
    """Whether a name may be a parameter: also what is called a weight, and any leaf that requires a gradient."""
    if _is_parameter(file, base, where):
        return True
    if isinstance(base, ast.Attribute):
        registered = (one.args[0] for one in calls(file.tree, "register_parameter") if one.args)
        is_registered = any(isinstance(one, ast.Constant) and one.value == base.attr for one in registered)
        is_set = bool(attributes_set(file, base.attr))
        is_named = not is_set and any(words in base.attr for words in ("weight", "bias"))
        return is_registered or is_named or called(bound_to(file, base, where)) in ("ParameterList", "ParameterDict")
    scope, made = file.scope(where), definition(file, base, where)
    if called(made) == "requires_grad_" or (isinstance(made, ast.Call) and is_given(made, "requires_grad", True)):
        return True
    if not isinstance(base, ast.Name) or base.id not in parameters(scope):
        return False
    with asking(scope) as is_first:
        return is_first and any(_may_be_parameter(file, one, one) for one in given_for(file, base.id, scope))


def tracking(made_of: ast.AST, *kinds: type[Node]) -> list[Node]:
    """The parts of some kinds of a value, but for those whose gradient ends there: `w.detach()`, `len(xs)`."""
    ending = [one for one in walk(made_of, ast.Call) if is_untracked(one) or called(one) == "detach"]
    ended = {each for one in ending for each in ast.walk(one)}
    return [one for one in walk(made_of, *kinds) if one not in ended]


def tracked(made_of: ast.AST) -> set[str]:
    """The names among these parts."""
    return {one.id for one in tracking(made_of, ast.Name) if isinstance(one.ctx, ast.Load)}


def is_refused_too(file: File, write: ast.stmt) -> bool:
    """Return True if PyTorch refuses another write to a leaf: it is not under `no_grad`, nor by `torch.nn.init` or
    `.data`, and changes numbers."""
    call = call_of(write)
    if is_guarded(file, write) or hides(write_in(file, write).target):
        return False
    return called(call) not in ("detach_", "requires_grad_") and (call is None or not is_namespace(call.func))


def is_like(file: File, write: WriteSyntax, row: ast.stmt) -> bool:
    """Whether a statement sets a part of the same tensor to what is computed from the same names, and from that tensor:
    where the one value carries no gradient, the other carries none but to the leaf itself."""
    if not sets_item(row) or write_in(file, row).name != write.name:
        return False
    found = write.statement
    made_of = [found.value] if isinstance(found, ast.Assign) else values_written(found)
    first = set[str]().union(*(_chains(file, one) for one in made_of))
    of_itself = {one for one in _chains(file, row.value) if one.startswith((f"{write.name}[", f"{write.name}."))}
    is_same = first >= _chains(file, row.value) - of_itself - {write.name}
    return is_same and all(map(only_computes, walk(row.value, ast.Call)))


def _chains(file: File, value: ast.expr) -> set[str]:
    """`self.low` and `table[0]` of `self.low + table[0].exp()`."""
    found = [one for one in walk(value, ast.Name, ast.Attribute, ast.Subscript) if called_by(file, one) is None]
    longer = {getattr(one, "value", None) for one in found}
    return {ast.unparse(one) for one in found if one not in longer and not is_namespace(one)}


def sets_item(row: ast.stmt) -> TypeGuard[ast.Assign]:
    """`w[0] = 1.0`."""
    return isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Subscript)


def sets(file: File, name: str, row: ast.stmt) -> bool:
    """`w[0] = 1.0`, `w[0].fill_(1.0)`: whether a statement sets a part of a tensor to numbers, or to what is new
    to torch."""
    numbers = sets_item(row) and (
        is_numeric(file, row.value) or is_given_numbers(file, row.value) or _is_new_to_torch(row.value)
    )
    return (numbers or is_update(file, row)) and write_in(file, row).name == name


def _is_new_to_torch(value: ast.expr) -> bool:
    """`torch.tensor(np.sin(angles))`: no tensor is read."""
    made = tracking(value, ast.Call)
    return (
        bool(made)
        and all(map(only_computes, made))
        and not {one.id for one in tracking(value, ast.Name) if not is_namespace(one)}
    )


def is_given_numbers(file: File, value: ast.expr) -> bool:
    """Whether a value is a parameter of a function that is only ever given numbers."""
    return isinstance(value, ast.Name) and has_number_as_default(file, value.id, file.scope(value))


def has_number_as_default(file: File, name: str, function: Scope) -> bool:
    """Whether a parameter has a number as its default, and gets nothing else from the file."""
    if not isinstance(function, FUNCTION) or bindings(file, function, name):
        return False
    of = function.args
    own = zip(reversed([*of.posonlyargs, *of.args]), reversed(of.defaults), strict=False)
    default = next(
        (one for each, one in (*own, *zip(of.kwonlyargs, of.kw_defaults, strict=True)) if each.arg == name), None
    )
    of_class = file.class_of(function) if function.name == "__init__" else None
    mentions = mentioned(file, function.name if of_class is None else of_class.name)
    calls_to = [called_by(file, one) for one in mentions]
    given = [given_by(file, one, name, function) or default for one in mentions]
    known = bool(mentions) and all(one is not None and not has_stars(one) for one in calls_to)
    return known and all(map(is_number, [default, *given]))


def sets_leaf(file: File, row: ast.stmt) -> bool:
    """Return True if a statement sets to numbers what the file makes as a parameter: PyTorch refuses it next."""
    if hasattr(row, "body"):
        return False
    write = write_in(file, row)
    is_leaf = write.base is not None and not hides(write.target) and _is_parameter(file, write.base, row)
    return is_leaf and sets(file, write.name, row)


def _is_parameter(file: File, base: ast.expr, where: ast.AST) -> bool:
    """Whether a name is bound to an `nn.Parameter`, or is the `weight` or `bias` of something, and the file binds no
    such attribute to anything else."""
    if called(bound_to(file, base, where)) == "Parameter":
        return True
    if not isinstance(base, ast.Attribute) or base.attr not in ("weight", "bias") or last_name(base.value) == "self":
        return False
    rows = [file.statement(one) for one in attributes_set(file, base.attr) if is_stored(file, one)]
    return all(isinstance(one, ast.Assign) and called(one.value) == "Parameter" for one in rows)


def is_update(file: File, write: ast.stmt) -> bool:
    """Return True if a statement writes in place a value of gradients and numbers only."""
    given = values_written(write)
    if not given:
        return called(call_of(write)) == "zero_"
    if isinstance(write, ast.AugAssign) and isinstance(write.target, ast.Name):
        return all(is_of_gradients(file, one) for one in given)
    by_numbers = called(call_of(write)) in OF_NUMBERS
    return all(by_numbers or is_of_gradients(file, one) or is_numeric(file, one) for one in given)


OF_WEIGHTS = ("parameters", "named_parameters")
"""Methods of a module that give its weights."""


def is_guarded(file: File, write: ast.stmt) -> bool:
    """Whether a statement is under `no_grad` already, by a block or a decorator."""
    for one in file.around(write):
        heads = [item.context_expr for item in one.items] if isinstance(one, ast.With) else []
        heads += one.decorator_list if isinstance(one, ast.FunctionDef) else []
        if any("no_grad" in ast.unparse(head) for head in heads):
            return True
    return False
