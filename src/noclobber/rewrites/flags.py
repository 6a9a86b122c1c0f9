"""Take `inplace=True` from a module or a call.

Sound if nothing reads the argument of the module again: it is the new result of another call and has no name, or one
name alone holds it (holding.py) and is bound to the result. Then only the sharing of memory changes, and the program
cannot notice that. The module is made in one place, by `nn.X(..., inplace=True)` in its class or as a
part of an `nn.Sequential`, whose inner results have no names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from noclobber.model.finding import Cure, Edit, Finding
from noclobber.rewrites.finding import blamed
from noclobber.rewrites.holding import holds_alone, is_new
from noclobber.rewrites.making import module_writes, parts_of
from noclobber.rewrites.resolving import module_called
from noclobber.rewrites.seen import holders_at
from noclobber.rewrites.sound import Sound
from noclobber.syntax.edits import replace, without_argument
from noclobber.syntax.names import arguments, called, keyword
from noclobber.syntax.tree import File, ends, starts, within
from noclobber.syntax.writes import is_flagged


def without_flag(finding: Finding) -> Sound | None:
    """Return a rewrite that removes the flag, where the module is made or from the call."""
    place = blamed(finding)
    if place is None or not isinstance(place.node, ast.Call):
        return None
    file, call = place.file, place.node
    if is_flagged(call):
        found = dropped(file, call)
        fits = found is not None and bool(call.args) and _is_last_use(finding, file, call, call.args[0])
        return Sound(f"let `{called(call)}` write a new tensor", (found,), Cure.FLAG) if fits and found else None
    made = module_called(file, call)
    if made is None or not all(_fits(finding, file, one, module_writes(made)) for one in _calls_of(file, call)):
        return None
    flagged = [one for one in parts_of(made) if isinstance(one, ast.Call) and is_flagged(one)]
    edits = [edit for one in flagged if (edit := dropped(file, one)) is not None]
    if not flagged or len(edits) != len(flagged):
        return None
    modules = "these modules" if len(flagged) > 1 else "this module"
    return Sound(f"build {modules} without `inplace=True`", tuple(edits), Cure.FLAG)


def _calls_of(file: File, call: ast.Call) -> Iterable[ast.Call]:
    """All calls of what a call calls."""
    wanted = ast.dump(call.func)
    around = file.class_of(call) if isinstance(call.func, ast.Attribute) else file.tree
    for one in ast.walk(around or file.tree):
        if isinstance(one, ast.Call) and ast.dump(one.func) == wanted:
            yield one


def _fits(finding: Finding, file: File, call: ast.Call, writes: bool) -> bool:
    """Return True if the result of a call is used, and nothing else reads its argument if the call writes it."""
    if len(call.args) != 1 or call.keywords or isinstance(file.above[call], ast.Expr):
        return False
    return not writes or _is_last_use(finding, file, call, call.args[0])


def _is_last_use(finding: Finding, file: File, call: ast.Call, argument: ast.expr) -> bool:
    """Return True if nothing reads the argument after the call, and something reads the result."""
    if isinstance(file.above[call], ast.Expr):
        return False
    if isinstance(argument, ast.Call):
        return is_new(file, argument)
    write = file.statement(call)
    if not isinstance(argument, ast.Name) or write is None:
        return False
    if not holds_alone(file, argument.id, write, argument, holders_at(finding, file, write)):
        return False
    bound = isinstance(write, ast.Assign) and len(write.targets) == 1 and write.value is call
    if bound and isinstance(write, ast.Assign) and isinstance(write.targets[0], ast.Name):
        return write.targets[0].id == argument.id or not _is_read_after(file, argument.id, write)
    return not _is_read_after(file, argument.id, write)


def _is_read_after(file: File, name: str, write: ast.stmt) -> bool:
    loops = file.loops(write)
    for one in within(file.scope(write)):
        if not isinstance(one, ast.Name) or one.id != name or not isinstance(one.ctx, ast.Load):
            continue
        again = any(starts(loop) <= starts(one) < ends(loop) for loop in loops)
        if starts(one) >= ends(write) or (again and starts(one) < starts(write)):
            return True
    return False


def dropped(file: File, call: ast.Call) -> Edit | None:
    """Return the edit that removes the flag from a call, or sets it to `False` if another argument follows it."""
    flag = keyword(call, "inplace")
    if flag is None:
        return None
    if starts(flag) == min(map(starts, arguments(call))) and len(arguments(call)) > 1:
        return replace(file, flag.value, "False")
    return without_argument(file, call, flag)
