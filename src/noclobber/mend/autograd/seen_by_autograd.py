"""Let autograd see a write: out of `no_grad` and not through `.data`, as a functional call, or as a name for the value.

Where autograd was never told of the write, each change states one meaning, and only the author knows which is meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from noclobber.mend.change import Change, change
from noclobber.mend.copies.clone_first import before_write
from noclobber.mend.new_tensors.returned import is_forward_hook, returning
from noclobber.mend.scene import Scene, hides
from noclobber.model.reports.finding import Edit
from noclobber.syntax.edits import replace, undecorated, unwrapped
from noclobber.syntax.names import dotted, has_stars, in_tuple, is_read_again, last_name
from noclobber.syntax.tree import FUNCTION, WITH, With, walk
from noclobber.syntax.writes import WriteSyntax, is_in_vain, out_of_place, value_of

_GUARDS = ("no_grad", "inference_mode")
"""Blocks in which autograd records nothing."""
_SEEING = "let autograd see it: write out of place"


def let_see(scene: Scene) -> Iterator[Change]:
    """A write through `.data` to an activation; one that autograd was never told of, as a part of the function."""
    for write in scene.writes():
        if scene.is_unseen:
            yield from _out_of_guard(write)
            yield from _functional_call(write)
            yield from _tracked(write, scene, 2)
        elif scene.is_clobber and scene.is_hidden and not scene.is_trained:  # which is to stay a leaf
            yield from _tracked(write, scene, 1)


def _out_of_guard(write: WriteSyntax) -> Iterator[Change]:
    """A write under `with torch.no_grad():` or `@torch.no_grad()`, out of place and without that; in place where the
    text of the write has no other form."""
    edits, scope = out_of_place(write), write.file.scope(write.statement)
    moved = out_of_guard(write, edits)
    if edits and not is_in_vain(write, edits) and moved is not None and moved != tuple(edits):
        yield Change(_SEEING, moved, 1 if len(moved) == 1 else 2)
    if not edits and moved:
        yield Change("let autograd see it", moved, 2)
    kept = () if is_in_vain(write, edits) else edits
    for one in scope.decorator_list if isinstance(scope, FUNCTION) else ():
        if last_name(one.func if isinstance(one, ast.Call) else one) == "no_grad":
            yield Change(_SEEING if kept else "let autograd see it", (undecorated(write.file, one), *kept), 2)


def out_of_guard(write: WriteSyntax, edits: Sequence[Edit]) -> tuple[Edit, ...] | None:
    """Edits of a write, which also take it out of the block under `no_grad` that it stands in, where it does; None
    where that cannot be done."""
    file = write.file
    block = next((one for one in file.around(write.statement) if isinstance(one, WITH) and _guards(one)), None)
    if block is None:
        return tuple(edits)
    if len(block.items) > 1:
        return None
    if len(edits) == 1 and len(block.body) == 1 and edits[0].span == file.span(write.statement):
        return (Edit(file.span(block), edits[0].replacement),)
    gone = unwrapped(file, block)
    return (*gone, *edits) if gone else None


def _guards(block: With) -> bool:
    items = [one.context_expr for one in block.items]
    return any(last_name(one.func if isinstance(one, ast.Call) else one) in _GUARDS for one in items)


def _tracked(write: WriteSyntax, scene: Scene, cost: int) -> Iterator[Change]:
    """A write through `.data` or `.detach()` as one that autograd sees: out of place, or into a clone."""
    file, target, name = write.file, write.target, write.name
    read = [one for one in walk(write.statement, ast.Attribute) if one.attr == "data" and dotted(one.value) == name]
    hidden = dict[ast.expr, ast.expr]([*hides(target), *((one, one.value) for one in read)])
    shown = [replace(file, one, file.source(alone)) for one, alone in hidden.items()]
    if not any(hides(target)) or not name or not is_read_again(file, name, write.statement):
        return
    if not isinstance(target, ast.Subscript):
        edits = [Edit(one.span, _visible(name, one.replacement)) for one in out_of_place(write)]
        yield from change(_SEEING, edits, cost)
    if isinstance(write.statement, ast.Assign) and isinstance(target, ast.Attribute) and target.attr == "data":
        edit = replace(file, write.statement, f"{name} = {_visible(name, file.source(write.statement.value))}")
        yield Change(f"bind `{name}` to the new value", (edit,), cost)
        return
    for one in before_write(write, scene, cost + 1):
        yield Change(f"let autograd see it: {one.title}", (*one.edits, *shown), one.cost)
    yield Change("let autograd see it", tuple(shown), cost + 3)


def _visible(name: str, text: str) -> str:
    """Text in which autograd sees each use of a tensor: `h - h.max()` for `h - h.data.max()`."""
    return re.sub(rf"(?<![\w.]){re.escape(name)}\.data\b", name, text)


def _functional_call(write: WriteSyntax) -> Iterator[Change]:
    """`conv.weight.data = w` and then `conv(x)` as `torch.func.functional_call(conv, {"weight": w}, (x,))`."""
    file, statement, name = write.file, write.statement, write.name
    owner, _, short = name.rpartition(".")
    value = value_of(write)
    found = walk(file.scope(statement), ast.Call)
    calls = [one for one in found if owner and dotted(one.func) == owner and one.lineno > statement.lineno]
    if not value or not calls or any(map(has_stars, calls)):
        return
    edits = []
    for one in calls:
        named = [f'"{each.arg}": {file.source(each.value)}' for each in one.keywords]
        given = in_tuple([file.source(each) for each in one.args]) + (f", {{{', '.join(named)}}}" if named else "")
        edits.append(replace(file, one, f'torch.func.functional_call({owner}, {{"{short}": {short}}}, {given})'))
    edits.append(replace(file, statement, f"{short} = {value}"))
    yield Change(f"call `{owner}` with the new `{short}`", tuple(edits), 1)


def straight_through(write: WriteSyntax) -> Iterator[Change]:
    """`h.data.copy_(h.round())` as `h = h + (h.round() - h).detach()`: the new values, and the gradient of the old."""
    file, name, value = write.file, write.name, value_of(write)
    if not value or not name:
        return
    edit = replace(file, write.statement, f"{name} = {name} + ({_visible(name, value)} - {name}).detach()")
    if is_read_again(file, name, write.statement):
        yield from change(f"add the change to `{name}` as a constant", out_of_guard(write, [edit]) or (), 1)
    elif is_forward_hook(file, file.scope(write.statement)):
        yield from change(f"return `{name}` with the change to it as a constant", returning(write, [edit]), 1)
