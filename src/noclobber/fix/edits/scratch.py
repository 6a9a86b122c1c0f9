"""Scratch memory that a patch leaves unused: what lies there matters to nobody, and need not be what it was."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from noclobber.fix.edits.patch import Patch
from noclobber.syntax.compiling import parsed
from noclobber.syntax.names import attributes, called, calls, is_given
from noclobber.syntax.tree import walk

_ALL_BUFFERS = ("buffers", "named_buffers", "getattr", "vars", "eval", "exec")
"""What reads buffers without their names."""


def unread(patch: Patch, files: Iterable[str]) -> frozenset[str]:
    """Return the buffers that the patched files register as `torch.empty` and do not save, and that none of the
    `files` that the program has imported reads: by its name, or with all others."""
    names = {name for one in patch.after.values() for name in _registered(parsed(one.plain))}
    for path in {*files, *patch.after} if names else ():
        try:
            names -= _read(parsed(patch.read(path)), names)
        except (OSError, ValueError, SyntaxError, RecursionError):
            return frozenset()
    return frozenset(names)


def _registered(tree: ast.Module) -> Iterator[str]:
    """The names of `register_buffer("sums", torch.empty(4, 2), persistent=False)`."""
    for one in calls(tree, "register_buffer"):
        name = one.args[0] if one.args else None
        made = called(one.args[1]) if len(one.args) > 1 else ""
        if isinstance(name, ast.Constant) and made.startswith("empty") and is_given(one, "persistent", False):
            yield str(name.value)


def _read(tree: ast.Module, names: set[str]) -> set[str]:
    """Return those of some buffers that a file may read."""
    if calls(tree, *_ALL_BUFFERS) or attributes(tree, "__dict__", "_buffers"):
        return names
    registered = [one.args[0] for one in calls(tree, "register_buffer") if one.args]
    read = {one.attr for one in walk(tree, ast.Attribute) if isinstance(one.ctx, ast.Load)}
    return read | {str(one.value) for one in walk(tree, ast.Constant) if one not in registered}
