"""Detached values: state carried between iterations, values that one loss passes to another, graphs kept in vain.

Sound where it was seen through which states a backward reached an older graph, and these are all, and each turn of the
loop around it steps an optimizer: no gradient can reach back over the step, whose old weights are gone. Each turn comes
to the end of the loop, where the states are detached, and each runs the backward. Sound too where each turn of a loop
has a loss of its own from one graph, and nothing steps meanwhile: the graph is kept. A sum of losses begins anew after
its backward, where each backward comes after an addition; what is read of it elsewhere keeps its value.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from noclobber.mend.autograd.leaves import tracked, tracking
from noclobber.mend.change import Change, change
from noclobber.mend.holders.making import function_called
from noclobber.mend.holders.numbers import may_be_number
from noclobber.mend.order.forwards_in_loops import last_read, steps_alike
from noclobber.mend.order.kept_values import not_kept
from noclobber.mend.order.steps import may_step_later
from noclobber.mend.scene import Scene, run_by
from noclobber.model.reports.finding import Cause
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Carried, Refusal
from noclobber.model.source import Site
from noclobber.model.units import listed
from noclobber.rules.shared.carrying import is_carried, is_renewed, sum_of_turns
from noclobber.syntax.assigning import begins_anew
from noclobber.syntax.edits import after, append, before, with_argument, without_retaining
from noclobber.syntax.names import (
    attributes_set,
    binds,
    call_of,
    called,
    called_by,
    calls,
    dotted,
    first_name,
    indexed,
    is_stored,
    keyword,
    last_name,
    mentioned,
    names_in,
    names_stored,
    names_used,
    owner,
    parameters,
    returned,
    targets,
    uses,
    uses_in,
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
    Loop,
    Place,
    Scope,
    ends,
    last_line,
    simple_statements,
    starts,
    walk,
)
from noclobber.syntax.writes import WriteSyntax, is_number, values_written, write_in

MOST_DETACHED = 3
"""Values of one loss that are tried detached."""


def detached(scene: Scene) -> Iterator[Change]:
    """What carries a graph on: into the next iteration, into another loss, or by a backward that keeps it."""
    summed = list(_summed_anew(scene)) if scene.is_freed else []
    if scene.is_freed or scene.reads_first():
        writes = scene.writes() if scene.is_freed and not summed else []
        stored = [one for write in writes for one in _stored(scene, write)]
        found = [*(summed or _carried(scene)), *(one for one in stored if one.is_sound)]
        yield from sorted(found, key=lambda one: not one.is_sound)
        for write in writes:  # `self.centre`, which it writes in place
            edit = before(write.file, write.statement, f"{write.name} = {write.name}.detach()") if write.name else None
            yield from change(f"detach `{write.name}` before it is written again", [edit], 1)
        yield from (one for one in stored if not one.is_sound)
    elif scene.steps():
        yield from islice(_handed_over(scene), MOST_DETACHED)
    turns = last_read(scene)[1]
    steps = isinstance(turns, FUNCTION) or calls(turns, "step")
    once = scene.finding.cause is Cause.BUILT_ONCE and steps
    if scene.is_freed and not once and scene.finding.cause is not Cause.CARRIED:
        yield from _retained(scene)


def _stored(scene: Scene, write: WriteSyntax) -> Iterator[Change]:
    """Detach what is written in place into a state below a backward, and is of the graph that this has freed: no later
    backward can go through that. Sound if it was seen so, each call that leads to the write stands below the only
    backward of its function, and between them are only steps and other such calls."""
    file, row, event = write.file, write.statement, scene.finding.event
    is_item = isinstance(row, ast.Assign) and len(row.targets) == 1 and isinstance(row.targets[0], ast.Subscript)
    value = row.value if isinstance(row, ast.Assign) and is_item else next(iter(values_written(row)), None)
    if not isinstance(event, Refusal) or value is None or isinstance(value, ast.Tuple):
        return
    scope, state = file.scope(row), write.name.rpartition(".")[2]
    name = getattr(scope, "name", "")
    led = [(each, found) for each in scene.files for one in mentioned(each, name) if (found := each.statement(one))]
    places = [(file, row)] if calls(scope, "backward") else led
    others = [one for each in scene.files for one in simple_statements(each.tree) if _writes_to(each, one, state)]
    taken = [each.above[one] for each in scene.files for one in _items(each, write.name)]
    is_known = event.are_stored_freed and bool(places) and others == [row]
    is_known &= not any(isinstance(one, (ast.Assign, ast.NamedExpr, ast.For)) for one in taken)
    is_known &= all(_is_of_freed(each, one, name) for each, one in places) and not may_be_number(file, value)
    yield from change("write it detached", [append(file, value, ".detach()")], 1, is_sound=is_known)


def _items(file: File, name: str) -> Iterator[ast.expr]:
    """Where a state is read, with its index: what is bound to a variable there may be written, too."""
    kind, state = (ast.Attribute if "." in name else ast.Name), name.rpartition(".")[2]
    wholes = (indexed(file, one) for one in walk(file.tree, kind) if last_name(one) == state)
    yield from (one for one in wholes if not is_stored(file, one))


def _writes_to(file: File, row: ast.stmt, state: str) -> bool:
    """Whether a statement writes something other than numbers into what has this last name."""
    is_item = isinstance(row, ast.Assign) and any(isinstance(one, ast.Subscript) for one in row.targets)
    written = [row.value] if isinstance(row, ast.Assign) and is_item else values_written(row)
    return write_in(file, row).name.rpartition(".")[2] == state and any(map(tracked, written))


def _is_of_freed(file: File, row: ast.stmt, name: str) -> bool:
    """Whether a statement stands below the only backward of its function, makes nothing itself, and only steps stand
    between, or other calls of a function."""
    rows, backwards = file.block(row), calls(file.scope(row), "backward", "grad")
    above = file.statement(backwards[0]) if len(backwards) == 1 else None
    between = rows[rows.index(above) + 1 : rows.index(row)] if above in rows[: rows.index(row)] and above else None
    plain = ("step", "zero_grad", "print", name)
    call = call_of(row)
    makes = [one for part in (values(call) if call is not None else [row]) for one in walk(part, ast.Call)]
    return between is not None and not makes and all(called(call_of(one)) in plain for one in between)


def _carried(scene: Scene) -> Iterator[Change]:
    """Detach what one turn of the loop around the backward hands to the next, as it was seen: at the end of the block
    of the backward, such as an `if`, or at the end of the loop, which may cut more often.

    `retain_graph=True` is taken away first, if no other backward of the loop may need it; then it stays.
    """
    read, event = scene.place("read"), scene.finding.event
    if read is None or not isinstance(event, (Clobber, Refusal)):
        return
    file, rows = read.file, read.file.block(read.row)
    around = next(iter(file.loops(read.row)), None) or file.scope(read.row)
    is_loop = isinstance(around, LOOP)
    if not isinstance(around, (*LOOP, *FUNCTION)) or not (is_loop or around is file.above[read.row]):
        return
    carried, site = event.carried, (event.read.site if isinstance(event, Clobber) else event.site)
    lines = [_detaching(file, read, site, one) for one in carried]
    texts = list(dict.fromkeys(filter(None, lines)))
    renewed = [is_renewed(site, one) for one in carried]
    if not texts or False in renewed:  # what was made before the loop and is never set again would not be trained
        return
    if any(_is_kept_term(file, read.row, name) for one in carried for name in (one.name, one.variable) if name):
        return
    is_known = event.are_all_carried and all(lines) and all(renewed) and steps_alike(file, around, rows)
    roots = [re.split(r"\W", line)[0] for line in lines]  # by another name it may be another object
    is_known &= all(
        root in (re.split(r"\W", one.name)[0], one.variable) for root, one in zip(roots, carried, strict=True)
    )
    is_known &= not any(_is_cleared(file, around, read.row, one.name) for one in carried)
    is_known &= next(not_kept(scene), None) is None  # what is filled once is no state of each turn
    is_known &= not _goes_on_elsewhere(scene, file, around) and all(one.is_alone for one in carried)
    below = [call for row in rows[rows.index(read.row) + 1 :] for call in walk(row, ast.Call)]
    given = (one for call in below if first_name(owner(call)) in roots for one in values(call))
    is_known &= not any(next(walk(one, ast.Call), None) for one in given)  # computed with the weights after the step
    sets = [_sets_always(file, around.body, one.variable or one.name) for one in carried]
    is_known &= False not in sets and (is_loop or all(one.is_renewed for one in carried))
    if isinstance(around, LOOP):  # what each turn makes before it reads it, no turn hands on
        is_known &= not any(begins_anew(around, one.name) for one in carried)
    is_known &= not _goes_on_beside(around, read.row, [name for one in carried for name in (one.name, one.variable)])
    retained = [edit for one in walk(read.row, ast.Call) if (edit := without_retaining(file, one)) is not None]
    is_known &= not (retained and _carries_more(around, {root for one in carried for root in (one.name, one.variable)}))
    title = f"detach what is carried to the next iteration: {listed([f'`{one}`' for one in texts])}"
    names = {re.split(r"\W", text.partition(" = ")[0])[-1] for text in texts}
    for later, end in enumerate(dict.fromkeys((rows[-1], around.body[-1]))):
        is_returned = isinstance(end, ast.Return) and not names.isdisjoint(names_used(end))
        put = before if isinstance(end, (ast.Return, ast.Break)) else after
        edit = put(file, end, *texts) if file.indent(end) is not None else None
        for more in [retained, *[[]] * bool(retained)]:
            is_sound = is_known and not later and more is retained and not is_returned
            yield from change(title, [*more, edit], 1 + later + (more is not retained), is_sound=is_sound)


def _is_cleared(file: File, around: Loop | Function, read: ast.stmt, name: str) -> bool:
    """Return True if what follows a backward may set a state to `None`: what is none cannot be detached."""
    stored = attributes_set(file, re.split(r"\W", name.partition("[")[0])[-1])
    none = [one for one in stored if isinstance(value_given(file, one), ast.Constant)]
    makers = {getattr(file.scope(one), "name", "") for one in none} - {"__init__"}
    run = [*none, *calls(around, *makers)] if makers else none
    return any(around in file.around(one) and starts(one) > starts(read) for one in run)


def _goes_on_elsewhere(scene: Scene, file: File, around: Loop | Function) -> bool:
    """Return True if a backward below a loop, or in another method, may go through the graphs of turns that are over,
    or if a function, or what it calls, calls the function, which then runs again before its end."""
    if isinstance(around, LOOP):
        return any(starts(one) > ends(around) for one in calls(file.scope(around), "backward", "grad"))
    region = file.class_of(around) or around
    runs_again = any(calls(one, around.name) for one in (around, *run_by(scene, around)))
    return runs_again or len(calls(region, "backward", "grad")) > 1


def _goes_on_beside(around: Loop | Function, read: ast.stmt, states: Sequence[str]) -> bool:
    """Return True if what is handed over to states may reach the next turn in another way: `state = h`, where a turn
    may keep the `h` of an earlier one, or where anything else below the backward reads it."""
    named = [(row, dotted(row.value)) for row in walk(around, ast.Assign) if dotted(row.value)]
    handing = [(row, given) for row, given in named if any(_is_set(row, one) for one in states)]
    for root in {given.partition(".")[0] for _, given in handing}:
        read_on = [one for one in uses_in(around, root) if one.lineno > last_line(read)]
        below = [row for row, given in handing if given.partition(".")[0] == root and row.lineno > read.lineno]
        if (isinstance(around, LOOP) and not begins_anew(around, root)) or len(read_on) > len(below):
            return True
    return False


def _carries_more(around: Loop | Function, known: set[str]) -> bool:
    """Return True if a loop computes another state from its value in the turn before: its graph is kept, too."""
    if not isinstance(around, LOOP):
        return False
    roots = {re.split(r"\W", one)[0] for one in known}
    for row in walk(around, ast.Assign):
        made = [one for one in tracking(row.value, ast.Call) if not hasattr(builtins, called(one))]
        bound = {name for one in row.targets for name in names_stored(one)}  # and not those of a comprehension
        if made and any(not begins_anew(around, one) for one in bound & names_in(row.value) - roots):
            return True
    return False


def _is_set(row: ast.Assign, state: str) -> bool:
    """Return True if a statement sets a state, or what it is an attribute of."""
    return bool(state) and any(f"{state}.".startswith(f"{one}.") for one in map(dotted, row.targets) if one)


def _summed_anew(scene: Scene) -> Iterator[Change]:
    """`total = 0`, as before the loop, below the backward of a sum that goes on from turn to turn. What reads the sum
    later gets its whole value, detached."""
    read, event = scene.place("read"), scene.finding.event
    if read is None or not isinstance(event, Refusal) or not (name := sum_of_turns(event.site)):
        return
    file, loop, rows = read.file, read.file.loops(read.row)[0], read.file.block(read.row)
    bound = [row for one in uses(file.scope(read.row), name, ast.Store) if (row := file.statement(one)) is not None]
    first = [one for one in bound if loop not in file.around(one)]
    begin = first[0].value if len(first) == 1 and isinstance(first[0], ast.Assign) else None
    added = [one for one in uses_in(file.tree, name) if not _is_added(file, one)]
    is_zero = is_number(begin) and begin is not None and all(file.statement(one) is read.row for one in added)
    text = f"{name} = {file.source(begin)}" if is_zero and begin is not None else f"{name} = {name}.detach()"
    is_known = event.are_all_carried and {one.name for one in event.carried} == {name}
    is_known &= any(loop in file.around(one) and _runs_before(file, one, read.row) for one in bound)
    is_sound = is_known and calls(loop, "step") != [] and len(calls(loop, "backward", "grad")) == 1
    title = f"set `{name}` anew after its backward" if is_zero else f"detach `{name}` after its backward"
    yield from change(title, [after(file, rows[-1], text)], 1, is_sound=is_sound)


def _is_added(file: File, name: ast.Name) -> bool:
    """Return True for a name that is bound, or read as a whole term of `total = total + loss`."""
    above = file.above[name]
    return is_stored(file, name) or (isinstance(above, ast.BinOp) and binds(file.above[above], name.id))


def _runs_before(file: File, row: ast.stmt, other: ast.stmt) -> bool:
    """Return True if a statement above another one runs whenever that does."""
    branches = {one for one in file.around(row) if not isinstance(one, FOR)}
    return row.lineno < other.lineno and branches <= {*file.around(other)}


def _is_kept_term(file: File, row: ast.stmt, name: str) -> bool:
    """Return True if a backward begins from a sum with this value, such as a penalty that several turns share, and no
    turn adds to it: detached, it would be a constant there."""
    scope = file.scope(row)
    grows = any(name in map(dotted, targets(one)) and name in names_used(one.value) for one in walk(scope, ast.Assign))
    grows = grows or any(dotted(one.target) == name for one in walk(scope, ast.AugAssign))
    roots = [owner(one) for one in calls(row, "backward")]
    return not grows and any(name in _terms(scope, one) for one in roots if one is not None)


def _terms(scope: Scope, value: ast.expr, known: frozenset[str] = frozenset()) -> set[str]:
    """The names that a sum adds up, and those that their definitions do: `pull` of `loss = mse + 0.1 * pull`."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub, ast.Mult)):
        return _terms(scope, value.left, known) | _terms(scope, value.right, known)
    name = dotted(value)
    if not name or name in known:
        return set()
    made = [one.value for one in walk(scope, ast.Assign) if name in map(dotted, targets(one))]
    return {name}.union(*(_terms(scope, one, known | {name}) for one in made))


