"""The models that a loop trains, and which statements run them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from noclobber.mend.holders.making import (
    HANDING_ON,
    KEEPING_NOTHING,
    METHODS,
    bound_to,
    function_called,
)
from noclobber.mend.scene import Scene, run_by
from noclobber.syntax.names import (
    calls,
    dotted,
    is_part,
    last_name,
    named,
    names_in,
    owner,
    targets,
    uses_in,
    values,
)
from noclobber.syntax.tree import FUNCTION, File, Turns, simple_statements, walk
from noclobber.syntax.writes import base_of, descends, write_in

OF_MODELS = ("parameters", "named_parameters", "zero_grad", "train", "eval")
"""Methods that show what has weights, and that are no forward."""
OF_VALUES = METHODS | KEEPING_NOTHING | HANDING_ON | {"cdf", "entropy", "icdf", "log_prob", "rsample", "sample"}
"""Methods of tensors and of distributions."""


def models_of(file: File, loop: Turns) -> set[str]:
    """The dotted names of what has weights: what is asked for `parameters`, and what a loop steps, by optimizers or by
    hand."""
    found = {dotted(owner(one)) for one in calls(file.tree, *OF_MODELS)}
    found = found.union(stepped_by_hand(file, loop), *map(names_in, _stepped_by(file, loop))) - {"", "torch", "optim"}
    return _with_attributes(file, found)


def stepped_by_hand(file: File, loop: Turns) -> set[str]:
    """The names of the weights that a loop only writes by statements such as `w -= 0.1 * w.grad`."""
    rows = [one for one in simple_statements(loop) if descends(file, one)]
    names = {dotted(base_of(write_in(file, one).target)) for one in rows}
    return {one for one in names if all(file.statement(each) in rows for each in uses_in(loop, one, ast.Store))}


def models_run(scene: Scene, rows: Sequence[ast.Assign], models: set[str]) -> set[str]:
    """Which of some models these rows run, in themselves or by functions of the program."""
    parts = [part for row in rows for part in (row.value, *run_by(scene, row.value))]
    found = {one for part in parts for one in chains(part)}
    return {one for one in models if any(is_part(one, each) for each in found if each)}


def mentions_models(node: ast.AST, models: set[str]) -> bool:
    """Return True if a node has a name, or a part of one, that is the last part of the name of a model."""
    last = {one.rpartition(".")[2] for one in models} - {"self"}
    return any(not last.isdisjoint(one.split(".")) for one in chains(node))


def chains(node: ast.AST) -> set[str]:
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


def acts(file: File, model: ast.expr) -> bool:
    """Return True if a model is handed to a function of the file that runs it without gradients: to play, or to
    generate."""
    call = file.above[model]
    function = function_called(file, call.func, call) if isinstance(call, ast.Call) and model in call.args else None
    return function is not None and not {"no_grad", "inference_mode"}.isdisjoint(map(last_name, named(function)))


def rows_between(file: File, loop: Turns, rows: Sequence[ast.Assign]) -> list[ast.stmt]:
    """The simple statements from the first of some rows to the loop; for a closure, those of the whole block."""
    above = file.block(loop)
    end = None if isinstance(loop, FUNCTION) else above.index(loop)
    found = [one for each in above[:end] for one in simple_statements(each)]
    return found[found.index(rows[0]) :]
