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
from noclobber.mend.holders.holding import holds_alone
from noclobber.mend.holders.making import (
    HANDING_ON,
    KEEPING_NOTHING,
    METHODS,
    function_called,
    is_function,
    is_tensors,
    module_called,
)
from noclobber.mend.holders.seen import looks_around
from noclobber.mend.scene import Scene, run_by
from noclobber.model.reports.finding import Edit
from noclobber.model.seen.operators import DRAWING
from noclobber.syntax.edits import insert, whole_lines, without_retaining
from noclobber.syntax.names import (
    call_of,
    called,
    calls,
    definition,
    dotted,
    first_name,
    is_own,
    is_part,
    is_read_after,
    is_stored,
    last_name,
    made_of,
    named,
    names_bound,
    names_used,
    owner,
    targets,
    unindexed,
    uses,
)
from noclobber.syntax.tree import (
    FOR,
    File,
    Function,
    Loop,
    Place,
    functions,
    has_text_of_lines,
    last_line,
    lines_in,
    walk,
    within,
)
from noclobber.syntax.writes import base_of, is_of_loss, writes, written_by

_OF_MODELS = ("parameters", "named_parameters", "zero_grad", "train", "eval")
"""Methods that show what has weights, and that are no forward."""
_NO_FORWARD = (
    "print", "len", "float", "range", "backward", "step", "append", "item", "clip_grad_norm_", "clip_grad_value_",
    *_OF_MODELS,
)  # fmt: skip
"""Other calls that are none."""


_LOAD = ast.Load()
_NONE = frozenset[str]()
_RUN = ("forward", "__call__")
_OF_STATE = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr, ast.Delete)
"""Syntax by which a function may keep something."""
_COMPUTING = (
    "abs", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "print", "range", "reversed",
    "sorted", "str", "sum", "tuple", "zip",
)  # fmt: skip
"""Builtins that change nothing."""
_CUTTING = frozenset(
    """
    argmax argmin argsort bool ceil data detach enable_grad eq float floor ge gt inference_mode int isnan item le long
    lt ne no_grad numpy one_hot round set_grad_enabled sign tolist topk trunc
    """.split()  # noqa: SIM905
)
"""Names by which a value is computed that lets no gradient through."""
_LEAVING_ALONE = (
    "print", "zero_grad", "backward", "step", "append", "parameters", "named_parameters", "clip_grad_norm_",
    "clip_grad_value_", "item",
)  # fmt: skip
"""Calls that change nothing which a forward reads, but for weights and gradients."""
_OF_VALUES = METHODS | KEEPING_NOTHING | HANDING_ON | {"cdf", "entropy", "icdf", "log_prob", "rsample", "sample"}
"""Methods of tensors and of distributions."""
_COMPUTED = _OF_VALUES - {"rsample", "sample", "register_hook", "requires_grad_", "backward"}
"""Those that only compute."""


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
    edits, bound = _edits(file, loop, rows, moves=moves), {name for row in rows for name in _bound(row)}
    is_same = dotted(owner(backwards[0])) in bound
    cost = 0 if calls(loop, "step") or is_same else 2
    title = "run the forward inside the loop" if moves else "run the forward again in the loop"
    retained = [edit for one in backwards if (edit := without_retaining(file, one)) is not None]
    is_sound = steps_alike(loop, loop.body) and read.row in loop.body and _begins_anew(scene, file, loop, rows)
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
    models, made = _models(file, loop), set[str]()
    found: list[ast.Assign] = []
    for row in (one for each in above[: above.index(loop)] for one in walk(each, ast.Assign)):
        if file.scope(row) is file.scope(loop) and _computes(file, row.value, models | made):
            found.append(row)
            made |= _bound(row)
    needed = made_of(names_bound(loss), loop)
    slice_: list[ast.Assign] = []
    for row in reversed(found):
        if _bound(row) & needed - {name for one in slice_ for name in _bound(one)}:
            slice_.insert(0, row)
            needed |= names_used(row.value)
    return slice_


def _models(file: File, loop: Loop) -> set[str]:
    """The dotted names of what has weights: what is asked for `parameters`, and what optimizers of the loop take."""
    found = {dotted(owner(one)) for one in calls(file.tree, *_OF_MODELS)}
    return found.union(*map(names_bound, _stepped(file, loop))) - {"", "torch", "optim"}