def _sets_always(file: File, rows: Sequence[ast.stmt], name: str) -> bool | None:
    """Return True if a block gives a name or attribute a new value whenever it runs, False if only sometimes, None if
    never: where a turn keeps the old one, its author may want the gradient of that."""
    found = {one for row in rows if (one := _sets(file, row, name)) is not None}
    return True in found if found else None


def _sets(file: File, row: ast.stmt, name: str) -> bool | None:
    if isinstance(row, ast.If):
        arms = {_sets_always(file, row.body, name), _sets_always(file, row.orelse, name)}
        return None if arms == {None} else arms == {True}
    if isinstance(row, WITH):
        return _sets_always(file, row.body, name)
    if hasattr(row, "body") or hasattr(row, "cases"):
        return None if all(_sets(file, one, name) is None for one in walk(row, ast.stmt) if one is not row) else False
    if any(one.target.id == name for one in walk(row, ast.NamedExpr)):
        return False  # its condition, or no item, may leave it out
    own = next((one for one in map(dotted, targets(row)) if one and f"{name}.".startswith(f"{one}.")), "")
    return not _may_keep(file, row, own) if own else None


def _may_keep(file: File, row: ast.stmt, name: str) -> bool:
    """Return True if a statement may give a name what it has: `h = f(h) if new else h`, or a function of the file that
    returns its argument in a branch."""
    value = getattr(row, "value", None)
    arms = [value.body, value.orelse] if isinstance(value, ast.IfExp) else []
    arms = value.values if isinstance(value, ast.BoolOp) else arms
    function = function_called(file, value.func, value) if isinstance(value, ast.Call) else None
    given = [one.value for one in walk(function, ast.Return)] if function is not None else []
    kept = {*parameters(function)} if function is not None else set[str]()
    kept = {one for one in kept if not uses(function, one, ast.Store)} if function is not None else kept
    return name in map(dotted, arms) or not kept.isdisjoint(map(dotted, given))


