"""Writes to the parts of a tensor or container that a loop or an unpacking hands out: by index, or into a new whole."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.out_of_place import expression, rebound
from noclobber.fix.candidates.syntax import ParsedFile, before, called, dotted, remove, replace, walk
from noclobber.fix.candidates.write_syntax import VIEWS, WriteSyntax, is_loaded, keyword, parameters, writes
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit


def by_index(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`for c, m in zip(x, M): c.mul_(m)` as `for i, m in zip(range(len(x)), M): x[i].mul_(m)`: the same writes."""
    file, loop = write.file, write.file.around(write.statement, cst.For)
    name = dotted(write.base)
    pair = _iterated(file, loop, name) if loop is not None else None
    if loop is None or pair is None:
        return
    target, whole = pair
    source, index = _indexable(file, whole), _fresh(file, loop)
    if source is None:
        return
    text, length = source
    edits = [replace(file, target, index), replace(file, whole, f"range({length})")]
    for one in walk(loop.body, cst.Name):
        if one.value == name:
            if isinstance(file.parents[one], cst.AssignTarget):
                return
            edits.append(replace(file, one, text.replace("#", index)))
    yield Candidate("index instead of iterating", tuple(edits), cost)
    root = text.partition("[")[0]
    clone = before(file, loop, f"{root} = {root}.clone()")
    if clone is not None and is_loaded(file, root, file.scope(loop), file.span(loop).end_line):
        yield Candidate(f"index a clone of `{root}` instead of iterating", (clone, *edits), cost + 1)


def into_new(write: WriteSyntax, cost: int = 1, *, stacked: bool = False) -> Iterator[Candidate]:
    """A loop whose one statement writes what it iterates over, as a new whole: a list, a dict, or `stacked` rows."""
    file, loop = write.file, write.file.around(write.statement, cst.For)
    listed = write.statement.value if isinstance(write.statement, cst.Expr) else None
    if isinstance(listed, cst.ListComp) and listed.elt is write.call and dotted(listed.for_in.iter) and write.call:
        name, text = dotted(listed.for_in.iter), expression(file, write.call)
        if text and dotted(listed.for_in.target) == write.name:
            edits = (
                replace(file, listed, f"{name} = {file.source(listed)}".replace(file.source(write.call), text, 1)),
            )
            yield Candidate(f"make a new `{name}` out of place", edits, cost)
        return
    if loop is None or not isinstance(loop.body, cst.IndentedBlock) or loop.orelse is not None:
        return
    pair, value = _iterated(file, loop, dotted(write.base)), _value(write)
    if len(loop.body.body) != 1 or pair is None or value is None or file.indent(loop) is None:
        return
    whole, header = pair[1], f"for {file.source(loop.target)} in {file.source(loop.iter)}"
    scope, end = file.scope(loop), file.span(loop).end_line
    for name, text in _wholes(file, loop, pair, value, header, stacked):
        used = is_loaded(file, name, scope, end) or "." in name
        if used:
            yield Candidate(f"make a new `{name}` out of place", (Edit(file.span(loop), text),), cost)
    if (
        isinstance(whole, (cst.Tuple, cst.List))
        and loop.iter is whole
        and all(dotted(one.value) for one in whole.elements)
    ):
        names = [dotted(one.value) for one in whole.elements]
        part = dotted(pair[0])
        new = ", ".join(_renamed(value, part, one) for one in names)
        yield Candidate("bind new tensors", (Edit(file.span(loop), f"{', '.join(names)} = {new}"),), cost)


