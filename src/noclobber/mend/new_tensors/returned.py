"""Make a new tensor where a hook or a `backward` writes into a tensor that autograd gave it, or where PyTorch refuses a
call of which only the value is used.

Sound because no other code should see these writes: autograd gives gradients and saves to other parts too, and a
refused write never happened. The function itself computes with the new tensor.
- In a `backward`, and in a function that the file only gives to `register_hook`, the name is bound to the new tensor,
  and a hook returns it. No other name of the function may hold the old one. Where a `backward` writes only parts of it,
  the name is bound to a clone before that.
- `return x.add_(1)`, and the same as the body of a lambda or a list, gives the new tensor in place of the written one.
  So it does in an unpack hook, which the engine calls once for each backward.

- A module's hook gets a tuple of gradients, and returns another one where it ends in the write to one of them.

Tried is the same in any hook: one that ends in the write returns the new gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from noclobber.mend.change import Change, change
from noclobber.mend.holders.holding import is_held_by_engine, is_new, keeps_nothing, writes_through
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cause, Cure, Edit
from noclobber.model.seen.silent import GradientWrite
from noclobber.syntax.edits import after, append, cloned_before, replace
from noclobber.syntax.names import (
    attributes,
    bindings,
    called,
    called_by,
    calls,
    dotted,
    is_own,
    is_read_again,
    is_stored,
    last_name,
    mentions,
    names_in,
    only_binding,
    parameters,
    reads,
    root_of,
    uses_in,
    value_given,
)
from noclobber.syntax.tree import FUNCTION, File, functions, lines_in, starts, walk
from noclobber.syntax.writes import (
    WriteSyntax,
    chain,
    expression,
    has_twin,
    is_in_vain,
    out_of_place,
    reads_between,
    without_underscores,
    write_in,
    writes,
)

TITLE = "write out of place"
_OF_MODULES = ("register_full_backward_hook", "register_full_backward_pre_hook")
_RETURNING = f"{TITLE}, and return the result from the hook"


def given_new(scene: Scene) -> Iterator[Change]:
    """A new tensor for what autograd gave: the value of a call, a name in a backward, what a hook returns."""
    for write in scene.writes():
        if _is_of_arguments(write):
            continue
        if (sound := _valued(scene, write) or _bound(scene, write) or _cloned(scene, write)) is not None:
            yield sound
        in_hook = scene.finding.cause is Cause.HOOKED and not write.name
        if in_hook or isinstance(scene.finding.event, GradientWrite) or _in_backward(write):
            if _part(write) is not None:
                edits = out_of_place(write)
                # What a hook of a module is given is a tuple, to which `grads[0] = ...` assigns nothing.
                is_back = isinstance(write.target, ast.Name) and _gives_back(write)
                found = tuple(edits) if is_back else returning(write, edits)
                is_sound = len(found) == 1 and _is_of_module(write) and scene.keeps_type(write.file)
                yield from change(TITLE if is_back else _RETURNING, found, 1, Cure.OUT_OF_PLACE, is_sound=is_sound)
                continue
            yield from rebound(write, in_hook=True, is_sound=_is_read_last_of_ctx(scene, write))
            edit = cloned_before(write.file, write.statement, write.name) if write.name else None
            if edit is not None and not is_in_vain(write, [edit]):
                yield from change(f"write into a clone of `{write.name}`", [edit], 2)


def _is_of_arguments(write: WriteSyntax) -> bool:
    """`grads[0].mul_(2)` under `*grads`: whether what is written lies in the tuple of a function's arguments."""
    scope, root = write.file.scope(write.statement), root_of(write.target)
    rest = scope.args.vararg if isinstance(scope, FUNCTION) else None
    return rest is not None and isinstance(root, ast.Name) and root.id == rest.arg


def _gives_back(write: WriteSyntax) -> bool:
    """Return True if a function ends in a `return`, and each of its `return`s gives what it writes."""
    scope = write.file.scope(write.statement)
    back = list(walk(scope, ast.Return))
    is_last = isinstance(scope, FUNCTION) and scope.body[-1] in back
    return is_last and all(one.value and write.name in names_in(one.value) for one in back)


