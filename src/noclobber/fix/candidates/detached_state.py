"""Detached values: the state carried between iterations, what one loss hands to another, graphs kept for nothing."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.finding_source import Place, Scene
from noclobber.fix.candidates.syntax import ParsedFile, after, append, before, called, dotted, small, walk
from noclobber.fix.candidates.write_syntax import keyword, unretained, with_argument, written
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit


def carried(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """`state = state.detach()` at the end of the loop around the backward, for what one turn hands to the next.

    With `retain_graph=True` taken away where it is there, and then without that.
    """
    read = scene.place("read")
    loop = _loop(read) if read is not None else None
    if read is None or loop is None or not isinstance(loop.body, cst.IndentedBlock):
        return
    file, last = read.file, loop.body.body[-1]
    retained = _unretained(file, read)
    found = _carried_names(file, loop)
    lines = [*_forms(file, found), *_attributes(scene, file, loop)]
    for text in dict.fromkeys(lines):
        edit = after(file, last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last, text)
        if edit is None:
            continue
        title = f"detach what is carried to the next iteration: `{text}`"
        if retained is not None:
            yield Candidate(title, (retained, edit), cost)
        yield Candidate(title, (edit,), cost + (retained is not None))
    for one in _stores(scene):
        yield Candidate("keep the state without its graph", (one,), cost + 2)


def kept_in_place(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """`self.centre = self.centre.detach()` before the line that writes the state in place."""
    for write in written(scene):
        edit = before(write.file, write.statement, f"{write.name} = {write.name}.detach()") if write.name else None
        if edit is not None:
            yield Candidate(f"detach `{write.name}` before it is written again", (edit,), cost)


def handed_over(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """`.detach()` where a function that has stepped returns values, or where a later loss takes what an earlier did."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None:
        return
    scope = step.file.scope(step.statement)
    if scope is not read.file.scope(read.statement):
        for back in walk(scope, cst.Return):
            values = [back.value] if back.value is not None else []
            if isinstance(back.value, cst.Tuple):
                values = [element.value for element in back.value.elements]
            names = [value for value in values if isinstance(value, (cst.Name, cst.Attribute))]
            for some in dict.fromkeys((*((name,) for name in names), tuple(names))):
                edits = tuple(append(step.file, name, ".detach()") for name in some)
                if edits:
                    yield Candidate("return it detached", edits, cost)
        return
    file = read.file
    taken = _sources(file, scope, _losses(file, scope, step.statement))
    for loss in _losses(file, scope, read.statement, of=read.statement):
        for one in walk(loss, cst.Name):
            if one.value in taken and one is not loss and _is_value(file, one):
                yield Candidate(f"detach `{one.value}` for this loss", (append(file, one, ".detach()"),), cost)


def retained(scene: Scene, cost: int) -> Iterator[Candidate]:
    """`retain_graph=True` on the backward before the one that finds its graph freed: gradients stay as they are."""
    read = scene.place("read")
    if read is None:
        return
    file, scope = read.file, read.file.scope(read.statement)
    calls = [one for one in walk(scope, cst.Call) if called(one) == "backward" and keyword(one, "retain_graph") is None]
    earlier = [one for one in calls if file.line(one) < file.line(read.statement)]
    for one in [*earlier[-1:], *[one for one in calls if one not in earlier and one in walk(read.statement, cst.Call)]]:
        edit = with_argument(file, one, "retain_graph=True")
        yield Candidate("keep the graph for the second backward", (edit,), cost)


def _loop(place: Place) -> cst.For | cst.While | None:
    inner = (
        one for one in place.file.ancestors(place.statement) if isinstance(one, (cst.For, cst.While, cst.FunctionDef))
    )
    found = next(inner, None)
    return found if isinstance(found, (cst.For, cst.While)) else None


def _carried_names(file: ParsedFile, loop: cst.For | cst.While) -> list[str]:
    """Names that the loop reads before it assigns them, and assigns: what one turn leaves for the next."""
    stored: dict[str, int] = {}
    read: dict[str, int] = {}
    statements: list[cst.Assign | cst.AugAssign] = [*walk(loop.body, cst.Assign), *walk(loop.body, cst.AugAssign)]
    for statement in sorted(statements, key=file.line):
        targets = [one.target for one in statement.targets] if isinstance(statement, cst.Assign) else [statement.target]
        if isinstance(statement, cst.AugAssign) and isinstance(statement.value, cst.Integer):
            continue
        for target in targets:
            for name in _names(target):
                stored.setdefault(name, file.line(statement))
                if isinstance(statement, cst.AugAssign):
                    read.setdefault(name, file.line(statement))
    for one in walk(loop.body, cst.Name, cst.Attribute):
        if dotted(one) in stored and _is_value(file, one):
            read[dotted(one)] = min(read.get(dotted(one), file.line(one)), file.line(one))
    return [name for name, line in stored.items() if read.get(name, line + 1) <= line]


