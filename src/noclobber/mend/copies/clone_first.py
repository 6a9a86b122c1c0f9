"""Copy before the write, `h = h.clone()` on the line before it, or what is given to it.

Sound because a refused write never happened, so there is nothing to keep but values:
- of a view of a leaf, where the function made the view and reads it later on, and nobody reads what it is a view of,
- of the argument of a custom Function that may not write it, if nothing reads the original afterwards,
- of the value, where that overlaps the written memory: it keeps its bytes from before the write.

Tried is a clone before the first of the statements in a row that write the same tensor, before the loop around them,
where a view is made that is written, and for whatever writes what it is called with. None where the write would not
reach all that goes on with the tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from noclobber.mend.change import LAST_RESORT, Change, change
from noclobber.mend.holders.holding import is_given_alone, is_given_last, is_new
from noclobber.mend.holders.making import HANDING_ON, is_item_of_new
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cause, Cure, Edit
from noclobber.model.seen.silent import Undeclared
from noclobber.syntax.edits import append, cloned_before
from noclobber.syntax.names import (
    called,
    definition,
    dotted,
    is_read_below,
    names_in,
    only_binding,
    parameters,
    root_of,
    uses,
    values,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, ends, starts, walk, within
from noclobber.syntax.writes import Form, WriteSyntax, base_of, is_read_on, loses_write, write_in, writes


def into_clone(scene: Scene) -> Iterator[Change]:
    """The writes of a finding into a clone of what they write."""
    for write in scene.writes():
        if scene.is_leaf:
            yield from _of_leaf(scene, write)
        elif not scene.may_write_anew or (write.call is not None and not writes(write.call) and scene.is_clobber):
            continue
        elif scene.is_refused:
            yield from before_write(write, scene, 4) if is_read_on(write) else ()
        else:
            yield from before_write(write, scene, 2 if isinstance(write.target, ast.Subscript) else 3)


def before_write(write: WriteSyntax, scene: Scene, cost: int) -> Iterator[Change]:
    """`h = h.clone()` before the first of the statements in a row that write `h`; before the loop around them too.

    If the tensor is an argument, or part of an object, other code may hold it; the clone is then not the same tensor.
    """
    file, name = write.file, write.name
    if not name or name.endswith(("torch", "self")) or loses_write(write):
        return
    loop = next(reversed(file.loops(write.statement)), None)
    first, *_ = file.beside(write.statement, partial(_writes_part, file, name))
    inside = cloned_before(file, first, name)
    saves = [one for one in scene.places("save") if one.file.path == file.path]
    heads = [one for one in walk(loop, ast.stmt) if isinstance(one, FOR)] if loop is not None else []
    is_bound = any(name.split(".")[0] in names_in(one.target) for one in heads)
    if loop is not None and not is_bound and not any(loop in file.around(one.node) for one in saves):
        outside = cloned_before(file, loop, name)
        yield from change(f"write into a clone of `{name}`, made before the loop", [outside], cost)
    yield from change(f"write into a clone of `{name}`", [inside], cost + 2 * (loop is not None))


def _writes_part(file: File, name: str, row: ast.stmt) -> bool:
    if hasattr(row, "body") or (isinstance(row, ast.Assign) and not isinstance(row.targets[0], ast.Subscript)):
        return False
    write = write_in(file, row)
    return write.name == name and write.form is not Form.OTHER


def _of_leaf(scene: Scene, write: WriteSyntax) -> Iterator[Change]:
    """A clone of a leaf, or of a view of one, so that the gradient flows; or one where the view is made, unless it is
    expanded there."""
    file, name, found = write.file, write.name, write.statement
    if isinstance(found, ast.AugAssign) and is_item_of_new(file, found.target, found):
        return
    title = f"write into a clone of `{name}`, so that the gradient flows through"
    yield from change(title, [_of_own_view(write)], 1, Cure.CLONE_FIRST, is_sound=True)
    if write.base is None or name.startswith("self.") or ".grad" in file.source(found):
        return
    if not is_read_below(file, name, found):
        yield from _whole_cloned(write)
        return
    yield from change(title, [cloned_before(file, found, name)], 1)
    if scene.is_expanded:
        return
    scope, root = file.scope(found), base_of(definition(file, write.base, found))
    if isinstance(scope, FUNCTION) and root is not None and dotted(root).split(".")[0] in parameters(scope):
        title = f"write into a clone of `{dotted(root)}`"
        yield Change(title, (append(file, root, ".clone()"),), 1)


def _whole_cloned(write: WriteSyntax) -> Iterator[Change]:
    """`x = x.clone()` before `t = x[:, 0]`, where what is read below the write to the view `t` is `x`."""
    file, scope = write.file, write.file.scope(write.statement)
    bound = uses(scope, write.name, ast.Store)
    row = file.statement(bound[0]) if bound else None
    whole = base_of(definition(file, write.base, write.statement))
    if isinstance(whole, ast.Name) and row is not None and is_read_below(file, whole.id, write.statement):
        title = f"take the views of a clone of `{whole.id}`, so that the gradient flows through"
        yield from change(title, [cloned_before(file, row, whole.id)], 1)


def _of_own_view(write: WriteSyntax) -> Edit | None:
    """`h = h.clone()` before `h[i] = e`: where the function made the view `h` and reads it later on, and nobody reads
    what it is a view of."""
    file, found = write.file, write.statement
    target = found.targets[0] if isinstance(found, ast.Assign) else None
    name = target.value.id if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else ""
    if not name or file.loops(found) or file.own_lines(found) is None:
        return None
    binding = only_binding(file, file.scope(found), name)
    root = root_of(binding.value) if binding is not None else None
    names = (one for one in within(file.scope(found), ast.Name) if isinstance(one.ctx, ast.Load))
    later = {one.id for one in names if starts(one) >= ends(found)}
    if not isinstance(root, ast.Name) or root.id in later or name not in later:
        return None
    taken = walk(binding.value, ast.Attribute) if binding is not None else ()
    if any(one.attr not in HANDING_ON for one in taken) or not _is_read_here_only(file, root):
        return None  # others may read `self.weight`, or what was given
    return cloned_before(file, found, name)


def _is_read_here_only(file: File, name: ast.Name) -> bool:
    """Return True if a scope binds a name to a new tensor, or no caller of the function reads again what it gives."""
    scope = file.scope(name)
    bound = [file.statement(one) for one in uses(scope, name.id, ast.Store)]
    if bound or name.id not in parameters(scope):
        return bool(bound) and all(isinstance(one, ast.Assign) and is_new(file, one.value) for one in bound)
    return is_given_alone(file, name.id, scope)


def value_cloned(scene: Scene) -> Iterator[Change]:
    """`h[1:] = h[:-1]` as `h[1:] = h[:-1].clone()`: what is read is then no longer what is written."""
    for write in scene.writes() if scene.finding.cause is Cause.READS_TARGET else ():
        value = write.value if write.call is None else None
        if write.call is not None and called(write.call).endswith("_") and write.call.args:
            value = write.call.args[0]
        if isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            edit, is_sound = append(write.file, value, ".clone()"), write.call is None
            yield Change("clone the value that is read", (edit,), 0, Cure.CLONE_VALUE, is_sound)


def argument_cloned(scene: Scene) -> Iterator[Change]:
    """`F.apply(x)` as `F.apply(x.clone())`: of the argument of the tensor's name, else of the first one."""
    if not (scene.may_write_anew or scene.is_leaf or isinstance(scene.finding.event, Undeclared)):
        return
    places = scene.places("write", "read")
    for place in places if scene.is_refused else ():
        call = place.node if called(place.node) == "apply" else None
        if not isinstance(call, ast.Call) or not call.args or isinstance(place.statement, ast.Expr):
            continue
        if is_given_last(place.file, call.args[0]):
            edit = append(place.file, call.args[0], ".clone()")
            yield Change("give the Function a clone", (edit,), 1, Cure.CLONE_ARGUMENT, is_sound=True)
    for place in places:
        call = place.file.nearest(place.node, ast.Call)
        if call is None or writes(call) or called(call) in ("backward", "grad"):
            continue
        chosen = _argument(call, scene.name)
        if chosen is not None and not isinstance(chosen, ast.Constant):
            cost = 1 if called(call) == "apply" else 2 if place in scene.places("write") else LAST_RESORT + 3
            edit = append(place.file, chosen, ".clone()")
            yield Change(f"give `{called(call)}` a clone", (edit,), cost)


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    """The argument of a call that has a dotted name, else the first one; None where that is unpacked or missing."""
    given = values(call)
    if not given or isinstance(given[0], ast.Starred):
        return None
    return next((one for one in given if name and dotted(one) == name), given[0])