def _detaching(file: File, read: Place, site: Site | None, state: Carried) -> str:
    """Return the statement that detaches a state where the backward stands; empty if none is known there.

    A list or dict is detached whole: other turns of the loop may carry its other items.
    """
    name, kind = state.name, state.kind
    if state.variable and is_carried(site, state.variable):
        name, kind = state.variable, "name"
    elif kind == "name" and (site is None or site.code.co_name not in [one.code.co_name for one in state.scopes]):
        return ""
    if not (name := _spelled(file, read, name)):
        return ""
    whole = name.rpartition("[")[0]
    forms = {
        "list": f"{whole}[:] = [one.detach() for one in {whole}]",
        "tuple": f"{whole} = tuple(one.detach() for one in {whole})",
        "dict": f"{whole}.update({{key: one.detach() for key, one in {whole}.items()}})",
    }
    return forms.get(state.whole, "") if kind in ("item", "tuple") else f"{name} = {name}.detach()"


def _spelled(file: File, read: Place, name: str) -> str:
    """What the function of a backward has for a name: `self.net.state` for the `net.state` of its caller, if it has one
    `self.net`; empty if it has nothing for it."""
    scope, root = file.scope(read.row), re.split(r"\W", name)[0]
    if root in names_in(scope):
        return name
    held = {dotted(one) for one in walk(scope, ast.Attribute) if one.attr == root} - {""}
    return f"{held.pop()}{name.removeprefix(root)}" if len(held) == 1 else ""


