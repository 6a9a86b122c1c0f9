"""Step after the backward that still needs the old weights: the order of steps and backwards in a block changed.

Sound where an optimizer's step and the `backward` that it spoils are statements of one block, in this order, or of
functions that are called there and nowhere else; the backward may be in an `if`. And
- between them, and up to where the step is put, stand only the update by the other optimizer, prints, and losses of
  what is there already: nothing reads the weights,
- the optimizer's gradients are zeroed by its own `zero_grad` in the block, before the step: what this backward would
  add to them was thrown away before,
- both are PyTorch's own, and were seen to have no parameter in common; the line calls the `step` of one. The backward
  is given what the other one steps as `inputs=`, so it adds nothing to the gradients that the step then uses. The file
  reads and clips no other gradients than of these, has no hooks, and freezes no parameter. Nothing else steps what the
  backward no longer adds to, and no region runs again in a backward of its own, which refuses `inputs=`.
A closure, a gradient scaler, or a step inside a wrapper is none of these.

Tried is the same under fewer conditions, the later update made first, and a second loop for steps; the same where the
functions are called that the step and the backward stand in; and one backward, of the sum of losses, for two of one
forward, with one step for two.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from noclobber.mend.change import Change, change
from noclobber.mend.gradients import reads_other_gradients
from noclobber.mend.holders.making import (
    BUILTINS,
    KEEPING_NOTHING,
    METHODS,
    MODULES,
    bound_to,
    is_function,
    is_of_object,
    is_tensors,
    module_called,
)
from noclobber.mend.order.passing import LEAVING
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure, Edit
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Optimizer
from noclobber.model.source import Span
from noclobber.syntax.edits import (
    after,
    insert,
    lines_of,
    remove,
    replace,
    rewritten,
    text_of_lines,
    whole_lines,
    with_argument,
    with_comment,
    without_retaining,
)
from noclobber.syntax.names import (
    attributes,
    attributes_set,
    call_of,
    called,
    called_by,
    calls,
    dotted,
    first_name,
    is_given,
    is_true,
    keyword,
    last_name,
    mentions,
    names_in,
    names_read,
    names_stored,
    only_binding,
    optimizer_of,
    owner,
    parameters,
    unindexed,
    uses,
    uses_in,
    value_given,
    values,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Place, functions, last_line, simple_statements, walk

_HARMLESS = frozenset(
    """
    add_scalar append debug eval info log print requires_grad_ set_description set_postfix set_requires_grad train write
    """.split()  # noqa: SIM905
)
"""Calls, made for what they do, that neither read nor change weights."""
_CLIPS = ("clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "unscale_")
_UPDATES = ("zero_grad", "backward", "step", *_CLIPS, "update")
"""Calls that change or use gradients: between two backwards they show that each has gradients of its own."""


def reordered(scene: Scene) -> Iterator[Change]:
    """Changes where the step and the backward after it are in one block, or calls of the functions that they are in."""
    if (places := scene.step_and_backward()) is None:
        return
    step, read = places
    file = step.file
    yield from _below_loop(step, read) if scene.reads_first() else ()
    for one, other in ((step.row, read.row), *_calls_of_both(step, read)):
        is_direct = one is step.row and other is read.row
        rows, first, second = file.together(one, other)
        if is_direct and first > second:
            yield from _loop_split(step, read)
        if not rows or first >= second:
            continue
        if not any(map(_does_more, rows[first + 1 : second])):
            if is_direct or file.scope(step.row) is not file.scope(read.row):
                yield from _moved(scene, step, read, one, rows, first, second)
            yield from _swapped(step, read, rows, first, second, is_direct=is_direct)
        if not is_direct:
            return


def _below_loop(step: Place, read: Place) -> Iterator[Change]:
    """The step below a loop over the losses of one forward: their gradients add up, as nothing zeroes them, and what
    the loop goes on with is no weight."""
    file, around = step.file, {*step.file.loops(read.row)}
    loop = next((one for one in file.loops(step.row) if one in around), None)
    if loop is None or step.row not in loop.body or loop.orelse or file.own_lines(step.row) is None:
        return
    others = [one for one in loop.body if one is not step.row]
    is_zeroed = any(not isinstance(one.ctx, ast.Load) for one in attributes(loop, "grad"))
    if is_zeroed or calls(loop, "zero_grad") or attributes(loop, "param_groups"):
        return
    if next(walk(loop, *LEAVING, ast.Try), None) is not None or file.nearest(loop, ast.Try) is not None:
        return
    own = names_stored(loop) | {dotted(owner(one)) for one in calls(loop, "append")} | BUILTINS
    if any(map(_does_more, others)) or any(names_read(one) - own for one in others[loop.body.index(step.row) :]):
        return
    text, (begin, stop) = with_comment(file, step.row), lines_of(file, step.row)
    edits = [whole_lines(file, begin, stop), after(file, loop, text)]
    if step.row is loop.body[-1]:  # it stays where it is, but for its indent
        edits = [Edit(Span(file.path, begin, 1, *file.end_of_line(stop)), f"{file.indent(loop)}{text}")]
    yield from change("step once, below the loop", edits, 4, way="gathered")


def _calls_of_both(step: Place, read: Place) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes that stand for the step and for the backward: themselves, or calls of the functions that they are in."""
    file, here, there = step.file, step.file.scope(step.row), step.file.scope(read.row)
    stepping, backing = (calls(file.tree, getattr(scope, "name", "")) for scope in (here, there))
    if here is not there:
        yield from ((step.row, call) for call in backing if file.scope(call) is here)
        yield from ((call, read.row) for call in stepping if file.scope(call) is there)
    for one in stepping:
        yield from ((one, other) for other in backing if one is not other and file.scope(one) is file.scope(other))


