"""A forward that stands before a loop in which each turn calls `backward`: its lines moved into the loop.

Each turn then computes its loss with the current weights. This is what is meant only if the loss gets its gradient from
these lines alone: where the loop runs the same model, the value from before the loop may be meant as a constant.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from noclobber.mend.change import Change, change
from noclobber.mend.holders.making import HANDING_ON, KEEPING_NOTHING, METHODS, function_called
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Edit
from noclobber.syntax.edits import insert, whole_lines, without_retaining
from noclobber.syntax.names import (
    called,
    calls,
    definition,
    dotted,
    first_name,
    is_part,
    is_read_after,
    last_name,
    made_of,
    named,
    names_bound,
    names_used,
    owner,
    targets,
)
from noclobber.syntax.tree import FOR, File, Loop, Place, has_text_of_lines, last_line, lines_in, walk
from noclobber.syntax.writes import base_of, is_of_loss, writes, written_by

_OF_MODELS = ("parameters", "named_parameters", "zero_grad", "train", "eval")
"""Methods that show what has weights, and that are no forward."""
_NO_FORWARD = (
    "print", "len", "float", "range", "backward", "step", "append", "item", "clip_grad_norm_", "clip_grad_value_",
    *_OF_MODELS,
)  # fmt: skip
"""Other calls that are none."""


_LOAD = ast.Load()
_OF_VALUES = METHODS | KEEPING_NOTHING | HANDING_ON | {"cdf", "entropy", "icdf", "log_prob", "rsample", "sample"}
"""Methods of tensors and of distributions."""


def moved_in(scene: Scene) -> Iterator[Change]:
    """The assignments before the loop that make the loss, as the first statements of the loop.

    `retain_graph=True` is taken away first, as each turn has its own graph; then it stays. Where no optimizer steps and
    each turn has a loss of its own, as for a Jacobian, one graph that is kept costs less.
    """
    read, loop = last_read(scene)
    if read is None or loop is None or not (scene.is_freed or scene.reads_first()):
        return
    file, backwards = read.file, calls(read.row, "backward")
    rows = _forward(file, loop, backwards[0].func) if backwards else []
    if not rows or not _can_move(file, loop, rows):
        return
    edits, bound = _edits(file, loop, rows), {name for row in rows for name in _bound(row)}
    is_same = dotted(owner(backwards[0])) in bound
    cost = 0 if calls(loop, "step") or is_same else 2
    retained = [edit for one in backwards if (edit := without_retaining(file, one)) is not None]
    for more in [retained, *[[]] * bool(retained)] if edits else []:
        yield from change("run the forward inside the loop", [*edits, *more], cost, way="anew")


def last_read(scene: Scene) -> tuple[Place | None, Loop | None]:
    """The backward that fails, and the innermost loop around it."""
    read = next(reversed(scene.places("read")), None)
    return read, next(iter(read.file.loops(read.row)), None) if read is not None else None


def _forward(file: File, loop: Loop, loss: ast.expr) -> list[ast.Assign]:
    """The assignments before a loop, in its block, that compute with weights and that the loss is made of."""
    above = file.block(loop)
    models, made = _models(file, loop), set[str]()
    found: list[ast.Assign] = []
    for row in above[: above.index(loop)]:
        if isinstance(row, ast.Assign) and _computes(file, row.value, models | made):
            found.append(row)
            made |= _bound(row)
    needed = made_of(names_bound(loss), loop)
    slice_: list[ast.Assign] = []
    for row in reversed(found):
        if _bound(row) & needed:
            slice_.insert(0, row)
            needed |= names_used(row.value)
    return slice_


def _models(file: File, loop: Loop) -> set[str]:
    """The dotted names of what has weights: what is asked for `parameters`, and what optimizers of the loop take."""
    found = {dotted(owner(one)) for one in calls(file.tree, *_OF_MODELS)}
    made = [definition(file, owner(one), loop) for one in calls(loop, "step")]
    return found.union(*(names_bound(one) for one in made if one is not None)) - {"", "torch", "optim"}


def _computes(file: File, value: ast.expr, models: set[str]) -> bool:
    """Return True if an expression computes with a model or with what one gave, and not only asks for its weights."""
    found = (one for one in named(value) if dotted(one) in models)
    return any(not (_is_asked(file.above[one]) or _is_gradient(file, one) or _acts(file, one)) for one in found)


def _acts(file: File, model: ast.expr) -> bool:
    """Return True if a model is handed to a function of the file that runs it without gradients: to play, or to
    generate."""
    call = file.above[model]
    is_handed = isinstance(call, ast.Call) and model in call.args
    function = function_called(file, call.func, call) if is_handed and isinstance(call, ast.Call) else None
    return function is not None and not {"no_grad", "inference_mode"}.isdisjoint(map(last_name, named(function)))


def _is_asked(above: ast.AST) -> bool:
    return isinstance(above, ast.Attribute) and above.attr in (*_OF_MODELS, "to", "cuda", "detach")


def _bound(row: ast.Assign) -> set[str]:
    return {name for target in row.targets for name in names_bound(target)}


def _can_move(file: File, loop: Loop, rows: Sequence[ast.Assign]) -> bool:
    """Return True if the rows do in the loop what they did before it, and the loop has no forward of its own."""
    bound = {name for row in rows for name in _bound(row)}
    above = file.block(loop)
    between = [one for one in above[above.index(rows[0]) : above.index(loop)] if one not in rows]
    if any(file.own_lines(row) is None or has_text_of_lines(row) for row in (*rows, loop.body[0])):
        return False
    if any(not isinstance(one, ast.Name) for row in rows for one in targets(row)):
        return False
    if any(_makes_object(one) for row in rows for one in walk(row, ast.Call)) or _is_object_in(loop, bound):
        return False
    for row in rows:
        passed = [one for one in between if one.lineno > row.lineno]
        if _changed([*passed, *loop.body]) & {*names_used(row.value), *_bound(row)}:
            return False
    head = {*names_used(loop.iter), *names_used(loop.target)} if isinstance(loop, FOR) else names_used(loop.test)
    used = {name for row in rows for name in names_used(row)}
    if head & used or any(names_used(row) & bound for row in between):
        return False
    if any(called(one) != "zero_grad" for row in between for one in calls(row, "backward", "step", *_OF_MODELS)):
        return False
    runs = isinstance(loop, FOR) and called(loop.iter) == "range"
    if not runs and any(is_read_after(file, name, file.scope(loop), last_line(loop)) for name in bound):
        return False
    models = _models(file, loop)
    others = {one for one in models if not any(is_part(one, dotted(each)) for row in rows for each in named(row.value))}
    return not any(_computes_anew(file, one, models, others) for row in loop.body for one in walk(row, ast.Call))


def _changed(rows: Sequence[ast.stmt]) -> set[str]:
    """The names that some statements bind, or write through in place."""
    found = set[str]()
    for row in rows:
        bound = (one for one in walk(row, ast.expr) if not isinstance(getattr(one, "ctx", _LOAD), ast.Load))
        found |= {first_name(base_of(one)) for one in bound}
        found |= {first_name(base_of(written_by(one))) for one in walk(row, ast.Call) if writes(one)}
    return found


def _makes_object(call: ast.Call) -> bool:
    """Return True if a call makes an object of a class, which each turn would begin anew. A loss keeps nothing."""
    name = called(call)
    return name[:1].isupper() and not name.endswith("Loss")


def _is_object_in(loop: Loop, names: set[str]) -> bool:
    """Return True if a loop calls one of these names, or a method of it that no value has: it may keep something."""
    return any(
        dotted(one.func) in names or (dotted(owner(one)) in names and called(one) not in _OF_VALUES)
        for one in walk(loop, ast.Call)
    )


def _computes_anew(file: File, call: ast.Call, models: set[str], others: set[str]) -> bool:
    """Return True if a call may compute with weights, but for a model among the `others`: it mentions a model, or runs
    a function that is not known."""
    if called(call) in _NO_FORWARD or dotted(call.func) in others:
        return False
    is_plain = isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)
    is_unknown = (owner(call) is None and not is_plain) or first_name(owner(call)) == "self"
    return _computes(file, call, models - others) or (is_unknown and not is_of_loss(file, call))


def _is_gradient(file: File, node: ast.expr) -> bool:
    """Return True for a part of a gradient: `net` of `net[0].weight.grad.norm()`."""
    above = file.above[node]
    while isinstance(above, (ast.Attribute, ast.Subscript)):
        if isinstance(above, ast.Attribute) and above.attr == "grad":
            return True
        above = file.above[above]
    return False


def _edits(file: File, loop: Loop, rows: Sequence[ast.Assign]) -> tuple[Edit, ...]:
    outer, inner = file.indent(loop), file.indent(loop.body[0])
    if outer is None or inner is None or not inner.startswith(outer) or loop.body[0].lineno == loop.lineno:
        return ()
    lines = [file.line(number) for row in rows for number in lines_in(row)]
    deeper = inner.removeprefix(outer)
    text = "".join(f"{deeper}{line}\n" if line.strip() else "\n" for line in lines)
    gone = [whole_lines(file, row.lineno, last_line(row)) for row in rows]
    first = min((one.lineno for one in getattr(loop.body[0], "decorator_list", ())), default=loop.body[0].lineno)
    return (*gone, insert(file, first, 1, text))
