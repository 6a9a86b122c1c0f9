"""Write under `torch.no_grad()`: updates and initial values of what requires a gradient.

Sound if PyTorch refuses the write because the tensor requires a gradient: the program stopped there, so only the values
that the statement computes have to stay the same. A write is an update, and not a part of the function, if its value
consists only of gradients, numbers and plain arithmetic: no gradient could flow through that but to the weight itself,
as where that decays. So is what is made of the weight alone below the step of an optimizer. What the function has
computed under `no_grad` may be added to what one name alone holds. No update is what a custom Function writes, what a
later backward has saved, what a `forward` may write again before a backward, a part of an expanded leaf, and what may
be meant as a new tensor, such as the first weights of an inner loop by another name. Neighbouring statements of the
same kind are put there too, because PyTorch would refuse them next. So is the whole of a loop that steps weights by
hand in several statements, where the value was seen to carry no gradient.

Tried is any write of a weight, of a `.grad`, or of mere numbers, whose value does not come from a call that may give a
tracked tensor: that gradient would be lost.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import TypeGuard

from noclobber.mend.change import LAST_RESORT, Change, change
from noclobber.mend.holders.giving import asking, given_by, given_for
from noclobber.mend.holders.holding import holds_alone, writes_through
from noclobber.mend.holders.making import CONTAINERS, HANDING_ON, bound_to, is_method, only_computes, passes_on
from noclobber.mend.scene import Scene, hides
from noclobber.model.reports.finding import Cure
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.operators import SPLITS
from noclobber.syntax.edits import insert, under_no_grad
from noclobber.syntax.names import (
    attributes,
    attributes_set,
    bindings,
    call_of,
    called,
    called_by,
    calls,
    definition,
    differentiates,
    dotted,
    has_stars,
    has_torch,
    imported_from,
    is_given,
    is_numeric,
    is_of_gradients,
    is_own,
    is_stored,
    is_untracked,
    last_name,
    mentioned,
    named,
    names_in,
    names_stored,
    optimizer_of,
    owner,
    parameters,
    returned,
    root_of,
    set_later,
    taken_out,
    targets,
    unindexed,
    uses,
    value_given,
    values,
)
from noclobber.syntax.tree import (
    COMPREHENSION,
    FOR,
    FUNCTION,
    LOOP,
    File,
    Function,
    Node,
    Scope,
    ends,
    first_line,
    functions,
    last_line,
    simple_statements,
    starts,
    walk,
)
from noclobber.syntax.writes import (
    OF_NUMBERS,
    WriteSyntax,
    descends,
    is_average,
    is_namespace,
    is_number,
    values_written,
    write_in,
    writes,
)

_TITLE = "write inside `with torch.no_grad():`"


def under_mode(scene: Scene) -> Iterator[Change]:
    """Put a refused write, and the writes like it beside it, under `with torch.no_grad():`; or the whole function."""
    for write in scene.writes() if scene.is_refused and not scene.is_expanded else ():
        file, found = write.file, write.statement
        if hasattr(found, "body") or file.own_lines(found) is None:
            continue
        if rows := _sound_rows(scene, write):
            yield from change(_TITLE, under_no_grad(file, rows), 0, Cure.NO_GRAD, is_sound=True)
        event = scene.finding.event
        is_constant = isinstance(event, Refusal) and event.carries_gradient is False and not differentiates(file)
        of_itself = is_constant or (isinstance(event, Refusal) and event.of_itself)
        may_be_update = is_constant or _may_be_update(write, scene.kind)
        if not may_be_update or (_is_tracked(write) and not of_itself):
            continue
        likely = scene.is_leaf or (scene.code in ("NC303", "NC304") and scene.kind == "parameter")
        more = 0 if likely else LAST_RESORT
        rows = file.beside(found, partial(_goes_on, file, write.name), above=False)
        if len(rows) > 1:
            yield from change(_TITLE, under_no_grad(file, rows), more)
        yield from change(_TITLE, under_no_grad(file, [found]), 1 + more)
        scope = file.scope(found)
        if isinstance(scope, FUNCTION) and not returned(scope):
            decorator = insert(file, first_line(scope), 1, f"{file.indent(scope) or ''}@torch.no_grad()\n")
            yield Change(f"put `{scope.name}` under `torch.no_grad()`", (decorator,), 2 + more)


def _sound_rows(scene: Scene, write: WriteSyntax) -> list[ast.stmt]:
    """The write and what stands beside it, if the source shows that no gradient could flow through any of them."""
    file, found, event = write.file, write.statement, scene.finding.event
    is_weight = scene.kind == "parameter"
    # PyTorch refuses to read the parts of what is split then, so that none may have a name.
    is_part = scene.code == "NC303" and any(called(one) in SPLITS for one in walk(write.target or found, ast.Call))
    to_leaf = scene.is_leaf or (is_weight and (is_part or scene.code == "NC304"))  # else a backward may need it
    if not isinstance(event, Refusal) or not to_leaf or not has_torch(file):
        return []
    if event.is_saved and not event.of_itself:
        return []
    if scene.places("read") or "ctx" in parameters(file.scope(found)) or _comes_again(scene, event):
        return []  # where PyTorch refuses to read a view, the write went through
    of_constants = event.carries_gradient is False and not _may_carry_later(file, found)
    carries = event.carries_gradient is True
    if carries and (not event.of_itself or differentiates(file)):
        return []
    if of_constants and (loop := _loop_of_updates(write)) is not None:
        return [loop]
    if _is_awaited(file, found) or _may_be_new(file, write) or (carries and _is_read_on(file, write)):
        return []
    is_update = _is_update(file, found) or (of_constants and _shifts(file, found))
    follows_step = event.carries_gradient is not None and is_weight and _follows_step(file, write)
    is_update |= follows_step
    is_begun = of_constants and not event.is_saved and _is_begun(file, write)
    if not (is_update or is_begun or (is_weight and (is_average(found) or of_constants))):
        return []

    def fits(one: ast.stmt) -> bool:
        if write.name and (_sets(file, write.name, one) or (of_constants and _is_like(file, write, one))):
            return True
        if follows_step and _may_be_refused(file, write, one) and all(map(only_computes, walk(one, ast.Call))):
            return True
        return descends(file, one) or _sets_leaf(file, one) or _clears(one)

    rows = file.beside(found, fits)
    kept = [at for at, one in enumerate(rows) if not _clears(one)]
    rows = rows[kept[0] : kept[-1] + 1]
    more = (one for one in writes_through(file, file.scope(found), write.name) if one not in rows)
    if any(_is_refused_too(file, one) for one in more):
        return []
    for each in scene.files:
        others = (one for one in simple_statements(each.tree) if one not in rows and not _is_guarded(each, one))
        if any(_may_be_refused(each, write, one) or (descends(each, one) and descends(file, found)) for one in others):
            return []
    return rows if all(one.lineno == last_line(one) and file.own_lines(one) is not None for one in rows) else []


def _may_be_refused(file: File, write: WriteSyntax, row: ast.stmt) -> bool:
    """Whether a statement may write a leaf, or one of several parts of one, so that PyTorch refuses it next: a
    parameter, what a function is given for one, and what it, or a loop, takes out of what `write` takes its leaf of."""
    call = call_of(row)
    if not (_sets_item(row) or isinstance(row, ast.AugAssign) or (call is not None and writes(call))):
        return False
    other = write_in(file, row)
    if other.target is None or hides(other.target) or not _is_refused_too(file, row):
        return False
    if any(called(one) in (*SPLITS, *_OF_WEIGHTS) for one in walk(other.target, ast.Call)):
        return True
    root, of = (
        root_of(other.target),
        {one.id for one in map(root_of, _wholes(file, write)) if isinstance(one, ast.Name)},
    )
    wholes = _wholes(file, other)
    held = [each for one in wholes for each in (one.elts if isinstance(one, (ast.List, ast.Tuple)) else [one])]
    return (
        any(_may_be_parameter(file, one, row) for one in (other.base, unindexed(other.target)) if one is not None)
        or any(called(one) in _OF_WEIGHTS or _may_be_parameter(file, one, row) for one in held)
        or any(isinstance(one, ast.Name) and one.id in of for one in (root, *map(root_of, wholes)))
        or "" != other.name == write.name
    )


def _wholes(file: File, write: WriteSyntax) -> list[ast.expr]:
    """What the loops around a write go through for its name: `ws` of `for w, g in zip(ws, grads)`."""
    loops = (one for one in file.loops(write.statement) if isinstance(one, FOR))
    taken = (pair for one in loops for pair in taken_out(one.target, one.iter))
    return [whole for one, whole in taken if write.name and write.name in map(dotted, walk(one, ast.Name))]


def _may_be_parameter(file: File, base: ast.expr, where: ast.AST) -> bool:
    """The same, of what has the name of a weight, too, and of any leaf that requires a gradient."""
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


def _comes_again(scene: Scene, event: Refusal) -> bool:
    """Return True if a `forward` writes, or what it calls, and a graph keeps the weight by then, or may keep it when it
    writes again before a backward: in a loop in which no backward surely runs, or by another call."""
    is_in_forward = False
    for place in filter(None, (scene.at(site.span()) for site in reversed(scene.finding.calls))):
        file, node, scope = place.file, place.node, place.file.scope(place.node)
        is_in_forward |= getattr(scope, "name", "") == "forward" or _computes(scope)
        if not is_in_forward:
            continue
        around = (one for one in file.around(node) if isinstance(one, (*LOOP, *COMPREHENSION)))
        loop = next((one for one in around if file.scope(one) is scope), None)
        turn = loop or scope
        backwards = [starts(one) for one in calls(turn, "backward", "grad") if not _is_conditional(file, one, turn)]
        if event.is_saved or (loop is not None and not backwards):
            return True
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        same = [starts(one) for one in walk(scope, ast.Call) if name and dotted(one.func) == name]
        end = min((one for one in backwards if one > starts(node)), default=None)
        if any(one > starts(node) and (end is None or one < end) for one in same):
            return True
        if backwards:
            return False
    return False


def _computes(function: ast.AST) -> bool:
    """Whether a function gives back what it computes: not the thing itself that it was given or has made."""
    given = returned(function) if isinstance(function, FUNCTION) else []
    found = [one for one in given if isinstance(one, (ast.BinOp, ast.Tuple, ast.Call))]
    return any(not called(one)[:1].isupper() for one in found)


def _is_conditional(file: File, node: ast.AST, within: ast.AST) -> bool:
    return any(isinstance(one, ast.If) and within in file.around(one) for one in file.around(node))


def _may_carry_later(file: File, write: ast.stmt) -> bool:
    """Return True if a value that carried no gradient when PyTorch refused its write may carry one in a later turn or
    call: it is made of what a later statement of the loop, another method, or the next call sets."""
    scope, loops = file.scope(write), file.loops(write)
    call = call_of(write)
    made_of: list[ast.AST] = [*values(call)] if call is not None else [getattr(write, "value", write)]
    written = write_in(file, write).name
    names, known = set[str]().union(*map(_tracked, made_of)), {"self", written}
    rows = list(walk(loops[-1], ast.stmt)) if loops else []
    turns = {name for loop in loops if isinstance(loop, FOR) for name in names_in(loop.target)}
    items = (one for each in made_of for one in walk(each, ast.Subscript) if turns & names_in(one.slice))
    if any(isinstance(definition(file, one.value, write), (*CONTAINERS, ast.Tuple)) for one in items):
        return True  # each turn has another item
    while names - known:
        name = (names - known).pop()
        known.add(name)
        if name in parameters(scope) and _has_number_as_default(file, name, scope):
            continue
        given = given_for(file, name, scope) if name in parameters(scope) else [write]
        if len(given) != 1 or (name in parameters(scope) and file.loops(given[0])):
            return True
        for row in rows:
            if isinstance(row, FOR) and name in names_in(row.target) and called(row.iter) != "range":
                return True  # each turn has another
            if not hasattr(row, "body") and name in names_stored(row):
                if starts(row) >= ends(write):
                    return True
                made_of.append(row)
                names |= _tracked(row)
    held = {one.attr for row in made_of for one in walk(row, ast.Attribute) if called_by(file, one) is None}
    held -= {"grad", "data"}
    own = {one.name for one in functions(file.tree)}
    return (
        bool(set_later(file, *held))
        or any(_is_of_object_alone(file, one) for one in attributes_set(file, *held))
        or any(called(one) in own for row in made_of for one in _tracking(row, ast.Call))
        or any(last_name(one.value) in (known | held) - {written} for one in _set_to_require(file))
    )


def _set_to_require(file: File) -> Iterator[ast.Attribute]:
    """What a file sets to require a gradient: `low` in `low.requires_grad_()`, not in `low.requires_grad = False`."""
    for one in attributes(file.tree, "requires_grad", "requires_grad_"):
        call = called_by(file, one)
        set_to = value_given(file, one) if call is None else next(iter(call.args), None)
        if not (isinstance(set_to, ast.Constant) and set_to.value is False):
            yield one


def _is_of_object_alone(file: File, attribute: ast.Attribute) -> bool:
    """`self.low = low` in `__init__`, where `low` may be another tensor for another object."""
    row, scope = file.statement(attribute), file.scope(attribute)
    value = value_given(file, attribute) if isinstance(row, ast.Assign) else None
    if not isinstance(value, ast.Name) or value.id not in parameters(scope):
        return False
    return not _has_number_as_default(file, value.id, scope) and len(given_for(file, value.id, scope)) != 1


def _tracking(made_of: ast.AST, *kinds: type[Node]) -> list[Node]:
    """The parts of some kinds of a value, but for those whose gradient ends there: `w.detach()`, `len(xs)`."""
    ending = [one for one in walk(made_of, ast.Call) if is_untracked(one) or called(one) == "detach"]
    ended = {each for one in ending for each in ast.walk(one)}
    return [one for one in walk(made_of, *kinds) if one not in ended]


def _tracked(made_of: ast.AST) -> set[str]:
    """The names among these parts."""
    return {one.id for one in _tracking(made_of, ast.Name) if isinstance(one.ctx, ast.Load)}


def _is_refused_too(file: File, write: ast.stmt) -> bool:
    """Return True if PyTorch refuses another write to a leaf: it is not under `no_grad`, nor by `torch.nn.init` or
    `.data`, and changes numbers."""
    call = call_of(write)
    if _is_guarded(file, write) or hides(write_in(file, write).target):
        return False
    return called(call) not in ("detach_", "requires_grad_") and (call is None or not is_namespace(call.func))


def _loop_of_updates(write: WriteSyntax) -> ast.stmt | None:
    """Return the loop around a write that steps what it writes by hand, in more than one statement: it reads `p.grad`,
    and calls nothing but operators on tensors. None if there is none, or if more such steps are elsewhere.
    """
    file, found = write.file, write.statement
    loop = next(iter(file.loops(found)), None)
    if loop is None or differentiates(file):
        return None
    grads = [one for one in attributes(loop, "grad") if dotted(one.value) == write.name]
    if not grads or descends(file, found) or not all(map(only_computes, walk(loop, ast.Call))):
        return None
    if any(one.lineno != one.end_lineno for one in walk(loop, ast.Constant)):
        return None  # a text over several lines must not be indented
    scope = file.scope(loop)
    filled = [root_of(one) for call in walk(loop, ast.Call) if writes(call) and (one := owner(call)) is not None]
    given = names_stored(loop) | {one.id for one in filled if isinstance(one, ast.Name) and one.id != "self"}
    given.discard(write.name)
    if next(walk(loop, ast.Yield, ast.YieldFrom, ast.Return, ast.Await), None) is not None:
        return None
    elsewhere = (use for one in given for use in uses(scope, one, ast.Load) if loop not in file.around(use))
    if any(elsewhere) or not all(is_own(scope, one) for one in given) or any(_is_read_outside(file, loop)):
        return None  # what is computed there may be needed with its gradient
    inside = list(walk(loop, ast.stmt))
    others = (one for one in walk(file.tree, ast.stmt) if one not in inside and not _is_guarded(file, one))
    return None if any(descends(file, one) for one in others) else loop


def _is_read_outside(file: File, loop: ast.stmt) -> Iterator[bool]:
    """Whether the file reads elsewhere each attribute, and what each item belongs to, that a loop assigns."""
    for target in (*walk(loop, ast.Attribute), *walk(loop, ast.Subscript)):
        held = unindexed(target)
        if isinstance(getattr(target, "ctx", None), ast.Store) and (name := last_name(held)) not in ("data", "grad"):
            yield not name or any(loop not in file.around(one) for one in mentioned(file, name))


def _is_like(file: File, write: WriteSyntax, row: ast.stmt) -> bool:
    """Whether a statement sets a part of the same tensor to what is computed from the same names, and from that tensor:
    where the one value carries no gradient, the other carries none but to the leaf itself."""
    if not _sets_item(row) or write_in(file, row).name != write.name:
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


def _sets_item(row: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Subscript)


def _is_begun(file: File, write: WriteSyntax) -> bool:
    """`x = torch.rand(9).requires_grad_()` above `x[0] = low`: whether the function has just made a leaf, and done
    nothing with it but such writes. They give it its first values."""
    scope, found, name = file.scope(write.statement), write.statement, write.name
    rows = file.block(found)
    bound = [one for one in rows[: rows.index(found)] if name in map(dotted, targets(one))]
    made = getattr(bound[-1], "value", None) if bound and is_own(scope, name) else None
    if not isinstance(made, ast.Call):
        return False
    begun = owner(made) if called(made) == "requires_grad_" and not values(made) else None
    is_leaf = is_given(made, "requires_grad", True) if begun is None else _is_of_numbers(file, begun)
    between = (one for one in uses(scope, name) if starts(bound[-1]) < starts(one) < starts(found))
    writing = [bound[-1], *writes_through(file, scope, name)]
    return is_leaf and all(file.statement(one) in writing for one in between)


def _is_of_numbers(file: File, value: ast.expr) -> bool:
    """Whether a value is a new tensor that the function computes from numbers alone: no gradient leads through it."""
    if not isinstance(value, (ast.Call, ast.BinOp)):
        return False
    if not all(map(only_computes, walk(value, ast.Call))):
        return False
    for one in _tracking(value, ast.Name):
        if is_numeric(file, one) or _is_given_numbers(file, one) or one.id == "torch":
            continue
        made = definition(file, one, value)
        if made is None or not _is_of_numbers(file, made):
            return False
    return True


def _sets(file: File, name: str, row: ast.stmt) -> bool:
    """`w[0] = 1.0`, `w[0].fill_(1.0)`: whether a statement sets a part of a tensor to numbers, or to what is new
    to torch."""
    numbers = _sets_item(row) and (
        is_numeric(file, row.value) or _is_given_numbers(file, row.value) or _is_new_to_torch(row.value)
    )
    return (numbers or _is_update(file, row)) and write_in(file, row).name == name


def _is_new_to_torch(value: ast.expr) -> bool:
    """`torch.tensor(np.sin(angles))`: no tensor is read."""
    made = _tracking(value, ast.Call)
    return (
        bool(made)
        and all(map(only_computes, made))
        and not {one.id for one in _tracking(value, ast.Name) if not is_namespace(one)}
    )


def _is_given_numbers(file: File, value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and _has_number_as_default(file, value.id, file.scope(value))


def _has_number_as_default(file: File, name: str, function: Scope) -> bool:
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


def _sets_leaf(file: File, row: ast.stmt) -> bool:
    """Return True if a statement sets to numbers what the file makes as a parameter: PyTorch refuses it next."""
    if hasattr(row, "body"):
        return False
    write = write_in(file, row)
    is_leaf = write.base is not None and not hides(write.target) and _is_parameter(file, write.base, row)
    return is_leaf and _sets(file, write.name, row)


def _is_parameter(file: File, base: ast.expr, where: ast.AST) -> bool:
    """Whether a name is bound to an `nn.Parameter`, or is the `weight` or `bias` of something, and the file binds no
    such attribute to anything else."""
    if called(bound_to(file, base, where)) == "Parameter":
        return True
    if not isinstance(base, ast.Attribute) or base.attr not in ("weight", "bias") or last_name(base.value) == "self":
        return False
    rows = [file.statement(one) for one in attributes_set(file, base.attr) if is_stored(file, one)]
    return all(isinstance(one, ast.Assign) and called(one.value) == "Parameter" for one in rows)


def _is_update(file: File, write: ast.stmt) -> bool:
    """Return True if a statement writes in place a value of gradients and numbers only."""
    given = values_written(write)
    if not given:
        return called(call_of(write)) == "zero_"
    if isinstance(write, ast.AugAssign) and isinstance(write.target, ast.Name):
        return all(is_of_gradients(file, one) for one in given)
    by_numbers = called(call_of(write)) in OF_NUMBERS
    return all(by_numbers or is_of_gradients(file, one) or is_numeric(file, one) for one in given)


def _shifts(file: File, write: ast.stmt) -> bool:
    """Whether a statement adds what the function has computed under `no_grad` to what one name alone holds: the
    gradient of the sum is the same, and nothing else can tell what is moved from a new tensor."""
    if not isinstance(write, ast.AugAssign) or not isinstance(write.op, (ast.Add, ast.Sub)):
        return False
    scope, name = file.scope(write), dotted(write.target)
    if not isinstance(write.target, ast.Name) or not holds_alone(file, name, write):
        return False
    stored = [uses(scope, one.id, ast.Store) for one in walk(write.value, ast.Name)]
    rows = [file.statement(one) for each in stored for one in each]
    plain = next(walk(write.value, ast.Call, ast.Attribute, ast.Subscript), None) is None
    constant = all(isinstance(one, ast.Assign) and (_is_guarded(file, one) or is_number(one.value)) for one in rows)
    return plain and stored != [] and all(stored) and constant


def _follows_step(file: File, write: WriteSyntax) -> bool:
    """`w /= w.norm()` below `optimizer.step()`: whether a weight is brought back to where it belongs after each step of
    an optimizer that was given it, by the statement or by what calls its method."""
    scope, made = file.scope(write.statement), _steps_above(file, write.statement)
    runs: list[tuple[ast.AST, list[str]]] = [(write.statement, [write.name.rpartition(".")[0] or write.name])]
    if isinstance(scope, FUNCTION) and not made and not calls(scope, "step", "backward", "grad"):
        calls_to = [called_by(file, one) for one in mentioned(file, scope.name)]
        runs = [(one, [*map(dotted, (owner(one), *one.args))]) for one in calls_to if one and _is_next(file, one)]
        runs = runs if len(runs) == len(calls_to) else []
    return bool(runs) and all(
        any(_is_given_to(file, _steps_above(file, one), each) for each in of if each) for one, of in runs
    )


def _is_next(file: File, call: ast.Call) -> bool:
    """Whether a call is the statement below the step of an optimizer: no forward may have read the weights since."""
    row = file.statement(call)
    rows = file.block(row) if row is not None else []
    at = rows.index(row) if row in rows else 0
    return call_of(row) is call and at > 0 and bool(optimizer_of(rows[at - 1]))


def _is_given_to(file: File, optimizers: list[ast.Call], of: str) -> bool:
    """Whether an optimizer is given what a dotted name is a part of."""
    parts = [*accumulate(of.split("."), "{}.{}".format)]
    given = (one for each in optimizers for one in named(each))
    return any(dotted(one) in parts and last_name(file.above[one]) in ("", *_OF_WEIGHTS) for one in given)


_OF_WEIGHTS = ("parameters", "named_parameters")


def _steps_above(file: File, node: ast.AST) -> list[ast.Call]:
    """The makers of the optimizers that step in a block above one of its statements."""
    row = file.statement(node)
    rows = file.block(row) if row is not None else []
    above = rows[: rows.index(row)] if row is not None else []
    stepped = [owner(call) for each in above if (call := call_of(each)) is not None and optimizer_of(each)]
    made = [bound_to(file, one, node) for one in stepped if one is not None]
    own = imported_from(file, "torch.optim")
    return [one for one in made if one is not None and ("optim" in dotted(one.func) or called(one) in own)]


def _is_awaited(file: File, write: ast.stmt) -> bool:
    """Return True if a backward after a write, also in a later turn of a loop, begins from what was computed before it:
    that may have saved what is written. So it may where the function of the write is called."""
    scope, loops = file.scope(write), file.loops(write)
    if isinstance(scope, FUNCTION):
        with asking(scope) as is_first:
            made = [called_by(file, one) for one in mentioned(file, scope.name)] if is_first else []
            rows = [file.statement(one) for one in made if one is not None]
            if any(_is_awaited(file, one) for one in rows if one is not None):
                return True
    if _is_listed(file, write) or _is_given_back(file, write):
        return True
    for call in calls(scope, "backward", "grad"):
        again = next((one for one in loops if one in file.around(call)), None)
        below = starts(call) >= ends(write)
        of = owner(call)
        root = of if called(call) == "backward" and of and not is_namespace(of) else next(iter(call.args), None)
        for name in _added(root) - {write_in(file, write).name} if below or again is not None else ():
            bound = [file.nearest(one, ast.stmt) for one in uses(scope, name, ast.Store) if starts(one) < starts(call)]
            last = bound[-1] if bound else None
            if last is None:
                continue
            goes_on = isinstance(last, ast.AugAssign) or name in names_in(getattr(last, "value", last))
            if not below and (again is None or last is again or again not in file.around(last)):
                return True
            if below and (starts(last) < starts(write) or (goes_on and not set(loops) <= set(file.loops(call)))):
                return True
    return False


def _is_listed(file: File, write: ast.stmt) -> bool:
    """Whether a loop around a write lists what it computes, and a backward comes below it."""
    backwards = calls(file.scope(write), "backward", "grad")
    for loop in file.loops(write):
        lists = [one for call in calls(loop, "append") for one in call.args if next(walk(one, ast.Call), None)]
        if lists and not calls(loop, "backward", "grad") and any(starts(one) >= ends(loop) for one in backwards):
            return True
    return False


def _is_given_back(file: File, write: ast.stmt) -> bool:
    """Whether a function gives back, below a write, what it computes from what it called above it."""
    scope = file.scope(write)
    below = [one for one in returned(scope) if starts(one) >= ends(write)] if _computes(scope) else []
    names = {name for one in below if not isinstance(one, ast.Name) for name in names_in(one)}
    bound = (
        file.statement(one) for name in names for one in uses(scope, name, ast.Store) if starts(one) < starts(write)
    )
    return any(isinstance(one, ast.Assign) and next(walk(one.value, ast.Call), None) is not None for one in bound)


def _added(root: ast.expr | None) -> set[str]:
    """The names of `loss`, `(loss + more).backward()`, `losses[k].mean()` and `scaler.scale(loss)`."""
    if isinstance(root, ast.Call) and called(root) == "scale":
        return set[str]().union(*map(_added, root.args))
    if isinstance(root, ast.BinOp):
        return _added(root.left) | _added(root.right)
    if isinstance(root, (ast.List, ast.Tuple)):
        return set[str]().union(*map(_added, root.elts))
    while isinstance(root, ast.Subscript) or (isinstance(root, ast.Call) and is_method(root)):
        root = root.value if isinstance(root, ast.Subscript) else owner(root)
    return {root.id} if isinstance(root, ast.Name) else set()


def _may_be_new(file: File, write: WriteSyntax) -> bool:
    """Return True if a write that reads no `.grad` may be meant to leave its tensor unchanged, as the weights that an
    inner loop begins with: another name than that of the tensor goes on with it, or the caller binds what is given
    back to another name."""
    found, scope = write.statement, file.scope(write.statement)
    if not isinstance(write.base, ast.Name):
        return False
    name = write.base.id
    bound = [file.statement(one) for one in uses(scope, name, ast.Store) if file.statement(one) is not found]
    held = [one.value for one in bound if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]
    held = [_handed_on(file, one) for one in held]
    written = [*writes_through(file, scope, name)]
    again = [one for one in uses(scope, name, ast.Load) if file.statement(one) not in written]
    again = [one for one in again if getattr(file.above[one], "attr", "") != "grad"]
    # `bias = self.out.bias.view(-1)`: it may go back to its own place.
    places = {dotted(one) for one in held if isinstance(one, ast.Attribute)} - {""}
    again = [one for one in again if places.isdisjoint(map(dotted, targets(file.nearest(one, ast.stmt) or found)))]
    loops = file.loops(found)
    again = [one for one in again if starts(one) >= ends(found) or not set(loops).isdisjoint(file.around(one))]
    if any(_is_kept_aside(file, one) for one in uses(scope, name, ast.Load)):
        return True
    if any(isinstance(one, ast.Name) for one in held):
        return True  # what it was given has another name
    given = given_for(file, name, scope) if name in parameters(scope) else []
    back = any(name in names_in(one) for one in walk(scope, ast.Return)) if given else False
    if back and not all(map(partial(_goes_back, file), given)):
        return True
    if any(dotted(one.value) == name for one in attributes(scope, "grad")):
        return False
    if any(not _is_fresh(file, one) for one in _wholes(file, write)):
        return True
    return bool(again) and any(isinstance(one, (ast.Name, ast.Attribute, ast.Subscript)) for one in held)


def _is_kept_aside(file: File, use: ast.expr) -> bool:
    """Whether a list or another name gets the tensor, or a view of it: `path.append(x.detach())`, `before = w`."""
    above = file.above[use]
    while isinstance(above, (ast.Attribute, ast.Call)) and (last_name(above) or called(above)) in HANDING_ON:
        above = file.above[above]
    if called(above) in ("append", "insert", "appendleft"):
        return True
    above = file.above[above] if isinstance(above, ast.Tuple) else above
    return isinstance(above, ast.Assign) and isinstance(above.targets[0], (ast.Name, ast.Tuple))


def _goes_back(file: File, given: ast.expr) -> bool:
    """`fill(w)` and `w = fill(w)`: whether what a call gives back is dropped, or goes to where it came from."""
    row, call = file.statement(given), file.nearest(given, ast.Call)
    if isinstance(row, ast.Assign):
        return row.value is call and dotted(given) in map(dotted, targets(row))
    return call is not None and call_of(row) is call


def _is_fresh(file: File, whole: ast.expr) -> bool:
    """Whether a loop goes through leaves that the function has made, `{k: v.clone().requires_grad_() ...}`, or those of
    a module: another list of these may be the weights that an inner loop begins with."""
    of = owner(whole) if called(whole) in ("values", "items") else whole
    if called(of) in _OF_WEIGHTS or isinstance(of, (ast.List, ast.Tuple)):
        return True
    made = definition(file, of, whole)
    items = made.values if isinstance(made, ast.Dict) else made.elts if isinstance(made, ast.List) else []
    items = [made.value] if isinstance(made, ast.DictComp) else [made.elt] if isinstance(made, ast.ListComp) else items
    return bool(items) and all(called(one) == "requires_grad_" for one in items)


def _handed_on(file: File, value: ast.expr) -> ast.expr:
    """`self.weight` of `self.weight.view(-1).t()`."""
    while isinstance(value, ast.Call) and (handed := passes_on(file, value)) is not None:
        value = handed
    return value


def _is_read_on(file: File, write: WriteSyntax) -> bool:
    """Return True if more than an update reads a name that it is made of: that carries a gradient to the weight."""
    rows: list[ast.stmt] = [write.statement]
    scope, names = file.scope(write.statement), set[str]()
    for row in rows:
        more = names_in(row) - names - {write.name}
        names |= more
        made = dict.fromkeys(file.statement(one) for name in more for one in uses(scope, name, ast.Store))
        rows += [one for one in made if isinstance(one, ast.Assign) and one not in rows and not is_number(one.value)]
    own = (one for row in rows[1:] for name in map(dotted, targets(row)) for one in uses(scope, name, ast.Load))
    return any(file.statement(one) not in rows for one in own)


def _clears(row: ast.stmt) -> bool:
    """`w.grad.zero_()`, `w.grad = None`."""
    return bool(re.fullmatch(r"\S+\.grad(\.zero_\(\)| = None)", ast.unparse(row)))


def _is_guarded(file: File, write: ast.stmt) -> bool:
    for one in file.around(write):
        heads = [item.context_expr for item in one.items] if isinstance(one, ast.With) else []
        heads += one.decorator_list if isinstance(one, ast.FunctionDef) else []
        if any("no_grad" in ast.unparse(head) for head in heads):
            return True
    return False


def _may_be_update(write: WriteSyntax, kind: str) -> bool:
    """Whether a write may be one that no gradient should flow through: of weights, with `.grad`, or of mere numbers.

    Where the program differentiates through its own updates (`create_graph`), it is none.
    """
    file, value, text = write.file, write.value, write.file.source(write.statement)
    if ".grad" not in text and differentiates(file):
        return False
    if kind == "parameter" or ".grad" in text or (value is not None and is_of_gradients(file, value)):
        return True
    given = values(value) if isinstance(value, ast.Call) and writes(value) else [value] if value is not None else []
    return not any(map(names_in, given))


def _is_tracked(write: WriteSyntax) -> bool:
    """Whether the value written may carry a gradient: a call of a module, of a function that is not known.

    What is computed from a `.grad` carries none, unless the program differentiates through its gradients.
    """
    calls = [one for one in walk(write.value, ast.Call) if not writes(one)] if write.value is not None else []
    if "create_graph" not in write.file.text:
        calls = [one for one in calls if ".grad" not in write.file.source(one)]
    return not all(map(is_untracked, calls))


def _is_given_to_writer(file: File, call: ast.Call, name: str) -> bool:
    """`clip_(x, low)`: whether a call hands a name to a function of the file that writes it, and does nothing else."""
    own = [one for one in functions(file.tree) if one.name == called(call)]
    given = [(one, each) for one in own for each in parameters(one) if len(own) == 1]
    given = [(one, each) for one, each in given if dotted(given_by(file, call.func, each, one)) == name]
    return any(_only_writes(file, one, each) for one, each in given)


def _only_writes(file: File, function: Function, name: str) -> bool:
    rows = [*writes_through(file, function, name)]
    return rows != [] and all(
        row in rows or (isinstance(row, ast.Expr) and isinstance(row.value, ast.Constant)) for row in function.body
    )


def _goes_on(file: File, name: str, row: ast.stmt) -> bool:
    call = call_of(row)
    if call is not None and file.own_lines(row) is not None and _is_given_to_writer(file, call, name):
        return True
    calls = call is not None and isinstance(call.func, ast.Attribute) and writes(call)
    calls = calls and not called(call).endswith("requires_grad_")
    if not (_sets_item(row) or calls or isinstance(row, ast.AugAssign)) or file.own_lines(row) is None:
        return False
    other = write_in(file, row)
    return other.name == name or _may_be_update(other, "")
