"""A forward that stands before a loop in which each turn calls `backward`: its lines moved into the loop.

Each turn then computes its loss with the current weights. This is what is meant only if the loss gets its gradient from
these lines alone: where the loop runs the same model, the value from before the loop may be meant as a constant.

Sound where each turn has one backward and steps after it, so that its loss is of older weights in every turn but the
first, and where the lines begin anew each time: they and what they run are known to compute alone, and nothing between
them and the end of the loop changes what they read, or how their models compute. The loss needs nothing else that these
models gave before the loop, and nothing but the loss needs what the lines compute.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from noclobber.mend.change import Change, change
from noclobber.mend.holders.making import module_called
from noclobber.mend.order.run_again import (
    OF_MODELS,
    OF_VALUES,
    acts,
    bound_by,
    changed_by,
    is_same_again,
    models_of,
    rows_between,
)
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Edit
from noclobber.model.seen.operators import DRAWING
from noclobber.syntax.edits import insert, whole_lines, without_retaining
from noclobber.syntax.names import (
    call_of,
    called,
    calls,
    dotted,
    first_name,
    is_part,
    is_read_after,
    is_stored,
    made_of,
    named,
    names_bound,
    names_stored,
    names_used,
    owner,
    targets,
)
from noclobber.syntax.tree import (
    FOR,
    File,
    Function,
    Loop,
    Place,
    has_text_of_lines,
    last_line,
    lines_in,
    walk,
)
from noclobber.syntax.writes import is_of_loss

_NO_FORWARD = (
    "print", "len", "float", "range", "backward", "step", "append", "item", "clip_grad_norm_", "clip_grad_value_",
    *OF_MODELS,
)  # fmt: skip
"""Other calls that are none."""


def moved_in(scene: Scene) -> Iterator[Change]:
    """The assignments before the loop that make the loss, as the first statements of the loop; repeated there, if what
    they compute is used before the loop too.

    `retain_graph=True` is taken away first, as each turn has its own graph; then it stays. Where no optimizer steps and
    each turn has a loss of its own, as for a Jacobian, one graph that is kept costs less.
    """
    read, loop = last_read(scene)
    if read is None or loop is None or not (scene.is_freed or scene.reads_first()):
        return
    file, backwards = read.file, calls(read.row, "backward")
    rows = _forward(file, loop, backwards[0].func) if backwards else []
    if not rows or not _can_run(file, loop, rows, read.row):
        return
    moves = _can_move(file, loop, rows)
    edits, bound = _edits(file, loop, rows, moves=moves), {name for row in rows for name in bound_by(row)}
    is_same = dotted(owner(backwards[0])) in bound
    cost = 0 if calls(loop, "step") or is_same else 2
    title = "run the forward inside the loop" if moves else "run the forward again in the loop"
    retained = [edit for one in backwards if (edit := without_retaining(file, one)) is not None]
    is_sound = steps_alike(loop, loop.body) and read.row in loop.body and is_same_again(scene, file, loop, rows)
    for more in [retained, *[[]] * bool(retained)] if edits else []:
        sound = is_sound and more is retained
        yield from change(title, [*edits, *more], cost + (not moves), is_sound=sound, way="anew")


def last_read(scene: Scene) -> tuple[Place | None, Loop | None]:
    """The backward that fails, and the innermost loop around it."""
    read = next(reversed(scene.places("read")), None)
    return read, next(iter(read.file.loops(read.row)), None) if read is not None else None


def _forward(file: File, loop: Loop, loss: ast.expr) -> list[ast.Assign]:
    """The assignments before a loop, in or below its block, that compute with weights and that the loss is made of."""
    above = file.block(loop)
    models, made = models_of(file, loop), set[str]()
    found: list[ast.Assign] = []
    for row in (one for each in above[: above.index(loop)] for one in walk(each, ast.Assign)):
        if file.scope(row) is file.scope(loop) and _computes(file, row.value, models | made):
            found.append(row)
            made |= bound_by(row)
    needed = made_of(names_bound(loss), loop)
    slice_: list[ast.Assign] = []
    for row in reversed(found):
        if bound_by(row) & needed - {name for one in slice_ for name in bound_by(one)}:
            slice_.insert(0, row)
            needed |= names_used(row.value)
    return slice_


def _computes(file: File, value: ast.expr, models: set[str]) -> bool:
    """Return True if an expression computes with a model or with what one gave, and not only asks for its weights."""
    found = (one for one in named(value) if dotted(one) in models)
    return any(not (_is_asked(file.above[one]) or _is_gradient(file, one) or acts(file, one)) for one in found)


def _is_asked(above: ast.AST) -> bool:
    return isinstance(above, ast.Attribute) and above.attr in (*OF_MODELS, "to", "cuda", "detach")


def _can_run(file: File, loop: Loop, rows: Sequence[ast.Assign], read: ast.stmt) -> bool:
    """Return True if the rows do in the loop what they did before it, and the loss has no other forward in the loop."""
    bound = {name for row in rows for name in bound_by(row)}
    if any(file.own_lines(row) is None or has_text_of_lines(row) for row in (*rows, loop.body[0])):
        return False
    if any(not isinstance(one, ast.Name) for row in rows for one in targets(row)):
        return False
    if any(_makes_object(file, one) or called(one) in DRAWING for row in rows for one in walk(row, ast.Call)):
        return False
    if _is_object_in(loop, bound):
        return False
    between = [one for one in rows_between(file, loop, rows) if one not in rows]
    for row in rows:
        passed = [one for one in between if one.lineno > row.lineno]
        if changed_by([*passed, *loop.body]) & {*names_used(row.value), *bound_by(row)}:
            return False
    head = {*names_used(loop.iter), *names_used(loop.target)} if isinstance(loop, FOR) else names_used(loop.test)
    if head & {name for row in rows for name in names_used(row)}:
        return False
    models = models_of(file, loop)
    others = {one for one in models if not any(is_part(one, dotted(each)) for row in rows for each in named(row.value))}
    needed = made_of({name for one in calls(read, "backward") for name in names_bound(one.func)}, loop)
    makes = [one for one in walk(loop, ast.stmt) if not hasattr(one, "body") and needed & names_stored(one)]
    return not any(_computes_anew(file, one, models, others) for row in (*makes, read) for one in walk(row, ast.Call))


def steps_alike(around: Loop | Function, rows: Sequence[ast.stmt]) -> bool:
    """Return True if a loop or a function steps and calls `backward` only in a block of it, once each time that the
    block runs, and comes to its end before another one begins."""
    steps = [one for one in calls(around, "step") if not one.args and not one.keywords]  # and not `env.step(action)`
    each = all(any(call_of(row) is one for row in rows) for one in steps)
    once = len(calls(around, "backward", "grad")) == 1 and steps != [] and each
    left = [one for one in walk(around, ast.Continue, ast.Try, ast.Return) if one is not rows[-1]]
    return once and all(isinstance(one, ast.Return) and not _is_among(one, rows) for one in left)


def _is_among(node: ast.stmt, rows: Sequence[ast.stmt]) -> bool:
    return any(node in ast.walk(one) for one in rows)


def _can_move(file: File, loop: Loop, rows: Sequence[ast.Assign]) -> bool:
    """Return True if nothing but the loop needs what some rows compute before it."""
    bound, above = {name for row in rows for name in bound_by(row)}, file.block(loop)
    between = [one for one in rows_between(file, loop, rows) if one not in rows]
    if not set(rows) <= set(above) or any(names_used(row) & bound for row in between):
        return False
    if any(called(one) != "zero_grad" for row in between for one in calls(row, "backward", "step", *OF_MODELS)):
        return False
    runs = isinstance(loop, FOR) and called(loop.iter) == "range"
    return runs or not any(is_read_after(file, name, file.scope(loop), last_line(loop)) for name in bound)


def _makes_object(file: File, call: ast.Call) -> bool:
    """Return True if a call makes an object of a class, which each turn would begin anew. A loss keeps nothing, and
    `G(z)` calls what a variable holds."""
    name = called(call)
    is_class = name[:1].isupper() and not name.endswith("Loss")
    return is_class and not any(one.id == name and is_stored(file, one) for one in walk(file.tree, ast.Name))


def _is_object_in(loop: Loop, names: set[str]) -> bool:
    """Return True if a loop calls one of these names, or a method of it that no value has: it may keep something."""
    return any(
        dotted(one.func) in names or (dotted(owner(one)) in names and called(one) not in OF_VALUES)
        for one in walk(loop, ast.Call)
    )


def _computes_anew(file: File, call: ast.Call, models: set[str], others: set[str]) -> bool:
    """Return True if a call may compute with weights, but for a model among the `others`: it mentions a model, or runs
    a function that is not known."""
    if called(call) in _NO_FORWARD or dotted(call.func) in others:
        return False
    is_plain = isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)
    is_unknown = (owner(call) is None and not is_plain) or first_name(owner(call)) == "self"
    if (made := module_called(file, call)) is not None:
        is_unknown = not models.isdisjoint(map(dotted, named(made)))
    return _computes(file, call, models - others) or (is_unknown and not is_of_loss(file, call))


def _is_gradient(file: File, node: ast.expr) -> bool:
    """Return True for a part of a gradient: `net` of `net[0].weight.grad.norm()`."""
    above = file.above[node]
    while isinstance(above, (ast.Attribute, ast.Subscript)):
        if isinstance(above, ast.Attribute) and above.attr == "grad":
            return True
        above = file.above[above]
    return False


def _edits(file: File, loop: Loop, rows: Sequence[ast.Assign], *, moves: bool) -> tuple[Edit, ...]:
    inner = file.indent(loop.body[0])
    if inner is None or loop.body[0].lineno == loop.lineno:
        return ()
    lines = [(file.line(number), file.indent(row) or "") for row in rows for number in lines_in(row)]
    text = "".join(f"{inner}{line.removeprefix(indent)}\n" if line.strip() else "\n" for line, indent in lines)
    gone = [whole_lines(file, row.lineno, last_line(row)) for row in rows if moves]
    first = min((one.lineno for one in getattr(loop.body[0], "decorator_list", ())), default=loop.body[0].lineno)
    return (*gone, insert(file, first, 1, text))
