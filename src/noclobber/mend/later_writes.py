"""Writes that come before a backward which needs the old bytes: the statement moved below the last backward.

A write that changes no byte in the runs that are compared may change some in a later run. So the source has to show
that no statement in between reads what is written, by any name. That is known of few statements:

- `backward` and `zero_grad`,
- what prints numbers and tensors, or binds them to a name, or appends them to a list. Each tensor that is read there is
  held by one name of the function and by nothing else, and the write does not mention that name.

The write in turn may not depend on what the statements in between change: on a gradient, or on a name that they bind.
So the change is sound for weights, whose writes are part of no graph, where the statement makes all writes that were
seen. Tried is the same for what is no weight.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product

from noclobber.mend.change import LAST_RESORT, Change
from noclobber.mend.holding import owns
from noclobber.mend.making import BUILTINS, KEEPING_NOTHING, METHODS, is_function, is_method
from noclobber.mend.resolving import module_called
from noclobber.mend.scene import Scene
from noclobber.mend.steps import together
from noclobber.model.finding import Cure
from noclobber.model.silent import Drift, LostHook
from noclobber.syntax.edits import after, insert, lines_of, remove, text_of_lines, whole_lines
from noclobber.syntax.names import called, dotted
from noclobber.syntax.tree import FUNCTION, File, Place, last_line, walk
from noclobber.syntax.writes import WriteSyntax

_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, *FUNCTION)
"""What changes its meaning, or cannot stand, in another place."""


def put_off(scene: Scene) -> Iterator[Change]:
    """The statement that writes, or that calls the function which does, moved below the last backward."""
    read, fits = scene.place("read"), scene.is_clobber or scene.is_refused or isinstance(scene.finding.event, Drift)
    if read is None or not fits or scene.is_unseen:
        return
    cost = 1 if scene.kind == "parameter" or scene.drifts else 4
    cost = LAST_RESORT + 3 if scene.steps() or scene.is_refused else cost
    for write in scene.writes():
        yield from _put_off(scene, read, write, cost)


def _put_off(scene: Scene, read: Place, write: WriteSyntax, cost: int) -> Iterator[Change]:
    file, scope, target = read.file, read.file.scope(read.row), list[ast.AST]([write.statement])
    writer = write.file.scope(write.statement)
    if writer is not scope and isinstance(writer, FUNCTION):
        target = [one for one in walk(scope, ast.Call) if called(one) == writer.name]
        if _reads_gradients(writer):
            return
    elif write.file is not file:
        return
    for one in target:
        rows, first, second = together(file, one, read.row)
        if not rows or first >= second or not _may_wait(file, rows[first], rows[first + 1 : second + 1]):
            continue
        last = _last_backward(file, rows, first, second)
        if file.own_lines(rows[first]) is None or file.own_lines(rows[last]) is None:
            continue
        lines = lines_of(file, rows[first])
        put = insert(file, *file.end_of_line(last_line(rows[last])), "\n" + text_of_lines(file, *lines))
        own = range(rows[first].lineno, last_line(rows[first]) + 1)
        is_sound = scene.is_clobber and scene.kind == "parameter" and scene.lines_written(file) <= set(own)
        edits = (whole_lines(file, *lines), put)
        yield Change("make this change after the backward", edits, cost, Cure.LATER, is_sound and not scene.steps())


def hook_later(scene: Scene) -> Iterator[Change]:
    """The registration of a hook, moved below the write that would drop it, where both are in one function."""
    writes = scene.writes() if isinstance(scene.finding.event, LostHook) else []
    for write, place in product(writes, scene.places("create")):
        file, statement = place.file, place.row
        same = file.path == write.file.path and file.scope(statement) is file.scope(write.statement)
        gone, text = remove(file, statement), file.source(statement)
        if same and gone is not None and "\n" not in text and statement.lineno < write.statement.lineno:
            put = after(file, write.statement, text)
            if put is not None:
                yield Change("register the hook after the write", (gone, put), 3, Cure.LATER)


def _last_backward(file: File, rows: list[ast.stmt], first: int, second: int) -> int:
    """Where the last backward stands that the write may wait for: a row of the block, from the second on."""
    last = second
    for number in range(second + 1, len(rows)):
        if not _may_wait(file, rows[first], rows[second + 1 : number + 1]):
            break
        if any(called(one) == "backward" for one in walk(rows[number], ast.Call)):
            last = number
    return last


def _may_wait(file: File, write: ast.stmt, between: list[ast.stmt]) -> bool:
    """Return True if a statement does the same below these others, and they do the same above it."""
    if next(walk(write, *_LEAVING), None) is not None or _reads_gradients(write):
        return False
    used = {one.id for one in walk(write, ast.Name)}
    bound = {one.id for row in between for one in walk(row, ast.Name) if not isinstance(one.ctx, ast.Load)}
    appended = {dotted(owner) for row in between for owner in _appended_to(row)}
    if used & (bound | appended):
        return False
    return all(_passes(file, row, used) for row in between)


def _reads_gradients(node: ast.AST) -> bool:
    return any(one.attr == "grad" for one in walk(node, ast.Attribute))


def _appended_to(row: ast.AST) -> Iterator[ast.expr]:
    for one in walk(row, ast.Call):
        if called(one) == "append" and isinstance(one.func, ast.Attribute):
            yield one.func.value


def _passes(file: File, row: ast.stmt, used: set[str]) -> bool:
    """Return True if a statement reads nothing that is held by a name of `used`, or by more than one name."""
    if isinstance(row, ast.If):
        return _reads_own(file, row.test, used) and all(_passes(file, one, used) for one in (*row.body, *row.orelse))
    if isinstance(row, ast.Expr):
        call = row.value
        if isinstance(call, ast.Constant):
            return True
        return isinstance(call, ast.Call) and (_is_backward(file, call, used) or _tells(file, call, used))
    if isinstance(row, (ast.Assign, ast.AugAssign)):
        targets = row.targets if isinstance(row, ast.Assign) else [row.target]
        return all(isinstance(one, ast.Name) for one in targets) and _reads_own(file, row.value, used)
    return isinstance(row, ast.Pass)


def _is_backward(file: File, call: ast.Call, used: set[str]) -> bool:
    """`loss.backward()`, `(a + b).backward(retain_graph=True)`, `scaler.scale(loss).backward()`, `opt.zero_grad()`.

    The bytes of what `backward` is called on are not read.
    """
    name, owner = called(call), call.func.value if isinstance(call.func, ast.Attribute) else None
    if name == "zero_grad":
        return bool(dotted(owner)) and all(isinstance(one.value, ast.Constant) for one in call.keywords)
    if name != "backward" or owner is None or call.args:
        return False
    if any(one.arg not in ("retain_graph", "create_graph", "inputs") for one in call.keywords):
        return False
    if called(owner) == "scale" and isinstance(owner, ast.Call) and len(owner.args) == 1:
        owner = owner.args[0]
    return bool(dotted(owner)) or _reads_own(file, owner, used)


def _tells(file: File, call: ast.Call, used: set[str]) -> bool:
    """`print(...)`, and `losses.append(...)` of what is a number or a new tensor."""
    told = isinstance(call.func, ast.Name) and call.func.id == "print"
    appends = called(call) == "append" and isinstance(call.func, ast.Attribute) and bool(dotted(call.func.value))
    values = [*call.args, *(one.value for one in call.keywords)]
    return (told or appends) and all(_reads_own(file, one, used) for one in values)


def _reads_own(file: File, value: ast.expr, used: set[str]) -> bool:
    """Return True if an expression computes only with numbers, and with tensors that one name alone holds."""
    callees = set[int]()
    for call in walk(value, ast.Call):
        builtin = isinstance(call.func, ast.Name) and call.func.id in BUILTINS
        loss = module_called(file, call)
        if not builtin and not is_function(call) and not is_method(call, of=METHODS | KEEPING_NOTHING):
            if loss is None or not called(loss).endswith("Loss") or not isinstance(loss.func, ast.Attribute):
                return False
            callees.update(id(one) for one in walk(call.func, ast.expr))
        elif builtin or (is_function(call) and not is_method(call)):
            callees.update(id(one) for one in walk(call.func, ast.expr))
        else:
            callees.add(id(call.func))
    for one in walk(value, ast.Attribute, ast.Subscript, ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield):
        if id(one) not in callees:
            return False
    names = [one for one in walk(value, ast.Name) if id(one) not in callees]
    return all(one.id not in used and owns(file, one.id, one) for one in names)
