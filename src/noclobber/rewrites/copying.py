"""Copy what a refused write reads or writes: the rule that tells of the refusal knows the operand.

Sound because a refused write never happened, so there is nothing to keep but values.
- The value that overlaps what it is written to is read from a clone, so it is what it was before the write.
- A view that is written, and whose base is not read again, is made a clone first.
- A custom Function that may not write what it is given gets a clone, where nothing reads the original afterwards.
"""

from __future__ import annotations

import ast

from noclobber.model.finding import Edit, Finding
from noclobber.rewrites.code import File, ends, file_at, starts, within
from noclobber.rewrites.holding import root_of
from noclobber.rewrites.sound import Sound

_VALUE, _ARGUMENT = ("NC307",), ("NC301", "NC302", "NC305", "NC313")


def copied(finding: Finding) -> Sound | None:
    """The rule's own change, where it clones an operand and does nothing else."""
    for one in finding.suggestions:
        edit = one.edits[0] if len(one.edits) == 1 else None
        file = file_at(edit.span.path) if edit is not None else None
        path = file.at(edit.span) if edit is not None and file is not None else ()
        if edit is None or file is None or not path:
            continue
        node = path[-1]
        if finding.code == "NC302" and isinstance(node, ast.Assign) and _is_cloned_first(file, node, edit):
            return Sound("write into a clone, so that the gradient flows through", (edit,))
        if not isinstance(node, ast.expr) or edit.replacement != f"{file.source(node)}.clone()":
            continue
        if finding.code in _VALUE and isinstance(file.above[node], (ast.Assign, ast.AugAssign)):
            return Sound("clone the value that is read", (edit,))
        if finding.code in _ARGUMENT and _is_applied(file, node):
            return Sound("give the Function a clone", (edit,))
    return None


def _is_cloned_first(file: File, write: ast.Assign, edit: Edit) -> bool:
    """`h = h.clone()` before `h[i] = e`, where `h` is a view that the function made, and what it is a view of is not
    read after the write."""
    target = write.targets[0]
    name = target.value.id if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else ""
    if not name or not edit.replacement.startswith(f"{name} = {name}.clone()\n") or file.loops(write):
        return False
    names = [one for one in within(file.scope(write)) if isinstance(one, ast.Name)]
    bound = [one for one in names if one.id == name and isinstance(one.ctx, ast.Store)]
    binding = file.above[bound[0]] if len(bound) == 1 else None
    root = root_of(binding.value) if isinstance(binding, ast.Assign) and len(binding.targets) == 1 else None
    if not isinstance(root, ast.Name):
        return False
    return not any(one.id == root.id and starts(one) >= ends(write) for one in names)


def _is_applied(file: File, node: ast.expr) -> bool:
    """`F.apply(h[:, 1:])`, whose result is used, and after which nobody reads those elements of `h`."""
    call, root = file.above[node], root_of(node)
    if not isinstance(call, ast.Call) or node not in call.args[:1] or not isinstance(root, ast.Name):
        return False
    statement = file.statement(call)
    if statement is None or isinstance(statement, ast.Expr):
        return False
    after = (one for one in within(file.scope(node)) if isinstance(one, ast.Name) and one.id == root.id)
    read = any(starts(one) >= ends(statement) and isinstance(one.ctx, ast.Load) for one in after)
    return isinstance(statement, ast.Return) or not (read or file.loops(statement))