def _stepped(file: File, loop: Loop) -> list[ast.expr]:
    """What the optimizers that a loop steps take."""
    made = [definition(file, owner(one), loop) for one in calls(loop, "step")]
    return [one for each in made if isinstance(each, ast.Call) for one in each.args[:1]]


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


def _can_run(file: File, loop: Loop, rows: Sequence[ast.Assign], read: ast.stmt) -> bool:
    """Return True if the rows do in the loop what they did before it, and the loss has no other forward in the loop."""
    bound = {name for row in rows for name in _bound(row)}
    if any(file.own_lines(row) is None or has_text_of_lines(row) for row in (*rows, loop.body[0])):
        return False
    if any(not isinstance(one, ast.Name) for row in rows for one in targets(row)):
        return False
    if any(_makes_object(file, one) or called(one) in DRAWING for row in rows for one in walk(row, ast.Call)):
        return False
    if _is_object_in(loop, bound):
        return False
    between = [one for one in _between(file, loop, rows) if one not in rows]
    for row in rows:
        passed = [one for one in between if one.lineno > row.lineno]
        if _changed([*passed, *loop.body]) & {*names_used(row.value), *_bound(row)}:
            return False
    head = {*names_used(loop.iter), *names_used(loop.target)} if isinstance(loop, FOR) else names_used(loop.test)
    if head & {name for row in rows for name in names_used(row)}:
        return False
    models = _models(file, loop)
    others = {one for one in models if not any(is_part(one, dotted(each)) for row in rows for each in named(row.value))}
    needed = made_of({name for one in calls(read, "backward") for name in names_bound(one.func)}, loop)
    makes = [one for one in walk(loop, ast.stmt) if not hasattr(one, "body") and needed & _stored(one)]
    return not any(_computes_anew(file, one, models, others) for row in (*makes, read) for one in walk(row, ast.Call))


def steps_alike(around: Loop | Function, rows: Sequence[ast.stmt]) -> bool:
    """Return True if a loop or a function steps and calls `backward` only in a block of it, once each time that the
    block runs, and comes to its end whenever that begins."""
    steps = [one for one in calls(around, "step") if not one.args and not one.keywords]  # and not `env.step(action)`
    each = all(any(call_of(row) is one for row in rows) for one in steps)
    once = len(calls(around, "backward", "grad")) == 1 and steps != [] and each
    left = [one for one in walk(around, ast.Continue, ast.Try, ast.Return, ast.Break) if one is not rows[-1]]
    return once and all(isinstance(one, (ast.Break, ast.Return)) and not _is_among(one, rows) for one in left)


def _is_among(node: ast.stmt, rows: Sequence[ast.stmt]) -> bool:
    return any(node in ast.walk(one) for one in rows)


def _begins_anew(scene: Scene, file: File, loop: Loop, rows: Sequence[ast.Assign]) -> bool:
    """Return True if some rows of the block of a loop do the same however often they run, but for the weights, and if
    nothing but the loss of the loop needs what they compute."""
    bound = {name for row in rows for name in _bound(row)}
    known, scope = set[str](), file.scope(loop)
    for row in rows:
        if names_bound(row.value) & (bound - known) or row not in file.block(loop):
            return False
        known |= _bound(row)
    if not all(is_own(scope, name) for name in bound) or any(map(looks_around, walk(scope, ast.Call))):
        return False
    for one in (use for name in bound for use in uses(scope, name, ast.Load)):
        if one.lineno < rows[0].lineno or one.lineno > last_line(loop):
            return False
    models = _models(file, loop)
    run = {one for one in models for row in rows for each in named(row.value) if is_part(one, dotted(each))}
    stepped = {dotted(each) for one in _stepped(file, loop) for each in named(one)}
    if scene.is_freed and not run <= stepped:  # the value may be meant to stay
        return False
    if any(_is_constant(scene, row.value) for row in rows):
        return False
    forwards = [(each, one) for each in scene.files() for one in functions(each.tree) if one.name in _RUN]
    parts = [*((file, row.value) for row in rows), *forwards]
    if not all(_is_again_the_same(scene, each, one, models) for each, one in parts):
        return False
    return _is_left_alone(scene, file, loop, rows, {one.partition(".")[0] for one in run})