def _does_more(row: ast.stmt) -> bool:
    """Return True if a statement may change weights, or what belongs to them, or read them for other than a loss: it is
    a loop or block that does so, or a call whose result nobody takes, as of a scheduler.

    A step that moved past it would come too late. No proof shows that where the difference is in later steps.
    """
    rows = simple_statements(row)
    is_aside = isinstance(row, ast.With) and any(map(_runs, rows))  # under `no_grad`, to be told
    adds = hasattr(row, "body") and any(isinstance(one, ast.AugAssign) for one in rows)
    return is_aside or adds or any(map(_is_more, rows))


def _is_more(row: ast.stmt) -> bool:
    if (call := call_of(row)) is not None:
        return called(call) not in (*_HARMLESS, *_CLIPS, "zero_grad", "backward") or any(map(_runs, values(call)))
    if not isinstance(row, ast.Assign):
        return False
    return attributes(row, "data") != [] or (calls(row, "item", "tolist", "float") != [] and _runs(row.value))


def _runs(node: ast.AST) -> bool:
    """Return True if a node may run a model: it calls what is no function or method of PyTorch, and no builtin."""
    known = METHODS | KEEPING_NOTHING | BUILTINS | {"append", "format", "parameters", "named_parameters"}
    return any(called(one) not in known and not is_function(one) for one in walk(node, ast.Call))