def _names(target: cst.BaseExpression) -> list[str]:
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for one in target.elements for name in _names(one.value)]
    return [dotted(target)] if dotted(target) else []


def _forms(file: ParsedFile, names: list[str]) -> list[str]:
    """How names are detached: each as a tensor, as the tuple of an LSTM, all together."""
    singles = {name: [f"{name} = {name}.detach()", f"{name} = tuple(t.detach() for t in {name})"] for name in names}
    if "LSTM(" in file.text:
        singles = {name: forms[::-1] for name, forms in singles.items()}
    together = f"{', '.join(names)} = {', '.join(f'{one}.detach()' for one in names)}"
    found = [together] if len(names) > 1 else []
    for which in (0, 1):
        found += [forms[which] for forms in singles.values()]
    return found


def _attributes(scene: Scene, file: ParsedFile, loop: cst.CSTNode) -> list[str]:
    """`net.h = net.h.detach()` for attributes that the method which saved assigns, on what the loop calls."""
    found = []
    for place in scene.places("save"):
        owner = place.file.around(place.statement, cst.ClassDef)
        stored = _stored_attributes(owner) if owner is not None else []
        for name in dict.fromkeys(dotted(one.func) for one in walk(loop, cst.Call)):
            is_object = name and not name.startswith(("torch", "F.", "nn.")) and not hasattr(builtins, name)
            if is_object and not name.rpartition(".")[2].endswith(("backward", "step", "zero_grad")):
                found += _forms(file, [f"{name}.{one}" for one in stored])
    return found


def _stored_attributes(owner: cst.ClassDef) -> list[str]:
    found = []
    for function in walk(owner, cst.FunctionDef):
        if function.name.value == "__init__":
            continue
        for one in walk(function, cst.Assign):
            names = [name for target in one.targets for name in _names(target.target)]
            found += [name[5:] for name in names if name.startswith("self.") and name.count(".") == 1]
    return list(dict.fromkeys(found))


def _stores(scene: Scene) -> Iterator[Edit]:
    """`self.h = h` as `self.h = h.detach()`, in the class that saved."""
    for place in scene.places("save"):
        owner = place.file.around(place.statement, cst.ClassDef)
        for function in walk(owner, cst.FunctionDef) if owner is not None else ():
            for one in walk(function, cst.Assign) if function.name.value != "__init__" else ():
                if dotted(one.targets[0].target).startswith("self.") and isinstance(
                    one.value, (cst.Name, cst.Call, cst.Subscript)
                ):
                    yield append(place.file, one.value, ".detach()")


def _unretained(file: ParsedFile, read: Place) -> Edit | None:
    """Take `retain_graph=True` out of the backward."""
    calls = walk(small(file, read.node) or read.node, cst.Call)
    return next((edit for call in calls if (edit := unretained(file, call)) is not None), None)


def _losses(
    file: ParsedFile, scope: cst.CSTNode, until: cst.CSTNode, of: cst.CSTNode | None = None
) -> list[cst.BaseExpression]:
    """What the backwards before a statement (or of the statement `of`) begin from, with what defines those names."""
    calls = [one for one in walk(of if of is not None else scope, cst.Call) if called(one) in ("backward", "grad")]
    line = file.span(until).end_line
    owners = [one.func.value for one in calls if isinstance(one.func, cst.Attribute) and file.line(one) <= line]
    found: list[cst.BaseExpression] = []
    for owner in owners:
        found.append(owner)
        names = {one.value for one in walk(owner, cst.Name)}
        found += [one.value for one in walk(scope, cst.Assign) if set(_names(one.targets[0].target)) & names]
    return found


def _sources(file: ParsedFile, scope: cst.CSTNode, values: list[cst.BaseExpression]) -> set[str]:
    """The names in expressions, with those that the definitions of these names use."""
    names = {one.value for value in values for one in walk(value, cst.Name)}
    for _ in range(3):
        for one in walk(scope, cst.Assign):
            if set(_names(one.targets[0].target)) & names:
                names |= {each.value for each in walk(one.value, cst.Name) if _is_value(file, each)}
    assigned = {name for one in walk(scope, cst.Assign) for name in _names(one.targets[0].target)}
    return names & assigned


def _is_value(file: ParsedFile, node: cst.CSTNode) -> bool:
    """Whether a name is read as a value: not called, not assigned to, not a keyword, not part of a longer name."""
    parent = file.parents.get(node)
    if isinstance(parent, cst.Element):
        holder = file.parents[parent]
        return not isinstance(file.parents.get(holder), cst.AssignTarget)
    if isinstance(parent, (cst.AssignTarget, cst.AugAssign)):
        return isinstance(parent, cst.AugAssign) and parent.value is node
    called_as = isinstance(parent, cst.Call) and parent.func is node
    named = isinstance(parent, cst.Arg) and parent.keyword is node
    part = isinstance(parent, cst.Attribute) and parent.attr is node
    return not (called_as or named or part)
