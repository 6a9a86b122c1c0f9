"""A forward that stands above a step, whose backward comes below it: its lines put below the step, just above where
their result is first read; repeated there, if something reads the result before that.

The backward then reads the weights that the step left. Sound where the forward, the step and the backward are
statements of one block, or of functions that are called there, and
- the loss is what the lines compute, or a sum in which they are whole terms: as a constant, a term would have no
  gradient, so it is not meant to be detached, as an advantage that another term is multiplied by is,
- another optimizer steps after that backward: with the same one, one backward for both losses may be meant,
- what the lines read is not bound or written up to their new place, and no step stands below that,
- they, and the functions that they call, keep nothing in modules, and what is repeated draws no numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from noclobber.mend.change import Change, change
from noclobber.mend.holders.giving import given_by
from noclobber.mend.order.repeating import keeps_state
from noclobber.mend.order.trained_models import chains
from noclobber.mend.scene import Scene, run_by
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.operators import DRAWING
from noclobber.syntax.edits import insert, lines_of, text_of_lines, whole_lines
from noclobber.syntax.names import (
    UNRECORDING,
    call_of,
    called,
    calls,
    definition,
    dotted,
    is_untracked,
    last_name,
    names_in,
    names_read,
    names_stored,
    names_used,
    optimizer_of,
    owner,
    targets,
    values,
)
from noclobber.syntax.tree import FUNCTION, WITH, File, Place, simple_statements, starts, walk
from noclobber.syntax.writes import changed_by

_SAMPLING = (*DRAWING, "rsample", "sample", "normal_", "uniform_")
_MADE = frozenset("empty eye full ones tensor zeros arange linspace".split())  # noqa: SIM905
"""Functions whose results no graph leads to; so are those of the same names with `_like`."""


def below_step(scene: Scene) -> Iterator[Change]:
    """The lines of the forward, below the step."""
    found = _found(scene)
    if found is None or scene.reads_first() or keeps_state(scene):
        return
    file, rows, first, second, *_ = found
    forward, read = _forward(scene, rows[:first], rows[first + 1 : second], found)
    bound = changed_by(*forward)
    at = next((n for n in range(first + 1, second + 1) if names_read(rows[n]) & bound), second)
    later = rows[at : second + 1]
    if not forward or not all(_can_move(file, one) for one in forward) or bound & changed_by(*rows[first:second]):
        return
    passed = rows[rows.index(forward[0]) : at]
    used = set[str]().union(*map(names_used, forward))
    ran = [*forward, *(each for one in forward for each in run_by(scene, one))]
    if changed_by(*(one for one in passed if one not in forward)) & used or any(map(_steps, later[:-1])):
        return
    if not all(
        _are_terms(file, row, bound | read) for row in (later if calls(rows[second], "backward") else later[:-1])
    ):
        return
    stays = any(names_read(row) & bound for row in passed if row not in forward)
    if stays and any(calls(one, *_SAMPLING) for one in ran):
        return
    text = "".join(_text(file, one, stays=stays) for one in forward)
    gone = [] if stays else [whole_lines(file, *lines_of(file, one)) for one in forward]
    title = f"run the forward {'again, ' * stays}below the step"
    put = insert(file, lines_of(file, rows[at])[0], 1, text)
    yield from change(title, [*gone, put], 1 + stays, is_sound=True, way="anew")


def _text(file: File, row: ast.stmt, *, stays: bool) -> str:
    """The lines of a statement; without its comments, if it also stays where it is."""
    return f"{file.indent(row)}{file.source(row)}\n" if stays else f"{text_of_lines(file, *lines_of(file, row))}\n"


class _Found(NamedTuple):
    """A block, where the step and the backward stand in it or are called, the names of the loss, and the modules whose
    weights are stepped between them."""

    file: File
    rows: list[ast.stmt]
    first: int
    second: int
    loss: set[str]
    stepped: set[str]


def _found(scene: Scene) -> _Found | None:
    """What the block has that leads to the step, and below it to the backward; None unless another optimizer steps
    what that backward belongs to."""
    event, places = scene.finding.event, scene.step_and_backward()
    if not isinstance(event, Clobber) or places is None or scene.code != "NC103":
        return None
    step, read = places
    pairs = zip(scene.finding.writes[0].calls, event.read.calls, strict=False)
    apart = next(((one, other) for one, other in pairs if one != other), (None, None))
    one, other = (scene.at(site.span()) if site is not None else None for site in apart)
    if one is None or other is None or one.file is not other.file:
        return None
    file, back = one.file, call_of(read.row)
    rows, first, second = file.together(one.row, other.row)
    root = owner(back) if called(back) == "backward" else None
    if not rows or first >= second or root is None or rows[second] is not other.row or hasattr(other.row, "body"):
        return None
    if other.row is read.row:
        mine, loss = optimizer_of(step.row), names_in(root)
        after = {optimizer_of(each) for row in rows[second + 1 :] for each in simple_statements(row)} - {""}
    else:
        mine, loss, after = _handed(step, read, one.row, other.row)
    passed = {ast.unparse(each) for row in rows[first:second] for each in walk(row, ast.Name, ast.Attribute)} | {mine}
    touched = [{*each.touched} for each in event.optimizers if each.name in passed - after]
    alone = {each.name for each in event.optimizers if not each.shares}
    is_known = {mine, *after} <= alone and mine not in after and after != set()
    return _Found(file, rows, first, second, loss, set[str]().union(*touched)) if is_known and loss else None


def _handed(step: Place, read: Place, one: ast.stmt, other: ast.stmt) -> tuple[str, set[str], set[str]]:
    """The optimizer that a call hands to the function that steps, and the loss and the optimizer that another call
    hands to the function that goes backward and steps, which may be the same."""
    file, back, calls_ = read.file, call_of(read.row), (call_of(one), call_of(other))
    functions = [each.file.scope(each.row) for each in (step, read)]
    after = {optimizer_of(each) for each in simple_statements(functions[1]) if starts(each) > starts(read.row)} - {""}
    root = owner(back)

    def given(number: int, name: str) -> str:
        call, function = calls_[number], functions[number]
        value = given_by(file, call.func, name, function) if call and isinstance(function, FUNCTION) else None
        return dotted(value) or name

    loss = given(1, root.id) if isinstance(root, ast.Name) else ""
    return given(0, optimizer_of(step.row)), {loss} - {""}, {given(1, name) for name in after}


def _forward(
    scene: Scene, above: Sequence[ast.stmt], between: Sequence[ast.stmt], found: _Found
) -> tuple[list[ast.stmt], set[str]]:
    """The statements above a step that compute with the weights, and that the loss is made of; and the names that are
    made of what they compute, below the step."""
    needed, read = found.loss, set[str]()
    for row in reversed(between):
        if names_stored(row) & needed:
            read |= names_stored(row) & needed
            needed = needed | names_read(row)
    parts: list[ast.stmt] = []
    wanted = needed - read
    for row in reversed(above):
        if names_stored(row) & wanted:
            parts.insert(0, row)
            wanted = wanted | names_read(row)
    made, rows = set[str](), list[ast.stmt]()
    for row in parts:
        if names_read(row) & made or _runs(scene, row, found.stepped):
            made |= names_stored(row)
            rows.append(row)
        else:
            made -= names_stored(row)
    return rows, read


def _runs(scene: Scene, row: ast.stmt, modules: set[str]) -> bool:
    """Whether a statement runs one of some modules, itself or by functions of the program."""
    ran = [*run_by(scene, row)]
    methods = {one.name for one in ran if isinstance(one, FUNCTION)}
    found = {one for part in (row, *ran) for one in chains(part)}
    found |= {dotted(owner(one)) for part in (row, *ran) for one in calls(part, *methods)}
    return not found.isdisjoint(modules)


def _can_move(file: File, row: ast.stmt) -> bool:
    """Whether a statement binds plain names to what it computes where gradients are recorded."""
    names = [each for one in targets(row) for each in (one.elts if isinstance(one, (ast.Tuple, ast.List)) else [one])]
    if (
        not isinstance(row, ast.Assign)
        or file.own_lines(row) is None
        or not all(isinstance(n, ast.Name) for n in names)
    ):
        return False
    return not calls(row, "detach", *UNRECORDING)


def _steps(row: ast.stmt) -> bool:
    return hasattr(row, "body") or calls(row, "step", "backward") != []


def _are_terms(file: File, row: ast.stmt, names: Collection[str]) -> bool:
    """Whether a statement reads some names only as a whole, or as terms of a sum: nothing else that a graph may lead to
    is multiplied by them, or given to a function beside them."""
    for use in (one for one in walk(row, ast.Name) if isinstance(one.ctx, ast.Load) and one.id in names):
        node: ast.AST = use
        while (above := file.above[node]) is not row:
            others: list[ast.AST] = []
            if isinstance(above, ast.BinOp) and not isinstance(above.op, (ast.Add, ast.Sub)):
                others = [above.left if node is above.right else above.right]
            elif isinstance(above, ast.Call) and node is not above.func:
                others = [one for one in values(above) if not file.holds(one, node)]
            elif not isinstance(above, (ast.BinOp, ast.Call, ast.UnaryOp, ast.Attribute, ast.Assign, ast.keyword)):
                return False
            if any(_may_carry(file, each, row, names) for one in others for each in walk(one, ast.Name)):
                return False
            node = above
    return True


def _may_carry(file: File, name: ast.Name, at: ast.stmt, names: Collection[str], deep: int = 4) -> bool:
    """Whether a graph may lead to a variable, apart from those of some names."""
    if name.id in names or file.above[name].__class__ is ast.Attribute:
        return False
    value = definition(file, name, at)
    if value is None or deep == 0:
        return name.id in names_stored(file.scope(at))
    heads = [each.context_expr for one in file.around(value) if isinstance(one, WITH) for each in one.items]
    if any(last_name(getattr(one, "func", one)) in UNRECORDING for one in heads):
        return False
    call = value if isinstance(value, ast.Call) else None
    if call is not None and (
        is_untracked(call) or called(call) == "detach" or called(call).removesuffix("_like") in _MADE
    ):
        return False
    return call is not None or any(_may_carry(file, one, at, names, deep - 1) for one in walk(value, ast.Name))
