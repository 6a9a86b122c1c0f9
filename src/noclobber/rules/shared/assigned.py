"""Where the source sets a plain attribute or variable, and whether anything reads it there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from noclobber.model.seen.silent import Moved
from noclobber.model.source import Span, source_text
from noclobber.syntax.names import attributes, called, calls, dotted, last_name, uses_in, value_given, values
from noclobber.syntax.tree import FUNCTION, File, file_at, walk

_MAKES = ("__init__", "__new__", "__post_init__", "__set__", "setup")
"""Methods that give an attribute its first value. The object was there in forward, so they have run before."""


def is_read(moved: Moved, sources: Sequence[str]) -> bool:
    """Return False if a class only counts or keeps the value, as for a log: no function in these files reads it."""
    if not moved.attribute:
        return True
    kept = False
    for file in _files(moved, sources):
        for node in _named(file, moved):
            if _of_another(file, node, moved):
                continue
            if isinstance(node.ctx, ast.Load) and file.nearest(node, *FUNCTION) is not None:
                return True
            kept |= isinstance(node, ast.Name) or _is_self(node)
    return not kept


def assignment(moved: Moved, sources: Sequence[str], near: Sequence[str]) -> Span | None:
    """Return the statement that sets the value after its first value, or that makes a list longer or shorter; None
    unless the source has exactly one.

    One that sets another number than there is now has been followed by a statement that counts. One that sets just what
    there is now stands for those that set what cannot be read. The mode of a module is set in many files: of it only
    those `near` count.
    """
    if moved.replaced:
        return None
    found: list[Span | None] = []
    if not moved.attribute or moved.attribute == _SWITCHED:
        nodes = _switches(moved, near) if moved.attribute else _fills(moved, sources)
        found += [file.span(file.statement(node) or node) for file, node in nodes]
        return found[0] if len(found) == 1 else None
    is_argument = not moved.rebound and _is_argument(moved, sources)
    for file in _files(moved, sources):
        rows = [] if moved.rebound else _resized(file, moved, is_argument=is_argument)
        if moved.rebound:
            stores = [node for node in _named(file, moved) if isinstance(node.ctx, ast.Store)]
            rows = [node for node in stores if not (_makes(file, node, moved) or _of_another(file, node, moved))]
            if moved.is_variable and rows and not file.loops(rows[0]) and file.nearest(rows[0], ast.Assign):
                rows = rows[1:]  # its first value
            if counting := [node for node in rows if _counts(file, node)]:
                rows = [node for node in rows if node in counting or not _sets_another(value_given(file, node), moved)]
            else:
                rows = [node for node in rows if _sets(value_given(file, node), moved)] or rows
            found += [None for call in walk(file.tree, ast.Call) if _sets_by_name(call, moved)]
        found += [file.span(file.statement(node) or node) for node in rows]
    return found[0] if len(found) == 1 else None


_SWITCHED = "training"


def _switches(moved: Moved, sources: Sequence[str]) -> Iterator[tuple[File, ast.expr]]:
    """Yield where a module gets the mode that it has now: `net.eval()`, `net.train()`, `net.train(False)`."""
    for file in filter(None, map(file_at, sources)):
        for call in calls(file.tree, "train", "eval"):
            modes = [one.value for one in values(call) if isinstance(one, ast.Constant)] or [called(call) == "train"]
            if isinstance(call.func, ast.Attribute) and repr(modes[0]) == moved.now:
                yield file, call


def _fills(moved: Moved, sources: Sequence[str]) -> Iterator[tuple[File, ast.expr]]:
    """Yield where an item of a list or dict is set: `shared["scale"] = 2.0` for "shared['scale']"."""
    owner, _, key = moved.name.removesuffix("]").rpartition("[")
    last = re.split(r"\W", owner)[-1]
    naming = (path for path in sources if last and last in source_text(path))
    for file in filter(None, map(file_at, naming)):
        for item in walk(file.tree, ast.Subscript):
            is_stored = isinstance(item.ctx, ast.Store) and ast.unparse(item.slice) == key
            if is_stored and last_name(item.value) == last and not _is_in_making(file, item):
                yield file, item


_LONGER = ("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault")
_SHORTER = ("pop", "popleft", "popitem", "clear", "remove", "discard")


def _is_argument(moved: Moved, sources: Sequence[str]) -> bool:
    """Return True for an argument of the region, which has no owner: no source has an attribute of that name."""
    if moved.is_variable or moved.name != moved.attribute:
        return False
    return not any(True for file in _files(moved, sources) for _ in attributes(file.tree, moved.attribute))


def _resized(file: File, moved: Moved, *, is_argument: bool) -> Sequence[ast.expr]:
    """Return where a method of a list, dict or set makes it longer or shorter, as it is now: `self.seen.append(x)`."""
    was, now = (re.fullmatch(r"(\d+) long", said) for said in (moved.was, moved.now))
    if was is None or now is None:
        return []
    longer = int(now[1]) > int(was[1])
    every = _named(file, moved, is_argument=is_argument)
    named = [node for node in every if not _of_another(file, node, moved)]
    return [node for node in named if _resizes(file.above[node], node, longer=longer)]


def _resizes(held: ast.AST, node: ast.expr, *, longer: bool) -> bool:
    """Return True for `rows.append(x)`, `table[key] = x`, `rows += more`; not `longer`: `rows.pop()`, `del rows[0]`."""
    if isinstance(held, ast.Attribute):
        return held.attr in (_LONGER if longer else _SHORTER)
    if isinstance(held, ast.Subscript) and held.value is node:
        return isinstance(held.ctx, ast.Store if longer else ast.Del)
    return longer and isinstance(held, ast.AugAssign) and held.target is node


def _sets(value: ast.expr | None, moved: Moved) -> bool:
    """`layer.memory = None`, where it is None now."""
    return isinstance(value, ast.Constant) and repr(value.value) == moved.now


def _counts(file: File, node: ast.expr) -> bool:
    """`cache.pos += 1`."""
    row = file.statement(node)
    return isinstance(row, ast.AugAssign) and isinstance(row.value, ast.Constant)


def _sets_another(value: ast.expr | None, moved: Moved) -> bool:
    """`cache.pos = 0`, where it is 4 now."""
    if not isinstance(value, ast.Constant) or not isinstance(value.value, int | float | None):
        return False
    return repr(value.value) != moved.now


def _files(moved: Moved, sources: Sequence[str]) -> Iterator[File]:
    naming = (path for path in sources if moved.attribute in source_text(path))  # to parse takes far longer
    yield from (file for file in map(file_at, naming) if file is not None)


def _named(file: File, moved: Moved, *, is_argument: bool = False) -> Iterator[ast.Name | ast.Attribute]:
    last = moved.attribute.rpartition(".")[2]
    if is_argument or (moved.is_variable and last == moved.attribute):
        names = uses_in(file.tree, last)
        yield from (node for node in names if not isinstance(file.nearest(node, ast.ClassDef, *FUNCTION), ast.ClassDef))
    else:
        yield from attributes(file.tree, last)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _makes(file: File, node: ast.AST, moved: Moved) -> bool:
    """Return True if an assignment gives an attribute its first value."""
    return not moved.is_variable and _is_self(node) and _is_in_making(file, node)


def _is_in_making(file: File, node: ast.AST) -> bool:
    return getattr(file.nearest(node, *FUNCTION), "name", "") in _MAKES


def _of_another(file: File, node: ast.AST, moved: Moved) -> bool:
    """Return True for `self.pos` in another class than that of the value's owner and its bases."""
    owner = file.class_of(node) if _is_self(node) else None
    return owner is not None and bool(moved.owner) and moved.owner not in _descended(file, owner.name)


def _descended(file: File, name: str) -> set[str]:
    """Return the name of a class and those of the classes in its file that descend from it."""
    names = {name}
    for one in walk(file.tree, ast.ClassDef):  # a class comes after its bases
        if any(isinstance(base, ast.Name) and base.id in names for base in one.bases):
            names.add(one.name)
    return names


def _sets_by_name(call: ast.Call, moved: Moved) -> bool:
    """Return True for `setattr(cache, "pos", 8)`."""
    names = call.args[1:2] if dotted(call.func) == "setattr" else []
    return any(isinstance(one, ast.Constant) and one.value == moved.attribute for one in names)