def _is_of_module(write: WriteSyntax) -> bool:
    """Return True for the only write in a function that the file only gives to a module, and that keeps no gradient and
    reads the others only above it."""
    file, scope, row = write.file, write.file.scope(write.statement), write.statement
    made = [file.statement(one) for one in bindings(file, scope, write.name)]
    names = dict.fromkeys([write.name, *(name for each in made if each for name in names_in(each))])
    read = [one for name in names for one in uses_in(scope, name) if file.statement(one) not in (*made, row)]
    is_kept = any(isinstance(one.ctx, ast.Load) and not keeps_nothing(file, one) for one in read)
    is_kept |= any(starts(one) > starts(row) and one.id != write.name for one in read)
    is_kept |= any(one is not row for name in names for one in writes_through(file, scope, name))
    is_kept |= bool(file.loops(row)) or not all(is_own(scope, name) for name in names)
    return not is_kept and any(_is_given_to(file, write.node, hooks) for hooks in _OF_MODULES)


def _in_backward(write: WriteSyntax) -> bool:
    scope = write.file.scope(write.node)
    return isinstance(scope, FUNCTION) and scope.name == "backward" and "ctx" in parameters(scope)


def _is_read_last_of_ctx(scene: Scene, write: WriteSyntax) -> bool:
    """`slope = ctx.s.mul_(ctx.c)`: whether a `backward` uses the value of its write to what its ctx keeps, and reads
    that no more. So the ctx keeps what it kept for the next backward."""
    file, row = write.file, write.statement
    if scene.unchecked != "ctx" or not _in_backward(write) or not write.name.startswith("ctx.") or write.call is None:
        return False
    if not isinstance(row, (ast.Assign, ast.Return)) or file.loops(row) or not scene.keeps_type(file):
        return False
    scope, held = file.scope(row), list(reads(write.name, file.scope(row), file))
    is_last = all(starts(one) <= starts(write.call) for one in held)
    is_read = all(file.statement(one) is row or keeps_nothing(file, one, returned=False) for one in held)
    is_whole = any(not isinstance(file.above[one], ast.Attribute) for one in uses_in(scope, "ctx"))
    return is_last and is_read and not is_whole and scene.lines_written(file) <= {*lines_in(row)}


def _bound(scene: Scene, write: WriteSyntax) -> Change | None:
    """`g = g * k` for `g.mul_(k)` in a `backward`, and the same for each other write to `g` there."""
    file, statement = write.file, write.statement
    target: ast.expr | None = None
    in_hook = isinstance(scene.finding.event, GradientWrite) and _is_given_to(file, write.node, "register_hook")
    in_hook |= scene.unchecked == "packed" and _is_given_to(file, write.node, "saved_tensors_hooks")
    if scene.is_refused or not (_in_backward(write) or in_hook):
        return None
    if isinstance(statement, ast.AugAssign):
        target = statement.target
    elif isinstance(statement, (ast.Assign, ast.Expr)) and isinstance(statement.value, ast.Call):
        target = root_of(statement.value)
    taken = target if isinstance(statement, ast.Assign) and isinstance(target, ast.Name) else None
    if not isinstance(target, ast.Name):
        return None
    of_ctx = scene.unchecked == "ctx" and taken is None and _is_kept_by_ctx(file, target.id, statement)
    if not (of_ctx and scene.keeps_type(file)) and not is_held_by_engine(file, target.id, statement, taken):
        return None
    if taken is not None and (in_hook or not scene.keeps_type(file) or file.loops(statement)):
        return None
    if taken is not None and is_read_again(file, taken.id, statement):
        return None
    edits = list[Edit]()
    for one in dict.fromkeys(writes_through(file, file.scope(statement), target.id)):
        found = out_of_place(write_in(file, one))
        is_bound = one is statement and isinstance(one, ast.Assign)
        if len(found) != 1 or not (is_bound or found[0].replacement.startswith(f"{target.id} = ")):
            return None
        edits += found
    scope = file.scope(statement)
    back = list(walk(scope, ast.Return))
    is_last = isinstance(scope, FUNCTION) and scope.body[-1] in back
    if in_hook and not (is_last and all(one.value and write.name in names_in(one.value) for one in back)):
        edits = list(returning(write, edits))
    title = f"make a new tensor of `{target.id}`, and leave the given tensor unchanged"
    return Change(title, tuple(edits), 1, Cure.OUT_OF_PLACE, is_sound=True) if edits else None