def _is_constant(scene: Scene, value: ast.expr) -> bool:
    """Return True if an expression may be meant as a constant, as what lets no gradient through, or gives its items one
    after the other, also where turns take them."""
    if isinstance(value, ast.GeneratorExp) or called(value) in ("enumerate", "reversed", "zip"):
        return True
    ran = [one for one in run_by(scene, value) if getattr(one, "name", "") not in _RUN]
    found = (each for one in (value, *ran) for each in walk(one, ast.Compare, ast.Attribute, ast.Name))
    return any(isinstance(one, ast.Compare) or last_name(one) in _CUTTING for one in found)


def _is_left_alone(scene: Scene, file: File, loop: Loop, rows: Sequence[ast.Assign], roots: set[str]) -> bool:
    """Return True if nothing from the first of some rows to the end of the loop changes what they read or how their
    models compute, and the loss needs no other value that the models gave before the loop."""
    scope, bound, models = file.scope(loop), {name for row in rows for name in _bound(row)}, _models(file, loop)
    others = [one for one in within(scope, ast.stmt) if one not in rows and one is not loop]
    outside = [one for one in others if loop not in file.around(one)]
    after = [one for one in walk(loop, ast.stmt) if not hasattr(one, "body")] + _between(file, loop, rows)
    own, tracked = {one.id for one in within(scope, ast.Name) if is_stored(file, one)}, set(roots)
    for _ in outside:
        for one in outside:
            head = getattr(one, "iter", one) if hasattr(one, "body") else one
            used = {each.id for each in walk(head, ast.Name) if not _acts(file, each)}
            if (used - _stored_in(file, one)) & tracked:
                tracked |= own & (used if isinstance(one, ast.Expr) else _stored_in(file, one))
    root = {name for one in calls(loop, "backward") for name in names_bound(one.func)}
    inside = {name for one in walk(loop, ast.stmt) for name in _stored_in(file, one)}
    if (made_of(root, loop) - inside - bound) & tracked:
        return False
    read = made_of({name for row in rows for name in names_bound(row.value)} - roots - bound, scope)
    forwards = [one for each in scene.files() for one in functions(each.tree) if one.name in _RUN]
    ran = [*forwards, *(each for row in rows for each in run_by(scene, row))]
    free = set[str]().union(
        *(names_bound(one) - {each.id for each in within(one, ast.Name) if is_stored(file, each)} for one in ran)
    )
    if free & (_changed(after) | {first_name(owner(one)) for row in after for one in calls(row, "append")}):
        return False
    if any(first_name(owner(call_of(row))) == "torch" and not calls(row, *_LEAVING_ALONE) for row in after):
        return False  # it may set a mode
    if any("hook" in called(one) for one in walk(file.tree, ast.Call)):
        return False
    for call in (each for row in after if row not in rows for each in walk(row, ast.Call)):
        name, mentioned = called(call), names_bound(call)
        if writes(call) and first_name(base_of(written_by(call))) in read:
            return False
        if name in _LEAVING_ALONE or _is_known(file, call, models):
            continue
        ran = list(run_by(scene, call))
        if mentioned & (read | tracked) and not (ran or name[:1].isupper()):
            return False
        if not all(_is_again_the_same(scene, file, each, models) for each in ran):
            return False
    return True


def _stored_in(file: File, row: ast.stmt) -> set[str]:
    """The names that a statement binds: of a compound one, its head."""
    head = getattr(row, "target", getattr(row, "items", None)) if hasattr(row, "body") else row
    nodes = head if isinstance(head, list) else [head] if head is not None else []
    return {one.id for node in nodes for one in walk(node, ast.Name) if not isinstance(one.ctx, ast.Load)}


def _is_again_the_same(
    scene: Scene, file: File, node: ast.AST, models: set[str], known: frozenset[str] = _NONE
) -> bool:
    """Return True if a node only computes with values, and what it runs as well, so that it does the same each time:
    no call that may keep something, draw or take the next one, and no attribute that the file sets elsewhere."""
    if next(walk(node, *_OF_STATE), None) is not None or getattr(node, "decorator_list", []):
        return False
    if any(called(made) != "print" for row in walk(node, ast.Expr) if (made := call_of(row)) is not None):
        return False  # it is made for what it does
    names = {last_name(one) for one in named(node)} - known
    ran = [(each, one) for each in scene.files() for one in functions(each.tree) if one.name in names]
    own = {one.name for _, one in ran} | known
    for one in walk(node, ast.Attribute, ast.Subscript, ast.AugAssign, ast.Call):
        if isinstance(one, ast.Call):
            is_same = called(one) in own or _is_known(file, one, models)
        elif isinstance(one, ast.AugAssign):
            is_same = holds_alone(file, dotted(one.target), one)
        else:
            is_same = isinstance(getattr(one, "ctx", _LOAD), ast.Load) and not _is_set_later(file, one)
        if not is_same:
            return False
    return all(_is_again_the_same(scene, each, one, models, known | own) for each, one in ran)


