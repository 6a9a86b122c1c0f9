"""Put the updates of parameters under `torch.no_grad()`.

Sound if PyTorch refuses the write because the parameter requires a gradient: the program stopped there, so only the
values that the statement computes have to stay the same. A write is an update, and not a part of the function, if its
value consists only of gradients, numbers and plain arithmetic: no gradient could flow through that. What a custom
Function writes is no update.
Neighbouring statements of the same kind are put there too, because PyTorch would refuse them next.
"""

from __future__ import annotations

import ast
import re

from noclobber.mend.finding import blamed, kind_of
from noclobber.mend.holding import arguments_of
from noclobber.mend.sound import Sound
from noclobber.model.events import Refusal
from noclobber.model.finding import Cure, Finding
from noclobber.syntax.edits import under_no_grad
from noclobber.syntax.names import called, last_name
from noclobber.syntax.tree import File, last_line, within
from noclobber.syntax.updates import is_of_gradients

_METHODS = (
    "add_", "sub_", "mul_", "div_", "clamp_", "clamp_min_", "clamp_max_", "addcdiv_", "addcmul_", "fill_", "zero_",
    "normal_", "uniform_", "lerp_", "copy_",
)  # fmt: skip
"""Methods that may be an update."""
_OF_NUMBERS = ("clamp_", "clamp_min_", "clamp_max_", "normal_", "uniform_")
"""Methods that clip weights or set them: what they are given is numbers."""


def guarded(finding: Finding) -> Sound | None:
    """Return a rewrite that puts a refused update, and updates like it, under `with torch.no_grad():`."""
    place = blamed(finding)
    if place is None or finding.code not in ("NC301", "NC302", "NC304"):
        return None
    if any(one.role == "read" for one in finding.labels):  # the write went through, and PyTorch refuses a view later
        return None
    file, write = place.file, place.statement
    if (
        write is None
        or "ctx" in arguments_of(file.scope(write))
        or not re.search(r"^\s*import torch\b(?! as)", file.text, re.MULTILINE)
    ):
        return None
    sets_weight = kind_of(finding) == "parameter" and (_is_average(write) or _is_of_constants(finding))
    if not (_is_update(file, write) or sets_weight):
        return None
    rows = file.block(write)
    like = [one for one in ast.walk(file.tree) if isinstance(one, ast.stmt) and _descends(file, one)]
    first = last = rows.index(write)
    while first and _descends(file, rows[first - 1]):
        first -= 1
    while last + 1 < len(rows) and _descends(file, rows[last + 1]):
        last += 1
    together = rows[first : last + 1]
    if _descends(file, write) and any(one not in together and not _is_guarded(file, one) for one in like):
        return None
    edits = under_no_grad(file, together)
    if not edits or any(one.lineno != last_line(one) for one in together):
        return None
    return Sound("update it inside `with torch.no_grad():`", edits, Cure.NO_GRAD)


def _is_of_constants(finding: Finding) -> bool:
    """Return True if nothing that is written carries a gradient, as was seen at the write."""
    return isinstance(finding.event, Refusal) and finding.event.carries_gradient is False


def _is_update(file: File, write: ast.stmt) -> bool:
    """Return True if a statement writes in place a value of gradients and numbers only."""
    values = _values(write)
    if values is None:
        return False
    if isinstance(write, ast.AugAssign) and isinstance(write.target, ast.Name):
        return all(is_of_gradients(file, one) for one in values)
    if not values:
        return isinstance(write, ast.Expr) and isinstance(write.value, ast.Call) and called(write.value) == "zero_"
    by_numbers = (
        isinstance(write, ast.Expr) and isinstance(write.value, ast.Call) and called(write.value) in _OF_NUMBERS
    )
    return all(by_numbers or is_of_gradients(file, one) or _is_number(file, one) for one in values)


def _descends(file: File, write: ast.stmt) -> bool:
    """Whether a statement is a step by gradients: `w -= 0.1 * w.grad`."""
    values = _values(write)
    return bool(values) and all(is_of_gradients(file, one) for one in values or ())


def _values(write: ast.stmt) -> list[ast.expr] | None:
    """Return the values that an in-place statement writes; None if it is no in-place write."""
    if isinstance(write, ast.AugAssign):
        return [write.value]
    if isinstance(write, ast.Expr) and isinstance(write.value, ast.Call) and called(write.value) in _METHODS:
        return [*write.value.args, *(one.value for one in write.value.keywords if one.arg != "alpha")]
    return None


def _is_average(write: ast.stmt) -> bool:
    """`t.mul_(decay).add_(s, alpha=1 - decay)`: a moving average of parameters, which needs no gradient."""
    text = ast.unparse(write)
    return isinstance(write, ast.Expr) and bool(re.search(r"\.mul_\(.*\)\.add_\(|\.lerp_\(", text))


def _is_number(file: File, value: ast.expr) -> bool:
    """Return True if the source shows that a value is a number; a name may be a tensor."""
    if isinstance(value, ast.BinOp):
        return _is_number(file, value.left) and _is_number(file, value.right)
    if isinstance(value, ast.UnaryOp):
        return _is_number(file, value.operand)
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Attribute) and last_name(value.func.value) in ("math", "random")
    if isinstance(value, ast.Name):
        scope = file.scope(value)
        bound = [one for one in (*within(scope), *within(file.tree)) if _binds(one, value.id)]
        plain = all(isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant) for one in bound)
        return bool(bound) and plain and value.id not in arguments_of(scope)
    return isinstance(value, ast.Constant)


def _binds(node: ast.AST, name: str) -> bool:
    stored = isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr))
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return stored and any(isinstance(one, ast.Name) and one.id == name for one in targets)


def _is_guarded(file: File, write: ast.stmt) -> bool:
    for one in file.around(write):
        if isinstance(one, ast.With) and any("no_grad" in ast.unparse(item) for item in one.items):
            return True
        if isinstance(one, ast.FunctionDef) and any("no_grad" in ast.unparse(item) for item in one.decorator_list):
            return True
    return False
