"""Whether a forward does the same, but for the weights, each time that it runs, and whether nothing else needs it.

Known of what computes by functions and methods of PyTorch, modules, and functions of the program's files that set
nothing, draw nothing and take nothing from an iterator.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from noclobber.mend.holders.holding import holds_alone
from noclobber.mend.holders.making import (
    HANDING_ON,
    KEEPING_NOTHING,
    METHODS,
    bound_to,
    function_called,
    is_function,
    is_tensors,
    module_called,
)
from noclobber.mend.holders.seen import looks_around
from noclobber.mend.scene import Scene, run_by
from noclobber.model.seen.operators import DRAWING
from noclobber.syntax.names import (
    call_of,
    called,
    calls,
    definition,
    dotted,
    first_name,
    imported_from,
    is_own,
    is_part,
    is_stored,
    last_name,
    made_of,
    named,
    names_in,
    names_stored,
    names_used,
    own_names,
    owner,
    set_later,
    targets,
    unindexed,
    uses,
    values,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Turns, functions, simple_statements, walk, within
from noclobber.syntax.writes import base_of, changed_by, writes, written_by

OF_MODELS = ("parameters", "named_parameters", "zero_grad", "train", "eval")
"""Methods that show what has weights, and that are no forward."""
_RUN = ("forward", "__call__")
_OF_STATE = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr, ast.Delete)
"""Syntax by which a function may keep something."""
_COMPUTING = (
    "abs", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "print", "range", "reversed",
    "slice", "sorted", "str", "sum", "tuple", "zip",
)  # fmt: skip
"""Builtins that change nothing."""
_CUTTING = frozenset(
    """
    argmax argmin argsort bool ceil clone data detach enable_grad eq float floor ge gt inference_mode int isnan item le
    long lt ne no_grad numpy one_hot round set_grad_enabled sign tolist topk trunc
    """.split()  # noqa: SIM905
)
"""Names by which a value is computed that lets no gradient through."""
_GIVING_ONCE = ("enumerate", "filter", "iter", "map", "reversed", "zip")
_DRAWN = ("dropout", "batchnorm", "batch_norm", "spectral", "rrelu", "gumbel")
"""In names of what draws anew each time, or counts it: to run once may be what is meant."""
_LEAVING_ALONE = (
    "print", "zero_grad", "backward", "step", "append", "parameters", "named_parameters", "clip_grad_norm_",
    "clip_grad_value_", "item",
)  # fmt: skip
"""Calls that change nothing which a forward reads, but for weights and gradients."""
OF_VALUES = METHODS | KEEPING_NOTHING | HANDING_ON | {"cdf", "entropy", "icdf", "log_prob", "rsample", "sample"}
"""Methods of tensors and of distributions."""
_COMPUTED = OF_VALUES - {"rsample", "sample", "register_hook", "requires_grad_", "backward"}
"""Those that only compute."""


def is_same_again(scene: Scene, file: File, loop: Turns, inner: Turns, rows: Sequence[ast.Assign]) -> bool:
    """Return True if some rows of the block of a loop do the same however often they run, but for the weights, and if
    nothing but the loss of the loop needs what they compute."""
    bound, known, scope = changed_by(*rows), set[str](), file.scope(loop)
    for row in rows:
        if names_in(row.value) & (bound - known) or row not in file.block(loop):
            return False
        known |= changed_by(row)
    if not all(is_own(scope, name, loop) for name in bound) or any(map(looks_around, walk(scope, ast.Call))):
        return False
    for one in (use for name in bound for use in uses(scope, name, ast.Load)):
        if one.lineno < rows[0].lineno or (one.lineno >= loop.lineno and inner not in file.around(one)):
            return False
    models = models_of(file, loop)
    stepped = _with_attributes(file, {dotted(each) for one in _stepped_by(file, loop) for each in named(one)})
    run = models_run(scene, rows, models)
    if any(len([row for row in rows if one in models_run(scene, [row], models)]) > 1 for one in run):
        return False  # one of two forwards of a model may be meant as a constant
    if scene.is_freed and not run <= stepped:  # the value may be meant to stay
        return False
    made = (definition(file, one, row) for row in rows for one in walk(row.value, ast.Name))
    if any(_gives_once(scene, one) for one in made) or any(_is_constant(scene, row.value) for row in rows):
        return False
    if any(word in name.lower() for one in scene.files() for name in names_used(one.tree) for word in _DRAWN):
        return False
    forwards = [(each, one) for each in scene.files() for one in functions(each.tree) if one.name in _RUN]
    parts = [*((file, row.value) for row in rows), *forwards]
    if not all(_is_again_the_same(scene, each, one, models) for each, one in parts):
        return False
    return _is_left_alone(scene, file, loop, rows, run)


def _is_constant(scene: Scene, value: ast.expr) -> bool:
    """Return True if an expression may be meant as a constant, as what lets no gradient through, or gives its items one
    after the other, also where turns take them."""
    if isinstance(value, ast.Name) or _gives_once(scene, value):
        return True
    ran = [one for one in run_by(scene, value) if getattr(one, "name", "") not in _RUN]
    found = (each for one in (value, *ran) for each in walk(one, ast.Compare, ast.Attribute, ast.Name))
    return any(isinstance(one, ast.Compare) or last_name(one) in _CUTTING for one in found)


def _gives_once(scene: Scene, value: ast.expr | None) -> bool:
    """Return True for what may give its items only once."""
    if value is None or isinstance(value, ast.GeneratorExp) or called(value) in _GIVING_ONCE:
        return value is not None
    return any(next(walk(one, ast.Yield, ast.YieldFrom), None) for one in run_by(scene, value))


def _is_left_alone(scene: Scene, file: File, loop: Turns, rows: Sequence[ast.Assign], run: set[str]) -> bool:
    """Return True if nothing from the first of some rows to the end of the loop changes what they read or how their
    models compute, and the loss needs no other value that the models gave before the loop."""
    scope, bound, models = file.scope(loop), changed_by(*rows), models_of(file, loop)
    others = [one for one in within(scope, ast.stmt) if one not in rows and one is not loop]
    outside = [one for one in others if loop not in file.around(one)]
    after = simple_statements(loop) + rows_between(file, loop, rows)
    heads = [one.iter for one in walk(scope if isinstance(loop, FUNCTION) else loop, ast.For)]
    if not all(_keeps_nothing(scene, file, one, models) for head in heads for one in walk(head, ast.Call)):
        return False
    attributes = {one for one in run if one.startswith("self.")}
    roots = {one.partition(".")[0] for one in run - attributes}
    own, tracked = {one.id for one in within(scope, ast.Name) if is_stored(file, one)}, set(roots)
    known = set[str]()
    while known != tracked:
        known = set(tracked)
        for one in outside:
            head = getattr(one, "iter", one) if hasattr(one, "body") else one
            used = {each.id for each in walk(head, ast.Name) if not acts(file, each)}
            runs = any(mentions_models(each, run) for each in run_by(scene, head))
            runs |= mentions_models(head, attributes)
            if runs or (used - _stored_in(one)) & tracked:
                tracked |= own & (used if isinstance(one, ast.Expr) else _stored_in(one))
    root = {name for one in calls(loop, "backward") for name in names_in(one.func)}
    inside = {name for one in walk(loop, ast.stmt) for name in _stored_in(one)}
    if (made_of(root, loop) - inside - bound) & tracked or mentions_models(loop, attributes):
        return False
    read = made_of({name for row in rows for name in names_in(row.value)} - roots - bound, scope)
    forwards = [one for each in scene.files() for one in functions(each.tree) if one.name in _RUN]
    ran = [*forwards, *(each for row in rows for each in run_by(scene, row))]
    free = set[str]().union(*(names_in(one) - own_names(one) for one in ran))
    if free & (changed_by(*after) | {first_name(owner(one)) for row in after for one in calls(row, "append")}):
        return False
    if any(first_name(owner(call_of(row))) == "torch" and not calls(row, *_LEAVING_ALONE) for row in after):
        return False  # it may set a mode
    if any("hook" in called(one) for one in walk(file.tree, ast.Call)):
        return False
    for call in (each for row in after if row not in rows for each in walk(row, ast.Call)):
        name, mentioned = called(call), names_in(call)
        if writes(call) and first_name(base_of(written_by(call))) in read:
            return False
        ran = list(run_by(scene, call))
        if name in _LEAVING_ALONE or (not ran and _is_known(file, call, models)):
            continue
        if mentioned & (read | tracked) and not (ran or name[:1].isupper()):
            return False
        if not all(_is_again_the_same(scene, _file_of(scene, each), each, models) for each in ran):
            return False
    return True


def _file_of(scene: Scene, node: ast.AST) -> File:
    return next(one for one in scene.files() if node in one.above)


def _stored_in(row: ast.stmt) -> set[str]:
    """The names that a statement binds: of a compound one, its head."""
    head = getattr(row, "target", getattr(row, "items", None)) if hasattr(row, "body") else row
    nodes = head if isinstance(head, list) else [head] if head is not None else []
    return set[str]().union(*map(names_stored, nodes))


def _is_again_the_same(
    scene: Scene, file: File, node: ast.AST, models: set[str], known: frozenset[str] = frozenset()
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
            is_same = isinstance(getattr(one, "ctx", None), ast.Load) and not set_later(file, getattr(one, "attr", ""))
        if not is_same:
            return False
    return all(_is_again_the_same(scene, each, one, models, known | own) for each, one in ran)


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
    if dotted(call.func) in ("torch.max", "torch.min") or called(definition(file, call.func, call)).endswith("Loss"):
        return True
    if ".distributions." in dotted(call.func) or dotted(call.func) in imported_from(file, "torch.distributions"):
        return True
    if name in ("items", "keys", "values") and not call.args:
        return True
    is_part_of_self = isinstance(of, ast.Attribute) and dotted(of.value) == "self"
    bound = uses(file.scope(call), of.id, ast.Store) if isinstance(of, ast.Name) else []
    return dotted(of) in models or is_part_of_self or (bound != [] and all(_is_taken_out(file, one) for one in bound))


def _is_taken_out(file: File, name: ast.Name) -> bool:
    """Return True for the variable of a loop or a comprehension."""
    above = file.above[name]
    while isinstance(above, ast.Tuple):
        above = file.above[above]
    return isinstance(above, (*FOR, ast.comprehension))


def models_of(file: File, loop: Turns) -> set[str]:
    """The dotted names of what has weights: what is asked for `parameters`, and what optimizers of the loop take."""
    found = {dotted(owner(one)) for one in calls(file.tree, *OF_MODELS)}
    found = found.union(*map(names_in, _stepped_by(file, loop))) - {"", "torch", "optim"}
    return _with_attributes(file, found)


def models_run(scene: Scene, rows: Sequence[ast.Assign], models: set[str]) -> set[str]:
    """Which of some models these rows run, in themselves or by functions of the program."""
    parts = [part for row in rows for part in (row.value, *run_by(scene, row.value))]
    chains = {one for part in parts for one in _chains(part)}
    return {one for one in models if any(is_part(one, each) for each in chains if each)}


def mentions_models(node: ast.AST, models: set[str]) -> bool:
    """Return True if a node has a name, or a part of one, that is the last part of the name of a model."""
    last = {one.rpartition(".")[2] for one in models} - {"self"}
    return any(not last.isdisjoint(one.split(".")) for one in _chains(node))


def _chains(node: ast.AST) -> set[str]:
    """The dotted names in a node, as long as they are there: only `self.net` of `self.net(x)`; none of what is only
    asked for its weights."""
    inner = {one.value for one in walk(node, ast.Attribute)}
    return {dotted(one) for one in named(node) if one not in inner and last_name(one) not in OF_MODELS}


def _with_attributes(file: File, models: set[str]) -> set[str]:
    """Some names of models, and the attributes that hold them: `self.net = net`."""
    rows = (one for one in walk(file.tree, ast.Assign) if dotted(one.value) in models - {"self"})
    return models.union(*({dotted(each) for each in targets(one)} for one in rows)) - {""}


def _stepped_by(file: File, loop: Turns) -> list[ast.expr]:
    """What the optimizers take that a loop steps, or that step by a closure."""
    steps = calls(file.tree if isinstance(loop, FUNCTION) else loop, "step")
    if isinstance(loop, FUNCTION):
        steps = [one for one in steps if loop.name in map(dotted, values(one))]
    made = [bound_to(file, of, one) for one in steps if (of := owner(one)) is not None]
    return [one for each in made if each is not None for one in each.args[:1]]


def _keeps_nothing(scene: Scene, file: File, call: ast.Call, models: set[str]) -> bool:
    """Return True for what the head of a loop may call: what computes or draws, and functions that bind only names."""
    ran = list(run_by(scene, call))
    kept = (each for one in ran for each in walk(one, ast.Global, ast.Nonlocal, ast.Attribute, ast.Subscript))
    if not all(isinstance(getattr(one, "ctx", None), ast.Load) for one in kept):
        return False
    inside = [(_file_of(scene, one), each) for one in ran for each in walk(one, ast.Call)]
    own = {getattr(one, "name", "") for one in ran}
    return all(
        called(one) in own or called(one) in (*DRAWING, "tqdm", "trange") or _is_known(each, one, models)
        for each, one in ((file, call), *inside)
    )


def acts(file: File, model: ast.expr) -> bool:
    """Return True if a model is handed to a function of the file that runs it without gradients: to play, or to
    generate."""
    call = file.above[model]
    is_handed = isinstance(call, ast.Call) and model in call.args
    function = function_called(file, call.func, call) if is_handed and isinstance(call, ast.Call) else None
    return function is not None and not {"no_grad", "inference_mode"}.isdisjoint(map(last_name, named(function)))


def rows_between(file: File, loop: Turns, rows: Sequence[ast.Assign]) -> list[ast.stmt]:
    """The simple statements from the first of some rows to the loop; for a closure, those of the whole block."""
    above = file.block(loop)
    end = None if isinstance(loop, FUNCTION) else above.index(loop)
    found = [one for each in above[:end] for one in simple_statements(each)]
    return found[found.index(rows[0]) :]