def _is_set_later(file: File, node: ast.AST) -> bool:
    """Return True if a file sets an attribute elsewhere than where an object begins."""
    name = getattr(node, "attr", "")
    stored = (one for one in walk(file.tree, ast.Attribute) if one.attr == name and is_stored(file, one))
    return any(getattr(file.scope(one), "name", "") != "__init__" for one in stored)


def _is_known(file: File, call: ast.Call, models: set[str]) -> bool:
    """Return True for a function or method of PyTorch that computes, and for a module: their results depend on values
    and weights alone."""
    name, of = called(call), unindexed(call.func)
    if name in DRAWING or (name.endswith("_") and owner(call) is not None):
        return False
    if isinstance(call.func, ast.Name) and hasattr(builtins, name):
        return name in _COMPUTING
    if is_function(call) or is_tensors(file, call, of=_COMPUTED) or module_called(file, call) is not None:
        return True
    if called(definition(file, call.func, call)).endswith("Loss") or _is_distribution(file, call):
        return True
    is_part_of_self = isinstance(of, ast.Attribute) and dotted(of.value) == "self"
    bound = [file.above[one] for one in uses(file.scope(call), of.id, ast.Store)] if isinstance(of, ast.Name) else []
    return dotted(of) in models or is_part_of_self or (bound != [] and all(isinstance(one, FOR) for one in bound))


def _is_distribution(file: File, call: ast.Call) -> bool:
    """`Categorical(logits=h)`, where it is imported from `torch.distributions`."""
    rows = (row for row in walk(file.tree, ast.ImportFrom) if (row.module or "").startswith("torch.distributions"))
    names = {one.asname or one.name for row in rows for one in row.names}
    return ".distributions." in dotted(call.func) or (isinstance(call.func, ast.Name) and call.func.id in names)


def _between(file: File, loop: Loop, rows: Sequence[ast.Assign]) -> list[ast.stmt]:
    """The simple statements from the first of some rows to the loop."""
    above = file.block(loop)
    found = [one for each in above[: above.index(loop)] for one in walk(each, ast.stmt) if not hasattr(one, "body")]
    return found[found.index(rows[0]) :]


def _stored(row: ast.stmt) -> set[str]:
    return {one.id for one in walk(row, ast.Name) if not isinstance(one.ctx, ast.Load)}


def _can_move(file: File, loop: Loop, rows: Sequence[ast.Assign]) -> bool:
    """Return True if nothing but the loop needs what some rows compute before it."""
    bound, above = {name for row in rows for name in _bound(row)}, file.block(loop)
    between = [one for one in _between(file, loop, rows) if one not in rows]
    if not set(rows) <= set(above) or any(names_used(row) & bound for row in between):
        return False
    if any(called(one) != "zero_grad" for row in between for one in calls(row, "backward", "step", *_OF_MODELS)):
        return False
    runs = isinstance(loop, FOR) and called(loop.iter) == "range"
    return runs or not any(is_read_after(file, name, file.scope(loop), last_line(loop)) for name in bound)


def _changed(rows: Sequence[ast.stmt]) -> set[str]:
    """The names that some statements bind, or write through in place."""
    found = set[str]()
    for row in rows:
        bound = (one for one in walk(row, ast.expr) if not isinstance(getattr(one, "ctx", _LOAD), ast.Load))
        found |= {first_name(base_of(one)) for one in bound}
        found |= {first_name(base_of(written_by(one))) for one in walk(row, ast.Call) if writes(one)}
    return found


def _makes_object(file: File, call: ast.Call) -> bool:
    """Return True if a call makes an object of a class, which each turn would begin anew. A loss keeps nothing, and
    `G(z)` calls what a variable holds."""
    name = called(call)
    is_class = name[:1].isupper() and not name.endswith("Loss")
    return is_class and not any(one.id == name and is_stored(file, one) for one in walk(file.tree, ast.Name))


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