def _swapped(
    step: Place, read: Place, rows: list[ast.stmt], first: int, second: int, *, is_direct: bool
) -> Iterator[Change]:
    """The later update, whole, before the earlier one: its gradients are then zeroed before they could do harm. The one
    that then runs first keeps the graph."""
    file, start, end = step.file, first, _end_of_update(rows, second)
    while is_direct and start and isinstance(rows[start - 1], ast.Expr) and calls(rows[start - 1], *_UPDATES):
        start -= 1
    later = [one for row in rows[first + 1 : end + 1] for one in simple_statements(row)]
    if is_direct and not (any(calls(row, "zero_grad") for row in rows[start:first]) and any(map(optimizer_of, later))):
        return
    begin, stop, target = lines_of(file, rows[first + 1])[0], last_line(rows[end]), lines_of(file, rows[start])[0]
    text, is_apart = text_of_lines(file, begin, stop), not file.line(begin - 1).strip()
    gone, below, title = whole_lines(file, begin - is_apart, stop), "\n" * (1 + is_apart), "make the later update first"
    scope, retained = file.scope(step.row), list[Edit]()
    if is_direct or scope is not file.scope(read.row):
        earlier = [call for row in (rows[start:first] if is_direct else [scope]) for call in calls(row, "backward")]
        retained = [edit for one in earlier if (edit := without_retaining(file, one)) is not None]
    if retained and (call := _backward_without(read, "retain_graph")) is not None:
        given = with_argument(file, call, "retain_graph=True")
        is_inside = begin <= given.span.line <= stop
        moved = Span(file.path, begin, 1, *file.end_of_line(stop))
        kept = rewritten(file, moved, [given] * is_inside)
        edits = (insert(file, target, 1, kept + below), *retained, gone, *[given] * (not is_inside))
        yield Change(title, edits, 4)
    yield Change(title, (insert(file, target, 1, text + below), gone), 4)


def _backward_without(read: Place, argument: str) -> ast.Call | None:
    """The call of `backward` at a place, if it has no such argument."""
    call = read.file.nearest(read.node, ast.Call)
    return call if call is not None and called(call) == "backward" and keyword(call, argument) is None else None


def _moved(
    scene: Scene, step: Place, read: Place, stands: ast.AST, rows: list[ast.stmt], first: int, second: int
) -> Iterator[Change]:
    """The step below the backward, which gets only the parameters that its own optimizer steps, or all. Where a call
    `stands` for the step, it is made there, as the caller would write it."""
    file, is_row = step.file, rows[first] is step.row
    gone, text = remove(file, step.row), with_comment(file, step.row)
    begin, stop = lines_of(file, step.row)
    heading = [file.line(number).strip() for number in range(begin, step.row.lineno)] if is_row else []
    if stands is not step.row:
        text = _in_caller(file, step, stands, text)
    put = after(file, rows[second], *heading, text) if text and "\n" not in text else None
    if gone is None or put is None:
        return
    gone = whole_lines(file, begin, stop) if is_row else gone
    order = _order(file, step.row, read.row, rows, first, second)
    below = (one for row in (*order.passed, *order.below) for one in simple_statements(row))
    mine, own = optimizer_of(step.row), next(filter(None, map(optimizer_of, below)), "")
    if own and own != mine and (call := _backward_without(read, "inputs")) is not None:
        inputs = with_argument(file, call, f"inputs={_parameters_of(scene, own)}")
        only = f"compute gradients there only for the parameters of `{own}`"
        title = f"move `{mine}.step()` below `{file.source(call.func)}()`, and {only}"
        is_sound = _is_sound(scene, file, step.row, read.row, order)
        yield Change(title, (gone, inputs, put), 2, Cure.LATER, is_sound)
    yield Change("step after the last backward", (gone, put), 3)


def may_step_later(scene: Scene, step: Place, read: Place) -> bool:
    """Return True if a step may come below a backward of its block, which then adds nothing to the gradients that it
    uses: what that would add to them is thrown away."""
    file, (rows, first, second) = step.file, step.file.together(step.row, read.row)
    if not rows or first >= second or any(map(_does_more, rows[first + 1 : second])):
        return False
    return _is_sound(scene, file, step.row, read.row, _order(file, step.row, read.row, rows, first, second))


class _Order(NamedTuple):
    """What runs around a step and the backward below it, in this order. Both may stand in functions that are called."""

    above: list[ast.stmt]
    """Before the step, from the beginning of its block."""
    between: list[ast.stmt]
    passed: list[ast.stmt]
    """After the backward, in its block, where the step is put below what holds that."""
    below: list[ast.stmt]
    is_all: bool
    """Whether nothing else runs: each function is called only there, on the same object, and runs to its end."""


