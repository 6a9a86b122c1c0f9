"""Give a tensor bytes of its own where it is made: after `expand`, for numpy; make views with gradients recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.scene import Scene
from noclobber.model.finding import Edit
from noclobber.model.operators import SPLITS, VIEWS
from noclobber.syntax.edits import append, replace, undecorated
from noclobber.syntax.names import called, definition
from noclobber.syntax.tree import File, functions, walk

_EXPANDS = ("expand", "expand_as", "broadcast_to")
_EXPANDS_ALL = (*_EXPANDS, "broadcast_tensors", "meshgrid")
SHARES = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")
"""What gives a tensor on the memory of an array."""


def expanded(scene: Scene) -> Iterator[Change]:
    """`.clone()` after `expand` where the tensor is made: in the function of the write, else anywhere.

    First of all where an object keeps it: it may be written again.
    """
    title = "give the expanded tensor its own bytes"
    for write in scene.writes() if scene.is_overlap else ():
        cost, made = -1 if "." in write.name else 2, definition(write.file, write.base, write.statement)
        if made is not None and any(called(one) in _EXPANDS_ALL for one in walk(made, ast.Call)):
            yield Change(title, (append(write.file, made, ".clone()"),), cost)
            continue
        for file in scene.files():
            for one in walk(file.tree, ast.Call):
                if called(one) in _EXPANDS:
                    yield Change(title, (append(file, one, ".clone()"),), cost)


def not_shared(scene: Scene) -> Iterator[Change]:
    """`torch.from_numpy(buf)` with `.clone()`, and `.numpy()` with `.copy()`, where the memory is handed over."""
    for place in scene.places("create") if scene.is_foreign else ():
        for one in [place.node] if isinstance(place.node, ast.Call) else walk(place.row, ast.Call):
            if called(one) in SHARES:
                yield Change("give the tensor its own bytes", (append(place.file, one, ".clone()"),), 1)
            elif called(one) in ("numpy", "__array__"):
                yield Change("give numpy a copy", (append(place.file, one, ".copy()"),), 1)
    for file in scene.files() if scene.is_foreign else ():
        for one in walk(file.tree, ast.Call):
            if called(one) in SHARES:
                yield Change("give the tensor its own bytes", (append(file, one, ".clone()"),), 2)


def recorded_views(scene: Scene) -> Iterator[Change]:
    """Take the decorator from a function that makes views; a list of views that it returns becomes a generator.

    A view that was taken before another view of the same tensor is written is stale: they have to come one by one.
    """
    writes = scene.writes() if scene.is_unrecorded else []
    for file in dict.fromkeys([*(write.file for write in writes), *(scene.files() if writes else ())]):
        for function in functions(file.tree):
            taken = any(called(one) in VIEWS | SPLITS for one in walk(function, ast.Call))
            inside = any(function in file.around(write.node) for write in writes)
            if inside or not (taken or any(True for _ in walk(function, ast.Subscript))):
                continue
            for one in function.decorator_list:
                if not isinstance(one, ast.Call) or called(one) not in ("no_grad", "inference_mode"):
                    continue
                gone, title = undecorated(file, one), f"make the views of `{function.name}` with gradients recorded"
                yield Change(title, (gone,), 2)
                lazy = [edit for each in walk(function, ast.Return) for edit in _lazy(file, each)]
                if lazy:
                    yield Change(f"{title}, one at a time", (gone, *lazy), 2)


def _lazy(file: File, node: ast.Return) -> list[Edit]:
    """The brackets of a returned list of views as parentheses."""
    if not isinstance(node.value, ast.ListComp):
        return []
    return [replace(file, node.value, f"({file.source(node.value)[1:-1]})")]
