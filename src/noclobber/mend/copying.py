"""Copy what a refused write reads or writes.

Sound because a refused write never happened, so there is nothing to keep but values.
- If the value overlaps the written memory, it is read from a clone, so it keeps its bytes from before the write.
- A view that is written, and whose base is not read again, is made a clone first.
- A custom Function that may not write its argument gets a clone, if nothing reads the original afterwards.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.finding import blamed, place
from noclobber.mend.holding import root_of
from noclobber.mend.sound import Sound
from noclobber.model.finding import Cause, Cure, Edit, Finding
from noclobber.syntax.edits import append, cloned_before
from noclobber.syntax.names import called
from noclobber.syntax.tree import File, Place, ends, starts, within
from noclobber.syntax.writes import WriteSyntax, write_at

_APPLIED = ("NC301", "NC302", "NC305", "NC313")
_VALUE = "clone the value that is read"
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def copied(finding: Finding) -> Sound | None:
    """Return a rewrite that clones an operand and changes nothing else."""
    write = blamed(finding)
    if finding.code in _APPLIED:
        for one in (write, place(finding, "read")):
            edit = _argument_cloned(one) if one is not None else None
            if edit is not None:
                return Sound("give the Function a clone", (edit,), Cure.CLONE_ARGUMENT)
    if finding.code == "NC302" and write is not None and (edit := _cloned_first(write)) is not None:
        return Sound("write into a clone, so that the gradient flows through", (edit,), Cure.CLONE_FIRST)
    if finding.cause is Cause.READS_TARGET and write is not None:
        edit = None if isinstance(write.node, ast.Call) else _value_cloned(write_at(write))
        return Sound(_VALUE, (edit,), Cure.CLONE_VALUE) if edit is not None else None
    return None


def of_value(write: WriteSyntax, cost: int = 0) -> Iterator[Candidate]:
    """The same for any write, as one to try."""
    edit = _value_cloned(write)
    if edit is not None:
        yield Candidate(_VALUE, (edit,), cost)


def _value_cloned(write: WriteSyntax) -> Edit | None:
    """`h[1:] = h[:-1]` as `h[1:] = h[:-1].clone()`: what is read is then no longer what is written."""
    found = write.statement
    value = found.value if isinstance(found, (ast.Assign, ast.AugAssign)) and write.call is None else None
    if write.call is not None and called(write.call).endswith("_") and write.call.args:
        value = write.call.args[0]
    return append(write.file, value, ".clone()") if isinstance(value, _PLAIN) else None


def _cloned_first(write: Place) -> Edit | None:
    """`h = h.clone()` before `h[i] = e`: where the function made the view `h` and reads it later on, and nobody reads
    what it is a view of."""
    file, found = write.file, write.statement
    target = found.targets[0] if isinstance(found, ast.Assign) else None
    name = target.value.id if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else ""
    if found is None or not name or file.loops(found) or file.own_lines(found) is None:
        return None
    names = [one for one in within(file.scope(found)) if isinstance(one, ast.Name)]
    bound = [one for one in names if one.id == name and isinstance(one.ctx, ast.Store)]
    binding = file.above[bound[0]] if len(bound) == 1 else None
    root = root_of(binding.value) if isinstance(binding, ast.Assign) and len(binding.targets) == 1 else None
    later = {one.id for one in names if starts(one) >= ends(found) and isinstance(one.ctx, ast.Load)}
    if not isinstance(root, ast.Name) or root.id in later or name not in later:
        return None
    return cloned_before(file, found, name)


def _argument_cloned(applied: Place) -> Edit | None:
    """`F.apply(h[:, 1:])` as `F.apply(h[:, 1:].clone())`, where its result is used, and nobody reads `h` afterwards."""
    file, call = applied.file, applied.node
    first = call.args[0] if isinstance(call, ast.Call) and called(call) == "apply" and call.args else None
    root = root_of(first) if isinstance(first, (ast.Name, ast.Attribute, ast.Subscript)) else None
    if first is None or not isinstance(root, ast.Name) or not _is_last_use(file, call, root.id):
        return None
    return append(file, first, ".clone()")


def _is_last_use(file: File, call: ast.AST, name: str) -> bool:
    statement = file.statement(call)
    if statement is None or isinstance(statement, ast.Expr):
        return False
    after = (one for one in within(file.scope(call)) if isinstance(one, ast.Name) and one.id == name)
    read = any(starts(one) >= ends(statement) and isinstance(one.ctx, ast.Load) for one in after)
    return isinstance(statement, ast.Return) or not (read or file.loops(statement))