def _order(file: File, step: ast.stmt, read: ast.stmt, rows: list[ast.stmt], first: int, second: int) -> _Order:
    above, rest, is_all = _run_by(file, rows[first], step)
    start, passed, is_rest = _run_by(file, rows[second], read)
    call = getattr(rows[second], "value", None)
    given = values(call) if isinstance(call, ast.Call) and rows[second] is not read else []
    is_all &= is_rest and not isinstance(rows[first], ast.If) and None not in [operands(file, one) for one in given]
    above = rows[:first] if rows[first] is step else above
    return _Order(above, [*rest, *rows[first + 1 : second], *start], passed, rows[second + 1 :], is_all)


def _run_by(file: File, row: ast.stmt, inner: ast.stmt) -> tuple[list[ast.stmt], list[ast.stmt], bool]:
    """What a statement runs before and after an `inner` one, which is itself, or in its block, or in the function that
    it calls; and whether that is all."""
    if row is inner:
        return [], [], True
    block, function = file.block(inner), file.scope(inner)
    at, is_all = block.index(inner), False
    left = list(walk(function, ast.Return, ast.Yield, ast.YieldFrom, ast.Await))
    if isinstance(row, ast.If):
        is_all = block is row.body and not row.orelse and operands(file, row.test) is not None
        is_all &= not any(row in file.around(one) for one in left)
    elif isinstance(function, FUNCTION) and block is function.body:
        found = [called_by(file, one) for one in mentions(file, function.name)]
        call = found[0] if len(found) == 1 else None
        of = file.class_of(function)
        is_all = (
            call is not None
            and isinstance(row, (ast.Expr, ast.Assign))
            and row.value is call
            and not function.decorator_list
            and all(one is block[-1] for one in left)
            and of is file.class_of(row)
            and dotted(owner(call)) == "self" * (of is not None)
            and (of is None or not any(of.name in map(last_name, one.bases) for one in walk(file.tree, ast.ClassDef)))
        )
    return block[:at], block[at + 1 :], is_all


def _loop_split(step: Place, read: Place) -> Iterator[Change]:
    """`for a in agents: zero, backward, step` as separate loops, where each turn has its own optimizer."""
    file, name = step.file, optimizer_of(step.row)
    loop = file.nearest(step.row, *FOR)
    if loop is None:
        yield from _split_where_called(step)
    if not isinstance(loop, FOR) or file.indent(loop) is None:
        return
    rows, inner = loop.body, file.indent(loop.body[0])
    if inner is None or not names_in(loop.target) & set(re.split(r"\W+", name)):
        return
    at = next((n for n, row in enumerate(rows) if file.holds(row, step.row)), -1)
    if at < 1 or not file.holds(loop, read.row):
        return
    indent = file.indent(loop) or ""
    header = f"for {file.source(loop.target)} in {file.source(loop.iter)}:"
    later: list[Edit | None] = [insert(file, rows[at].lineno, 1, f"{indent}{header}\n")]
    made = set[str]().union(*map(names_stored, rows[:at])) - names_in(loop.target)
    moved = [row for row in rows[at:] if not made & names_read(row)]
    if len(moved) < len(rows[at:]):  # in a second loop these are what the last turn has made
        if moved[:1] != rows[at : at + 1] or not all(row in moved or _keeps(file, row, made) for row in rows[at:]):
            return
        places = [lines_of(file, row) for row in moved]
        below = "".join(f"\n{text_of_lines(file, *one)}" for one in places)
        put = insert(file, *file.end_of_line(last_line(loop)), f"\n{indent}{header}{below}")
        later = [*(whole_lines(file, *one) for one in places), put]
    zeros = [row for row in rows[:at] if isinstance(row, ast.Expr) and calls(row, "zero_grad")]
    if zeros and len(zeros) < at:
        opens = file.span(loop)
        lines = "".join(f"{inner}{file.source(row)}\n" for row in zeros)
        first = insert(file, opens.line, opens.column, f"{header}\n{lines}{indent}")
        edits = [first, *(remove(file, row) for row in zeros), *later]
        yield from change("run every backward before the first step", edits, 2)
    yield from change("step in a second loop, after every backward", later, 3)
    if (call := _backward_without(read, "inputs")) is not None:
        inputs = with_argument(file, call, f"inputs={_of_groups(name)}")
        title = f"step in a second loop, and compute gradients in the first only for the parameters of `{name}`"
        yield from change(title, [inputs, *later], 4)


