"""Write under `torch.no_grad()`: updates and initial values of what requires a gradient.

Sound if PyTorch refuses the write because the tensor requires a gradient: the program stopped there, so only the values
that the statement computes have to stay the same. A write is an update, and not a part of the function, if its value
consists only of gradients, numbers and plain arithmetic: no gradient could flow through that but to the weight itself,
as where that decays. So is what is made of the weight alone below the step of an optimizer. What the function has
computed under `no_grad` may be added to what one name alone holds. No update is what a custom Function writes, what a
graph keeps, or a backward may read by then or when it is written again (read_later.py), a part of an expanded leaf, a
part that has a name, as PyTorch refuses to read the other parts then, and what may be meant as a new tensor: the first
weights of an inner loop by another name, or what a list or another name keeps. Neighbouring statements of the same
kind are put there too, because PyTorch would refuse them next; no other may be there that it may refuse (leaves.py). So
is the whole of a loop that steps weights by hand in several statements, where the value was seen to carry no gradient.

Tried is any write of a weight, of a `.grad`, or of mere numbers, whose value does not come from a call that may give a
tracked tensor: that gradient would be lost.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

from noclobber.mend.autograd.leaves import (
    OF_WEIGHTS,
    has_number_as_default,
    is_given_numbers,
    is_guarded,
    is_like,
    is_refused_too,
    is_update,
    may_be_refused,
    sets,
    sets_item,
    sets_leaf,
    tracked,
    tracking,
    wholes,
)
from noclobber.mend.autograd.read_later import comes_again, is_awaited
from noclobber.mend.change import LAST_RESORT, Change, change
from noclobber.mend.holders.giving import given_by, given_for
from noclobber.mend.holders.holding import holds_alone, writes_through
from noclobber.mend.holders.making import CONTAINERS, HANDING_ON, bound_to, only_computes, passes_on
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.operators import SPLITS
from noclobber.syntax.edits import insert, under_no_grad
from noclobber.syntax.names import (
    attributes,
    attributes_set,
    call_of,
    called,
    called_by,
    calls,
    definition,
    differentiates,
    dotted,
    has_torch,
    imported_from,
    indexed,
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
    targets,
    unindexed,
    uses,
    value_given,
    values,
)
from noclobber.syntax.tree import (
    FOR,
    FUNCTION,
    File,
    Function,
    ends,
    first_line,
    functions,
    last_line,
    simple_statements,
    starts,
    walk,
)
from noclobber.syntax.writes import (
    WriteSyntax,
    descends,
    is_average,
    is_number,
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
    if event.keeps_others and any(
        isinstance(one, FOR) and write.name in names_in(one.target) for one in file.loops(found)
    ):
        return []  # a later turn writes what a backward may need
    if scene.places("read") or "ctx" in parameters(file.scope(found)) or comes_again(scene, event):
        return []  # where PyTorch refuses to read a view, the write went through
    of_constants = event.carries_gradient is False and not _may_carry_later(scene, file, found)
    carries = event.carries_gradient is True
    if carries and (not event.of_itself or differentiates(file)):
        return []
    if of_constants and (loop := _loop_of_updates(write)) is not None:
        return [loop]
    if is_awaited(file, found) or _may_be_new(file, write) or (carries and _is_read_on(file, write)):
        return []
    updates = is_update(file, found) or (of_constants and _shifts(file, found))
    follows_step = event.carries_gradient is not None and is_weight and _follows_step(file, write)
    updates |= follows_step
    is_begun = of_constants and _is_begun(file, write)
    if not (updates or is_begun or (is_weight and (is_average(found) or of_constants))):
        return []

    only_begins = _only_begins(write)

    def fits(one: ast.stmt) -> bool:
        if (
            only_begins
            and write_in(file, one).name == write.name
            and (isinstance(one, ast.AugAssign) or sets_item(one))
        ):
            return all(map(only_computes, walk(one.value, ast.Call)))
        if write.name and (sets(file, write.name, one) or (of_constants and is_like(file, write, one))):
            return True
        if follows_step and may_be_refused(file, write, one) and all(map(only_computes, walk(one, ast.Call))):
            return True
        return descends(file, one) or sets_leaf(file, one) or _clears(one)

    rows = file.beside(found, fits)
    kept = [at for at, one in enumerate(rows) if not _clears(one)]
    rows = rows[kept[0] : kept[-1] + 1]
    more = (one for one in writes_through(file, file.scope(found), write.name) if one not in rows)
    if any(is_refused_too(file, one) for one in more):
        return []
    for each in scene.files:
        others = (one for one in simple_statements(each.tree) if one not in rows and not is_guarded(each, one))
        if any(may_be_refused(each, write, one) or (descends(each, one) and descends(file, found)) for one in others):
            return []
    return rows if all(one.lineno == last_line(one) and file.own_lines(one) is not None for one in rows) else []


def _may_carry_later(scene: Scene, file: File, write: ast.stmt) -> bool:
    """Return True if a value that carried no gradient when PyTorch refused its write may carry one in a later turn or
    call: it is made of what a later statement of the loop, another method, or the next call sets."""
    scope, loops = file.scope(write), file.loops(write)
    call = call_of(write)
    made_of: list[ast.AST] = [*values(call)] if call is not None else [getattr(write, "value", write)]
    written = write_in(file, write).name
    names, known = set[str]().union(*map(tracked, made_of)), {"self", written}
    rows = list(walk(loops[-1], ast.stmt)) if loops else []
    turns = {name for loop in loops if isinstance(loop, FOR) for name in names_in(loop.target)}
    items = [one for each in made_of for one in walk(each, ast.Subscript) if turns & names_in(one.slice)]
    known |= {name for one in items if _is_of_constants(scene, one.value) for name in names_in(one)}
    if any(isinstance(definition(file, one.value, write), (*CONTAINERS, ast.Tuple)) for one in items):
        return True  # each turn has another item
    while names - known:
        name = (names - known).pop()
        known.add(name)
        if name in parameters(scope) and has_number_as_default(file, name, scope):
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
                names |= tracked(row)
    held = {one.attr for row in made_of for one in walk(row, ast.Attribute) if called_by(file, one) is None}
    held -= {"grad", "data"}
    own = {one.name for one in functions(file.tree)}
    return (
        bool(set_later(file, *held))
        or any(_is_of_object_alone(file, one) for one in attributes_set(file, *held))
        or any(called(one) in own for row in made_of for one in tracking(row, ast.Call))
        or any(last_name(one.value) in (known | held) - {written} for one in _set_to_require(file))
    )


def _only_begins(write: WriteSyntax) -> bool:
    """Whether what is written in some places becomes a parameter below them, and nothing else: a parameter begins a
    graph of its own, so no gradient could flow through any of these writes."""
    file, scope = write.file, write.file.scope(write.statement)
    read = [one for one in uses(scope, write.name, ast.Load) if starts(one) > ends(write.statement)]
    rows = [file.statement(one) for one in read if not _is_written(file, one)]
    return rows != [] and all(one is not None and called(getattr(one, "value", None)) == "Parameter" for one in rows)


def _is_written(file: File, use: ast.Name) -> bool:
    """`b` of `b[:, 4] += 1` and of `b[0] = 1`."""
    whole = indexed(file, use)
    return isinstance(whole, ast.Subscript) and isinstance(whole.ctx, ast.Store)


def _is_of_constants(scene: Scene, container: ast.expr) -> bool:
    """`self.masks`, which one `__init__` makes of new tensors, and whose items are only read, or set to comparisons."""
    name = container.attr if isinstance(container, ast.Attribute) and dotted(container.value) == "self" else ""
    used = [(file, one) for file in scene.files for one in attributes(file.tree, name)] if name else []
    told = (one for file in scene.files for one in walk(file.tree, ast.Constant))
    stored = [(file, one) for file, one in used if is_stored(file, one)]
    return (
        len(stored) == 1
        and all(_begins_constant(*one) for one in stored)
        and all(one in stored or _is_read_or_compared(*one) for one in used)
        and not any(one.value == name for one in told)
    )


def _begins_constant(file: File, container: ast.Attribute) -> bool:
    """`self.masks = {name: torch.ones_like(one.weight) for ...}` in an `__init__`."""
    value = value_given(file, container)
    item = value.value if isinstance(value, ast.DictComp) else getattr(value, "elt", None)
    is_new = called(item).removesuffix("_like") in ("ones", "zeros")
    return is_new and getattr(file.scope(container), "name", "") == "__init__"


def _is_read_or_compared(file: File, container: ast.Attribute) -> bool:
    """`masks[k]`, `masks[k][w < 0] = 0.0`, `masks[k] = (w > 0).float()`, `sum(m.sum() for m in masks.values())`."""
    whole = indexed(file, container)
    above = file.above[whole]
    if whole is container:
        call = called_by(file, above)
        around = file.above[call] if call is not None and called(call) in ("items", "keys", "values") else None
        return isinstance(around, ast.comprehension) and not any(map(writes, walk(file.above[around], ast.Call)))
    if not is_stored(file, whole):
        call = called_by(file, above) if isinstance(above, ast.Attribute) else None
        return not isinstance(above, (ast.AugAssign, ast.Assign, ast.NamedExpr)) and not (call and writes(call))
    value = value_given(file, whole)
    while isinstance(value, ast.Call) and owner(value) is not None and not value.args:
        value = owner(value)
    return value is not None and (isinstance(value, (ast.Compare, ast.Constant)) or not tracked(value))


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
    return not has_number_as_default(file, value.id, scope) and len(given_for(file, value.id, scope)) != 1


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
    others = (one for one in walk(file.tree, ast.stmt) if one not in inside and not is_guarded(file, one))
    return None if any(descends(file, one) for one in others) else loop


def _is_read_outside(file: File, loop: ast.stmt) -> Iterator[bool]:
    """Whether the file reads elsewhere each attribute, and what each item belongs to, that a loop assigns."""
    for target in (*walk(loop, ast.Attribute), *walk(loop, ast.Subscript)):
        held = unindexed(target)
        if isinstance(getattr(target, "ctx", None), ast.Store) and (name := last_name(held)) not in ("data", "grad"):
            yield not name or any(loop not in file.around(one) for one in mentioned(file, name))


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
    for one in tracking(value, ast.Name):
        if is_numeric(file, one) or is_given_numbers(file, one) or one.id == "torch":
            continue
        made = definition(file, one, value)
        if made is None or not _is_of_numbers(file, made):
            return False
    return True


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
    constant = all(isinstance(one, ast.Assign) and (is_guarded(file, one) or is_number(one.value)) for one in rows)
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
    return any(dotted(one) in parts and last_name(file.above[one]) in ("", *OF_WEIGHTS) for one in given)


def _steps_above(file: File, node: ast.AST) -> list[ast.Call]:
    """The makers of the optimizers that step in a block above one of its statements."""
    row = file.statement(node)
    rows = file.block(row) if row is not None else []
    above = rows[: rows.index(row)] if row is not None else []
    stepped = [owner(call) for each in above if (call := call_of(each)) is not None and optimizer_of(each)]
    made = [bound_to(file, one, node) for one in stepped if one is not None]
    own = imported_from(file, "torch.optim")
    return [one for one in made if one is not None and ("optim" in dotted(one.func) or called(one) in own)]


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
    if any(isinstance(one, ast.Assign) and isinstance(one.value, ast.Name) for one in bound):
        return True  # what it was given has another name
    given = given_for(file, name, scope) if name in parameters(scope) else []
    back = any(name in names_in(one) for one in walk(scope, ast.Return)) if given else False
    if back and not all(map(partial(_goes_back, file), given)):
        return True
    if any(dotted(one.value) == name for one in attributes(scope, "grad")):
        return False
    if any(not _is_fresh(file, one) for one in wholes(write)):
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
    if called(of) in OF_WEIGHTS or isinstance(of, (ast.List, ast.Tuple)):
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
    if not (sets_item(row) or calls or isinstance(row, ast.AugAssign)) or file.own_lines(row) is None:
        return False
    other = write_in(file, row)
    return other.name == name or _may_be_update(other, "")
