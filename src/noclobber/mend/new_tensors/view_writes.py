"""Writes to views that PyTorch refuses, as a loop or an unpacking hands them out: the same writes through others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain, count

from noclobber.mend.change import LAST_RESORT, Change, change
from noclobber.mend.holders.holding import is_new
from noclobber.mend.new_tensors.new_wholes import For, taken
from noclobber.mend.scene import Scene
from noclobber.model.seen.operators import SPLITS, TWIN_IS_VIEW, VIEWS
from noclobber.syntax.edits import cloned_before, remove, replace
from noclobber.syntax.names import (
    Name,
    call_of,
    called,
    called_by,
    dotted,
    indexes,
    is_own,
    is_plain_index,
    is_read_below,
    is_stored,
    keyword,
    names_in,
    names_stored,
    names_used,
    only_binding,
    owner,
    parameters,
    set_later,
    uses,
    uses_in,
    value_given,
    values,
)
from noclobber.syntax.tree import File, ends, starts, walk
from noclobber.syntax.writes import WriteSyntax, writes


def views(scene: Scene) -> Iterator[Change]:
    """The writes to views of a finding, through other views."""
    yield from sorted(_written_otherwise(scene), key=lambda one: not one.is_sound)


def _written_otherwise(scene: Scene) -> Iterator[Change]:
    for write in scene.writes():
        if scene.is_refused:
            yield from _by_index(scene, write)
            yield from _one_by_one(write)
        if scene.is_refused or scene.may_write_anew:
            cost = 1 if scene.is_refused and scene.code != "NC307" else LAST_RESORT + 1
            yield from _inlined(write, cost, is_refused=scene.code in ("NC301", "NC303"))


def _by_index(scene: Scene, write: WriteSyntax) -> Iterator[Change]:
    """`for c, m in zip(x, M): c.mul_(m)` as `for i, m in zip(range(len(x)), M): x[i].mul_(m)`: the same writes.

    Sound where PyTorch takes such writes, whose nodes save nothing of `x`, and where the loop does nothing else.
    """
    file, found = write.file, taken(write)
    source = _indexable(file, found.whole) if found is not None else None
    if found is None or source is None:
        return
    (loop, target, whole), (text, length), used = found, source, names_used(file.scope(found.loop))
    written = [one for row in loop.body for one in uses_in(row, write.name)]
    root = text.partition("[")[0].partition(".")[0]
    below = uses(file.scope(loop), write.name, ast.Load)
    if any(is_stored(file, one) for one in written) or any(starts(one) >= ends(loop) for one in below):
        return
    counted = _counter(loop, target)
    index = counted or next(one for one in chain("ijk", map("i{}".format, count(1))) if one not in used)
    ranged = f"range({length})"
    edits = [replace(file, target, index), replace(file, whole, ranged)]
    if counted:
        edits = [replace(file, loop.target, index), replace(file, loop.iter, ranged)]
    edits += [replace(file, one, text.replace("#", index)) for one in written]
    is_sound = scene.may_be_recorded and _is_one_tensor(file, loop, whole, root)
    is_sound &= {file.statement(one) for one in written} == {*loop.body} and all(
        is_written_alone(file, one) and saves_nothing(file.statement(one)) for one in written
    )
    is_sound &= all(root not in names_used(row) for row in loop.body)
    yield Change("index instead of iterating", tuple(edits), 1, is_sound=is_sound)
    if is_read_below(file, root, loop):
        clone = cloned_before(file, loop, root)
        yield from change(f"index a clone of `{root}` instead of iterating", [clone, *edits], 2)


def _is_one_tensor(file: File, loop: For, whole: ast.expr, root: str) -> bool:
    """Return True if a loop goes through `x.unbind(0)`, through a tensor that its function has made and binds once, or
    through the parts of such a tensor by a name that nothing else uses."""
    scope = file.scope(loop)
    if isinstance(whole, ast.Call):
        return root in map(dotted, (owner(whole), *whole.args))
    made = only_binding(file, scope, root)
    if made is None or root in parameters(scope) or not is_new(file, made.value) or not isinstance(whole, ast.Name):
        return False
    return whole.id == root or uses(scope, whole.id, ast.Load) == [whole]


def _counter(loop: For, target: ast.expr) -> str:
    """`i` of `for i, c in enumerate(x)`, where the loop binds it to nothing else; else empty."""
    pair, counting = loop.target, loop.iter
    if not isinstance(counting, ast.Call) or called(counting) != "enumerate" or len(values(counting)) != 1:
        return ""
    number = pair.elts[0] if isinstance(pair, ast.Tuple) and target is pair.elts[-1] else None
    bound = {name for row in loop.body for name in names_stored(row)}
    return number.id if isinstance(number, ast.Name) and number.id not in bound else ""


def _one_by_one(write: WriteSyntax) -> Iterator[Change]:
    """`a, b = x.unbind(0)` as `a, b = x[0], x[1]`: views that are made one at a time may be written, also by a loop
    over `(a, b)`."""
    found = taken(write)
    written = {dotted(write.base), *(names_in(found.whole) if found is not None else ())}
    for one in walk(write.file.scope(write.statement), ast.Assign):
        target, part = one.targets[0], _indexable(write.file, one.value)
        if part is not None and isinstance(target, ast.Tuple) and not written.isdisjoint(map(dotted, target.elts)):
            text = ", ".join(part[0].replace("#", str(number)) for number in range(len(target.elts)))
            yield Change("take the views one at a time", (replace(write.file, one.value, text),), 1)


def _inlined(write: WriteSyntax, cost: int, *, is_refused: bool) -> Iterator[Change]:
    """`tail.copy_(e)` as `x[2:].copy_(e)`, for every view that the statement of `tail` took, where it is written.

    Sound where PyTorch has refused the write, the views have no other use, and what they are parts of is new.
    """
    file, name, scope = write.file, dotted(write.target), write.file.scope(write.statement)
    for one in walk(scope, ast.Assign):
        made = _views(file, one)
        if name not in made or one.lineno >= write.statement.lineno:
            continue
        later = [use for use in walk(scope, ast.Name) if use.id in made and use.lineno > one.lineno]
        written = [use for use in later if is_written_alone(file, use)]
        gone = remove(file, one) if written == later else None
        edits = [*(replace(file, use, file.source(made[use.id])) for use in written), *([gone] if gone else [])]
        if written:
            is_sound = is_refused and gone is not None and _are_parts_of_new(file, one, made, written)
            title = "take each view where it is written"
            yield Change(title, tuple(edits), cost, is_sound=is_sound)


SAVING_NOTHING = ("add_", "copy_", "div_", "fill_", "mul_", "neg_", "sub_", "zero_")
"""Writes whose nodes save nothing of the new value, nor of the old one but in a copy of their own (torch 2.13;
tests/mend/test_making.py asks the installed torch)."""


def saves_nothing(row: ast.stmt | None) -> bool:
    """Return True for a write in place, such as `row *= 2`, after which the same memory may be written again."""
    if isinstance(row, ast.AugAssign):
        return isinstance(row.op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
    return called(call_of(row)) in SAVING_NOTHING


def is_written_alone(file: File, use: Name) -> bool:
    """`tail.copy_(e)`, `tail += e`: whether a statement writes to a name and does nothing else with it."""
    above = file.above[use]
    if isinstance(above, ast.AugAssign):
        return above.target is use
    call = called_by(file, above)
    if call is None or not writes(call) or called(call) in TWIN_IS_VIEW | {"requires_grad_"}:
        return False
    return call_of(file.above[call]) is call


def _are_parts_of_new(file: File, one: ast.Assign, made: dict[str, ast.expr], written: list[ast.Name]) -> bool:
    """Return True if views are taken by slices of a tensor that the function has made, nothing else reads that before
    the last write to a view, nothing reads a view of the turn before, and an index means the same there."""
    scope, last = file.scope(one), max(written, key=starts)
    wholes = {dotted(view.value) if isinstance(view, ast.Subscript) else "" for view in made.values()}
    name = wholes.pop()
    row = only_binding(file, scope, name) if not wholes and name.isidentifier() else None
    if row is None or not is_new(file, row.value) or not all(is_own(scope, each) for each in (name, *made)):
        return False
    added = {use.id for use in written if isinstance(file.above[use], ast.AugAssign)}
    if any(len(uses(scope, each, ast.Store, ast.Del)) != 1 for each in made.keys() - added):
        return False
    if any(starts(use) < starts(one) for each in made for use in uses(scope, each, ast.Load)):
        return False
    read = [use for use in uses(scope, name, ast.Load) if starts(row) < starts(use) < starts(last)]
    if any(use not in ast.walk(one) for use in read) or row not in file.block(one):
        return False
    taken = [each for view in made.values() if isinstance(view, ast.Subscript) for each in indexes(view)]
    return all(is_plain_index(each) and _stays(file, each, one) for each in taken)


def _stays(file: File, index: ast.expr, row: ast.stmt) -> bool:
    """Return True if an index means the same below a statement: it has numbers, variables of the function that are
    neither bound nor written there, and attributes that `__init__` alone sets."""
    scope = file.scope(row)
    names = {each.id for each in walk(index, ast.Name)} - {"self"}
    below = [use for each in names for use in uses(scope, each) if starts(use) > starts(row)]
    return (
        not any(isinstance(each, (ast.Call, ast.Subscript, ast.NamedExpr)) for each in ast.walk(index))
        and not any(isinstance(use.ctx, ast.Store) or isinstance(file.above[use], ast.Attribute) for use in below)
        and all(is_own(scope, each) and (each in parameters(scope) or uses(scope, each, ast.Store)) for each in names)
        and not set_later(file, *(each.attr for each in walk(index, ast.Attribute)))
    )


def _indexable(file: File, whole: ast.expr | None) -> tuple[str, str] | None:
    """How the part number `#` of `x`, `x.unbind(0)` or `torch.unbind(x)` is written, also by a name for that, and how
    many there are; None for what is divided in another way."""
    dim, scope = "0", file.scope(whole) if whole is not None else file.tree
    bound = only_binding(file, scope, whole.id) if isinstance(whole, ast.Name) else None
    if bound is not None and called(bound.value) in SPLITS:
        read = {one.id for one in walk(bound.value, ast.Name)}
        again = (one for name in read for one in uses(scope, name, ast.Store) if starts(one) > starts(bound))
        whole = bound.value if next(again, None) is None and called(bound.value) == "unbind" else None
    if isinstance(whole, ast.Call) and called(whole) == "unbind":
        is_function, given = dotted(owner(whole)) == "torch" and bool(whole.args), keyword(whole, "dim")
        along = given.value if given is not None else next(iter(whole.args[is_function:]), None)
        dim = file.source(along) if along is not None else "0"
        whole = whole.args[0] if is_function else owner(whole)
    if whole is None or not dotted(whole):
        return None
    text = file.source(whole)
    if dim == "0":
        return f"{text}[#]", f"len({text})"
    index = {"1": ":, #", "2": ":, :, #", "-1": "..., #"}.get(dim)
    return f"{text}[{index}]" if index else f"{text}.select({dim}, #)", f"{text}.size({dim})"


def _views(file: File, one: ast.Assign) -> dict[str, ast.expr]:
    """The names that an assignment gives to views, and how each is taken."""
    given = [(each.id, value_given(file, each)) for each in walk(one.targets[0], ast.Name)]
    return {name: view for name, view in given if isinstance(view, ast.Subscript) or (view and called(view) in VIEWS)}