def _split_where_called(step: Place) -> Iterator[Change]:
    """`for agent in agents: agent.update(loss)`, whose function goes backward and steps, as two loops."""
    file, function = step.file, step.file.scope(step.row)
    for call in calls(file.tree, getattr(function, "name", "")) if isinstance(function, FUNCTION) else ():
        loop, text = next(iter(file.loops(call)), None), _in_caller(file, step, call, with_comment(file, step.row))
        if not isinstance(loop, FOR) or not names_in(loop.target) & set(re.split(r"\W+", text)):
            continue  # each turn steps the same optimizer
        if file.indent(loop) is not None and file.own_lines(step.row) is not None:
            header = f"for {file.source(loop.target)} in {file.source(loop.iter)}:"
            gone = whole_lines(file, *lines_of(file, step.row))
            later = after(file, loop, header, f"    {text}")
            yield from change("step in a second loop, after every backward", [gone, later], 3)


def _keeps(file: File, row: ast.stmt, names: set[str]) -> bool:
    """`history.append(loss.item())`, `total += loss.item()`: whether a statement keeps what is made of some names, and
    reads nothing else."""
    call = call_of(row)
    is_kept = call is not None and called(call) == "append" and isinstance(owner(call), ast.Name)
    given = values(call) if call is not None and is_kept else []
    given = [row.value] if isinstance(row, ast.AugAssign) and isinstance(row.target, ast.Name) else given
    read = [operands(file, one) for one in given]
    return bool(read) and all(
        one is not None and all(isinstance(each, ast.Name) and each.id in names for each in one) for one in read
    )


def _end_of_update(rows: list[ast.stmt], second: int) -> int:
    """The last statement of the update that a backward belongs to: the next step, if only such calls lie between."""
    for number in range(second + 1, min(len(rows), second + 5)):
        if any(optimizer_of(one) for one in simple_statements(rows[number])):
            return number
        if not calls(rows[number], *_UPDATES):
            break
    return second


def _parameters_of(scene: Scene, name: str) -> str:
    """The parameters of an optimizer, as an expression: of the module that it was seen to step, else of its groups."""
    module = next((one.module for one in _optimizers(scene) if one.name == name), "")
    root = module.partition(".")[0]
    bound = [one for file in scene.files for one in uses_in(file.tree, root, ast.Store)]
    return f"list({module}.parameters())" if module and len(bound) <= 1 else _of_groups(name)


def _of_groups(name: str) -> str:
    return f'[p for group in {name}.param_groups for p in group["params"]]'


def _is_sound(scene: Scene, file: File, step: ast.stmt, back: ast.stmt, order: _Order) -> bool:
    """Return True if the order of a step and the backward below it may be changed, as the head of this file says."""
    mine, loss = _method_of(step, "step"), _loss_of(back)
    steps = [one for row in (*order.passed, *order.below) if (one := _method_of(row, "step")) is not None]
    if not order.is_all or mine is None or loss is None or len(steps) != 1 or _same(steps[0], mine):
        return False
    theirs = steps[0]
    if not _are_the_same_there(scene, file, [mine, theirs], [step, back]):
        return False
    if not all(_is_no_other_step(file, one, step, [mine, theirs]) for one in calls(file.tree, "step")):
        return False
    regions = calls(file.tree, "checkpoint", "checkpoint_sequential")
    if not all(is_given(one, "use_reentrant", False) for one in regions):
        return False  # else a region that runs again refuses `inputs=`
    if not any(_same(_method_of(row, "zero_grad"), mine) for row in order.above):
        return False
    made = bound_to(file, theirs, step)
    modules = _stepped_by(file, made) if made is not None else set[str]()
    own = [row for row in (*order.between, *order.passed) if not _is_of(file, row, theirs, modules)]
    if not all(_reads_no_weights(file, row) for row in own) or _tells_gradients_apart(file, modules, order.above):
        return False
    names = {ast.unparse(mine), ast.unparse(theirs)}
    apart = {one.name for one in _optimizers(scene) if one.is_apart}
    called_by_line = [one.step.site for one in scene.finding.writes if one.step is not None]
    is_direct = all(one is not None and one.inside is None for one in called_by_line)  # a wrapper may do more
    return names <= apart and called_by_line != [] and is_direct


