"""Fixes where a tensor is made: outside of inference mode and `no_grad`, with its own bytes, or mapped by `vmap`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.finding import Scene
from noclobber.model.finding import Edit
from noclobber.model.operators import SPLITS, VIEWS
from noclobber.syntax.edits import append, replace, undecorated, with_argument
from noclobber.syntax.names import called, definition, dotted, keyword, parameters
from noclobber.syntax.tree import File, functions, walk
from noclobber.syntax.writes import WriteSyntax

_EXPANDS = ("expand", "expand_as", "broadcast_to")
_EXPANDS_ALL = (*_EXPANDS, "broadcast_tensors", "meshgrid")
_SHARES = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")
_MAKERS = ("zeros", "ones", "empty", "full")


def with_grad(scene: Scene, write: WriteSyntax, cost: int = 2) -> Iterator[Candidate]:
    """Take the decorator from a function that makes views; a list of views that it returns becomes a generator.

    A view that was taken before another view of the same tensor is written is stale: they have to come one by one.
    """
    for file in dict.fromkeys([write.file, *scene.files()]):
        for function in functions(file.tree):
            taken = any(called(one) in VIEWS | SPLITS for one in walk(function, ast.Call))
            if not (taken or any(True for _ in walk(function, ast.Subscript))) or function in file.around(write.node):
                continue
            for one in function.decorator_list:
                if not isinstance(one, ast.Call) or called(one) not in ("no_grad", "inference_mode"):
                    continue
                gone = undecorated(file, one)
                yield Candidate(f"make the views of `{function.name}` with gradients recorded", (gone,), cost)
                lazy = [edit for each in walk(function, ast.Return) for edit in _lazy(file, each)]
                if lazy:
                    title = f"make the views of `{function.name}` with gradients recorded, one at a time"
                    yield Candidate(title, (gone, *lazy), cost)


def own_bytes(scene: Scene, write: WriteSyntax, cost: int = 2) -> Iterator[Candidate]:
    """`.clone()` after `expand` where the tensor is made: in the function of the write, else anywhere."""
    title = "give the expanded tensor its own bytes"
    made = definition(write.file, write.base, write.statement)
    if made is not None and any(called(one) in _EXPANDS_ALL for one in walk(made, ast.Call)):
        yield Candidate(title, (append(write.file, made, ".clone()"),), cost)
        return
    for file in scene.files():
        for one in walk(file.tree, ast.Call):
            if called(one) in _EXPANDS:
                yield Candidate(title, (append(file, one, ".clone()"),), cost)


def not_shared(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """`torch.from_numpy(buf)` with `.clone()`, and `.numpy()` with `.copy()`, where the memory is handed over."""
    for place in scene.places("create"):
        for one in [place.node] if isinstance(place.node, ast.Call) else walk(place.row, ast.Call):
            if called(one) in _SHARES:
                yield Candidate("give the tensor its own bytes", (append(place.file, one, ".clone()"),), cost)
            elif called(one) in ("numpy", "__array__"):
                yield Candidate("give numpy a copy", (append(place.file, one, ".copy()"),), cost)
    for file in scene.files():
        for one in walk(file.tree, ast.Call):
            if called(one) in _SHARES:
                yield Candidate("give the tensor its own bytes", (append(file, one, ".clone()"),), cost + 1)


def mapped(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`torch.zeros(n, n)` as `x.new_zeros(n, n)`, with an argument `x` of the function that the written value uses."""
    file, scope = write.file, write.file.scope(write.statement)
    made = definition(file, write.base, write.statement)
    if not isinstance(made, ast.Call) or called(made) not in _MAKERS or not dotted(made.func).startswith("torch."):
        return
    own = parameters(scope)
    value = write.call if write.call is not None else getattr(write.statement, "value", None)
    named = [one.id for one in walk(value, ast.Name) if one.id in own] if value is not None else []
    for name in dict.fromkeys([*named, *own]):
        edit = replace(file, made.func, f"{name}.new_{called(made)}")
        yield Candidate(f"make it from `{name}`, which is mapped", (edit,), cost)


def unsynced(scene: Scene, cost: int = 2) -> Iterator[Candidate]:
    """`broadcast_buffers=False` for DistributedDataParallel."""
    for file in scene.files():
        for one in walk(file.tree, ast.Call):
            wraps = called(one) in ("DistributedDataParallel", "DDP") and bool(one.args or one.keywords)
            if wraps and keyword(one, "broadcast_buffers") is None:
                edit = with_argument(file, one, "broadcast_buffers=False")
                yield Candidate("do not broadcast the buffers", (edit,), cost)


def _lazy(file: File, node: ast.Return) -> list[Edit]:
    """The brackets of a returned list of views as parentheses."""
    if not isinstance(node.value, ast.ListComp):
        return []
    return [replace(file, node.value, f"({file.source(node.value)[1:-1]})")]
