"""A forward that stands above a step, whose backward comes below it: its lines put below the step, just above where
their result is first read; repeated there, if something reads the result before that.

The backward then reads the weights that the step left. Sound where the forward, the step and the backward are
statements of one block, or of functions that are called there, and
- the loss is what the lines compute, or a sum in which they are whole terms: as a constant, a term would have no
  gradient, so it is not meant to be detached, as an advantage or a target is,
- another optimizer steps after that backward: with the same one, one backward for both losses may be meant. The
  gradients of the first one are zeroed above its own backward, so that nothing of this one is left in them,
- what stands in between is known to compute only, to step, and to clip weights: it changes nothing that the lines read,
  and no model's mode,
- the lines, and the functions that they call, keep nothing in modules. What is repeated draws no numbers and runs no
  dropout and no norm over batches, and its result is read no more below the backward.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from noclobber.mend.change import Change, change
from noclobber.mend.holders.giving import given_by
from noclobber.mend.holders.making import METHODS, is_method
from noclobber.mend.order.repeating import is_noisy, keeps_state, repeats
from noclobber.mend.order.trained_models import chains
from noclobber.mend.scene import Scene, run_by
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.operators import DRAWING
from noclobber.syntax.edits import insert, lines_of, text_of_lines, whole_lines
from noclobber.syntax.names import (
    call_of,
    called,
    calls,
    dotted,
    is_read_below,
    is_untracked,
    names_in,
    names_read,
    names_stored,
    names_used,
    optimizer_of,
    owner,
    parameters,
    targets,
    uses_in,
    values,
)
from noclobber.syntax.tree import FUNCTION, File, Place, functions, simple_statements, starts, walk
from noclobber.syntax.writes import NAMESPACES, changed_by

_PASSED = frozenset(
    "backward clamp_ clip_grad_norm_ clip_grad_value_ item no_grad print step zero_grad zip".split()  # noqa: SIM905
)
"""What may be called between the two places, beside what only computes."""
_SAMPLING = (*DRAWING, "rsample", "sample", "normal_", "uniform_")
_LINEAR = frozenset("mean sum neg squeeze unsqueeze view reshape flatten float double".split())  # noqa: SIM905
"""Methods by which a sum stays one."""


def below_step(scene: Scene) -> Iterator[Change]:
    """The lines of the forward, below the step."""
    found = _found(scene)
    if found is None or scene.reads_first() or keeps_state(scene):
        return
    file, rows, first, second, *_ = found
    forward = _forward(scene, rows[:first], rows[first + 1 : second], found)
    bound = changed_by(*forward)
    made = bound.copy()
    for row in rows[first + 1 : second]:
        made |= names_stored(row) if names_read(row) & made else set()
    at = next((n for n in range(first + 1, second + 1) if names_read(rows[n]) & bound), second)
    if not forward or not all(_can_move(file, one) for one in forward) or bound & changed_by(*rows[first:second]):
        return
    if file.indent(rows[at]) is None or any(map(_steps, rows[at:second])):
        return
    passed = [one for one in rows[rows.index(forward[0]) : at] if one not in forward]
    used = set[str]().union(*map(names_used, forward))
    if changed_by(*passed) & used or not _only_trains(scene, file, passed, forward, found):
        return
    whole = rows[second : second + 1] if calls(rows[second], "backward") else []
    if not all(_are_terms(scene, file, row, made, found) for row in (*forward, *rows[at:second], *whole)):
        return
    stays = any(names_read(row) & bound for row in passed)
    if stays and not _can_repeat(scene, file, forward, rows[second], found):
        return
    text = "".join(_text(file, one, stays=stays) for one in forward)
    gone = [] if stays else [whole_lines(file, *lines_of(file, one)) for one in forward]
    title = f"run the forward {'again, ' * stays}below the step"
    put = insert(file, lines_of(file, rows[at])[0], 1, text)
    yield from change(title, [*gone, put], 1 + stays, is_sound=True, way="anew")


def _only_trains(
    scene: Scene, file: File, passed: Sequence[ast.stmt], forward: Sequence[ast.stmt], found: _Found
) -> bool:
    """Whether what stands in between only computes, draws, and trains: so that it changes nothing but weights. It draws
    no numbers, where the forward does too."""
    ran = [*forward, *(each for one in forward for each in run_by(scene, one))]
    own = {one.name for each in scene.files for one in functions(each.tree)}
    also = (_PASSED | ({*DRAWING} if not any(calls(one, *_SAMPLING) for one in ran) else set[str]())) - own
    rest = [one for one in passed if optimizer_of(one) not in found.optimizers]
    return repeats(scene, file, rest, found.models, also)


def _text(file: File, row: ast.stmt, *, stays: bool) -> str:
    """The lines of a statement; without its comments, if it also stays where it is."""
    return f"{file.indent(row)}{file.source(row)}\n" if stays else f"{text_of_lines(file, *lines_of(file, row))}\n"


class _Found(NamedTuple):
    """A block, where the step and the backward stand in it or are called, the names of the loss, the modules whose
    weights are stepped between them, all modules that are trained, and what trains them."""

    file: File
    rows: list[ast.stmt]
    first: int
    second: int
    loss: set[str]
    stepped: set[str]
    models: set[str]
    optimizers: set[str]


def _found(scene: Scene) -> _Found | None:
    """What the block has that leads to the step, and below it to the backward; None unless another optimizer steps
    what that backward belongs to."""
    event, places = scene.finding.event, scene.step_and_backward()
    if not isinstance(event, Clobber) or places is None:
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
    optimizers = {each.name: each for each in event.optimizers if not each.shares}
    if not {mine, *after} <= {*optimizers} or mine in after or not after or not loss:
        return None
    if not _is_zeroed(step, optimizer_of(step.row), optimizers[mine].module):
        return None
    passed = {ast.unparse(each) for row in rows[first:second] for each in walk(row, ast.Name, ast.Attribute)} | {mine}
    touched = [{*each.touched} for each in optimizers.values() if each.name in passed - after]
    models = {name for each in optimizers.values() for name in each.touched}
    return _Found(file, rows, first, second, loss, set[str]().union(*touched), models, {*optimizers})


def _handed(step: Place, read: Place, one: ast.stmt, other: ast.stmt) -> tuple[str, set[str], set[str]]:
    """The optimizer that a call hands to the function that steps, and the loss and the optimizer that another call
    hands to the function that goes backward and steps, which may be the same."""
    back, handing = call_of(read.row), (call_of(one), call_of(other))
    scopes = [each.file.scope(each.row) for each in (step, read)]
    after = {optimizer_of(each) for each in simple_statements(scopes[1]) if starts(each) > starts(read.row)} - {""}
    root = owner(back)

    def given(number: int, name: str) -> str:
        call, function = handing[number], scopes[number]
        if call is None or not isinstance(function, FUNCTION) or not name:
            return ""
        expression = ast.parse(name, mode="eval")
        for one in (each for each in walk(expression, ast.Name) if each.id in parameters(function)):
            value = owner(call) if one.id == "self" else given_by(read.file, call.func, one.id, function)
            if value is None:
                return ""
            name = re.sub(rf"\b{one.id}\b", ast.unparse(value).replace("\\", r"\\"), name)
        return name

    loss = given(1, root.id) if isinstance(root, ast.Name) else ""
    return given(0, optimizer_of(step.row)), {loss} - {""}, {given(1, name) for name in after}


def _is_zeroed(step: Place, optimizer: str, module: str) -> bool:
    """Whether the gradients that a step uses are zeroed above the backward which makes them."""
    file, scope = step.file, step.file.scope(step.row)
    above = [one for one in calls(scope, "zero_grad", "backward") if starts(one) < starts(step.row)]
    around = next(iter(file.loops(step.row)), scope)
    above = [one for one in above if file.holds(around, one)]
    of = [ast.unparse(held) for one in above if called(one) == "zero_grad" and (held := owner(one)) is not None]
    return {optimizer, module} & {*of} != set() and called(above[-1]) == "backward"


def _forward(scene: Scene, above: Sequence[ast.stmt], between: Sequence[ast.stmt], found: _Found) -> list[ast.stmt]:
    """The statements above a step that compute with the weights, and that the loss is made of."""
    needed, parts = found.loss, list[ast.stmt]()
    for row in reversed(between):
        if names_stored(row) & needed:
            needed = (needed - names_stored(row)) | names_read(row)
    for row in reversed(above):
        if names_stored(row) & needed:
            parts.insert(0, row)
            needed = needed | names_read(row)
    made, rows = set[str](), list[ast.stmt]()
    for row in parts:
        if names_read(row) & made or _runs(scene, row, found.stepped):
            made |= names_stored(row)
            rows.append(row)
        else:
            made -= names_stored(row)
    return rows


def _runs(scene: Scene, row: ast.AST, modules: set[str]) -> bool:
    """Whether a statement runs one of some modules, itself or by functions of the program."""
    ran = [*run_by(scene, row)]
    methods = {one.name for one in ran if isinstance(one, FUNCTION)}
    found = {one for part in (row, *ran) for one in chains(part)}
    found |= {dotted(owner(one)) for part in (row, *ran) for one in calls(part, *methods)}
    return not found.isdisjoint(modules)


def _can_move(file: File, row: ast.stmt) -> bool:
    """Whether a statement binds plain names to what it computes where gradients are recorded."""
    names = [each for one in targets(row) for each in (one.elts if isinstance(one, (ast.Tuple, ast.List)) else [one])]
    is_plain = isinstance(row, ast.Assign) and all(isinstance(one, ast.Name) for one in names)
    return is_plain and file.own_lines(row) is not None and not calls(row, "detach", "grad", "next")


def _can_repeat(scene: Scene, file: File, forward: Sequence[ast.stmt], read: ast.stmt, found: _Found) -> bool:
    """Whether statements give the same each time, but for the weights, and nothing reads below the backward what they
    bind, also in the next turn of a loop."""
    if is_noisy(scene) or not repeats(scene, file, forward, found.models):
        return False
    bound = changed_by(*forward)
    again = [one for loop in file.loops(read) for name in bound for one in uses_in(loop, name, ast.Load)]
    early = any(starts(one) < starts(forward[0]) for one in again)
    return not early and not any(is_read_below(file, name, read) for name in bound)


def _steps(row: ast.stmt) -> bool:
    return hasattr(row, "body") or calls(row, "step", "backward") != []


def _are_terms(scene: Scene, file: File, row: ast.stmt, names: Collection[str], found: _Found) -> bool:
    """Whether a statement reads some names, or runs the stepped modules, only as a whole, or as terms of a sum: nothing
    else that a graph may lead to is multiplied by them, or given to a function beside them."""
    parts: list[ast.expr] = [one for one in walk(row, ast.Name) if isinstance(one.ctx, ast.Load) and one.id in names]
    parts += [
        one for one in walk(row, ast.Call) if not is_method(one, of=METHODS) and _runs(scene, one.func, found.stepped)
    ]
    is_sum = not isinstance(row, ast.AugAssign) or isinstance(row.op, (ast.Add, ast.Sub))
    return not parts or (is_sum and all(_is_term(scene, file, row, one, names) for one in parts))


def _is_term(scene: Scene, file: File, row: ast.stmt, node: ast.AST, names: Collection[str]) -> bool:
    is_sum = False
    """Whether something else that a graph leads to was added."""
    while (above := file.above[node]) is not row:
        others: list[ast.AST] = []
        if isinstance(above, ast.BinOp):
            others = [above.left if node is above.right else above.right]
            carries = any(_may_carry(scene, file, one, names) for one in others)
            if carries and not isinstance(above.op, (ast.Add, ast.Sub)):
                return False
            if is_sum and not isinstance(above.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
                return False
            is_sum |= carries
        elif isinstance(above, ast.Call) and node is above.func:
            if is_sum and called(above) not in _LINEAR | {"backward"}:
                return False
        elif isinstance(above, ast.Call):
            others = [one for one in values(above) if not file.holds(one, node)]
            if any(_may_carry(scene, file, one, names) for one in others) or (is_sum and called(above) not in _LINEAR):
                return False
        elif not isinstance(above, (ast.UnaryOp, ast.Attribute, ast.Subscript, ast.keyword, ast.Starred, ast.Tuple)):
            return False
        node = above
    return True


def _may_carry(scene: Scene, file: File, value: ast.AST, names: Collection[str]) -> bool:
    """Whether a graph may lead to a value, apart from some names: it has more than constants, as they were seen, and
    what makes such."""
    event = scene.finding.event
    constants = {*(event.constants if isinstance(event, Clobber) else ()), *NAMESPACES, *names}
    ended = [one for one in walk(value, ast.Call) if is_untracked(one)]
    inside = {each for one in ended for each in ast.walk(one)}
    left = [one for one in walk(value, ast.Name, ast.Attribute, ast.Call) if one not in inside]
    for one in left:
        if isinstance(one, ast.Call):
            if not is_method(one, of=METHODS) and dotted(owner(one)) not in NAMESPACES:
                return True
        elif dotted(one) not in constants and not isinstance(file.above[one], ast.Attribute):
            if not (isinstance(file.above[one], ast.Call) and getattr(file.above[one], "func", None) is one):
                return True
        elif (
            isinstance(file.above[one], ast.Attribute)
            and isinstance(one, ast.Name)
            and one.id not in constants | {"self"}
        ):
            return True
    return False