def _are_the_same_there(scene: Scene, file: File, optimizers: Sequence[ast.expr], rows: Sequence[ast.stmt]) -> bool:
    """Return True if the names of two optimizers mean the same wherever the functions of some statements run: arguments
    of a function that is called once, where one function has both statements; else what no function involved binds. The
    program begins in the file, so nothing else calls its functions."""
    scopes = {file.scope(row) for row in rows}
    roots = {first_name(one) for one in optimizers}
    given = [one for one in scopes if isinstance(one, FUNCTION) and roots & {*parameters(one)} - {"self"}]
    if len(scopes) == 1:
        return all(len(mentions(file, getattr(one, "name", ""))) <= 1 for one in given)
    first = scene.finding.calls[0].span().path if scene.finding.calls else ""
    others = [one for one in functions(file.tree) if roots & {*parameters(one)} - {"self"}]
    bound = any(uses(one, root, ast.Store) for one in functions(file.tree) for root in roots)
    return first == file.path and not others and not bound


def _is_of(file: File, row: ast.stmt, optimizer: ast.expr, modules: set[str]) -> bool:
    """Return True for a statement of the update by an optimizer that steps some modules: it clips their gradients."""
    call = call_of(row)
    clips = call is not None and called(call) in _CLIPS and call.args != [] and _stepped_by(file, call) <= modules
    return clips or any(_same(_method_of(row, name), optimizer) for name in ("zero_grad", "step"))


def _optimizers(scene: Scene) -> Sequence[Optimizer]:
    event = scene.finding.event
    return event.optimizers if isinstance(event, Clobber) else ()


def _is_no_other_step(file: File, call: ast.Call, step: ast.stmt, optimizers: Sequence[ast.expr]) -> bool:
    """Return True if a call of a `step` uses no gradients that another backward would no longer add to: it is the step
    that moves, comes after a `zero_grad` of its own, is of the other optimizer, of a scheduler, a method of the file,
    or takes an argument, in another function."""
    of, mine, row = owner(call), optimizers[0], file.statement(call)
    if of is not None and row is not None and _same(of, mine):
        rows = file.block(row)
        return row is step or any(_same(_method_of(one, "zero_grad"), of) for one in rows[: rows.index(row)])
    if of is None or call.args:  # `env.step(action)`
        return file.scope(call) is not file.scope(step)
    made = bound_to(file, of, call)
    is_of_scheduler = made is not None and any(_same(one, other) for one in made.args[:1] for other in optimizers)
    return _same(of, optimizers[1]) or is_of_scheduler or is_of_object(file, call)


def _stepped_by(file: File, call: ast.Call) -> set[str]:
    """The modules whose parameters an optimizer, or what clips them, is given, by the text; else names."""
    given = _given(file, call)
    owned = (owner(one) for one in walk(given, ast.Call))  # `itertools.chain` has no weights
    owners = [of for of in owned if of is not None and last_name(of) not in ("itertools", "chain")]
    known = {first_name(one) for one in owners} | {"itertools", "chain", "list"}
    return {dotted(one) for one in owners} | (names_in(given) - known if owners else names_in(given))


def _given(file: File, call: ast.Call) -> ast.expr:
    """What a call is given first, also by a name that is bound once."""
    given = call.args[0] if call.args else call
    if not isinstance(given, ast.Name) or (bound := only_binding(file, file.scope(call), given.id)) is None:
        return given
    used = [(one, file.above[one]) for one in uses(file.scope(call), given.id, ast.Load)]
    return bound.value if all(isinstance(above, ast.Call) and one in above.args for one, above in used) else given


