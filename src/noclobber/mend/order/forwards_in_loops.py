"""A forward that stands before loops in which each turn calls `backward`: its lines moved into the innermost loop. A
closure that an optimizer calls again and again is a loop as well.

Each turn then computes its loss with the current weights. This is what is meant only if the loss gets its gradient from
these lines alone: where the loop runs the same model, the value from before the loop may be meant as a constant.

Sound where nothing but the closure or the loop needs what the lines compute, which bind each name once; each turn of
the loop calls `backward` on a loss of theirs, once, and steps. The lines are known to compute the same each time
(repeating.py), no part of them is a constant, and no context that may keep casts or weights is around. A closure runs
no dropout and no norm over batches: what it gives has to be one function.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from noclobber.mend.change import Change, change
from noclobber.mend.holders.making import function_called, module_called
from noclobber.mend.order.repeating import is_noisy, keeps_state, repeats
from noclobber.mend.order.trained_models import (
    OF_MODELS,
    OF_VALUES,
    acts,
    mentions_models,
    models_of,
    models_run,
    rows_between,
    stepped_by_hand,
)
from noclobber.mend.scene import Scene, run_by
from noclobber.model.reports.finding import Edit
from noclobber.model.seen.operators import DRAWING
from noclobber.rules.shared.carrying import turns_of
from noclobber.syntax.edits import insert, whole_lines, without_retaining
from noclobber.syntax.names import (
    call_of,
    called,
    calls,
    dotted,
    first_name,
    is_declared,
    is_read_below,
    is_stored,
    last_name,
    made_of,
    named,
    names_in,
    names_stored,
    names_used,
    owner,
    root_of,
    targets,
    uses_in,
)
from noclobber.syntax.tree import (
    COMPREHENSION,
    FOR,
    FUNCTION,
    WITH,
    File,
    Function,
    Loop,
    Place,
    Turns,
    ends,
    first_line,
    has_text_of_lines,
    last_line,
    lines_in,
    simple_statements,
    starts,
    walk,
)
from noclobber.syntax.writes import changed_by, descends, is_of_loss

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
    read, inner = last_read(scene)
    if read is None or inner is None or not (scene.is_freed or scene.reads_first()):
        return
    file, backwards = read.file, calls(read.row, "backward")
    needed = names_in(backwards[0].func) if backwards else set[str]()
    found = ((one, _forward(scene, file, one, needed)) for one in (inner, *file.loops(inner)))
    loop, rows = next((pair for pair in found if pair[1]), (inner, []))
    if not rows or not _can_run(file, loop, inner, rows):
        return
    runs_models = _runs_models(scene, file, loop, rows, read.row)
    if runs_models and not isinstance(inner, FUNCTION):
        return
    moves = _can_move(file, loop, inner, rows)
    edits, bound = _edits(file, inner, rows, moves=moves), changed_by(*rows)
    is_same = dotted(owner(backwards[0])) in bound
    stepped = {first_name(owner(one)) for one in calls(loop, "step")}
    cost = 0 if stepped or is_same or isinstance(loop, FUNCTION) else 2
    if isinstance(inner, FOR) and not stepped.isdisjoint(names_in(inner.target)):
        cost = 5  # each turn steps an optimizer of its own: the losses may all be of the weights before
    is_turn = isinstance(inner, FUNCTION) or (
        loop is inner and is_same and steps_alike(file, inner, file.block(read.row))
    )
    is_sound = moves and cost == 0 and not runs_models and is_turn and _is_plain(scene, file, loop, rows)
    where = "closure" if isinstance(inner, FUNCTION) else "loop"
    title = f"run the forward inside the {where}" if moves else f"run the forward again in the {where}"
    retained = [edit for one in backwards if (edit := without_retaining(file, one)) is not None]
    for kept in [retained, *[[]] * bool(retained)] if edits else []:
        is_first = len(kept) == len(retained)
        yield from change(title, [*edits, *kept], cost + (not moves), is_sound=is_sound and is_first, way="anew")


def last_read(scene: Scene) -> tuple[Place | None, Turns | None]:
    """The backward that fails, and what runs it again and again; of a closure its own backward, which may not be what
    fails."""
    read = next(reversed(scene.places("read")), None)
    turns = turns_of(read)
    if read is not None and isinstance(turns, FUNCTION) and read.file.scope(read.row) is not turns:
        read = next((Place(read.file, one) for one in reversed(calls(turns, "backward"))), None)
    return read, turns


def _forward(scene: Scene, file: File, loop: Turns, needed: set[str]) -> list[ast.Assign]:
    """The assignments before a loop, in or below its block, that compute with weights and that the loss is made of."""
    above = file.block(loop)
    models, made = models_of(file, loop), set[str]()
    found: list[ast.Assign] = []
    for row in (one for each in above[: above.index(loop)] for one in walk(each, ast.Assign)):
        if file.scope(row) is file.scope(loop) and _records(scene, file, row, models | made):
            found.append(row)
            made |= changed_by(row)
    needed = made_of(needed, loop)
    slice_: list[ast.Assign] = []
    for row in reversed(found):
        if changed_by(row) & needed - changed_by(*slice_):
            slice_.insert(0, row)
            needed |= names_used(row.value)
    return slice_


def _records(scene: Scene, file: File, row: ast.Assign, models: set[str]) -> bool:
    """Return True if an assignment computes with a model where gradients are recorded, itself or by functions."""
    value: ast.expr = row.value
    while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
        if last_name(value) in ("detach", "data"):
            return False
        value = value.func if isinstance(value, ast.Call) else value.value
    ran = [one for one in run_by(scene, row.value) if isinstance(one, FUNCTION)]
    heads = [each.context_expr for one in file.around(row) if isinstance(one, WITH) for each in one.items]
    if any(last_name(each) in ("no_grad", "inference_mode") for one in (*heads, *ran) for each in named(one)):
        return False
    return _computes(file, row.value, models) or any(mentions_models(one, models) for one in ran)


def _computes(file: File, value: ast.expr, models: set[str]) -> bool:
    """Return True if an expression computes with a model or with what one gave, and not only asks for its weights."""
    found = (one for one in named(value) if dotted(one) in models)
    found = (one for one in found if getattr(file.above[one], "attr", "") not in (*OF_MODELS, "to", "cuda", "detach"))
    return any(not (_is_gradient(file, one) or acts(file, one)) for one in found)


def _can_run(file: File, loop: Turns, inner: Turns, rows: Sequence[ast.Assign]) -> bool:
    """Return True if the rows do in the loop what they did before it."""
    bound = changed_by(*rows)
    if any(file.own_lines(row) is None or has_text_of_lines(row) for row in (*rows, inner.body[0])):
        return False
    if any(not isinstance(one, ast.Name) for row in rows for one in targets(row)):
        return False
    if any(_makes_object(file, one) or called(one) in DRAWING for row in rows for one in walk(row, ast.Call)):
        return False
    if _is_object_in(loop, bound):
        return False
    between = [one for one in rows_between(file, loop, rows) if one not in rows]
    below = file.block(loop)[file.block(loop).index(loop) :] if isinstance(loop, FUNCTION) else loop.body
    in_place = stepped_by_hand(file, loop)
    for row in rows:
        passed = [one for one in between if one.lineno > row.lineno]
        if (changed_by(*passed, *below) - in_place) & {*names_used(row.value), *changed_by(row)}:
            return False
    heads = [one for one in (inner, *file.loops(inner)) if one.lineno >= loop.lineno]
    used = set[str]().union(*map(names_used, rows))
    return not any(_head(file, one, bound) & used for one in heads) and not any(is_declared(loop, one) for one in bound)


def _head(file: File, loop: Turns, bound: set[str]) -> set[str]:
    """The names that rows before a loop must not have: what its head binds, and what it takes its items from. A range
    or a function of the file may be given what the rows read, too, but none of the names `bound` by them."""
    if not isinstance(loop, FOR):
        return names_used(loop.args if isinstance(loop, FUNCTION) else loop.test)
    made = loop.iter if isinstance(loop.iter, ast.Call) else None
    makes = made is not None and (called(made) == "range" or function_called(file, made.func, made) is not None)
    return names_used(loop.target) | (names_used(loop.iter) & bound if makes else names_used(loop.iter))


def _runs_models(scene: Scene, file: File, loop: Turns, rows: Sequence[ast.Assign], read: ast.stmt) -> bool:
    """Return True if the loss may have another forward in the loop, of a model that the rows run."""
    models = models_of(file, loop)
    others = models - models_run(scene, rows, models)
    needed = made_of({name for one in calls(read, "backward") for name in names_in(one.func)}, loop)
    makes = [one for one in simple_statements(loop) if needed & names_stored(one)]
    found = [one for row in (*makes, read) for one in walk(row, ast.Call)]
    ran = [(each, one) for call in found for one in run_by(scene, call) for each in scene.files if one in each.above]
    of_files = {getattr(one, "name", "") for _, one in ran}
    inside = [(each, one) for each, function in ran for one in walk(function, ast.Call)]
    return any(mentions_models(one, models - others) for _, one in ran) or any(
        called(one) not in of_files and _computes_anew(each, one, models, others)
        for each, one in (*((file, one) for one in found), *inside)
    )


def steps_alike(file: File, around: Loop | Function, rows: Sequence[ast.stmt]) -> bool:
    """Return True if a loop or a function steps and calls `backward` only in a block of it, once each time that the
    block runs, and comes to its end before another one begins. By hand it may step several weights, one by one."""
    steps: list[ast.AST] = [one for one in simple_statements(around) if descends(file, one)]
    each = all(any(one in ast.walk(row) for row in rows) for one in steps)
    called_for = [one for one in calls(around, "step") if not one.args and not one.keywords]  # not `env.step(action)`
    each &= all(any(call_of(row) is one for row in rows) for one in called_for)
    steps += called_for
    once = len(calls(around, "backward", "grad")) == 1 and steps != [] and each
    left = [one for one in walk(around, ast.Continue, ast.Try, ast.Return) if one is not rows[-1]]
    return once and all(isinstance(one, ast.Return) and not any(one in ast.walk(row) for row in rows) for one in left)


def _can_move(file: File, loop: Turns, inner: Turns, rows: Sequence[ast.Assign]) -> bool:
    """Return True if nothing but the loop needs what some rows compute before it."""
    bound, above = changed_by(*rows), file.block(loop)
    between = [one for one in rows_between(file, loop, rows) if one not in rows and one.lineno < loop.lineno]
    if not set(rows) <= set(above) or any(names_used(row) & bound for row in between):
        return False
    if any(called(one) != "zero_grad" for row in between for one in calls(row, "backward", "step", *OF_MODELS)):
        return False
    runs = isinstance(loop, FOR) and called(loop.iter) == "range" and loop is inner
    return runs or not any(is_read_below(file, name, loop) for name in bound)


def _is_plain(scene: Scene, file: File, loop: Turns, rows: Sequence[ast.Assign]) -> bool:
    """Return True if some rows before a loop are known to compute in it what they are meant to, as the head of this
    file says."""
    bound, scope, above = changed_by(*rows), file.scope(loop), file.block(loop)
    between = [one for one in above[: above.index(loop)] if one.lineno >= rows[0].lineno and one not in rows]
    is_closure, ran = isinstance(loop, FUNCTION), [one for row in rows for one in run_by(scene, row)]
    names = set[str]().union(*map(names_used, (*rows, *ran)))
    compared = any(next(walk(one, ast.Compare), None) is not None for one in (*rows, *ran))
    whole = {name.lower() for each in scene.files for name in names_used(each.tree)}
    return (
        not _is_made_besides(file, loop, rows)
        and not _compares_forwards(scene, file, loop, rows)
        and all(len(uses_in(scope, one, ast.Store)) == 1 for one in bound)
        and all(isinstance(one, (ast.Assign, ast.Expr)) and not list(run_by(scene, one)) for one in between)
        and not any(starts(use) > ends(loop) for one in bound for use in uses_in(scope, one))
        and not compared
        and _CONSTANT.isdisjoint(names)
        and file.nearest(loop, *WITH) is None
        and not getattr(scope, "decorator_list", [])
        and whole.isdisjoint(_KEEPING)
        and calls(loop, "eval", "train") == []
        and not (is_closure and is_noisy(scene))
        and repeats(scene, file, rows, models_of(file, loop))
        and not keeps_state(scene)
    )


def _is_made_besides(file: File, loop: Turns, rows: Sequence[ast.Assign]) -> bool:
    """Return True if something that rows before a loop read is filled, summed up or listed there: that may be a part of
    the forward as well."""
    used, models = set[str]().union(*(names_in(row.value) for row in rows)), models_of(file, loop)
    above = file.block(loop)
    for row in (one for each in above[: above.index(loop)] for one in simple_statements(each) if one not in rows):
        call = call_of(row)
        filled = row.target if isinstance(row, ast.AugAssign) else owner(call)
        parts = [one for one in targets(row) if isinstance(one, (ast.Subscript, ast.Attribute))]
        roots = {one.id for one in map(root_of, (filled, *parts)) if isinstance(one, ast.Name)}
        if roots & used and called(call) not in (*OF_MODELS, "to", "cuda", "manual_seed"):
            return True
        models |= names_stored(row) if calls(row, "parameters", "named_parameters") else set()
        lists = next(walk(row, *COMPREHENSION), None) is not None
        if lists and names_stored(row) & used and names_in(row) & models:
            return True
    return False


def _compares_forwards(scene: Scene, file: File, loop: Turns, rows: Sequence[ast.Assign]) -> bool:
    """Return True if more than one row computes with the same weights, or several models are run: the value of one may
    be meant as a constant, as an old log-probability, or an advantage, is."""
    models = models_of(file, loop)
    ran = [one for row in rows for one in models_run(scene, [row], models)]
    called_by_name = {dotted(one.func) for row in rows for one in walk(row.value, ast.Call)} & models
    return len(set(ran)) < len(ran) or len(called_by_name) > 1


_KEEPING = ("autocast", "cached")
"""Names of what keeps casts of weights, or what parametrizations make of them, from one turn to the next."""
_CONSTANT = frozenset(
    """
    argmax argsort data deepcopy detach float floor inference_mode item no_grad numpy round sign sort state_dict tolist
    topk
    """.split()  # noqa: SIM905
)
"""Names that make a part of a loss a constant: it may be meant to stay what it was before the loop."""


def _makes_object(file: File, call: ast.Call) -> bool:
    """Return True if a call makes an object of a class, which each turn would begin anew. A loss keeps nothing, and
    `G(z)` calls what a variable holds."""
    name = called(call)
    is_class = name[:1].isupper() and not name.endswith("Loss")
    return is_class and not any(is_stored(file, one) for one in uses_in(file.tree, name))


def _is_object_in(loop: Turns, names: set[str]) -> bool:
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


def _edits(file: File, loop: Turns, rows: Sequence[ast.Assign], *, moves: bool) -> tuple[Edit, ...]:
    begin = loop.body[bool(isinstance(loop, FUNCTION) and ast.get_docstring(loop) and loop.body[1:])]
    inner = file.indent(begin)
    if inner is None or begin.lineno == loop.lineno:
        return ()
    lines = [(file.line(number), file.indent(row) or "") for row in rows for number in lines_in(row)]
    text = "".join(f"{inner}{line.removeprefix(indent)}\n" if line.strip() else "\n" for line, indent in lines)
    gone = [whole_lines(file, row.lineno, last_line(row)) for row in rows if moves]
    return (*gone, insert(file, first_line(begin), 1, text))
