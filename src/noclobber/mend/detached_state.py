"""Detached values: state carried between iterations, values that one loss passes to another, graphs kept in vain."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from itertools import islice

from noclobber.mend.change import Change
from noclobber.mend.forwards_in_loops import steps_in_loop
from noclobber.mend.scene import Scene
from noclobber.model.finding import Cause, Edit
from noclobber.syntax.edits import after, append, before, with_argument, without_retaining
from noclobber.syntax.names import called, dotted, is_stored, keyword, named
from noclobber.syntax.tree import File, Loop, Scope, functions, last_line, walk

MOST_DETACHED = 3
"""Values of one loss that are tried detached."""


def detached(scene: Scene) -> Iterator[Change]:
    """What carries a graph on: into the next iteration, into another loss, or by a backward that keeps it."""
    if scene.is_freed:
        yield from _kept_in_place(scene)
    if scene.is_freed or scene.reads_first():
        yield from _carried(scene)
    elif scene.steps():
        yield from islice(_handed_over(scene), MOST_DETACHED)
    once = scene.finding.cause is Cause.BUILT_ONCE and steps_in_loop(scene)
    if scene.is_freed and not once and scene.finding.cause is not Cause.CARRIED:
        yield from _retained(scene)


def _carried(scene: Scene) -> Iterator[Change]:
    """`state = state.detach()` after the backward, for what one turn of the loop around it hands to the next: at the
    end of the block of the backward, such as an `if` or a `try`, and at the end of the loop.

    With `retain_graph=True` taken away where it is there, and then without that.
    """
    read = scene.place("read")
    loops = read.file.loops(read.row) if read is not None else []
    if read is None or not loops or read.file.indent(loops[0].body[0]) is None:
        return
    file, loop = read.file, loops[0]
    calls = (without_retaining(file, one) for one in walk(read.row, ast.Call))
    retained = next((edit for edit in calls if edit is not None), None)
    lines = [*_forms(file, _carried_names(file, loop)), *_attributes(scene, file, loop)]
    ends = list(dict.fromkeys((file.block(read.row)[-1], loop.body[-1])))
    for text in dict.fromkeys(lines):
        for later, end in enumerate(ends):
            edit = after(file, end, text)
            if edit is None:
                continue
            title = f"detach what is carried to the next iteration: `{text}`"
            if retained is not None:
                yield Change(title, (retained, edit), 1 + later)
            yield Change(title, (edit,), 1 + later + (retained is not None))
    for one in _stores(scene):
        yield Change("keep the state without its graph", (one,), 3)


def _kept_in_place(scene: Scene) -> Iterator[Change]:
    """`self.centre = self.centre.detach()` before the line that writes the state in place."""
    for write in scene.writes():
        edit = before(write.file, write.statement, f"{write.name} = {write.name}.detach()") if write.name else None
        if edit is not None:
            yield Change(f"detach `{write.name}` before it is written again", (edit,), 1)


def _handed_over(scene: Scene) -> Iterator[Change]:
    """`.detach()` where a function that has stepped returns values, or where a later loss takes what an earlier did."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None:
        return
    scope = step.file.scope(step.row)
    if scope is not read.file.scope(read.row):
        for back in walk(scope, ast.Return):
            values = back.value.elts if isinstance(back.value, ast.Tuple) else [back.value] if back.value else []
            names = [value for value in values if isinstance(value, (ast.Name, ast.Attribute))]
            for some in dict.fromkeys((*((name,) for name in names), tuple(names))):
                edits = tuple(append(step.file, name, ".detach()") for name in some)
                if edits:
                    yield Change("return it detached", edits, 1)
        return
    file = read.file
    taken = _sources(file, scope, _losses(scope, step.row))
    for loss in _losses(scope, read.row, of=read.row):
        for one in walk(loss, ast.Name):
            if one.id in taken and one is not loss and _is_value(file, one):
                yield Change(f"detach `{one.id}` for this loss", (append(file, one, ".detach()"),), 1)


def _retained(scene: Scene) -> Iterator[Change]:
    """`retain_graph=True` on the backward before the one that finds its graph freed: gradients stay as they are."""
    read = scene.place("read")
    if read is None:
        return
    file, scope = read.file, read.file.scope(read.row)
    calls = [one for one in walk(scope, ast.Call) if called(one) == "backward" and not keyword(one, "retain_graph")]
    earlier = [one for one in calls if one.lineno < read.row.lineno]
    own = list(walk(read.row, ast.Call))
    for one in [*earlier[-1:], *[one for one in calls if one not in earlier and one in own]]:
        edit = with_argument(file, one, "retain_graph=True")
        yield Change("keep the graph for the second backward", (edit,), 1)