def _tells_gradients_apart(file: File, modules: set[str], above: list[ast.stmt]) -> bool:
    """Return True if a file freezes parameters, or may read gradients of other than some modules: those that the
    backward no longer adds to. It clips them only `above` the step, and what it sets it may read."""
    renamed = any(one.asname and one.name.startswith("clip_grad") for one in walk(file.tree, ast.alias))
    if _freezes(file) or renamed:
        return True
    stored = (one for one in attributes_set(file, "grad") if not isinstance(value_given(file, one), ast.Constant))
    set_here = {dotted(one.value) for one in stored}
    if reads_other_gradients(file, lambda one: dotted(one) in set_here or _is_one_of(file, one, modules)):
        return True
    clipped = [one for one in calls(file.tree, *_CLIPS) if not one.args or not _stepped_by(file, one) <= modules]
    return any(file.statement(one) not in above for one in clipped)


def _freezes(file: File) -> bool:
    """Return True if a file may have weights that require no gradient."""
    given: list[ast.expr | None] = [one.value for one in walk(file.tree, ast.keyword) if one.arg == "requires_grad"]
    given += [one.args[1] for one in calls(file.tree, "Parameter") if len(one.args) > 1]
    given += [value_given(file, one) for one in attributes_set(file, "requires_grad")]
    switched = [called_by(file, one) for one in attributes(file.tree, "requires_grad_")]
    given += [value for one in switched if one is not None for value in values(one)]
    return None in switched or not all(map(is_true, given)) or attributes(file.tree, "from_pretrained") != []


def _is_one_of(file: File, module: ast.expr | None, modules: set[str]) -> bool:
    """Return True for `net`, and for `game.critic` where `self.critic` is one of some modules."""
    if module is None or first_name(module) in parameters(file.scope(module)):
        return False
    is_part = isinstance(module, ast.Attribute) and f"self.{module.attr}" in modules and _is_own(file, module)
    return is_part or dotted(module) in modules


def _is_own(file: File, part: ast.Attribute) -> bool:
    """`game.critic`, where the file binds no other attribute of that name than the `self.critic` of the class that
    makes `game`."""
    made = bound_to(file, part.value, part)
    stored = attributes_set(file, part.attr)
    return stored != [] and all(getattr(file.class_of(one), "name", None) == called(made) for one in stored)


def _method_of(row: ast.stmt, name: str) -> ast.expr | None:
    """`opt` of the statement `opt.step()`."""
    call = call_of(row)
    if call is None or called(call) != name or call.args or (name == "step" and call.keywords):
        return None
    return owner(call)


def _loss_of(row: ast.stmt) -> ast.expr | None:
    """`loss` of the statement `loss.backward()`, which may have `retain_graph=True` and nothing else."""
    call = call_of(row)
    plain = call is not None and all(one.arg == "retain_graph" for one in call.keywords)
    return _method_of(row, "backward") if plain else None


def _same(one: ast.expr | None, other: ast.expr) -> bool:
    return one is not None and ast.dump(one) == ast.dump(other)


def _reads_no_weights(file: File, row: ast.stmt) -> bool:
    """Whether a statement prints, returns or binds to a name only what losses and operators make of names, and of no
    `net.weight`."""
    call, given = call_of(row), list[ast.expr | None]()
    to_names = all(isinstance(one, ast.Name) for one in getattr(row, "targets", ()))
    if isinstance(row, (ast.Return, ast.Assign)) and to_names:
        given = [row.value]
    elif call is not None and called(call) == "print":
        given = [*values(call)]
    else:
        return False
    read = [operands(file, one) for one in given if one is not None]
    return all(one is not None and all(isinstance(each, ast.Name) for each in one) for one in read)


