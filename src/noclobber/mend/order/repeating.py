"""Whether statements compute the same however often they run, and leave nothing behind.

That is known where they, and the functions of the program that they call, call only operators, losses, modules of
PyTorch and some models. They draw no numbers, take no items from what may be an iterator, write nothing that they are
given, and set no attribute, item or variable of others. A `forward` of the program sets nothing either.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from noclobber.mend.holders.making import (
    HANDING_ON,
    METHODS,
    is_function,
    is_method,
    module_called,
    module_gives_new,
)
from noclobber.mend.scene import Scene, run_by
from noclobber.model.seen.operators import DRAWING
from noclobber.syntax.names import called, calls, dotted, first_name, names_used, owner, parameters, uses, value_given
from noclobber.syntax.tree import FUNCTION, File, functions, walk
from noclobber.syntax.writes import NAMESPACES, is_of_loss

_NUMBERS = frozenset("abs dim float int isinstance len max min numel range size".split())  # noqa: SIM905
_WHOLES = frozenset("buffers children items modules named_parameters parameters range values".split())  # noqa: SIM905
"""Functions of numbers, and what gives the same items each time that it is asked."""
_NOISY = ("drop", "rrelu", "gumbel")
_OF_BATCHES = ("batchnorm", "batch_norm", "instancenorm", "instance_norm", "spectral")
"""Parts of the names of what keeps averages each time that it runs."""
_KEEPING = frozenset("add append extend insert pop setattr setdefault update".split())  # noqa: SIM905
_SETTING = (ast.AsyncFor, ast.Global, ast.Nonlocal, ast.Delete, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)


def repeats(
    scene: Scene, file: File, rows: Sequence[ast.stmt], models: Collection[str], also: frozenset[str] = frozenset()
) -> bool:
    """Return True if some statements are known to give the same each time, but for what some models compute.

    With the names of other functions that they may call `also`, return True if they are known to do no more than that:
    then they may go through anything.
    """
    ran = [one for row in rows for one in run_by(scene, row, also)]
    known = {one.name for one in ran if isinstance(one, FUNCTION)}
    parts: list[tuple[File, ast.AST]] = [(file, one) for one in rows]
    parts += [(each, one) for one in ran for each in scene.files if one in each.above]
    is_known = all(_only_computes(each, one, {*known, *models}, also) for each, one in parts)
    return is_known and all(isinstance(one, FUNCTION) for one in ran)


def _only_computes(file: File, part: ast.AST, known: Collection[str], also: frozenset[str]) -> bool:
    """`known` are the names of the functions that are looked at as well, and of models."""
    given = {*parameters(part)} if isinstance(part, FUNCTION) else set[str]()
    through = [*(one.iter for one in walk(part, ast.For)), *(one.iter for one in walk(part, ast.comprehension))]
    added = [one.target for one in walk(part, ast.AugAssign)]
    set_ = (one for one in walk(part, ast.Attribute, ast.Subscript) if isinstance(getattr(one, "ctx", None), ast.Store))
    return (
        all(called(one) in also or _is_known(file, one, known) for one in walk(part, ast.Call))
        and all(also or _is_whole(one) or dotted(one).rpartition(".")[0] in known for one in through)
        and all(isinstance(one, ast.Name) and one.id not in given for one in added)
        and (not isinstance(part, FUNCTION) or next(set_, None) is None)
        and next(walk(part, *_SETTING), None) is None
    )


def _is_whole(given: ast.expr) -> bool:
    """Whether what a loop goes through has the same items each time: a list that stands there, `net.parameters()`."""
    return isinstance(given, (ast.Tuple, ast.List)) or called(given) in _WHOLES


def _is_known(file: File, call: ast.Call, known: Collection[str]) -> bool:
    """Return True for what computes the same from the same, and for the call of a model."""
    name = called(call)
    if dotted(call.func) in known:
        return True
    if name in DRAWING or any(one in name.lower() for one in _NOISY):
        return False
    if dotted(call.func) == "sum" and isinstance(next(iter(call.args), None), (ast.GeneratorExp, ast.ListComp)):
        return True
    if (made := module_called(file, call)) is not None:
        noisy = any(one in called(each).lower() for one in (*_NOISY, "norm") for each in walk(made, ast.Call))
        return module_gives_new(made) and not noisy
    is_loss = is_of_loss(file, call) and first_name(owner(call)) not in NAMESPACES
    is_operator = is_function(call) or is_method(call, of=METHODS | HANDING_ON)
    return is_operator or is_loss or name in _NUMBERS | _WHOLES or name in known


def is_noisy(scene: Scene) -> bool:
    """Return True if a file names what draws numbers, or keeps averages, each time that it runs."""
    whole = {name.lower() for each in scene.files for name in names_used(each.tree)}
    return any(one in name for name in whole for one in (*_NOISY, *_OF_BATCHES))


def keeps_state(scene: Scene) -> bool:
    """Return True if a module of the program may keep something each time that it runs."""
    for file in scene.files:
        forwards = [one for one in functions(file.tree) if one.name in ("forward", "__call__")]
        around = [of for one in forwards if (of := file.class_of(one)) is not None]
        for method in (one for of in around for one in functions(of) if one.name != "__init__"):
            stored = (one for one in walk(method, ast.Attribute, ast.Subscript))
            added = [uses(method, dotted(owner(one)), ast.Store) for one in calls(method, *_KEEPING)]
            if not all(len(one) == 1 and isinstance(value_given(file, one[0]), (ast.List, ast.Dict)) for one in added):
                return True
            if any(isinstance(getattr(one, "ctx", None), ast.Store) for one in stored):
                return True
            in_place = (one for one in walk(method, ast.Call) if called(one).endswith("_"))
            if any(first_name(owner(one)) in ("", "self") for one in in_place):
                return True
            if next(walk(method, ast.Global, ast.Nonlocal), None) is not None:
                return True
    return False
