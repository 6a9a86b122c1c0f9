"""Writes that come before a backward which needs the old bytes: the statement moved below the last backward.

A write that changes no byte in the runs that are compared may change some in a later run. So the source has to show
that no statement in between reads what is written, by any name. That is known of few statements:

- `backward` and `zero_grad`,
- what prints numbers and tensors, or binds them to a name, or appends them to a list. Each tensor that is read there
  was seen to be of other memory when the write was made, or is held by one name of the function and by nothing else;
  and the write does not mention that name.

The write in turn, with what it calls in the program's files, may not depend on what the statements in between change:
on a gradient, a name that they bind, a list that they append to, or the state of the generator of random numbers. And
no hook may read what is written. So the change is sound for weights, whose writes are part of no graph, where the
statement makes all writes that were seen, by itself or by what it calls. The end of a `with` that writes waits in
another way: the statements go into the block. Tried is the same for what is no weight, and for a call of callbacks.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from noclobber.mend.change import LAST_RESORT, Change, change
from noclobber.mend.holders.holding import owns
from noclobber.mend.holders.numbers import is_number_only
from noclobber.mend.order.passing import LEAVING, is_apart, runs_what_it_is_given, uses_gradients
from noclobber.mend.order.steps import operands
from noclobber.mend.scene import Scene, run_by
from noclobber.model.reports.finding import Cure, Edit
from noclobber.model.seen.events import Write
from noclobber.model.seen.operators import DRAWING
from noclobber.model.seen.silent import Drift
from noclobber.syntax.edits import insert, lines_of, text_of_lines, whole_lines
from noclobber.syntax.names import (
    call_of,
    called,
    calls,
    dotted,
    is_untracked,
    last_name,
    names_in,
    names_read,
    names_stored,
    names_used,
    own_names,
    owner,
    unindexed,
    values,
)
from noclobber.syntax.tree import (
    FUNCTION,
    WITH,
    File,
    Place,
    has_text_of_lines,
    last_line,
    place_of,
    starts,
    walk,
    within,
)
from noclobber.syntax.writes import writes

IsOwn = Callable[[ast.expr], bool]
"""Whether the tensor of a name shares no memory with what is written."""


def put_off(scene: Scene) -> Iterator[Change]:
    """The statement that writes, or that calls the function which does, moved below the last backward."""
    read, fits = scene.place("read"), scene.is_clobber or scene.is_refused or isinstance(scene.finding.event, Drift)
    if read is None or not fits or scene.is_unseen:
        return
    cost = 1 if scene.is_trained or scene.drifts else 4
    cost = LAST_RESORT + 3 if scene.steps() or scene.is_refused else cost
    found = (each for one in leading(scene, read) for each in _put_off(scene, read, one, cost))
    yield from sorted(found, key=lambda one: not one.is_sound)


def leading(scene: Scene, read: Place) -> list[ast.AST]:
    """What stands in the function of the backward and makes a write, or leads to it by the calls that were seen; then
    by the text alone: calls of the functions that write, by their names."""
    file, scope = read.file, read.file.scope(read.row)
    sites = [site for one in scene.finding.writes for site in (*one.calls, one.site) if site is not None]
    places = [place for site in sites if (place := scene.at(site.span())) is not None and place.file is file]
    found: list[ast.AST] = [one.node for one in places if file.scope(one.node) is scope]
    for write in scene.writes():
        writer = write.file.scope(write.statement)
        if writer is scope:
            found.append(write.statement)
        elif isinstance(writer, FUNCTION):
            found += calls(scope, writer.name)
    return list(dict.fromkeys(found))


def _put_off(scene: Scene, read: Place, target: ast.AST, cost: int) -> Iterator[Change]:
    file = read.file
    rows, first, second = file.together(target, read.row)
    if not rows or first >= second:
        return
    name = called(call_of(rows[first]))  # two targets may be averaged in a row
    moved = file.beside(rows[first], lambda row: name != "" and called(call_of(row)) == name)
    end, is_sound = rows.index(moved[-1]) + 1, scene.is_clobber and scene.is_trained and not scene.steps()
    block = target if isinstance(target, WITH) else None
    heads = [one.context_expr for one in block.items] if block is not None else moved
    is_sound &= not runs_what_it_is_given(scene, file, heads)
    if end > second or (block is not None and len(heads) > 1):
        return
    passed = _passed(scene, file, heads, rows[end:], rows[second])
    if (
        not passed
        or not is_apart(scene, file, heads)
        or any(file.own_lines(one) is None for one in (*moved, passed[-1]))
    ):
        return
    if block is None:
        lines, title = (lines_of(file, moved[0])[0], last_line(moved[-1])), "make this change after the backward"
        put = insert(file, *file.end_of_line(last_line(passed[-1])), "\n" + text_of_lines(file, *lines))
        is_sound &= makes_all(scene, file, lambda node: any(file.holds(row, node) for row in moved))
        yield Change(title, (whole_lines(file, *lines), put), cost, Cure.LATER, is_sound)
    else:
        edits = _taken_in(file, block, passed)
        title = "run the backward inside this `with`, whose end makes the change"
        is_sound &= makes_all(scene, file, lambda node: node is block) and _only_ends(scene, file, block, read)
        yield from change(title, edits, cost, Cure.LATER, is_sound)


def _taken_in(file: File, block: ast.With | ast.AsyncWith, rows: list[ast.stmt]) -> tuple[Edit, ...]:
    """The statements below a `with` block as the last ones of the block; empty where that cannot be done."""
    outer, inner = file.indent(block), file.indent(block.body[0])
    numbers = [number for row in rows for number in range(lines_of(file, row)[0], last_line(row) + 1)]
    if outer is None or inner is None or any(map(has_text_of_lines, rows)):
        return ()
    return tuple(insert(file, number, 1, inner.removeprefix(outer)) for number in numbers if file.line(number).strip())


def _only_ends(scene: Scene, file: File, block: ast.With | ast.AsyncWith, read: Place) -> bool:
    """Return True if the graph of a backward is built inside a `with` block, and only the end of the block writes: what
    its beginning or its body writes, too, spoils what was saved before."""
    lines = {(one.site.code.co_filename, one.site.line) for one in scene.finding.writes if one.site is not None}
    inside = [one for row in block.body for one in ast.walk(row)]
    writing = (isinstance(one, ast.Call) and writes(one) for one in inside)
    if len(lines) != 1 or any(writing) or any(isinstance(one, ast.Attribute) and one.attr == "data" for one in inside):
        return False
    first = names_read(read.row)
    names, known = set(first), set[str]()
    while names - known:
        name = (names - known).pop()
        known.add(name)
        assigned = within(file.scope(read.row), ast.Assign, ast.AugAssign, ast.AnnAssign)
        rows = [one for one in assigned if name in names_stored(one)]
        below = [row for row in rows if starts(row) >= starts(block)]
        is_given = name in first and not rows  # the loss itself, as an argument
        if not below and (is_given or not all(map(_is_of_no_graph, rows))):
            return False
        names |= {each for row in below or rows for each in names_read(row)}
    return True


def _is_of_no_graph(row: ast.stmt) -> bool:
    """Return True for what binds data or modules: a constructor, a function that makes tensors of numbers."""
    return all(is_untracked(one) or called(one)[:1].isupper() for one in walk(row, ast.Call))


def makes_all(scene: Scene, file: File, is_there: Callable[[ast.AST], bool]) -> bool:
    """Return True if every write of the finding was made in a place, or by a call that was seen to begin there."""
    last: Write | None = None
    for one in scene.finding.writes:
        last = one if one.calls or last is None or one.site != last.site else last
        places = [scene.at(site.span()) for site in (*last.calls, one.site) if site is not None]
        if not any(is_there(place.node) for place in places if place is not None and place.file is file):
            return False
    return True


def _passed(
    scene: Scene, file: File, heads: Sequence[ast.AST], below: list[ast.stmt], read: ast.stmt
) -> list[ast.stmt]:
    """The statements below a write to the last backward that it may wait for; none if that stands above the one that
    reads."""
    last = 0
    for number, row in enumerate(below, 1):
        if not all(_may_wait(scene, file, one, below[:number]) for one in heads):
            break
        if row is read or (last and calls(row, "backward")):
            last = number
    return below[:last]


def _may_wait(scene: Scene, file: File, write: ast.AST, between: list[ast.stmt]) -> bool:
    """Return True if a statement, or the head of a `with`, does the same below these others, and they do the same above
    it."""
    run = [write, *run_by(scene, write)]
    if next(walk(write, *LEAVING), None) is not None or any(uses_gradients(file, one) for one in run):
        return False
    used, gives = names_in(write), names_stored(write)
    bound = {name for row in between for name in names_stored(row)}
    if any(gives & names_read(row) for row in between):
        return False
    appended = {last_name(owner(one)) for row in between for one in calls(row, "append")}
    read = used.union(*(names_used(one) - own_names(one) for one in run[1:]))
    if read & (bound | appended) or any("hook" in called(one) for one in walk(file.tree, ast.Call)):
        return False
    if any(calls(row, *DRAWING) for row in between):
        return False  # the write may draw the next numbers
    apart = _apart(scene, file, between)

    def is_own(one: ast.expr) -> bool:
        if not isinstance(one, ast.Name) or one.id in used:
            return False
        return one.id in apart or owns(file, one.id, one) or is_number_only(file, one)

    return all(_passes(file, row, is_own) for row in between)


def _apart(scene: Scene, file: File, rows: Sequence[ast.stmt]) -> set[str]:
    """The variables of the function of some statements that were seen to share no memory with what is written, at each
    write of a finding."""
    scope = file.scope(rows[0])
    places = [[(one.name, place_of(one.site)) for one in write.apart] for write in scene.finding.writes]
    seen = [{name for name, at in some if at is not None and at.file.scope(at.node) is scope} for some in places]
    return set[str].intersection(*seen) if seen else set()


def _passes(file: File, row: ast.stmt, is_own: IsOwn) -> bool:
    """Return True if a statement reads nothing that is written, as far as it is known of the names that it reads."""
    if isinstance(row, ast.If):
        arms = (*row.body, *row.orelse)
        return _reads_own(file, row.test, is_own) and all(_passes(file, one, is_own) for one in arms)
    if isinstance(row, ast.Expr):
        call = row.value
        is_known = isinstance(call, ast.Call) and (_is_backward(file, call, is_own) or _tells(file, call, is_own))
        return is_known or isinstance(call, ast.Constant)
    if isinstance(row, (ast.Assign, ast.AugAssign)):
        targets = row.targets if isinstance(row, ast.Assign) else [row.target]
        return all(isinstance(one, ast.Name) for one in targets) and _reads_own(file, row.value, is_own)
    return isinstance(row, ast.Pass)


def _is_backward(file: File, call: ast.Call, is_own: IsOwn) -> bool:
    """`loss.backward()`, `(a + b).backward(retain_graph=True)`, `scaler.scale(loss).backward()`, `opt.zero_grad()`.

    The bytes of what `backward` is called on are not read.
    """
    name, loss = called(call), owner(call)
    if name == "zero_grad":  # of `self.opt` or `opts["critic"]`, which is there already
        at = [one.slice for one in walk(loss, ast.Subscript)] if loss is not None else []
        is_named = loss is not None and bool(dotted(unindexed(loss)))
        return is_named and all(isinstance(one, ast.Constant) for one in (*at, *(one.value for one in call.keywords)))
    if name != "backward" or loss is None or call.args:
        return False
    if any(one.arg not in ("retain_graph", "create_graph", "inputs") for one in call.keywords):
        return False
    if called(loss) == "scale" and isinstance(loss, ast.Call) and len(loss.args) == 1:
        loss = loss.args[0]
    return bool(dotted(loss)) or _reads_own(file, loss, is_own)


def _tells(file: File, call: ast.Call, is_own: IsOwn) -> bool:
    """`print(...)`, and `losses.append(...)` of what is a number or a new tensor."""
    is_told = dotted(call.func) == "print" or (called(call) == "append" and dotted(owner(call)) != "")
    return is_told and all(_reads_own(file, one, is_own) for one in values(call))


def _reads_own(file: File, value: ast.expr, is_own: IsOwn) -> bool:
    """Return True if an expression computes only with numbers, and with tensors that are not what is written."""
    found = operands(file, value)
    return found is not None and all(map(is_own, found))