def operands(file: File, value: ast.expr) -> list[ast.expr] | None:
    """What an expression computes with, if by operators, builtins and losses of `torch.nn` alone: names, and what
    methods belong to. None if it does anything else."""
    callees, found = set[ast.AST](), list[ast.expr]()
    for call in walk(value, ast.Call):
        made, of = module_called(file, call), owner(call)
        is_loss = called(made).endswith("Loss") and (called(made) in MODULES or last_name(owner(made)) == "nn")
        if is_tensors(file, call, of=METHODS | KEEPING_NOTHING) and of is not None:
            callees.add(call.func)
            if isinstance(of, ast.Attribute):
                callees.update(walk(of, ast.expr))
                found.append(of)
        elif is_loss or is_function(call) or dotted(call.func) in BUILTINS:
            callees.update(walk(call.func, ast.expr))
        else:
            return None
    others = walk(value, ast.Attribute, ast.Subscript, ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield)
    if any(one not in callees for one in others):
        return None
    return [*found, *(one for one in walk(value, ast.Name) if one not in callees)]


def _in_caller(file: File, step: Place, stands: ast.AST, text: str) -> str:
    """The text of a step as the caller of its function would write it; empty where that is not plain."""
    scope, root = file.scope(step.row), optimizer_of(step.row).partition(".")[0]
    call = stands if isinstance(stands, ast.Call) else None
    if call is None or not root:
        return ""
    own = parameters(scope)
    of = owner(call)
    if root == "self":
        return text.replace("self.", f"{dotted(of)}.") if dotted(of) else ""
    if root not in own:
        return "" if uses(scope, root, ast.Store) else text
    named = keyword(call, root)
    at = own.index(root) - (of is not None and own[:1] == ["self"])
    given = named.value if named is not None else call.args[at] if at < len(call.args) else None
    is_plain = given is not None and bool(dotted(unindexed(given))) and text.startswith(root)
    return f"{file.source(given)}{text.removeprefix(root)}" if given is not None and is_plain else ""


def summed(scene: Scene) -> Iterator[Change]:
    """One backward for two losses, as of a graph that the first one has freed, and one step where there were two."""
    reads = scene.places("read") if scene.is_freed else []
    if len(reads) == 2 and reads[0].file is reads[1].file:
        yield from _of(reads[1].file, reads[0].row, reads[1], ())
    yield from _stepped_once(scene) if not scene.reads_first() else ()


def _stepped_once(scene: Scene) -> Iterator[Change]:
    """The backwards before and after a step, where the same optimizer steps again later on: the first step goes."""
    if (places := scene.step_and_backward()) is None:
        return
    step, read = places
    rows, first, second = step.file.together(step.row, read.row)
    name = optimizer_of(step.row)
    if not rows or first >= second or not name or rows[first] is not step.row:
        return
    if not any(optimizer_of(one) == name for one in rows[second + 1 :]):
        return
    zeros = [one for one in rows[first + 1 : second] if dotted(_method_of(one, "zero_grad")) == name]
    before = next((one for one in reversed(rows[:first]) if _loss_of(one) is not None), None)
    if before is not None:
        yield from _of(step.file, before, read, (step.row, *zeros))


def _of(file: File, first: ast.stmt, read: Place, gone: Sequence[ast.stmt]) -> Iterator[Change]:
    one, other = _loss_of(first), _loss_of(read.row)
    rows, at, last = file.together(first, read.row)
    if one is None or other is None or at >= last or rows[last] is not read.row or rows[at] is not first:
        return
    if "" in (dotted(one), dotted(other)) or dotted(one) == dotted(other):
        return
    if any(attributes(row, "grad") or calls(row, *_UPDATES, "grad") for row in rows[at + 1 : last] if row not in gone):
        return
    if any(first_name(one) in names_stored(row) for row in rows[at + 1 : last]):
        return
    edits = [*(remove(file, row) for row in (first, *gone))]
    edits.append(replace(file, read.row, f"({file.source(one)} + {file.source(other)}).backward()"))
    yield from change("sum the losses and call `backward` once" + ", then step once" * bool(gone), edits, way="summed")
