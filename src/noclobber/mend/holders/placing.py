"""A tensor that an attribute or an item of a container holds: the text that names the place, and who may keep it."""

from __future__ import annotations

import ast

from noclobber.mend.holders.giving import asking, given_for
from noclobber.mend.holders.holding import is_new, keeps_nothing
from noclobber.mend.holders.making import HANDING_ON, passes_on
from noclobber.mend.holders.seen import Holders, is_over
from noclobber.model.seen.events import without_indexes
from noclobber.syntax.names import (
    TAKING_OUT,
    attributes,
    called,
    called_by,
    calls,
    dotted,
    last_name,
    mentioned,
    named,
    names_in,
    only_target,
    taken_out,
    unindexed,
    uses,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, ends, functions, starts, walk, within
from noclobber.syntax.writes import can_bind

_KEEPING = frozenset(
    """
    add append appendleft copy deepcopy deque dict enumerate extend filter insert iter list map partial push put
    register_buffer reversed set setattr setdefault sorted tuple update zip
    """.split()  # noqa: SIM905
)
"""Functions and methods that keep what they are given, or hand it out again."""

WITHOUT_NAMES = ("buffers", "named_buffers", "state_dict", "getattr", "get_buffer")
"""Calls that read a buffer without its name."""
_WITHOUT = ("append", "appendleft", "clear", "extend", "insert", "keys", "pop", "popitem", "popleft")
"""Methods of containers that give no value which stays in the container."""


def place_written(file: File, target: ast.expr, holders: Holders) -> ast.expr | None:
    """Return `self.state` of `self.state[0].add_(x)`, or `rows[i]` of `rows[i] += x`, if that place was seen to hold
    the written tensor; else None."""
    places = {without_indexes(holder.name) for holder in holders if not holder.name.isidentifier()}
    node: ast.AST = target
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if not isinstance(node, ast.Call) and can_bind(node) and without_indexes(file.source(node)) in places:
            return node
        node = node.func if isinstance(node, ast.Call) else node.value
    return None


def may_be_kept(file: File, place: ast.expr, write: ast.stmt) -> bool:
    """Return True if the file also gives what lies at a place to a name, a container or a caller.

    Of an attribute only the name is looked at, on any object: `self.state` is `net.state` elsewhere. A variable that a
    function has bound gives nothing away after the write, or in other functions. A container that a function is given
    has its callers' names too.
    """
    held = unindexed(place)
    name, scope = last_name(held), file.scope(write)
    is_own = isinstance(held, ast.Name) and isinstance(scope, FUNCTION) and bool(uses(scope, name, ast.Store))
    last = [write, *file.loops(write)][-1]
    given = given_for(file, name, scope) if isinstance(held, ast.Name) and not is_own else []
    kinds = {(last_name(one), type(one)) for one in (held, *map(unindexed, given))}
    for one in named(scope if is_own else file.tree):
        if (last_name(one), type(one)) not in kinds:
            continue
        if is_own and starts(one) >= ends(last):
            continue
        read = isinstance(one.ctx, ast.Load) and file.statement(one) is not write
        if read and _hands_out(file, one, write, is_container=held is not place):
            return True
    return not name


def is_just_made(file: File, place: ast.expr, write: ast.stmt) -> bool:
    """Return True if a statement above a write, in its block, has put a new tensor there that nothing takes until the
    write: `self.h = self.h + x` above `self.h.mul_(2)`."""
    rows, text = file.block(write), file.source(place)
    above = rows[: rows.index(write)]
    bound = (one for one in reversed(above) if isinstance(one, ast.Assign))
    last = next((one for one in bound if text in map(file.source, one.targets)), None)
    if last is None or len(last.targets) != 1 or not is_new(file, last.value):
        return False
    between = (
        one for row in above[above.index(last) + 1 :] for one in named(row) if last_name(one) == last_name(place)
    )
    return not any(_hands_out(file, one, write, is_container=False) for one in between if isinstance(one.ctx, ast.Load))


def _hands_out(file: File, node: ast.expr, write: ast.stmt, *, is_container: bool) -> bool:
    origin = node
    while not keeps_nothing(file, node, returned=False):
        above = file.above[node]
        if isinstance(above, ast.Subscript) and above.value is node:
            if not isinstance(above.ctx, ast.Load):
                return False  # something else is put there
            node, is_container = above, False
        elif isinstance(above, ast.Call) and node in above.args and passes_on(file, above) is not node:
            if called(above) not in TAKING_OUT:
                return called(above) in _KEEPING
            node, is_container = above, True
        elif isinstance(above, (ast.ListComp, ast.GeneratorExp)) and node is above.elt:
            node, is_container = above, True
        elif isinstance(above, ast.keyword) or getattr(file.above[above], "slice", None) is above:
            return False
        elif isinstance(above, ast.Return):
            return _is_handed_on(file, above, write, is_container=is_container)
        elif isinstance(above, ast.Call) and passes_on(file, above) is node:
            node = above
        elif isinstance(above, (*FOR, ast.comprehension)) and node is above.iter and is_container:
            taken = [one for one in taken_out(above.target, node) if origin in ast.walk(one[1])]
            turns = file.above[above] if isinstance(above, ast.comprehension) else above
            return not all(_are_keys(turns, *one) or _are_read(file, turns, one[0], write) for one in taken)
        elif isinstance(above, ast.Attribute) and above.attr in _WITHOUT:
            return False
        elif isinstance(above, ast.Attribute) and above.attr in (*HANDING_ON, "values", "items"):
            node = called_by(file, above) or above
        elif (call := called_by(file, above)) is not None and passes_on(file, call) is node:
            node = call
        else:
            return not _is_named_until(file, above, write)
    return False


def _is_handed_on(file: File, back: ast.Return, write: ast.stmt, *, is_container: bool) -> bool:
    """Return True if what calls the function of a `return` may keep what that gives, or an item of it."""
    function = file.scope(back)
    if not isinstance(function, FUNCTION):
        return True
    with asking(function) as is_first:
        asked = mentioned(file, function.name) if is_first else []
        is_read = "property" in map(last_name, function.decorator_list)
        read = [one for one in asked if isinstance(one, ast.Attribute)]
        runs = read if is_read else [called_by(file, one) for one in asked]
        return not runs or any(one is None or _hands_out(file, one, write, is_container=is_container) for one in runs)


def _is_named_until(file: File, row: ast.AST, write: ast.stmt) -> bool:
    """Return True if a statement gives a tensor to a variable alone, which its function does not read after a write, or
    after it runs another function of the file, which may write; nor hands on before it: what it hands on may be read in
    other runs than those looked at."""
    name, writing = only_target(row), file.scope(write)
    if not isinstance(name, ast.Name) or not isinstance(writing, FUNCTION):
        return False
    scope, rows = file.scope(name), [write]
    if scope is not writing:
        if calls(file.tree, *WITHOUT_NAMES, "vars") or attributes(file.tree, "__dict__"):
            return False
        own, loops = {one.name for one in functions(file.tree)}, {*file.loops(row)}
        runs = [one for one in within(scope, ast.Name, ast.Attribute) if last_name(one) in own]
        runs = [one for one in runs if starts(one) >= starts(name) or loops & {*file.loops(one)}]
        rows = [each for one in runs if (each := file.statement(one)) is not None]
    used = uses(scope, name.id, ast.Load)
    are_over = rows != [] and all(is_over(file, name.id, one) for one in rows)
    return are_over and all(keeps_nothing(file, one, returned=False) for one in used)


def _are_read(file: File, turns: ast.AST, taken: ast.expr, write: ast.stmt) -> bool:
    """Return True if nothing in the turns of a loop keeps what it takes out of a container."""
    used = [one for one in walk(turns, ast.Name) if one.id in names_in(taken) and isinstance(one.ctx, ast.Load)]
    return not any(_hands_out(file, one, write, is_container=False) for one in used)


def _are_keys(loop: ast.AST, name: ast.expr, container: ast.expr) -> bool:
    """Return True if a loop uses what it takes out of a container to index the container: `for key in self.slots:`."""
    own = [one.slice for one in walk(loop, ast.Subscript) if dotted(one.value) == dotted(container) != ""]
    return isinstance(name, ast.Name) and name.id in map(dotted, own)
