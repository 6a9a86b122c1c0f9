"""Bind a new tensor in place of a write.

Sound if the name alone holds the written tensor (holding.py) at the first statement that is blamed. That makes a new
tensor, and each later use of the name reads and writes that one. Nothing else can see the difference, because nothing
else holds the memory. Every write that the finding names goes through the name, and one that may run without the first
statement makes a new tensor too. The same holds for an attribute, or an item of a list or dict, that was seen to hold
the tensor alone (seen.py): the new tensor is put there. What an unpacking or a loop takes apart may be read again only
where its new parts are put together below the last write.

- Out of place the result must have the element type of the tensor. In place it always has; out of place an operand of a
  wider type would decide. So what is narrower than float32 is cloned instead, and float32 where the file makes wider
  tensors.
- A clone comes before the statement, so an operand on its right side must not be the tensor itself: autograd would save
  the clone, and the write would spoil that.

Tried is each write out of place whose new tensor reaches what goes on with the old one, as far as the text shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace as replaced

from noclobber.mend.change import Change, change
from noclobber.mend.flags import dropped
from noclobber.mend.holders.holding import holds_alone, is_new, keeps_nothing, writes_through
from noclobber.mend.holders.making import is_item_of_new
from noclobber.mend.holders.placing import WITHOUT_NAMES, is_just_made, may_be_kept, place_written
from noclobber.mend.holders.seen import are_over, holders_at, is_over, node_at
from noclobber.mend.new_tensors.returned import TITLE, rebound
from noclobber.mend.scene import Scene, puts_back
from noclobber.model.reports.finding import Cure, Edit
from noclobber.model.seen.events import Refusal, without_indexes
from noclobber.model.seen.operators import FACTORIES, RANDOM_FILLS, SPLITS, TWIN_IS_VIEW
from noclobber.syntax.edits import after, cloned_before, remove, replace, rewritten
from noclobber.syntax.names import (
    arguments,
    attributes,
    attributes_set,
    binds,
    call_of,
    called,
    called_by,
    calls,
    definition,
    dotted,
    has_torch,
    is_given,
    is_stored,
    keyword,
    last_name,
    named,
    names_in,
    only_target,
    owner,
    root_of,
    uses,
    value_given,
    values,
)
from noclobber.syntax.tree import (
    FOR,
    WITH,
    File,
    Place,
    ends,
    functions,
    lines_in,
    simple_statements,
    starts,
    walk,
    within,
)
from noclobber.syntax.writes import (
    Form,
    WriteSyntax,
    base_of,
    is_flagged,
    is_in_vain,
    is_read_on,
    loses_write,
    out_of_place,
    seen,
    tensors_given,
    value_of,
    write_at,
    write_in,
    writes,
    written_by,
)

_REFUSED = ("NC303", "NC304", "NC305", "NC307", "NC309", "NC310", "NC399")
"""Refusals of the memory that is written, where a new tensor has none of what PyTorch refuses."""
_SHAPING = TWIN_IS_VIEW - {"detach_"}
"""Operators that give a tensor another shape in place, which whoever holds it may ask for."""
_LIKE = {"normal_": "randn_like", "uniform_": "rand_like", "zero_": "zeros_like"}


def written_anew(scene: Scene) -> Iterator[Change]:
    """The writes of a finding out of place, or into a clone; each alone, then all of them."""
    if not scene.may_write_anew:
        return
    if (found := _sound(scene)) is not None:
        yield found
    writes, together = scene.writes(), list[Edit]()
    for write in writes:
        given = write.call is not None and keyword(write.call, "out") is not None
        if scene.is_refused and not (given or is_read_on(write)):
            continue
        row, is_part = write.statement, isinstance(write.target, ast.Subscript)
        is_part &= not isinstance(row, ast.AugAssign) or puts_back(scene.finding, lines_in(row))
        cost = 2 if scene.is_refused else 4 if is_part and write.form is not Form.ITEM else 1
        yield from rebound(write, cost, is_sound=_is_read_last(scene, write))
        yield from _refilled(write)
        together += out_of_place(write)
    if len(writes) > 1 and together and not any(is_in_vain(write, together) for write in writes):
        yield Change(TITLE, tuple(together), 2)


def put_into(scene: Scene) -> Iterator[Change]:
    """`fast[name] = fast[name] - e` for `fast[name] -= e`, where the function made the dict or list itself: the leaf in
    it stays what it is. Sound where `e` comes from gradients that keep a graph: no update by hand could give that on.
    No other name holds an item, and nothing calls the module whose parameters these are."""
    for write in scene.writes() if scene.is_leaf else ():
        file, found = write.file, write.statement
        of = found.target if isinstance(found, ast.AugAssign) else None
        if isinstance(of, ast.Subscript) and is_item_of_new(file, of, found):
            is_sound = is_update_in_graph(scene, write) and not is_held_besides(file, of.value, found)
            yield from change(TITLE, out_of_place(write), 1, Cure.OUT_OF_PLACE, is_sound=is_sound)


def is_update_in_graph(scene: Scene, write: WriteSyntax) -> bool:
    """Return True if a refused update of a leaf is made of what `autograd.grad` gives with a graph: only a new tensor
    carries that on."""
    event, file, found = scene.finding.event, write.file, write.statement
    if not isinstance(event, Refusal) or event.carries_gradient is not True or event.of_itself:
        return False
    return isinstance(found, ast.AugAssign) and _is_of_graph(file, found)


def _is_of_graph(file: File, write: ast.AugAssign) -> bool:
    scope = file.scope(write)
    names = names_in(write.value)
    for loop in file.loops(write):
        if isinstance(loop, FOR) and names & names_in(loop.target):
            names |= names_in(loop.iter)
    given = [value_given(file, one) for name in names for one in uses(scope, name, ast.Store)]
    made = [one for one in given if isinstance(one, ast.Call) and called(one) == "grad"]
    return any(is_given(one, "create_graph", True) for one in made)


def is_held_besides(file: File, of: ast.expr, write: ast.stmt) -> bool:
    """Return True if a name is bound to an item of the container that is written, or what the container was made of is
    called."""
    scope, made = file.scope(write), definition(file, of, write)
    items = [file.above[one] for one in uses(scope, dotted(of), ast.Load)]
    held = (one for one in items if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load))
    if any(isinstance(file.above[one], (ast.Assign, ast.NamedExpr, ast.Tuple, ast.List, ast.Dict)) for one in held):
        return True
    modules = {dotted(owner(one)) for one in calls(made, "parameters", "named_parameters")}
    return any(dotted(one.func) in modules for one in within(scope, ast.Call))


def _is_read_last(scene: Scene, write: WriteSyntax) -> bool:
    """`peaks.append(h.abs_().max())`: whether the statement uses the value of the only write, and nothing reads the
    written memory after that, by the name or by another."""
    file, row, name = write.file, write.statement, write.name
    if scene.is_refused or scene.drifts or not isinstance(write.target, ast.Name) or hasattr(row, "body"):
        return False
    if write.call is None or write.call is call_of(row) or not scene.lines_written(file) <= {*lines_in(row)}:
        return False
    if keyword(write.call, "out") is not None:
        return False  # which may have a wider type than the operands
    holders = holders_at(scene.finding, file, row)
    is_alone = holds_alone(file, name, row, write.target, holders)
    is_last = is_alone and is_over(file, name, row, node_at(file, row, holders or ()))
    return is_last and scene.keeps_type(file) and _SHAPING.isdisjoint(scene.ops())


def _refilled(write: WriteSyntax) -> Iterator[Change]:
    """The statement `t.copy_(e)` as `t = e`, `t.normal_()` as `t = torch.randn_like(t)`, `t[:] = e` as `t = e`."""
    file, statement, call, target = write.file, write.statement, write.call, write.target
    is_whole = isinstance(target, ast.Subscript) and file.source(target).endswith(("[:]", "[...]"))
    held = target.value if is_whole and isinstance(target, ast.Subscript) else target
    if not dotted(held) or held is None or loses_write(write) or _may_be_parameter(file, held):
        return
    name, texts = seen(file.source(held)), list[str]()
    if is_whole and isinstance(statement, ast.Assign):
        texts = _copies(file, statement.value, statement, name)
    elif call is not None and call is call_of(statement):
        texts = _new(write, call, name)
    rows = file.block(statement)
    before = [file.source(one) for one in rows[: rows.index(statement)][-1:]]
    is_cleared = before in ([f"{name}.detach_()"], [f"{name}.zero_()"])  # which a new tensor does not need
    for text in texts:
        edit = replace(file, statement, f"{name} = {text}")
        gone = remove(file, rows[rows.index(statement) - 1]) if is_cleared else None
        for edits in (*[(gone, edit)] * (gone is not None), (edit,)):
            yield from change(f"bind `{name}` to a new tensor instead of filling the old one", edits, 1)


def _may_be_parameter(file: File, held: ast.expr) -> bool:
    """Whether a file makes an attribute of this name a parameter, too: a module refuses another tensor there."""
    stored = attributes_set(file, held.attr) if isinstance(held, ast.Attribute) else []
    return any(called(value_given(file, one)) == "Parameter" for one in stored)


def _new(write: WriteSyntax, call: ast.Call, target: str) -> list[str]:
    file, op = write.file, called(call)
    texts = [file.source(one) for one in arguments(call)]
    if op == "copy_" and call.args:
        return _copies(file, call.args[0], write.statement, target)
    if op in _LIKE and not texts:
        return [f"torch.{_LIKE[op]}({target})"]
    if op == "fill_" and texts:
        return [f"torch.full_like({target}, {texts[0]})"]
    return [f"torch.empty_like({target}).{op}({', '.join(texts)})"] if op in RANDOM_FILLS else []


def _copies(file: File, value: ast.expr, at: ast.stmt, target: str) -> list[str]:
    """New tensors in the place of a `target` that a value is copied into: the value itself only if nothing else holds
    it, as what is written later would be written there, too."""
    text, filled = file.source(value), _filled_anew(target, file.source(value))
    if not _stays(file, value, at):
        return [filled]
    if is_new(file, value):
        return [text, filled]
    return [f"{text}.clone()", filled] if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) else [filled]


def value_anew(write: WriteSyntax) -> str:
    """The new value of all that is written, as an expression for a tensor that nothing else holds; empty where the text
    has none."""
    row, call = write.statement, write.call
    copied = row.value if isinstance(row, ast.Assign) else call.args[0] if call is not None and call.args else None
    is_copy = call is None or called(call) == "copy_"
    text = value_of(write)
    is_held = is_copy and text and copied is not None and not is_new(write.file, copied)
    return _filled_anew(write.name, text) if is_held else text


def _stays(file: File, value: ast.expr, at: ast.AST) -> bool:
    """Return True if a value is on the device of what it is computed from: a run on a CPU does not show it of what
    `torch.randn(n)` makes, nor of what a function of the program does."""
    own = {one.name for one in functions(file.tree)}
    made = (one for one in walk(value, ast.Call) if isinstance(one.func, ast.Name) or called(one) in own | FACTORIES)
    given = [one for name in walk(value, ast.Name) if (one := definition(file, name, at)) is not None]
    is_told = all(keyword(one, "device") is not None for one in made)
    return is_told and all(_stays(file, one, file.statement(one) or one) for one in given)


def _sound(scene: Scene) -> Change | None:
    """The change of all writes, where the name or the place that is written holds the tensor alone."""
    place = scene.place("write")
    refused = scene.is_refused and scene.code not in _REFUSED
    if place is None or place.statement is None or refused or scene.drifts:
        return None
    if not _SHAPING.isdisjoint(scene.ops()):
        return None
    file, write = place.file, place.statement
    holders, target = holders_at(scene.finding, file, write), write_in(file, write).target
    if holders is not None and target is not None and (held := place_written(file, target, holders)) is not None:
        found = _put_anew(scene, file, write, held)
        return with_those_refused_next(file, write, found, write_in(file, write))
    name, is_part = _name_written(file, write), isinstance(write, ast.Return) and place.node is not write.value
    if (
        name is None
        or is_part
        or (holders is None and scene.is_refused and not _is_alone_under_vmap(scene, file, write, name))
        or loses_write(write_in(file, write))
    ):
        return None
    through, lines = list(dict.fromkeys(writes_through(file, file.scope(write), name))), scene.lines_written(file)
    loops = set(file.loops(write))
    if not lines <= {one.lineno for one in through if starts(one) >= starts(write) or loops & {*file.loops(one)}}:
        return None
    whole, joined = _joined(file, write, name) if scene.code == "NC303" else ("", None)
    rows = [one for one in through if one is write or (one.lineno in lines and not _comes_first(file, write, one))]
    for one in rows:
        if not holds_alone(file, name, one, holders=holders_at(scene.finding, file, one), whole=whole):
            return None
        if scene.code == "NC303" and not all(keeps_nothing(file, use) for use in _read_before(file, name, one)):
            return None  # PyTorch has refused the write in the first turn; what holds the part in others was not seen
    found = _bound_anew(scene, file, rows, name, *[joined] * (joined is not None))
    return with_those_refused_next(file, write, found, write_in(file, write))


def _is_alone_under_vmap(scene: Scene, file: File, write: ast.stmt, name: str) -> bool:
    """Return True if a function that `vmap` runs writes nothing else in place, which would be refused next. Who holds
    what is mapped is not seen."""
    scope = file.scope(write)
    written = [base_of(one.target) for one in walk(scope, ast.AugAssign)]
    written += [base_of(written_by(one)) for one in walk(scope, ast.Call) if writes(one)]
    return scene.code == "NC310" and all(dotted(one) == name for one in written)


def _joined(file: File, write: ast.stmt, name: str) -> tuple[str, Edit | None]:
    """`x`, and the statement `x = torch.cat((a, b), dim=-1)` below the last write to a part of
    `a, b = x.chunk(2, dim=-1)`, where `x` is read only below that, all in one block; else nothing."""
    scope, rows = file.scope(write), file.block(write)
    names = list(within(scope, ast.Name))
    stores = [one for one in names if isinstance(one.ctx, ast.Store)]
    stored = [one.id for one in stores if not isinstance(file.above[one], ast.AugAssign)]
    bound = [file.above[one] for one in stores if one.id == name]
    parts = bound[0].elts if len(bound) == 1 and isinstance(bound[0], ast.Tuple) else []
    made = file.statement(parts[0]) if parts else None
    call = made.value if isinstance(made, ast.Assign) and made in rows else None
    if made is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return "", None
    given = tensors_given(call)
    root, split = given[0] if given else None, called(call)
    written = [one for part in map(dotted, parts) for one in writes_through(file, scope, part)]
    own = [one for one in names if one.id in map(dotted, parts) and isinstance(one.ctx, ast.Load)]
    if split not in SPLITS or not isinstance(root, ast.Name) or not set(written) <= {*rows}:
        return "", None
    earlier = [one for one in names if one.id == root.id and starts(one) < starts(made) and not is_stored(file, one)]
    plain = all(isinstance(one, ast.Name) for one in parts)
    if not plain or not all(keeps_nothing(file, one) for one in own + earlier):
        return "", None
    # The strides of a new tensor may be others.
    asked = [one for one in within(scope, ast.Attribute) if one.attr in ("view", "as_strided", "stride")]
    if any(stored.count(dotted(one)) != 1 for one in parts) or any(starts(one) > ends(made) for one in asked):
        return "", None
    last = max(written, key=starts)
    later = [one for one in names if one.id == root.id and starts(one) >= ends(made)]
    if not later or not has_torch(file) or any(starts(one) < ends(last) or is_stored(file, one) for one in later):
        return "", None
    join, at = ("stack", 1) if split == "unbind" else ("cat", 2)
    named, texts = keyword(call, "dim"), ", ".join(map(dotted, parts))
    along = named.value if named is not None else given[at] if len(given) > at else ast.Constant(0)
    dim = ast.unparse(along)
    if not re.fullmatch(r"-?\d+", dim):
        return "", None  # it may be another number by then
    return root.id, after(file, last, f"{root.id} = torch.{join}(({texts}), dim={dim})")


def _read_before(file: File, name: str, row: ast.stmt) -> list[ast.Name]:
    """The uses of a name that stand above a statement in its scope."""
    return [one for one in uses(file.scope(row), name, ast.Load) if starts(one) < starts(row)]


def with_those_refused_next(file: File, write: ast.stmt, found: Change | None, first: WriteSyntax) -> Change | None:
    """Return a change that also covers what PyTorch would refuse next: writes to other views of one call than those of
    the `first` write, and other calls into `out=`. None where one of these cannot be changed so."""
    edits = list[Edit]()
    for one in _refused_alike(file, write, first) if found is not None else ():
        other = write_in(file, one)
        more = out_of_place(other) or [edit for edit in [_into_clone(file, one, other.name)] if edit is not None]
        root = root_of(other.target)
        before = _read_before(file, other.name, one)
        is_alone = isinstance(root, ast.Name) and all(keeps_nothing(file, use) for use in before)
        if isinstance(other.base, ast.Attribute):
            is_alone = not may_be_kept(file, other.base, one)
        if not is_alone or len(more) == 0 or loses_write(other):
            return None
        edits += more
    return found if found is None else replaced(found, edits=tuple(dict.fromkeys((*found.edits, *edits))))


def _refused_alike(file: File, write: ast.stmt, first: WriteSyntax) -> list[ast.stmt]:
    """Return the other statements of a scope that write to views of the same unpacking, or that call with `out=`."""
    rows = [one for one in within(file.scope(write), ast.stmt) if not hasattr(one, "body") and one is not write]
    if first.call is not None and keyword(first.call, "out") is not None:
        return [one for one in rows if any(keyword(call, "out") is not None for call in walk(one, ast.Call))]
    unpacked = [one.targets[0] for one in rows if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Tuple)]
    names = [dotted(one) for target in unpacked for one in target.elts if first.name in map(dotted, target.elts)]
    heads = [one for one in within(file.scope(write), ast.stmt) if isinstance(one, FOR)]
    names += [dotted(one.target) for one in heads if {*names} & names_in(one.iter)]
    others = (one for name in {*names} - {first.name, ""} for one in writes_through(file, file.scope(write), name))
    return [one for one in others if starts(one) > starts(write)]


def _comes_first(file: File, write: ast.stmt, other: ast.stmt) -> bool:
    """Return True if a statement always runs before another one below it, which then writes the new tensor."""
    rows, first, second = file.together(write, other)
    return first < second and rows[first] is write


def _bound_anew(scene: Scene, file: File, rows: list[ast.stmt], name: str, *more: Edit | None) -> Change | None:
    """The change by which some statements bind a name, attribute or item to a new tensor, each out of place or by a
    clone; None where one of them cannot."""
    edits, cloned = [*more], False
    for row in rows:
        edit = _out_of_place(scene, file, row, name)
        if edit is None and scene.code == "NC310":
            return None  # a clone exists as often as the tensor
        if edit is None and (edit := _into_clone(file, row, name)) is not None:
            filled = _filled_whole(scene, file, row, name)
            edit, cloned = (edit, True) if filled is None else (filled, cloned)
        elif edit is None:  # an attribute would carry a graph on
            edit = _filled_whole(scene, file, row, name) if name.isidentifier() else None
        elif not isinstance(row, (ast.Assign, ast.Return)) and not edit.replacement.startswith(f"{name} = "):
            return None  # `h.data` and `h.grad` are other names
        edits.insert(len(edits) - len(more), edit)
    title, cure = (f"write into a clone of `{name}`", Cure.CLONE_FIRST) if cloned else (TITLE, Cure.OUT_OF_PLACE)
    found = tuple(one for one in edits if one is not None)
    return Change(title, found, 1 + cloned, cure, is_sound=True) if len(found) == len(edits) else None


def _put_anew(scene: Scene, file: File, write: ast.stmt, held: ast.expr) -> Change | None:
    """The same for an attribute or an item that was seen to hold the tensor, at each line that writes through it."""
    name, lines = file.source(held), scene.lines_written(file)
    rows = [one for one in simple_statements(file.tree) if one.lineno in lines]
    if _may_be_parameter(file, held):
        return None
    if write not in rows or lines != {one.lineno for one in rows}:
        return None
    for one in rows:
        holders, target = holders_at(scene.finding, file, one), write_in(file, one).target
        place = place_written(file, target, holders) if holders is not None and target is not None else None
        if place is None or holders is None or file.source(place) != name or not are_over(file, name, one, holders):
            return None
        if any(isinstance(each, WITH) for each in file.around(one)) or _may_be_read_again(file, place, one):
            return None
        if may_be_kept(file, place, one) and not (is_just_made(file, place, one) and _is_read_below(scene, file, one)):
            return None
    return _bound_anew(scene, file, rows, name)


def _may_be_read_again(file: File, place: ast.expr, write: ast.stmt) -> bool:
    """Return True if a function that `checkpoint` may run again reads an attribute: it would get the new tensor."""
    if not isinstance(place, ast.Attribute) or not calls(file.tree, "checkpoint"):
        return False
    held = (one for one in attributes(file.tree, place.attr) if not is_stored(file, one))
    return bool(calls(file.tree, *WITHOUT_NAMES)) or any(file.scope(one) is not file.scope(write) for one in held)


def _is_read_below(scene: Scene, file: File, write: ast.stmt) -> bool:
    """Return True if the backward stands below a write in its function, in no loop with it: no later turn goes on with
    a graph that it has freed."""
    read = scene.place("read")
    row = read.statement if read is not None and read.file is file else None
    if row is None or file.scope(row) is not file.scope(write) or starts(row) < ends(write):
        return False
    return not {*file.loops(row)} & {*file.loops(write)}


def _name_written(file: File, write: ast.stmt) -> str | None:
    """`h` of `h += 1`, `h[0] = 1`, `h[0].add_(1)`, `h = h.add_(1)` and `torch.relu_(h)`."""
    root = root_of(write_in(file, write).target)
    if not isinstance(root, ast.Name) or write not in set(writes_through(file, file.scope(write), root.id)):
        return None
    return root.id


def _out_of_place(scene: Scene, file: File, write: ast.stmt, name: str) -> Edit | None:
    if not scene.keeps_type(file):
        return None
    value = write.value if isinstance(write, (ast.Assign, ast.Expr, ast.Return)) else None
    call = value if isinstance(value, ast.Call) else None
    if isinstance(write, ast.AugAssign):
        if file.source(write.target) != name:
            return None
    elif isinstance(write, ast.Assign) and isinstance(write.targets[0], ast.Subscript):
        found = out_of_place(write_in(file, write))
        return found[0] if found else None
    elif call is None or (isinstance(write, ast.Assign) and not _is_bound_anew(write, call)):
        return None
    elif called(call) == "detach_" and isinstance(call.func, ast.Attribute) and not call.args:
        owner = dotted(call.func.value)
        return replace(file, write, f"{owner} = {owner}.detach()") if owner and "." not in owner else None
    elif is_flagged(call):
        return dropped(file, call) if isinstance(write, ast.Assign) else None
    found = out_of_place(write_at(Place(file, call or write)))
    return replace(file, write, rewritten(file, file.span(write), found)) if found else None


def _is_bound_anew(write: ast.Assign, call: ast.Call) -> bool:
    """`h = F.relu(h, inplace=True)` and `h = h.add_(1)`: the result takes the name of what is written."""
    target = written_by(call)
    return isinstance(target, ast.Name) and dotted(only_target(write)) == target.id


def _into_clone(file: File, write: ast.stmt, name: str) -> Edit | None:
    if isinstance(write, ast.Assign) and isinstance(write.targets[0], ast.Name):
        return None
    bound = (row for loop in file.loops(write)[:1] for row in loop.body if starts(row) < starts(write))
    is_part = isinstance(write_in(file, write).target, ast.Subscript)
    if is_part and file.loops(write) and not any(binds(row, name) for row in bound):
        return None  # each turn would copy the whole
    given: list[ast.expr] = []
    if isinstance(write, (ast.Assign, ast.AugAssign)):
        given = [write.value]
    elif (call := call_of(write)) is not None:
        given = values(call)
        if owner(call) is None or called(call) not in _SAVING_NOTHING:
            return None
    last = without_indexes(name).removesuffix("[]").rpartition(".")[2]
    own = (one for value in given for one in named(value) if last_name(one) == last)
    if not all(_is_cloned(file, one) for one in own) or file.own_lines(write) is None:
        return None
    return cloned_before(file, write, name)


def _is_cloned(file: File, use: ast.expr) -> bool:
    """`x[:, 1:].clone()`: whether a statement reads a clone of what it uses, and saves nothing of that itself."""
    above = file.above[use]
    while isinstance(above, ast.Subscript) and use is above.value:
        use, above = above, file.above[above]
    return isinstance(above, ast.Attribute) and above.attr == "clone" and called_by(file, above) is not None


def _filled_whole(scene: Scene, file: File, write: ast.stmt, name: str) -> Edit | None:
    """`x = torch.empty_like(x).copy_(e)` for `x.copy_(e)`, where `e` may be of `x`, and of another shape; the same for
    what is drawn into a constant."""
    call, held = call_of(write), write_in(file, write).target
    is_whole = held is not None and seen(file.source(held)) == name
    fills = ("copy_", *(RANDOM_FILLS if scene.is_constant else ()))
    if call is None or held is None or called(call) not in fills or owner(call) is not held:
        return None
    if not is_whole or not has_torch(file):
        return None
    filled = rewritten(file, file.span(call), [Edit(file.span(held), f"torch.empty_like({name})")])
    return replace(file, write, f"{name} = {filled}")


def _filled_anew(name: str, value: str) -> str:
    return f"torch.empty_like({name}).copy_({value})"


_SAVING_NOTHING = (
    "add_", "sub_", "fill_", "zero_", "copy_", "neg_", "normal_", "uniform_", "masked_fill_", "index_fill_",
    "fill_diagonal_", "bernoulli_", "exponential_",
)  # fmt: skip
"""Methods that save nothing of what they overwrite."""