def _is_kept_by_ctx(file: File, name: str, write: ast.stmt) -> bool:
    """`table = ctx.table`: whether a `backward` reads what its ctx keeps by this name alone, and keeps it nowhere else.
    So the ctx keeps for the next backward what it kept."""
    scope, around = file.scope(write), file.class_of(write)
    row = only_binding(file, scope, name)
    held = row.value if row is not None else None
    if not isinstance(held, ast.Attribute) or dotted(held.value) != "ctx" or around is None:
        return False
    kept = attributes(file.tree, held.attr)
    made = [one for one in kept if is_stored(file, one)]
    is_new_there = [*made, held] == kept and all(_is_made_for(file, value_given(file, one)) for one in made)
    given = [each for one in calls(file.tree, "backward") for each in one.args]
    given += [each for one in walk(file.tree, ast.ClassDef) for each in one.bases]
    read = [one for one in uses_in(scope, name) if isinstance(one.ctx, ast.Load)]
    is_whole = any(not isinstance(file.above[one], ast.Attribute) for one in uses_in(scope, "ctx"))
    if is_whole or not is_new_there or any(dotted(one) in ("ctx", around.name) for one in given):
        return False
    return all(keeps_nothing(file, one) for one in read)


def _is_made_for(file: File, kept: ast.expr | None) -> bool:
    """Return True for a new tensor, and for a variable of a `forward` that is bound to one and is else only read."""
    if not isinstance(kept, ast.Name):
        return is_new(file, kept)
    row = only_binding(file, file.scope(kept), kept.id)
    read = [one for one in uses_in(file.scope(kept), kept.id) if isinstance(one.ctx, ast.Load) and one is not kept]
    is_only_read = all(keeps_nothing(file, one, returned=False) for one in read)
    return row is not None and is_new(file, row.value) and is_only_read


def _cloned(scene: Scene, write: WriteSyntax) -> Change | None:
    """`g = given.clone()` for `g = given` in a `backward` that writes to parts of `g`, as `g[mask] = 0`, or a clone
    before the first such write to what it was given by that name."""
    file, scope = write.file, write.file.scope(write.statement)
    root = root_of(write.target)
    if scene.is_refused or not _in_backward(write) or not isinstance(root, ast.Name) or isinstance(scope, ast.Lambda):
        return None
    name, rows = root.id, scope.body
    uses = uses_in(scope, name)
    edit: Edit | None = None
    row, bound = only_binding(file, scope, name), bindings(file, scope, name)
    given = row.value if row is not None and row.targets == [uses[0]] else None
    if row is not None and isinstance(given, ast.Name) and row in rows and not is_read_again(file, given.id, row):
        held, edit = given.id, append(file, given, ".clone()")
    elif not bound and (top := next((one for one in rows if file.holds(one, write.statement)), None)) is not None:
        held, edit = name, cloned_before(file, top, name)
    else:
        return None
    keeping = (one for one in uses if isinstance(one.ctx, ast.Load) and not keeps_nothing(file, one))
    if edit is None or held not in parameters(scope) or any(keeping):
        return None
    title = f"write into a clone of `{held}`, and leave the given tensor unchanged"
    return Change(title, (edit,), 2, Cure.CLONE_FIRST, is_sound=True)


def _valued(scene: Scene, write: WriteSyntax) -> Change | None:
    """`return x.sub_(m).div_(s)`: each call of the row without its underscore."""
    file, call, event = write.file, write.node, scene.finding.event
    # Not of a view from without gradients or from a Function: what it shows may be read for the written values.
    refused = scene.is_refused and scene.code in ("NC303", "NC307", "NC399")
    packed = scene.unchecked == "packed" and _is_given_to(file, call, "saved_tensors_hooks")
    if not isinstance(call, ast.Call) or not (refused or packed or isinstance(event, GradientWrite)):
        return None
    outer: ast.AST = call
    while isinstance(file.above[outer], (ast.Attribute, ast.Call)):
        outer = file.above[outer]
    if not isinstance(outer, ast.Call) or not isinstance(file.above[outer], (ast.Return, ast.Lambda, ast.ListComp)):
        return None
    writing = [one for one in chain(outer) or [outer] if writes(one)]
    if not writing or not all(map(has_twin, writing)) or reads_between(writing):
        return None
    alone = expression(file, outer) if writing == [outer] else None
    edit = replace(file, outer, alone or without_underscores(file, outer, writing))
    title = "give a new tensor instead of writing into this one"
    return Change(title, (edit,), 1, Cure.OUT_OF_PLACE, is_sound=True)


