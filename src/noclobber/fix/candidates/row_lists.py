"""Tensors that are filled row by row while rows of theirs are read: a list of rows, stacked where all is needed."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.finding_source import Place
from noclobber.fix.candidates.out_of_place import rebound
from noclobber.fix.candidates.syntax import ParsedFile, before, dotted, replace, walk
from noclobber.fix.candidates.write_syntax import WriteSyntax, parameters, write_at
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit


def as_list(write: WriteSyntax, cost: int = 3) -> Iterator[Candidate]:
    """`h = torch.zeros(n, d)` with `h[t] = ...` in a loop as `h = list(torch.zeros(n, d))`, and `torch.stack(h)`.

    Only where every index of it takes one row, along one dimension: `h[t]`, or `h[:, t]` everywhere.
    """
    file, scope = write.file, write.file.scope(write.statement)
    name = dotted(write.target.value) if isinstance(write.target, cst.Subscript) else ""
    if not name or "." in name or file.around(write.statement, cst.For, cst.While) is None:
        return
    uses = [one for one in walk(scope, cst.Name) if one.value == name and not _is_keyword(file, one)]
    uses = _of_the_new(file, uses)
    stores = [one for one in uses if isinstance(file.parents[one], (cst.AssignTarget, cst.AnnAssign))]
    indexes = [file.parents[one] for one in uses if _is_indexed(file, one)]
    depths = {_depth(one) for one in indexes if isinstance(one, cst.Subscript)}
    if len(stores) > 1 or len(depths) != 1 or None in depths:
        return
    dim = next(iter(depths)) or 0
    made = file.parents[file.parents[stores[0]]] if stores else None
    if isinstance(getattr(made, "value", None), (cst.List, cst.ListComp, cst.Dict, cst.DictComp)):
        return
    edits = _into_list(file, scope, name, made, dim)
    if not edits:
        return
    for one in indexes:
        if isinstance(one, cst.Subscript):
            edits += _of_row(file, one, name, dim)
    whole = [one for one in uses if one not in stores and not _is_indexed(file, one) and not _is_parameter(file, one)]
    stacked = f"torch.stack({name})" if dim == 0 else f"torch.stack({name}, dim={dim})"
    for one in whole:
        if dim == 0 and file.source(file.parents[file.parents[one]]) == f"len({name})":
            continue
        count = _count(file, one, dim)
        edits.append(replace(file, count, f"len({name})") if count is not None else replace(file, one, stacked))
    yield Candidate("keep the rows in a list" + (" and stack them" if whole else ""), tuple(edits), cost)


def _into_list(file: ParsedFile, scope: cst.CSTNode, name: str, made: cst.CSTNode | None, dim: int) -> list[Edit]:
    split = f".unbind({dim})" if dim else ""
    if isinstance(made, cst.Assign) and made.value is not None:
        source = file.source(made.value)
        source = source.removesuffix(".clone()") if isinstance(made.value, cst.Call) else source
        return [replace(file, made.value, f"list({source}{split})")]
    if made is None and name in parameters(scope) and isinstance(scope, cst.FunctionDef):
        body = [one for one in scope.body.body if not _is_docstring(one)]
        edit = before(file, _first_simple(body[0]), f"{name} = list({name}{split})") if body else None
        return [edit] if edit is not None else []
    return []


def _of_row(file: ParsedFile, one: cst.Subscript, name: str, dim: int) -> list[Edit]:
    """`h[:, t]` as `h[t]`, and a write into the row itself as an assignment of a new one."""
    row = f"{name}[{file.source(one.slice[dim])}]"
    statement = file.around(one, cst.AugAssign, cst.Expr)
    place = statement.value if isinstance(statement, cst.Expr) else statement
    write = write_at(Place(file, place)) if place is not None else None
    if write is not None and write.target is one:
        return [Edit(edit.span, edit.replacement.replace(file.source(one), row)) for edit in rebound(write)]
    return [replace(file, one, row)] if dim else []


def _depth(one: cst.Subscript) -> int | None:
    """How many whole dimensions stand before the one index: 0 for `h[t]`, 1 for `h[:, t]`; None for all else."""
    for number, element in enumerate(one.slice):
        index = element.slice
        if isinstance(index, cst.Slice):
            if index.lower is not None or index.upper is not None or index.step is not None:
                return None
        elif isinstance(index, cst.Index) and index.star is None:
            odd = isinstance(index.value, (cst.Ellipsis, cst.Tuple, cst.List, cst.Comparison))
            return number if number == len(one.slice) - 1 and not odd else None
    return None


def _of_the_new(file: ParsedFile, uses: list[cst.Name]) -> list[cst.Name]:
    """Without those up to `x = x.clone()`, which are of the tensor that had the name before."""
    stores = [one for one in uses if isinstance(file.parents[one], cst.AssignTarget)]
    made = file.parents[file.parents[stores[0]]] if len(stores) == 1 else None
    if not isinstance(made, cst.Assign) or not any(one in walk(made.value, cst.Name) for one in uses):
        return uses
    return [one for one in uses if one is stores[0] or file.line(one) > file.span(made).end_line]


def _count(file: ParsedFile, name: cst.Name, dim: int) -> cst.CSTNode | None:
    """`x.size(dim)` or `x.shape[dim]` around a name: how many rows there are."""
    owner = file.parents[name]
    whole = file.parents[owner] if isinstance(owner, cst.Attribute) else None
    texts = (f"{name.value}.size({dim})", f"{name.value}.shape[{dim}]")
    return whole if whole is not None and file.source(whole) in texts else None


def _is_indexed(file: ParsedFile, name: cst.Name) -> bool:
    parent = file.parents[name]
    return isinstance(parent, cst.Subscript) and parent.value is name


def _is_keyword(file: ParsedFile, name: cst.Name) -> bool:
    parent = file.parents[name]
    is_attribute = isinstance(parent, cst.Attribute) and parent.attr is name
    return is_attribute or (isinstance(parent, cst.Arg) and parent.keyword is name)


def _is_parameter(file: ParsedFile, name: cst.Name) -> bool:
    return isinstance(file.parents[name], cst.Param)


def _is_docstring(node: cst.CSTNode) -> bool:
    inner = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    return isinstance(inner, cst.Expr) and isinstance(inner.value, (cst.SimpleString, cst.ConcatenatedString))


def _first_simple(node: cst.CSTNode) -> cst.CSTNode:
    return node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