def _carried_names(file: File, loop: Loop) -> list[str]:
    """Return names that the loop reads before it assigns them: one turn passes them to the next."""
    stored: dict[str, int] = {}
    read: dict[str, int] = {}
    rows = [one for row in loop.body for one in walk(row, ast.stmt)]
    for one in rows:
        if isinstance(one, ast.AugAssign) and not _is_count(one.value):
            for name in _names(one.target):
                stored.setdefault(name, one.lineno)
                read.setdefault(name, one.lineno)
        for target in one.targets if isinstance(one, ast.Assign) else ():
            for name in _names(target):
                stored.setdefault(name, one.lineno)
    for row in loop.body:
        for use in named(row):
            name = dotted(use)
            if name in stored and _is_value(file, use):
                read[name] = min(read.get(name, use.lineno), use.lineno)
    return [name for name, line in stored.items() if read.get(name, line + 1) <= line]


def _is_count(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, int)


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for one in target.elts for name in _names(one)]
    return [dotted(target)] if dotted(target) else []


def _forms(file: File, names: list[str]) -> list[str]:
    """How names are detached: each as a tensor, as the tuple of an LSTM, all together."""
    singles = {name: [f"{name} = {name}.detach()", f"{name} = tuple(t.detach() for t in {name})"] for name in names}
    if "LSTM(" in file.text:
        singles = {name: forms[::-1] for name, forms in singles.items()}
    together = f"{', '.join(names)} = {', '.join(f'{one}.detach()' for one in names)}"
    found = [together] if len(names) > 1 else []
    for which in (0, 1):
        found += [forms[which] for forms in singles.values()]
    return found


def _attributes(scene: Scene, file: File, loop: Loop) -> list[str]:
    """`net.h = net.h.detach()` for attributes that the method which saved assigns, on what the loop calls."""
    found = []
    for place in scene.places("save"):
        owner = place.file.class_of(place.row)
        stored = _stored_attributes(owner) if owner is not None else []
        for name in dict.fromkeys(dotted(one.func) for one in walk(loop, ast.Call)):
            is_object = name and not name.startswith(("torch", "F.", "nn.")) and not hasattr(builtins, name)
            if is_object and not name.rpartition(".")[2].endswith(("backward", "step", "zero_grad")):
                found += _forms(file, [f"{name}.{one}" for one in stored])
    return found


def _stored_attributes(owner: ast.ClassDef) -> list[str]:
    names = [name for one in _assignments(owner) for target in one.targets for name in _names(target)]
    own = [name[5:] for name in names if name.startswith("self.") and name.count(".") == 1]
    return list(dict.fromkeys(own))


def _assignments(owner: ast.ClassDef) -> Iterator[ast.Assign]:
    """The assignments of a class's methods, but for those of `__init__`."""
    for function in functions(owner):
        if function.name != "__init__":
            yield from walk(function, ast.Assign)


def _stores(scene: Scene) -> Iterator[Edit]:
    """`self.h = h` as `self.h = h.detach()`, in the class that saved."""
    for place in scene.places("save"):
        owner = place.file.class_of(place.row)
        for one in _assignments(owner) if owner is not None else ():
            plain = isinstance(one.value, (ast.Name, ast.Call, ast.Subscript))
            if dotted(one.targets[0]).startswith("self.") and plain:
                yield append(place.file, one.value, ".detach()")


def _losses(scope: Scope, until: ast.stmt, of: ast.stmt | None = None) -> list[ast.expr]:
    """What the backwards before a statement (or of the statement `of`) begin from, with what defines those names."""
    calls = [one for one in walk(of if of is not None else scope, ast.Call) if called(one) in ("backward", "grad")]
    line = last_line(until)
    owners = [one.func.value for one in calls if isinstance(one.func, ast.Attribute) and one.lineno <= line]
    found: list[ast.expr] = []
    for owner in owners:
        found.append(owner)
        names = {one.id for one in walk(owner, ast.Name)}
        found += [one.value for one in walk(scope, ast.Assign) if set(_names(one.targets[0])) & names]
    return found


def _sources(file: File, scope: Scope, values: list[ast.expr]) -> set[str]:
    """The names in expressions, with those that the definitions of these names use."""
    names = {one.id for value in values for one in walk(value, ast.Name)}
    assigned = list(walk(scope, ast.Assign))
    for _ in range(3):
        for one in assigned:
            if set(_names(one.targets[0])) & names:
                names |= {each.id for each in walk(one.value, ast.Name) if _is_value(file, each)}
    return names & {name for one in assigned for name in _names(one.targets[0])}


def _is_value(file: File, node: ast.expr) -> bool:
    """Whether a name is read as a value: not called, not bound, not part of a longer name."""
    above = file.above[node]
    if isinstance(above, ast.AugAssign):
        return above.value is node
    called_as = isinstance(above, ast.Call) and above.func is node
    return not (called_as or is_stored(file, node))
