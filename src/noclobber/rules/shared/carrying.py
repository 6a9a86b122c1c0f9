"""Whether a graph was built once, before the loop in which every turn goes backward through it, or is handed on by
states: their names, how to detach them, and the line that sets them."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType

from noclobber.model.reports.finding import Label, label_at
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Carried, Refusal
from noclobber.model.source import Site, Span
from noclobber.model.units import listed
from noclobber.syntax.assigning import Set, computes_from_itself, set_in
from noclobber.syntax.names import (
    attributes,
    called,
    calls,
    definition,
    dotted,
    first_name,
    is_untracked,
    made_of,
    names_in,
    names_used,
    owner,
    targets,
    uses_in,
    values,
)
from noclobber.syntax.tree import (
    FUNCTION,
    File,
    Place,
    Turns,
    functions,
    last_line,
    place_of,
    simple_statements,
    starts,
    walk,
)
from noclobber.syntax.writes import descends, is_of_loss


def states(event: Refusal) -> list[Carried]:
    """Return the carried states, by the name that the loop hands on if it is known.

    The parts of a tuple are one state. So are several items of a list or dict.
    """
    found, beside = dict[str, Carried](), Counter(map(_owner, event.carried))
    for one in event.carried:
        if one.variable and is_carried(event.site, one.variable):
            scope = () if event.site is None else (Site(event.site.code, 0),)
            one = Carried(one.variable, "name", scope)
        elif one.kind == "tuple" or (one.kind == "item" and beside[_owner(one)] > 1):
            one = replace(one, name=_owner(one))
        found.setdefault(one.name, one)
    return list(found.values())


def _owner(one: Carried) -> str:
    """ "bank" of "bank[0]"."""
    return one.name.rpartition("[")[0]


def detached(one: Carried) -> str:
    """Return how to detach a state: the statement in backticks."""
    if one.kind == "item" and not one.name.endswith("]"):
        return f"each tensor in `{one.name}`, where it is stored"
    value = f"tuple(part.detach() for part in {one.name})" if one.kind == "tuple" else f"{one.name}.detach()"
    return f"`{one.name} = {value}`"


def may_be_constant(event: Refusal | Clobber) -> bool:
    """Return True if the turns of a loop read what was computed before it, and compute it again themselves: whether it
    is a constant in the loop only the author knows."""
    is_known = event.is_run_anew and event.are_all_carried and event.carried != ()
    return is_known and all(one.kind != "attribute" for one in event.carried)  # which may be a cached property


def constant(event: Refusal | Clobber) -> str:
    """Return how to detach what may be a constant."""
    names = listed([f"`{one.name}`" for one in event.carried])
    texts = listed([detached(one) for one in event.carried])
    is_one, what = len(event.carried) == 1, "(a target, an old log-probability)"
    known = f"{names} is a constant in the loop {what}" if is_one else f"{names} are constants in the loop {what}"
    return f"if {known}, detach {'it' if is_one else 'them'} before the loop: {texts}"


def notes(event: Refusal) -> list[str]:
    """Return the note that names the carried states; empty if none is known."""
    names = " and ".join(f"`{one.name}`" for one in states(event))
    return [f"{names} {'lead' if ' and ' in names else 'leads'} to the graph of an earlier iteration"] if names else []


def labels(event: Refusal) -> list[Label]:
    """Return a label for each line that is known to set a carried state."""
    found: dict[Span, Label] = {}
    for one in states(event):
        for file, row, target in _set_at(one):
            span = file.span(row)
            text = f"`{ast.unparse(target)}` carries the old graph over from here"
            found.setdefault(span, label_at("create", span, text))
    return list(found.values())


def _set_at(one: Carried) -> list[Set]:
    """Return the statement that sets a state, with what it sets: the one that computes it from its old value, else the
    only one that may run again. Empty if neither is known."""
    codes = [site.code for site in one.scopes]
    found = [(file, row, target) for file, row, target in set_in(codes, one.name) if not _is_of_no_graph(row.value)]
    again = [(file, row, target) for file, row, target in found if computes_from_itself(row, one.name)]
    chosen = again or [
        (file, row, target)
        for file, row, target in found
        if one.kind == "attribute" or isinstance(target, ast.Subscript) or file.loops(row)
    ]
    return chosen if len({row for _, row, _ in chosen}) == 1 else []


def _is_of_no_graph(value: ast.expr | None) -> bool:
    """Return True for what is detached, and for a tensor of numbers."""
    cut = names_used(value) & {"detach", "data"} if value is not None else set()
    return bool(cut) or (isinstance(value, ast.Call) and is_untracked(value))


def turns_of(place: Place | None) -> Turns | None:
    """What runs a place again and again: the innermost loop around it in its function, else the closure that a step of
    an optimizer is given, which may run it by functions of the file."""
    if place is None:
        return None
    if loops := place.file.loops(place.node):
        return loops[0]
    scope, made = place.file.scope(place.node), list(functions(place.file.tree))
    given = {dotted(one) for step in calls(place.file.tree, "step") for one in values(step)}
    for closure in (one for one in made if one.name in given):
        ran = {closure.name}
        for _ in made:
            ran |= {called(one) for each in made if each.name in ran for one in walk(each, ast.Call)}
        if scope in [each for each in made if each.name in ran]:
            return closure
    return None


def in_words(read: Site | None) -> str:
    """ "loop", or "closure"."""
    return "closure" if isinstance(turns_of(place_of(read)), FUNCTION) else "loop"


def built_once(read: Site | None, saved: Site | None, states: Sequence[Carried] = ()) -> bool | None:
    """Return True if a backward stands in a loop or a closure, and its graph was built before that.

    Known where the line that saved is in the same function. Else the names of the loop say it: the loop never binds the
    loss, or it carries no name from turn to turn and calls nothing that could have built the graph. So do `states`, by
    which alone the backward reaches the graph, as was seen: nothing sets them after they were made. None if not known.
    """
    place = place_of(read)
    loop = turns_of(place)
    if place is None or loop is None or read is None:
        return False
    if saved is not None and _holds(read.code, saved.code):
        return not loop.lineno <= saved.line <= last_line(loop)
    if states and all(is_renewed(read, one) is False for one in states):
        return True
    if saved is None:
        return False
    names = made_of({name for one in calls(place.row, "backward") for name in names_in(one.func)}, loop)
    if any(_is_carried(loop, name) for name in names):
        return False
    if any(_may_run(place.file, one, saved.code.co_name) for one in walk(loop, ast.Call)):
        return None
    return any(one.id in names and not loop.lineno <= one.lineno for one in walk(place.file.scope(loop), ast.Name))


def is_renewed(read: Site | None, state: Carried) -> bool | None:
    """Return True if each turn of the loop around a backward gives a state its next value: it was seen to hold that, or
    the loop sets it. False if nothing in the file sets it after it was made. None if not known.
    """
    place = place_of(read)
    loop = turns_of(place)
    if state.is_renewed or place is None or loop is None:
        return True
    whole = state.name.partition("[")[0]
    named = walk(loop, ast.Name, ast.Attribute, ast.Subscript)
    stored = (one for one in named if isinstance(getattr(one, "ctx", None), ast.Store))
    set_here = {dotted(one.value if isinstance(one, ast.Subscript) else one) for one in stored} - {""}
    if state.name in set_here or any(f"{whole}.".startswith(f"{one}.") for one in set_here):
        return True
    last = re.split(r"\W", whole)[-1]
    if "." not in whole:  # what is given a name of a tensor cannot bind it anew
        own = uses_in(loop, last) if not state.name.isidentifier() else []
        return None if any(_may_fill(place.file, one) for one in own) else False
    held = attributes(place.file.tree, last)
    if state.kind == "attribute":  # it holds the tensor, and no call puts another one there
        return None if any(_is_set(place.file, one) for one in held) else False
    return None if any(_is_set(place.file, one) or _may_fill(place.file, one) for one in held) else False


def is_carried(read: Site | None, name: str) -> bool:
    """Return True if the loop around a backward hands a variable from turn to turn."""
    loop = turns_of(place_of(read))
    return loop is not None and _is_carried(loop, name)


def sum_of_turns(read: Site | None) -> str:
    """Return the name of the sum that a backward begins from, where every turn of its loop adds to it and none sets it
    anew; empty for anything else."""
    place = place_of(read)
    loops = place.file.loops(place.node) if place is not None else []
    root = next((owner(one) for one in calls(place.row, "backward")), None) if place is not None else None
    if not loops or not isinstance(root, ast.Name):
        return ""
    rows = list(walk(loops[0], ast.Assign, ast.AugAssign, ast.AnnAssign))
    rows = [one for one in rows if root.id in map(dotted, targets(one))]
    return root.id if rows and all(_adds(one, root.id) for one in rows) else ""


def _adds(row: ast.stmt, name: str) -> bool:
    """`total += loss`, `total = total + loss`."""
    if isinstance(row, ast.AugAssign):
        return isinstance(row.op, ast.Add)
    value = getattr(row, "value", None)
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and name in names_in(value)


def steps_between(freed: Site | None, read: Site | None) -> bool:
    """Return True if a function steps an optimizer between two backwards, so that the second meets other weights. Where
    both are one line, which runs again, below that line."""
    first, last = place_of(freed), place_of(read)
    if first is None or last is None or first.file.scope(first.node) is not last.file.scope(last.node):
        return False
    steps = [one for one in calls(first.file.scope(first.node), "step") if not one.args and not one.keywords]
    again = first.row is last.row
    return any(starts(one) > starts(first.row) and (again or starts(one) < starts(last.row)) for one in steps)


def steps_in_loop(read: Site | None) -> bool:
    """Return True if the loop around a backward calls `step`, as of an optimizer, or steps by hand, or if a step calls
    the closure."""
    place = place_of(read)
    loop = turns_of(place)
    if place is None or loop is None:
        return False
    by_hand = any(descends(place.file, one) for one in simple_statements(loop))
    return isinstance(loop, FUNCTION) or by_hand or bool(calls(loop, "step"))


def _is_carried(loop: Turns, name: str) -> bool:
    """Return True if a turn of a loop reads a name before it binds it, and then binds it."""
    uses = [one for row in loop.body for one in uses_in(row, name)]
    stored = [one for one in uses if isinstance(one.ctx, ast.Store)]
    added = {one.target for row in loop.body for one in walk(row, ast.AugAssign)}
    read = [one for one in uses if isinstance(one.ctx, ast.Load) or one in added]
    first = min((one.lineno for one in stored), default=None)
    return first is not None and any(one.lineno <= first for one in read)


_READING = ("items", "keys", "values", "get", "size", "shape", "detach", "clone", "backward")
"""What is asked of a container or tensor without a change of it."""


def _is_set(file: File, held: ast.Attribute) -> bool:
    """Return True if an attribute, or an item of it, is set here, outside of `__init__`."""
    above = file.above[held]
    target = above if isinstance(above, ast.Subscript) and above.value is held else held
    return isinstance(target.ctx, ast.Store) and getattr(file.scope(held), "name", "") != "__init__"


def _may_fill(file: File, held: ast.expr) -> bool:
    """Return True if a container is given away here, or if a method of it is called that may put something into it."""
    above = file.above[held]
    if isinstance(above, ast.Attribute):
        return isinstance(file.above[above], ast.Call) and above.attr not in _READING
    return isinstance(above, (ast.Call, ast.keyword, ast.Starred))


def _may_run(file: File, call: ast.Call, function: str) -> bool:
    """Return True if a call may run a function of this name: of the program itself, a method, a module's `forward`."""
    of, name = owner(call), called(call)
    if name == function:
        return True
    if name in _ELSEWHERE or hasattr(builtins, name) or is_of_loss(file, call):
        return False
    return of is None or first_name(of) == "self" or called(definition(file, of, call))[:1].isupper()


_ELSEWHERE = ("backward", "step", "zero_grad", "append", "item")
"""Methods that build no graph."""


def _holds(code: CodeType, other: CodeType) -> bool:
    """Whether `other` is `code`, or a comprehension in it, which runs where it stands."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    nested = [one for one in inner if one.co_name.startswith("<") and one.co_name != "<lambda>"]
    return code is other or any(_holds(one, other) for one in nested)