def one_by_one(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`a, b = x.unbind(0)` as `a, b = x[0], x[1]`: views that are made one at a time may be written."""
    file, name = write.file, dotted(write.base)
    for one in walk(file.scope(write.statement), cst.Assign):
        target = one.targets[0].target
        if not isinstance(target, cst.Tuple) or name not in [dotted(each.value) for each in target.elements]:
            continue
        text = _selected(file, one.value, len(target.elements))
        if text is not None:
            yield Candidate("take the views one at a time", (replace(file, one.value, text),), cost)


def inlined(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`tail.copy_(e)` as `x[2:].copy_(e)`, for every view that the statement of `tail` took, where it is written."""
    file, name, scope = write.file, dotted(write.target), write.file.scope(write.statement)
    for one in walk(scope, cst.Assign):
        made = _views(one)
        if name not in made or file.line(one) >= file.line(write.statement):
            continue
        edits, left = [], False
        for use in walk(scope, cst.Name):
            if use.value not in made or file.line(use) <= file.line(one):
                continue
            call = file.parents[file.parents[use]] if isinstance(file.parents[use], cst.Attribute) else None
            if isinstance(call, cst.Call) and writes(call):
                edits.append(replace(file, use, file.source(made[use.value])))
            else:
                left = True
        gone = None if left else remove(file, one)
        if edits:
            yield Candidate("take each view where it is written", (*edits, *([gone] if gone else [])), cost)


def cloned_parts(write: WriteSyntax, cost: int = 4) -> Iterator[Candidate]:
    """`a, b = x.chunk(2)` with `a = a.clone()` after it: right where nobody reads `x` itself afterwards."""
    file, name, scope = write.file, dotted(write.base), write.file.scope(write.statement)
    for one in walk(scope, cst.Assign):
        target = one.targets[0].target
        if not isinstance(target, cst.Tuple) or name not in [dotted(each.value) for each in target.elements]:
            continue
        root = (
            one.value.func.value
            if isinstance(one.value, cst.Call) and isinstance(one.value.func, cst.Attribute)
            else one.value
        )
        held = dotted(root) and (dotted(root).split(".")[0] in ("self", *parameters(scope)))
        edit = before(file, write.statement, f"{name} = {name}.clone()")
        if not held and not is_loaded(file, dotted(root), scope, file.line(one)) and edit is not None:
            yield Candidate(f"write into a clone of `{name}`", (edit,), cost)


def _iterated(file: ParsedFile, loop: cst.For, name: str) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The loop variable of a name, and the expression whose parts it goes through."""
    targets = [one.value for one in loop.target.elements] if isinstance(loop.target, cst.Tuple) else [loop.target]
    source = loop.iter
    if isinstance(loop.target, cst.Tuple):
        if called(source) != "zip" or not isinstance(source, cst.Call) or len(source.args) != len(targets):
            return None
        sources = [one.value for one in source.args]
    else:
        sources = [source]
    return next(((one, whole) for one, whole in zip(targets, sources, strict=True) if dotted(one) == name), None)


def _indexable(file: ParsedFile, whole: cst.BaseExpression) -> tuple[str, str] | None:
    """How the part number `#` is written, and how many there are; None where that is not plain."""
    if dotted(whole):
        text = file.source(whole)
        return f"{text}[#]", f"len({text})"
    if isinstance(whole, cst.Call) and called(whole) == "unbind" and isinstance(whole.func, cst.Attribute):
        text, dim = file.source(whole.func.value), _dim(file, whole, 0)
        if dotted(whole.func.value) and dim == "0":
            return f"{text}[#]", f"len({text})"
        if dotted(whole.func.value) and dim is not None:
            return f"{text}.select({dim}, #)", f"{text}.size({dim})"
    return None


def _value(write: WriteSyntax) -> str | None:
    """The new value of a write, as an expression."""
    if isinstance(write.statement, cst.Assign) and isinstance(write.target, cst.Attribute):
        return write.file.source(write.statement.value)
    edits = rebound(write)
    return edits[0].replacement.partition(" = ")[2] if len(edits) == 1 and " = " in edits[0].replacement else None


def _wholes(
    file: ParsedFile,
    loop: cst.For,
    pair: tuple[cst.BaseExpression, cst.BaseExpression],
    value: str,
    header: str,
    stacked: bool,
) -> Iterator[tuple[str, str]]:
    """Name and statement of a new whole: of a tensor, of a list, of a dict by its keys."""
    target, whole = pair
    if dotted(whole):
        name = dotted(whole)
        rows = f"[{value} {header}]"
        yield name, f"{name} = torch.stack({rows})" if stacked else f"{name} = {rows}"
    elif isinstance(whole, cst.Call) and called(whole) == "values" and isinstance(whole.func, cst.Attribute):
        name = dotted(whole.func.value)
        into = file.source(loop.target).replace(dotted(target), f"(name, {dotted(target)})", 1)
        into = into if isinstance(loop.target, cst.Tuple) else f"name, {dotted(target)}"
        source = file.source(loop.iter).replace(file.source(whole), f"{name}.items()")
        if name:
            yield name, f"{name} = {{name: {value} for {into} in {source}}}"


def _selected(file: ParsedFile, value: cst.BaseExpression, count: int) -> str | None:
    """ "x[0], x[1]" for `x`, `x.unbind(0)`, `torch.unbind(x)`; None for what is divided in another way."""
    if dotted(value):
        return ", ".join(f"{file.source(value)}[{number}]" for number in range(count))
    if not isinstance(value, cst.Call) or called(value) != "unbind" or not isinstance(value.func, cst.Attribute):
        return None
    is_function = dotted(value.func.value) == "torch" and bool(value.args)
    whole = value.args[0].value if is_function else value.func.value
    text, dim = file.source(whole), _dim(file, value, int(is_function))
    if dim is None or not dotted(whole):
        return None
    return ", ".join(
        f"{text}.select({dim}, {number})" if dim != "0" else f"{text}[{number}]" for number in range(count)
    )


def _dim(file: ParsedFile, call: cst.Call, position: int) -> str | None:
    given = keyword(call, "dim")
    if given is None and len(call.args) > position:
        given = call.args[position]
    return file.source(given.value) if given is not None else "0"


def _views(one: cst.Assign) -> dict[str, cst.BaseExpression]:
    """The names that an assignment gives to views, and how each is taken."""
    target, value = one.targets[0].target, one.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        pairs = [(a.value, b.value) for a, b in zip(target.elements, value.elements, strict=True)]
    else:
        pairs = [(target, value)]
    named = [(a.value, b) for a, b in pairs if isinstance(a, cst.Name)]
    return {name: b for name, b in named if isinstance(b, cst.Subscript) or called(b) in VIEWS}


def _fresh(file: ParsedFile, loop: cst.For) -> str:
    used = {one.value for one in walk(file.scope(loop), cst.Name)}
    return next(one for one in ("i", "j", "k", "index", "number", "position") if one not in used)


def _renamed(text: str, old: str, new: str) -> str:
    """The text of an expression with a name in place of another."""
    tree = cst.parse_expression(text)
    return cst.Module([]).code_for_node(tree.visit(_Rename(old, cst.parse_expression(new))))  # type: ignore[arg-type]


class _Rename(cst.CSTTransformer):
    def __init__(self, old: str, new: cst.BaseExpression) -> None:
        super().__init__()
        self._old, self._new = old, new

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Put the new expression where the old name stood."""
        return self._new if original_node.value == self._old else updated_node
