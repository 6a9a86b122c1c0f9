"""Whether the text of a program may tell the gradients of some modules and tensors from others: what reads them, by a
`.grad`, by the name in a text, in a hook, or in a `backward` of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable

from noclobber.syntax.names import attributes, called, called_by, dotted, gone_through, is_stored, owner
from noclobber.syntax.tree import File, functions, walk

ASKING = ("parameters", "named_parameters")
"""Methods that give the weights of a module."""
_WORDS = ("hook", "jac", "hess", "vjp", "jvp")
"""Parts of the names of what may see gradients in other ways."""
IsKnown = Callable[[ast.expr | None], bool]
"""Whether the gradient of a tensor, or of the weights of a module, may be read."""


def reads_other_gradients(file: File, is_known: IsKnown) -> bool:
    """Return True if a file may read other gradients than those that are known: of a tensor, or of a weight `p` in what
    goes through `net.parameters()`."""
    if any(one.name == "backward" for one in functions(file.tree)):
        return True
    words = (one.value for one in walk(file.tree, ast.Constant) if isinstance(one.value, str))
    if any("grad" in one and one.replace(".", "_").isidentifier() for one in words):
        return True  # it may be the name of an attribute
    if any(word in called(one) for one in walk(file.tree, ast.Call) for word in _WORDS):
        return True
    return not all(is_known(one.value) or is_known(_module_of(file, one.value)) for one in read_in(file))


def read_in(file: File) -> list[ast.Attribute]:
    """Where a file reads a `.grad`. `autograd.grad(...)` is none."""
    held = (one for one in attributes(file.tree, "grad") if not is_stored(file, one))
    return [one for one in held if called_by(file, one) is None]


def _module_of(file: File, weight: ast.expr) -> ast.expr | None:
    """`net` for `p` in what goes through `net.parameters()`."""
    weights = gone_through(file, weight, dotted(weight))
    return owner(weights) if called(weights) in ASKING else None
