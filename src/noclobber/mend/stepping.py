"""Step after the backward that still needs the old weights.

Sound where an optimizer's step and the `backward` that it spoils are statements of one block, in this order, and
- between them stand only `zero_grad` of the other optimizer, prints, and losses of what is there already: nothing reads
  the weights,
- the optimizer's gradients are zeroed by its own `zero_grad` in the block, before the step: what this backward would
  add to them was thrown away before,
- the file makes two optimizers, and the line calls the `step` of one. The backward is given what the other one steps as
  `inputs=`, so it adds nothing to the gradients that the step then uses.
A closure, a gradient scaler, or a step inside a method or a wrapper is none of these.
"""

from __future__ import annotations

import ast
import re

from noclobber.mend.finding import blamed, place
from noclobber.mend.making import KEEPING_NOTHING, METHODS, MODULES, is_function, is_method
from noclobber.mend.resolving import bound_to, module_called
from noclobber.mend.sound import Sound
from noclobber.model.finding import Cure, Edit, Finding
from noclobber.syntax.edits import insert, whole_lines, with_argument
from noclobber.syntax.names import called, first_name, last_name
from noclobber.syntax.tree import File, last_line, within


def stepped_later(finding: Finding) -> Sound | None:
    """Return a rewrite that moves the step after the backward, and limits the backward to its own parameters."""
    write, read = blamed(finding), place(finding, "read")
    if finding.code not in ("NC103", "NC203", "NC201") or write is None or read is None or write.file is not read.file:
        return None
    file, step, back = write.file, write.statement, read.statement
    if step is None or back is None or step is back or back not in file.block(step):
        return None
    rows = file.block(step)
    between = rows[rows.index(step) + 1 : rows.index(back)]
    after = rows[rows.index(back) + 1 :]
    before = rows[: rows.index(step)]
    mine, loss = _method_of(step, "step"), _method_of(back, "backward")
    if mine is None or loss is None or rows.index(back) < rows.index(step):
        return None
    steps = [one for row in after if (one := _method_of(row, "step")) is not None]
    if len(steps) != 1 or ast.dump(steps[0]) == ast.dump(mine):
        return None
    theirs = steps[0]
    if not any(_same(_method_of(row, "zero_grad"), mine) for row in before):
        return None
    if not all(_same(_method_of(row, "zero_grad"), theirs) or _reads_no_weights(file, row) for row in between):
        return None
    if _optimizers(file) != 2 or not _is_step_of_torch(finding) or (given := _given(file, theirs, step)) is None:
        return None
    call = back.value if isinstance(back, ast.Expr) else None
    if not isinstance(call, ast.Call) or any(one.arg != "retain_graph" for one in call.keywords):
        return None
    edits = _moved(file, step, back, call, f"inputs={given}")
    only = f"compute gradients there only for the parameters of `{file.source(theirs)}`"
    title = f"move `{file.source(mine)}.step()` below `{file.source(loss)}.backward()`, and {only}"
    return Sound(title, edits, Cure.LATER) if edits else None


def _method_of(row: ast.stmt, name: str) -> ast.expr | None:
    """`opt` of the statement `opt.step()`."""
    call = row.value if isinstance(row, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != name:
        return None
    return None if call.args or (name == "step" and call.keywords) else call.func.value


def _same(one: ast.expr | None, other: ast.expr) -> bool:
    return one is not None and ast.dump(one) == ast.dump(other)


def _reads_no_weights(file: File, row: ast.stmt) -> bool:
    """Whether a statement prints, or binds to a name, only what losses and operators make of names."""
    values: list[ast.expr] = []
    if isinstance(row, ast.Expr) and isinstance(row.value, ast.Call) and last_name(row.value.func) == "print":
        values = [*row.value.args, *(one.value for one in row.value.keywords)]
    elif isinstance(row, ast.Assign) and all(isinstance(one, ast.Name) for one in row.targets):
        values = [row.value]
    else:
        return False
    nodes = [one for value in values for one in ast.walk(value)]
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    functions = {id(one.func) for one in calls}
    owners = {id(one.func.value) for one in calls if isinstance(one.func, ast.Attribute)}
    reads = [one for one in nodes if isinstance(one, (ast.Attribute, ast.Subscript, ast.Lambda))]
    plain = all(id(one) in functions or id(one) in owners for one in reads)
    methods = METHODS | KEEPING_NOTHING
    return plain and all(is_function(one) or is_method(one, of=methods) or _is_loss(file, one) for one in calls)


def _is_loss(file: File, call: ast.Call) -> bool:
    """A loss of `torch.nn`, which has no parameters."""
    made = module_called(file, call)
    return made is not None and called(made).endswith("Loss") and called(made) in MODULES


def _optimizers(file: File) -> int:
    """How many optimizers the file makes."""
    return sum(isinstance(one, ast.Call) and _makes_optimizer(one) for one in ast.walk(file.tree))


_NAMES = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")


def _makes_optimizer(call: ast.Call) -> bool:
    return called(call) in _NAMES


def _is_step_of_torch(finding: Finding) -> bool:
    """Return True if the line that steps calls the optimizer's own `step`, as was seen; a wrapper may do more."""
    steps = [one.step for one in finding.writes if one.step is not None]
    return bool(steps) and all(one.site is not None and one.site.inside is None for one in steps)


def _given(file: File, name: ast.expr, where: ast.AST) -> str | None:
    """What an optimizer steps, as a list: `list(generator.parameters())`, where it was made of that and that means the
    same here, else of its own groups."""
    made = bound_to(file, name, where)
    if (made is not None and not _makes_optimizer(made)) or re.search(r"def step\b", file.text):
        return None
    known = _made_of(file, made, where)
    own = f'[p for group in {file.source(name)}.param_groups for p in group["params"]]'
    return own if known is None else f"list({known})"


def _made_of(file: File, made: ast.Call | None, where: ast.AST) -> str | None:
    first = made.args[0] if made is not None and made.args else None
    if not isinstance(first, ast.Call) or called(first) != "parameters" or first.args or first.keywords:
        return None
    root = first_name(first.func)
    if not root or made is None:
        return None
    same = file.scope(made) is file.scope(where) or isinstance(file.scope(made), ast.Module)
    of_self = root == "self" and file.class_of(made) is file.class_of(where)
    bound = [one for one in within(file.scope(made)) if isinstance(one, ast.Name) and one.id == root]
    once = sum(isinstance(one.ctx, ast.Store) for one in bound) <= 1
    return file.source(first) if (same and once) or of_self else None


def _moved(file: File, step: ast.stmt, back: ast.stmt, call: ast.Call, argument: str) -> tuple[Edit, ...]:
    """The step taken from its line and put below the backward."""
    if file.own_lines(step) is None or file.own_lines(back) is None or step.lineno != last_line(step):
        return ()
    below = insert(file, *file.end_of_line(last_line(back)), f"\n{file.line(step.lineno)}")
    return (whole_lines(file, step.lineno, step.lineno), with_argument(file, call, argument), below)