def _handed_over(scene: Scene) -> Iterator[Change]:
    """`.detach()` where a function that has stepped returns values, or where a later loss takes what an earlier did."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None:
        return
    scope = step.file.scope(step.row)
    if scope is not read.file.scope(read.row):
        names = [one for one in returned(scope) if isinstance(one, (ast.Name, ast.Attribute))]
        for some in dict.fromkeys((*((name,) for name in names), tuple(names))):
            yield from change("return it detached", [append(step.file, name, ".detach()") for name in some], 1)
        return
    file = read.file
    taken = _sources(file, scope, _losses(scope, step.row))
    yield from _constant(scene, step, read, taken)
    for loss in _losses(scope, read.row, of=read.row):
        for one in walk(loss, ast.Name):
            if one.id in taken and one is not loss and _is_value(file, one):
                yield Change(f"detach `{one.id}` for this loss", (append(file, one, ".detach()"),), 1)


def _constant(scene: Scene, step: Place, read: Place, taken: set[str]) -> Iterator[Change]:
    """`adv.detach()` in the loss below a step, where its graph was seen to lead only to what the step has changed, and
    what the loss would add to the gradients of that is thrown away: an advantage."""
    file, event = read.file, scene.finding.event
    rows, first, second = file.together(step.row, read.row)
    below = rows[first + 1 : second + 1]
    used = [one for row in below for one in walk(row, ast.Name) if one.id in taken]
    names = {one.id for one in used}
    is_known = isinstance(event, Clobber) and len(names) == 1 and names <= {*event.spent}
    is_known &= not any(hasattr(row, "body") or next(walk(row, ast.IfExp, ast.BoolOp), None) for row in below)
    # Else nothing would be left for the loss to lead to.
    root = owner(next(iter(calls(read.row, "backward")), None))
    is_known &= isinstance(root, ast.Name) and isinstance(event, Clobber) and root.id not in event.spent
    if is_known and all(_is_value(file, one) for one in used) and may_step_later(scene, step, read):
        edits = [append(file, one, ".detach()") for one in used]
        yield from change(f"detach `{used[0].id}` for this loss", edits, 1, is_sound=True)


def _retained(scene: Scene) -> Iterator[Change]:
    """`retain_graph=True` on the backward before the one that finds its graph freed: gradients stay as they are."""
    read = scene.place("read")
    if read is None:
        return
    file, scope = read.file, read.file.scope(read.row)
    backwards = [one for one in calls(scope, "backward") if not keyword(one, "retain_graph")]
    earlier, inside = [one for one in backwards if one.lineno < read.row.lineno], list(walk(read.row, ast.Call))
    own = [one for one in backwards if one not in earlier and one in inside]
    event = scene.finding.event
    turns = scene.finding.cause is Cause.BUILT_ONCE and isinstance(event, Refusal) and event.repeated_root is False
    for one in [*own, *earlier[-1:]] if turns else [*earlier[-1:], *own]:
        edit = with_argument(file, one, "retain_graph=True")
        # Another function of the file may step an optimizer, and this one may call it.
        is_sound = turns and one in own and all(file.scope(each) is scope for each in calls(file.tree, "step"))
        yield Change("keep the graph for the next backward", (edit,), 1, is_sound=is_sound)


def _losses(scope: Scope, until: ast.stmt, of: ast.stmt | None = None) -> list[ast.expr]:
    """What the backwards before a statement (or of the statement `of`) begin from, with what defines those names."""
    backwards = calls(of if of is not None else scope, "backward", "grad")
    found: list[ast.expr] = []
    for loss in (owner(one) for one in backwards if one.lineno <= last_line(until)):
        if loss is not None:
            names = names_in(loss)
            found += [loss, *(one.value for one in walk(scope, ast.Assign) if names & {*map(dotted, targets(one))})]
    return found


def _sources(file: File, scope: Scope, values: list[ast.expr]) -> set[str]:
    """The names in expressions, with those that the definitions of these names use."""
    names = {name for value in values for name in names_in(value)}
    assigned = list(walk(scope, ast.Assign))
    for _ in range(3):
        for one in assigned:
            if names.intersection(map(dotted, targets(one))):
                names |= {each.id for each in walk(one.value, ast.Name) if _is_value(file, each)}
    return names & {dotted(each) for one in assigned for each in targets(one)}


def _is_value(file: File, node: ast.expr) -> bool:
    """Whether a name is read as a value: not called, not bound, not part of a longer name."""
    above = file.above[node]
    if isinstance(above, ast.AugAssign):
        return above.value is node
    return not (called_by(file, node) or is_stored(file, node))
