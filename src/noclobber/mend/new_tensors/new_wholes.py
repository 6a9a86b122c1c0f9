"""A loop that writes what it goes through, as a new whole: a list, a dict, a stack of rows, or new tensors for names.

Sound is a new list for one that the function has made, of new tensors, where each was seen to be held by that list and
by the variable of the loop alone. The function only reads the list, hands it to what keeps nothing of it, or returns
it. What the loop takes beside it is known to be as long: its gradients, or what a comprehension makes of its items. All
else is tried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace as replaced
from typing import NamedTuple

from noclobber.mend.change import Change, change
from noclobber.mend.holders.giving import given_for
from noclobber.mend.holders.holding import is_new, keeps_nothing, may_get_another, writes_through
from noclobber.mend.holders.making import CONTAINERS
from noclobber.mend.holders.placing import may_be_kept
from noclobber.mend.holders.seen import hold_alone, holders_at, is_of, node_at
from noclobber.mend.new_tensors.new_tensor import (
    is_held_besides,
    is_update_in_graph,
    value_anew,
    with_those_refused_next,
)
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure
from noclobber.model.seen.operators import SPLITS
from noclobber.syntax.edits import before, insert, replace, rewritten, with_argument
from noclobber.syntax.names import (
    attributes_set,
    called,
    called_by,
    dotted,
    has_torch,
    is_own,
    is_read_below,
    is_stored,
    names_in,
    names_used,
    owner,
    parameters,
    targets,
    uses,
    uses_in,
    value_given,
)
from noclobber.syntax.tree import FOR, WITH, File, Scope, last_line, parse, starts, walk
from noclobber.syntax.writes import WriteSyntax, out_of_place, value_of, write_in

For = ast.For | ast.AsyncFor


class Taken(NamedTuple):
    """A loop around a write, its variable that is written, and what that variable goes through."""

    loop: For
    variable: ast.expr
    whole: ast.expr


def new_wholes(scene: Scene) -> Iterator[Change]:
    """The writes of a finding to what a loop goes through, as a new whole."""
    yield from sorted(_made_anew(scene), key=lambda one: not one.is_sound)


def _made_anew(scene: Scene) -> Iterator[Change]:
    for write in scene.writes():
        in_graph = scene.is_leaf and is_update_in_graph(scene, write)
        if not (scene.may_write_anew or scene.is_unseen or in_graph):
            continue
        cost, stacked = 1 if scene.is_unseen or in_graph else 2, scene.code == "NC303"
        is_listed = (scene.is_clobber or in_graph) and _is_of_own_list(scene, write, in_graph=in_graph)
        is_sound = _is_whole_alone(scene, write) if stacked else is_listed
        yield from _of_names(scene, write, cost)
        yield from _into_new(write, cost, stacked=stacked, is_sound=is_sound)
        yield from _into_rows(write, cost, is_sound=is_sound) if stacked else ()


def _is_of_own_list(scene: Scene, write: WriteSyntax, *, in_graph: bool) -> bool:
    """Return True if a loop writes to what a list or a dict of the function holds, which may be another one after that.

    `in_graph`: PyTorch refused the write to a leaf, so that it has reached nobody.
    """
    file, found, row = write.file, taken(write), write.statement
    holders, scope = holders_at(scene.finding, file, row), file.scope(row)
    if found is None or not _container(found.whole) or (holders is None and not in_graph):
        return False
    loop, _, whole = found
    name, source = _container(whole), _uncounted(loop)[1]
    others = source.args if isinstance(source, ast.Call) else []
    if not all(one is whole or _is_as_long(file, scope, one, name) for one in others):
        return False  # `zip` ends with the shortest, and what is not written has to stay
    if any(is_read_below(file, one, loop) for one in names_in(loop.target)) or file.nearest(row, *WITH) is not None:
        return False
    own = (name, write.name)
    if not in_graph and not all(is_of(one, file, row) and one.name.partition("[")[0] in own for one in holders or ()):
        return False
    is_copy = isinstance(row, ast.Assign) or called(write.call) == "copy_"  # which may give what another name holds
    if not in_graph and (is_copy or scene.lines_written(file) != {row.lineno} or not scene.keeps_type(file)):
        return False
    if "." in name:
        if not isinstance(whole, ast.Attribute):
            return False
        held = ast.Subscript(whole, ast.Constant(0))
        return not in_graph and _is_list(file, whole) and not may_be_kept(file, held, row)
    made = [file.above[one] for one in uses(scope, name, ast.Store, ast.Del)]
    if len(others) > 1 and len(made) > 1:
        return False  # the gradients may be of another list
    if in_graph and any(is_held_besides(file, one, row) for one in ast.walk(whole) if isinstance(one, ast.Name)):
        return False
    used = [one for one in uses(scope, name, ast.Load) if one not in ast.walk(whole)]
    return (
        name not in parameters(scope)
        and is_own(scope, name)
        and all(isinstance(one, ast.Assign) and _lists(file, one.value, any_tensors=in_graph) for one in made)
        and all(isinstance(file.above[one], ast.Return) or _only_reads(file, one) for one in used)
        and not any(loop in file.around(one) or _is_item_set(file, one) for one in used)
    )


def _container(whole: ast.expr) -> str:
    """`fast` of `fast`, of `fast.values()` and `list(fast.items())`."""
    while isinstance(whole, ast.Call):
        if called(whole) in ("values", "items", "keys") and not whole.args:
            return dotted(owner(whole))
        if dotted(whole.func) not in ("list", "tuple") or len(whole.args) != 1:
            return ""
        whole = whole.args[0]
    return dotted(whole)


def _only_reads(file: File, use: ast.expr) -> bool:
    """Return True if a use of a container keeps none of its items: `functional_call(net, fast, x)`, `grad(y, fast)`."""
    node, above = use, file.above[use]
    while isinstance(above, (ast.Attribute, ast.Call)):
        call = called_by(file, above) if isinstance(above, ast.Attribute) else above
        if call is None or _container(call) != dotted(use):
            break
        node, above = call, file.above[call]
    return keeps_nothing(file, node)


def _is_list(file: File, held: ast.Attribute) -> bool:
    """Return True if a file sets an attribute of this name to lists alone."""
    rows = [file.statement(one) for one in attributes_set(file, held.attr)]
    return rows != [] and all(isinstance(one, ast.Assign) and isinstance(one.value, _LISTS) for one in rows)


_LISTS = (ast.List, ast.ListComp)


def _is_as_long(file: File, scope: Scope, other: ast.expr, name: str) -> bool:
    """Return True if a scope binds a name only to the gradients of a list, as `grads = grad(loss, fast)`, or to what a
    comprehension makes of each of its items, and then neither sets an item nor calls a method, as `grads.pop()`."""
    if any(_is_item_set(file, one) or isinstance(file.above[one], ast.Attribute) for one in uses(scope, dotted(other))):
        return False
    rows = [one for one in walk(scope, ast.stmt) if dotted(other) in map(dotted, targets(one))]
    given = [value for one in rows if isinstance(one, ast.Assign) and (value := _gone_through(one.value)) is not None]
    return bool(rows) and len(given) == len(rows) and all(_container(one) == name for one in given)


def _gone_through(value: ast.expr) -> ast.expr | None:
    """`fast` of `torch.autograd.grad(loss, fast)` and of `[one * 0 for one in fast]`."""
    if isinstance(value, ast.ListComp):
        return value.generators[0].iter if len(value.generators) == 1 and not value.generators[0].ifs else None
    return value.args[1] if isinstance(value, ast.Call) and called(value) == "grad" and len(value.args) > 1 else None


def _is_item_set(file: File, use: ast.Name) -> bool:
    above = file.above[use]
    return isinstance(above, ast.Subscript) and not isinstance(above.ctx, ast.Load)


def _lists(file: File, value: ast.expr, *, any_tensors: bool) -> bool:
    """`[w.clone() for w in weights]`: whether an expression makes a list or a dict, of new tensors or of any."""
    if any_tensors:
        return isinstance(value, CONTAINERS) or dotted(getattr(value, "func", None)) in ("dict", "list")
    parts = [value.elt] if isinstance(value, ast.ListComp) else value.elts if isinstance(value, ast.List) else []
    parts = [value.value] if isinstance(value, ast.DictComp) else parts
    return bool(parts) and all(is_new(file, one) for one in parts)


def _into_new(write: WriteSyntax, cost: int, *, stacked: bool, is_sound: bool = False) -> Iterator[Change]:
    """A loop whose one statement writes what it iterates over, as a new whole: a list, a dict, or `stacked` rows."""
    file, found, value = write.file, taken(write), value_of(write) if stacked else value_anew(write)
    loop = found.loop if found is not None else None
    if found is None or loop is None or not value or loop.body != [write.statement] or not _is_on_lines(file, loop):
        return
    header = f"for {file.source(loop.target)} in {_as_long(file, loop) if stacked else file.source(loop.iter)}"
    for name, text in _wholes(file, found, value, header, stacked):
        if "." in name or is_read_below(file, name, loop):
            title = f"make a new `{name}` out of place"
            yield Change(title, (replace(file, loop, text),), cost, Cure.OUT_OF_PLACE, is_sound)


def _into_rows(write: WriteSyntax, cost: int, *, is_sound: bool) -> Iterator[Change]:
    """A loop whose statements write the rows that it goes through, so that each is bound anew, and all are stacked."""
    file, row, found = write.file, write.name, taken(write)
    if found is None or not dotted(found.whole) or len(found.loop.body) < 2 or not _is_on_lines(file, found.loop):
        return
    if next(walk(found.loop, ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom), None) is not None:
        return
    loop, name, used = found.loop, dotted(found.whole), names_used(file.scope(found.loop))
    writing = [one for one in writes_through(file, file.scope(loop), row) if loop in file.around(one)]
    made = [out_of_place(write_in(file, one)) for one in writing]
    rows = next(one for one in ("rows", f"new_{row}", f"{row}_rows") if one not in used)
    if any(len(one) != 1 or not one[0].replacement.startswith(f"{row} = ") for one in made):
        return
    stack = f"\n{file.indent(loop)}{name} = torch.stack({rows})"
    end = insert(file, *file.end_of_line(last_line(loop)), f"\n{file.indent(loop.body[0])}{rows}.append({row}){stack}")
    edits = [*(edit for one in made for edit in one), before(file, loop, f"{rows} = []"), end]
    edits += [replace(file, loop.iter, _as_long(file, loop))] * isinstance(loop.iter, ast.Call)
    yield from change(f"make a new `{name}` of new rows", edits, cost, Cure.OUT_OF_PLACE, is_sound)


def _is_on_lines(file: File, loop: For) -> bool:
    """Return True if a loop and its block have lines of their own, and no `else` follows."""
    return not loop.orelse and file.indent(loop) is not None and file.indent(loop.body[0]) is not None


def _as_long(file: File, loop: For) -> str:
    """`zip(x, means, strict=True)`, as a row that no number belongs to would be left out."""
    given = loop.iter
    if not isinstance(given, ast.Call) or called(given) != "zip" or given.keywords:
        return file.source(given)
    return rewritten(file, file.span(given), [with_argument(file, given, "strict=True")])


def _is_whole_alone(scene: Scene, write: WriteSyntax) -> bool:
    """Return True if a loop goes through a tensor by a name that alone holds it, but for the variable of the loop, and
    no other run of the function may hold it elsewhere, or have a list of tensors there."""
    file, found, scope = write.file, taken(write), write.file.scope(write.statement)
    if found is None or not isinstance(found.whole, ast.Name) or not has_torch(file):
        return False
    loop, variable, whole = found.loop, found.variable, found.whole
    if not _are_held_alone(scene, write, loop, [whole.id]) or next(walk(loop, *WITH), None) is not None:
        return False
    if any(loop in file.around(use) and use is not whole for use in uses(scope, whole.id)):
        return False
    bound, given = uses(scope, whole.id, ast.Store), given_for(file, whole.id, scope)
    made = [value_given(file, one) for one in bound]
    if any(isinstance(one, (ast.Tuple, *_LISTS)) for one in made):
        return False
    if not bound and (not given or not all(is_new(file, one) for one in given)):
        return False
    read = [use for use in uses(scope, whole.id, ast.Load) if starts(use) < starts(loop) or file.loops(loop)]
    if not all(use is whole or keeps_nothing(file, use, returned=False) for use in read):
        return False
    inside = [use for use in uses(scope, write.name) if loop in file.around(use) and use is not variable]
    return not any(is_stored(file, one) or not keeps_nothing(file, one, returned=False) for one in inside)


def _are_held_alone(scene: Scene, write: WriteSyntax, loop: For, names: list[str]) -> bool:
    """Return True if one of some names at a time, and the variable of the loop, held what a write in a loop was seen to
    write, and each of the names may get another tensor."""
    file, row, own = write.file, write.statement, [*names, write.name]
    holders, scope = holders_at(scene.finding, file, row), file.scope(row)
    if holders is None or not hold_alone(own, file, row, holders) or not scene.keeps_type(file):
        return False
    if file.nearest(row, *WITH) is not None or is_read_below(file, write.name, loop):
        return False
    at = node_at(file, row, holders)
    return all(is_own(scope, one) for one in own) and all(may_get_another(file, one, row, own, at) for one in names)


def _of_names(scene: Scene, write: WriteSyntax, cost: int) -> Iterator[Change]:
    """`for one in (a, b): one.relu_()` as `a, b = a.relu(), b.relu()`. Sound where these names, and the variable of the
    loop, alone hold what is written."""
    file, found, value = write.file, taken(write), value_anew(write)
    if found is None or not isinstance(found.whole, (ast.Tuple, ast.List)):
        return
    loop, whole, names = found.loop, found.whole, [dotted(one) for one in found.whole.elts]
    is_plain = isinstance(loop.target, ast.Name) and not loop.orelse and loop.body == [write.statement]
    if not is_plain or not value or "" in names:
        return
    new = ", ".join(_renamed(value, write.name, one) for one in names)
    made = Change("bind new tensors", (replace(file, loop, f"{', '.join(names)} = {new}"),), cost, Cure.OUT_OF_PLACE)
    if _are_alone(scene, write, loop, names):
        first = replaced(write, target=whole.elts[0])
        made = with_those_refused_next(file, write.statement, replaced(made, is_sound=True), first) or made
    yield made


def _are_alone(scene: Scene, write: WriteSyntax, loop: For, names: list[str]) -> bool:
    """Return True if the names alone hold what the one line wrote, each another tensor, and nothing above the loop
    keeps what they hold."""
    file, row, scope = write.file, write.statement, write.file.scope(write.statement)
    bound = [one for name in names for one in uses(scope, name, ast.Store)]
    if called(write.call) == "copy_" or any(_is_bound_with(file, one, names) for one in bound):
        return False  # two of the names may then be one tensor
    if len({*names, write.name}) <= len(names) or not scene.lines_written(file) <= {row.lineno}:
        return False
    above = [one for name in names for one in uses(scope, name, ast.Load) if starts(one) < starts(loop)]
    return all(keeps_nothing(file, one) for one in above) and _are_held_alone(scene, write, loop, names)


def _is_bound_with(file: File, name: ast.Name, names: list[str]) -> bool:
    """Return True if a statement may bind several names to one tensor: `a = b = f(x)`, `a, b = f(x)`."""
    row = file.statement(name)
    if not isinstance(row, ast.Assign) or sum(dotted(one) in names for one in targets(row)) < 2:
        return False
    return len(row.targets) > 1 or (value_given(file, name) is None and called(row.value) not in SPLITS)


def _uncounted(loop: For) -> tuple[ast.expr, ast.expr]:
    """The target and the source of a loop; of `for i, x in enumerate(xs)` those of `for x in xs`."""
    target, source = loop.target, loop.iter
    if called(source) == "enumerate" and isinstance(target, ast.Tuple) and isinstance(source, ast.Call) and source.args:
        return target.elts[-1], source.args[0]
    return target, source


def taken(write: WriteSyntax) -> Taken | None:
    """How the innermost `for` around a write takes what is written; None where there is none, or another one does."""
    around = (write.statement, *write.file.around(write.statement))
    loop = next((one for one in around if isinstance(one, FOR)), None)
    if loop is None:
        return None
    target, zipped = _uncounted(loop)
    targets, sources = [target], [zipped]
    if isinstance(target, ast.Tuple):
        if not isinstance(zipped, ast.Call) or called(zipped) != "zip" or len(zipped.args) != len(target.elts):
            return None
        targets, sources = target.elts, zipped.args
    for one, whole in zip(targets, sources, strict=True):
        if isinstance(one, ast.Tuple) and called(whole) == "items" and len(one.elts) == 2:
            one = one.elts[1]
        if dotted(one) == write.name:
            return Taken(loop, one, whole)
    return None


def _wholes(file: File, found: Taken, value: str, header: str, stacked: bool) -> Iterator[tuple[str, str]]:
    """Name and statement of a new whole: of a tensor, of a list, of a dict by its keys."""
    loop, target, whole = found
    of = dotted(owner(whole))
    if name := dotted(whole):
        rows = f"[{value} {header}]"
        yield name, f"{name} = torch.stack({rows})" if stacked else f"{name} = {rows}"
    elif of and called(whole) == "items" and isinstance(pair := file.above[target], ast.Tuple):
        yield of, f"{of} = {{{file.source(pair.elts[0])}: {value} {header}}}"
    elif of and called(whole) == "values":
        into = file.source(loop.target).replace(dotted(target), f"(name, {dotted(target)})", 1)
        into = into if isinstance(loop.target, ast.Tuple) else f"name, {dotted(target)}"
        source = file.source(loop.iter).replace(file.source(whole), f"{of}.items()")
        yield of, f"{of} = {{name: {value} for {into} in {source}}}"


def _renamed(text: str, old: str, new: str) -> str:
    """The text of an expression with a name in place of another."""
    file = parse("", text)
    if file is None:
        return text
    edits = (replace(file, one, new) for one in uses_in(file.tree, old))
    return rewritten(file, file.span(file.tree.body[0]), edits)
