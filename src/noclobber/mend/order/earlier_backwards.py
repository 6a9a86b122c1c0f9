"""A backward that needs weights as they were: run before the statements that change them.

Sound where `loss.backward()` is the only backward of its function, `loss` is a variable that the function has bound to
a new value above them, and what then comes later, with all that it calls, is known to compute, to write, and to keep
what it computed. The `zero_grad` of an optimizer in between goes with it. The program has no hooks and no Functions of
its own, whose backwards might read what comes later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.holders.making import only_computes
from noclobber.mend.order.later_writes import leading, makes_all
from noclobber.mend.order.passing import LEAVING, is_apart, module_of, runs_what_it_is_given, uses_gradients
from noclobber.mend.scene import Scene, run_by
from noclobber.model.reports.finding import Cure
from noclobber.syntax.edits import insert, lines_of, text_of_lines, whole_lines
from noclobber.syntax.names import (
    call_of,
    called,
    calls,
    dotted,
    is_own,
    names_read,
    names_stored,
    owner,
    targets,
    uses,
)
from noclobber.syntax.tree import File, Place, functions, starts, walk

_KNOWN = ("append", "eval", "no_grad", "train")
"""What is called beside operators and modules, and does nothing to gradients. `eval` is the method of a module."""
_TAKING = ("eval", "exec", "filter", "iter", "map", "next")
"""Builtins that run what they are given, or take from it."""


def backward_first(scene: Scene) -> Iterator[Change]:
    """`opt.zero_grad()` and the backward that needs the old bytes, above the statement that leads to the write."""
    read = scene.place("read") if scene.is_clobber and not scene.is_unseen else None
    if read is not None and _is_plain(read.file, read.row):
        yield from (each for one in leading(scene, read) for each in _run_first(scene, read, one))


def _is_plain(file: File, row: ast.stmt) -> bool:
    """`loss.backward()`: whether a statement is the only backward of its function, from a variable that is only its
    own and is bound once in its block, to what a call or an operator gives."""
    call, scope = call_of(row), file.scope(row)
    loss = owner(call) if called(call) == "backward" else None
    if not isinstance(loss, ast.Name) or call is None or call.args or call.keywords or not is_own(scope, loss.id):
        return False
    bound = [one for one in walk(scope, ast.stmt) if not hasattr(one, "body") and loss.id in names_stored(one)]
    made = getattr(bound[0], "value", None) if len(bound) == 1 and isinstance(bound[0], ast.Assign) else None
    above = file.block(row)
    read = (one for one in uses(scope, loss.id, ast.Load) if one is not loss and starts(one) < starts(row))
    return (
        isinstance(made, (ast.Call, ast.BinOp))
        and [dotted(one) for one in targets(bound[0])] == [loss.id]
        and bound[0] in above[: above.index(row)]
        and len(calls(scope, "backward")) == 1
        and all(getattr(file.above[one], "attr", "") in ("detach", "item") for one in read)  # by no other name
    )


def _run_first(scene: Scene, read: Place, target: ast.AST) -> Iterator[Change]:
    file, row = read.file, read.row
    rows, first, second = file.together(target, row)
    zeroing = [one for one in rows[first:second] if called(call_of(one)) == "zero_grad"]
    passed = [one for one in rows[first:second] if one not in zeroing]
    moved = [*zeroing, row]
    if not passed or rows[second] is not row or any(file.own_lines(one) is None for one in (*moved, passed[0])):
        return
    bound = {name for one in passed for name in names_stored(one)}
    if any(bound & names_read(one) or not dotted(owner(call_of(one))) for one in moved):
        return
    if runs_what_it_is_given(scene, file, passed) or not is_apart(scene, file, passed):
        return
    if any(next(walk(one, *LEAVING), None) is not None for one in passed):
        return
    if any(one.name == "backward" for each in scene.files for one in functions(each.tree)):
        return
    lines = [lines_of(file, one) for one in moved]
    put = insert(file, lines_of(file, passed[0])[0], 1, "".join(f"{text_of_lines(file, *one)}\n" for one in lines))
    is_sound = scene.is_trained and _only_compute(scene, file, passed)
    is_sound &= makes_all(scene, file, lambda node: any(file.holds(one, node) for one in passed))
    edits, cost = (put, *(whole_lines(file, *one) for one in lines)), 2 if scene.is_trained else 4
    yield Change("run the backward before this change", edits, cost, Cure.LATER, is_sound)


def _only_compute(scene: Scene, file: File, rows: list[ast.stmt]) -> bool:
    """Whether all that some statements run is known, with the forwards of the program's modules, and is no hook."""
    forwards = [one for each in scene.files for one in functions(each.tree) if one.name in ("forward", "__call__")]
    ran = [each for row in (*rows, *forwards) for each in run_by(scene, row)] + [*forwards]
    own = {getattr(one, "name", "") for one in ran} | {*_KNOWN}
    made = [called(one) for each in scene.files for one in walk(each.tree, ast.Call)]
    return (
        not any(uses_gradients(file, one) for one in ran)
        and not any(one.startswith("register_") and "hook" in one for one in made)
        and all(
            (called(one) in own or only_computes(one) or module_of(scene, one) != "")
            and not (isinstance(one.func, ast.Name) and one.func.id in _TAKING)
            for part in (*rows, *ran)
            for one in walk(part, ast.Call)
        )
    )
