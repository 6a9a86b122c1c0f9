"""A tensor that is filled row by row while rows of it are read, as a list of rows, stacked where all is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.holders.making import CONTAINERS
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Edit
from noclobber.syntax.edits import before, replace
from noclobber.syntax.names import dotted, indexes, is_stored, names_used, parameters, uses_in
from noclobber.syntax.tree import FUNCTION, File, Place, Scope, last_line
from noclobber.syntax.writes import WriteSyntax, out_of_place, write_at


def as_lists(scene: Scene) -> Iterator[Change]:
    """The tensors that the writes of a finding fill, as lists of rows."""
    for write in scene.writes() if scene.may_write_anew else ():
        yield from _as_list(write)


def _as_list(write: WriteSyntax) -> Iterator[Change]:
    """`h = torch.zeros(n, d)` with `h[t] = ...` in a loop as `h = list(torch.zeros(n, d))`, and `torch.stack(h)`.

    Only where every index of it takes one row, along one dimension: `h[t]`, or `h[:, t]` everywhere.
    """
    file, scope = write.file, write.file.scope(write.statement)
    name = dotted(write.target.value) if isinstance(write.target, ast.Subscript) else ""
    if not name or "." in name or not file.loops(write.statement):
        return
    uses = _of_the_new(file, uses_in(scope, name))
    stores = [one for one in uses if is_stored(file, one)]
    indexes = [above for one in uses if isinstance(above := file.above[one], ast.Subscript) and above.value is one]
    depths = {_depth(one) for one in indexes}
    if len(stores) > 1 or len(depths) != 1 or None in depths:
        return
    dim = next(iter(depths)) or 0
    made = file.above[stores[0]] if stores else None
    if isinstance(getattr(made, "value", None), CONTAINERS):
        return
    edits = _into_list(file, scope, name, made, dim)
    if not edits:
        return
    for one in indexes:
        edits += _of_row(file, one, name, dim)
    held = [one.value for one in indexes]
    whole = [one for one in uses if one not in stores and one not in held]
    stacked = f"torch.stack({name})" if dim == 0 else f"torch.stack({name}, dim={dim})"
    for use in whole:
        call = file.above[use]
        if dim == 0 and isinstance(call, ast.Call) and file.source(call) == f"len({name})":
            continue
        count = _count(file, use, dim)
        edits.append(replace(file, count, f"len({name})") if count is not None else replace(file, use, stacked))
    yield Change("keep the rows in a list" + (" and stack them" if whole else ""), tuple(edits), 2)


def _into_list(file: File, scope: Scope, name: str, made: ast.AST | None, dim: int) -> list[Edit]:
    split = f".unbind({dim})" if dim else ""
    if isinstance(made, (ast.Assign, ast.AnnAssign)) and made.value is not None:
        source = file.source(made.value)
        source = source.removesuffix(".clone()") if isinstance(made.value, ast.Call) else source
        return [replace(file, made.value, f"list({source}{split})")]
    if made is None and name in parameters(scope) and isinstance(scope, FUNCTION):
        body = scope.body[ast.get_docstring(scope) is not None :]
        edit = before(file, body[0], f"{name} = list({name}{split})") if body else None
        return [edit] if edit is not None else []
    return []


def _of_row(file: File, one: ast.Subscript, name: str, dim: int) -> list[Edit]:
    """`h[:, t]` as `h[t]`, and a write into the row itself as an assignment of a new one."""
    row = f"{name}[{file.source(indexes(one)[dim])}]"
    statement = file.statement(one)
    if isinstance(statement, (ast.AugAssign, ast.Expr)):
        write = write_at(Place(file, statement.value if isinstance(statement, ast.Expr) else statement))
        if write.target is one:
            return [Edit(edit.span, edit.replacement.replace(file.source(one), row)) for edit in out_of_place(write)]
    return [replace(file, one, row)] if dim else []


def _depth(one: ast.Subscript) -> int | None:
    """How many whole dimensions stand before the one index: 0 for `h[t]`, 1 for `h[:, t]`; None for all else."""
    parts = indexes(one)
    for number, index in enumerate(parts):
        if isinstance(index, ast.Slice):
            if index.lower is not None or index.upper is not None or index.step is not None:
                return None
            continue
        odd = isinstance(index, (ast.Tuple, ast.List, ast.Compare, ast.Starred))
        odd = odd or (isinstance(index, ast.Constant) and not isinstance(index.value, int))
        return number if number == len(parts) - 1 and not odd else None
    return None


def _of_the_new(file: File, uses: list[ast.Name]) -> list[ast.Name]:
    """Without those up to `x = x.clone()`, which are of the tensor that had the name before."""
    stores = [one for one in uses if is_stored(file, one)]
    made = file.above[stores[0]] if len(stores) == 1 else None
    if not isinstance(made, ast.Assign) or not any(one.id in names_used(made.value) for one in uses):
        return uses
    return [one for one in uses if one is stores[0] or one.lineno > last_line(made)]


def _count(file: File, name: ast.Name, dim: int) -> ast.expr | None:
    """`x.size(dim)` or `x.shape[dim]` around a name: how many rows there are."""
    owner = file.above[name]
    whole = file.above[owner] if isinstance(owner, ast.Attribute) else None
    texts = (f"{name.id}.size({dim})", f"{name.id}.shape[{dim}]")
    return whole if isinstance(whole, ast.expr) and file.source(whole) in texts else None