def _is_given_to(file: File, node: ast.AST, hooks: str) -> bool:
    """Return True if a node stands in what the file gives a call that registers hooks, or `saved_tensors_hooks` to
    unpack with, and mentions nowhere else: a function, or one that such a call returns."""
    scope = file.scope(node)
    name = scope.name if isinstance(scope, FUNCTION) else ""
    given: list[ast.expr] = [scope] if isinstance(scope, ast.Lambda) else [*mentions(file, name)] if name else []
    maker = None if isinstance(scope, ast.Module) else file.scope(scope)
    if isinstance(maker, FUNCTION) and [type(file.above[one]) for one in given] == [ast.Return]:
        given = [called_by(file, one) or one for one in mentions(file, maker.name)]
    is_one_of_several = hooks != "saved_tensors_hooks" and len(calls(file.tree, hooks)) != len(given)
    if is_one_of_several or any(one.name == hooks for one in functions(file.tree)):
        return False  # another hook may keep the same gradient; and a method of the file may do anything
    return bool(given) and all(
        isinstance(call := file.above[one], ast.Call)
        and called(call) == hooks
        and call.args[hooks == "saved_tensors_hooks" :] == [one]
        for one in given
    )


def rebound(write: WriteSyntax, cost: int = 1, *, in_hook: bool = False, is_sound: bool = False) -> Iterator[Change]:
    """The write with a new tensor for its result, bound to the name of the old one where the statement has no other.

    None for a write into an argument that only the caller reads; a hook returns the new tensor instead.
    """
    edits = out_of_place(write)
    if not is_in_vain(write, edits):
        yield from change(TITLE, edits, cost, Cure.OUT_OF_PLACE, is_sound=is_sound)
        return
    if in_hook or is_forward_hook(write.file, write.file.scope(write.statement)):
        yield from change(_RETURNING, returning(write, edits), cost)


def is_forward_hook(file: File, scope: ast.AST) -> bool:
    """Return True for a function that the file registers as a forward hook, which may return another output."""
    hooks = calls(file.tree, "register_forward_hook")
    return getattr(scope, "name", None) in [last_name(given) for one in hooks for given in one.args[:1]]


def returning(write: WriteSyntax, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Edits of a write into an argument, or into a part of it, after which the function, which returned nothing,
    returns it; none where that cannot be done."""
    file, scope = write.file, write.file.scope(write.statement)
    around = _part(write) or (("", "") if write.name in parameters(scope) else None)
    if not edits or not isinstance(scope, FUNCTION) or around is None:
        return ()
    back = after(file, scope.body[-1], f"return {write.name.join(around)}")
    if back is None or next(walk(scope, ast.Return), None) is not None:
        return ()
    text = edits[-1].replacement.partition(" = ")[2]
    if back.span.line == edits[-1].span.end_line and text and not file.loops(write.statement):
        return (Edit(edits[-1].span, f"return {text.join(around)}"),)
    return (*edits, back) if isinstance(write.target, ast.Name) else ()


def _part(write: WriteSyntax) -> tuple[str, str] | None:
    """What stands before and after a tensor in the tuple of gradients that a module's hook gets as its second argument,
    and that it may return another one for: written as `grads[0]`, or under the name that alone is bound to it."""
    file, scope, part = write.file, write.file.scope(write.statement), write.target
    names = [one for one in parameters(scope) if one != "self"]
    if isinstance(part, ast.Name):
        bound = bindings(file, scope, part.id)
        row = file.statement(bound[0]) if len(bound) == 1 else None
        if not isinstance(row, ast.Assign) or len(row.targets) != 1:
            return None
        into, value = row.targets[0], row.value
        if isinstance(into, ast.Tuple) and last_name(value) in names[1:2] and all(map(last_name, into.elts)):
            held = [last_name(one) for one in into.elts]
            at = held.index(part.id)
            return f"({''.join(f'{one}, ' for one in held[:at])}", f", {', '.join(held[at + 1 :])}".rstrip(" ") + ")"
        part = value
    held_in, at_ = (part.value, part.slice) if isinstance(part, ast.Subscript) else (None, None)
    if not isinstance(held_in, ast.Name) or not isinstance(at_, ast.Constant) or held_in.id not in names[1:2]:
        return None
    name, index = held_in.id, at_.value
    if not isinstance(index, int):
        return None
    return f"(*{name}[:{index}], " if index else "(", f", *{name}[{index + 1}:])"
