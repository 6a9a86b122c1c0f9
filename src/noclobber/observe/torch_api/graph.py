"""The graph walk: with nothing armed, what every node of an autograd graph keeps, and which of it is stale or freed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from noclobber.observe.torch_api import private

UNNUMBERED = 2**64 - 1
"""The sequence number of AccumulateGrad nodes."""
_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")


class Saved(NamedTuple):
    """A saved tensor of a node: `raw` is PyTorch's SavedTensor, whose `.data` does no version check (torch 2.13)."""

    node: Any
    field: str
    attribute: str
    position: int | None
    raw: Any


class Stale(NamedTuple):
    """A save that no hook packed and whose version moved: the tensor as it is now, and both versions."""

    saved: Saved
    tensor: torch.Tensor
    current: int
    expected: int


def roots_of(outputs: Iterable[Any]) -> list[Any]:
    """The nodes that a backward call starts from: of tensors and of GradientEdges."""
    roots = []
    for output in outputs:
        node = output.grad_fn if isinstance(output, torch.Tensor) else getattr(output, "node", None)
        if node is not None:
            roots.append(node)
    return roots


def walk(roots: Iterable[Any]) -> Iterator[Any]:
    """Every node reachable from the roots, each once."""
    waiting = list(roots)
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def saves_of(node: Any) -> Iterator[Saved]:
    """What a node keeps, by the name of derivatives.yaml ("self", "result", "mat2"), or "tensors" for a Function."""
    kind: Any = type(node)
    for attribute in _attributes(kind):
        raw = getattr(node, attribute)
        field = attribute.removeprefix("_raw_saved_")
        if isinstance(raw, (tuple, list)):
            yield from (Saved(node, field, attribute, index, one) for index, one in enumerate(raw))
        elif raw is not None:
            yield Saved(node, field, attribute, None, raw)


@lru_cache(maxsize=1024)
def _attributes(kind: type) -> tuple[str, ...]:
    """Under what names nodes of a class keep tensors."""
    return tuple(attribute for attribute in dir(kind) if attribute.startswith("_raw_saved_"))


def source_of(node: Any, field: str) -> tuple[Any, int]:
    """What made the input that a node keeps under a name, and which output of that it is; None where it can't be told.

    A node leads on to those of its operator's tensor arguments that can have a gradient, in their order, and keeps them
    by their names (derivatives.yaml). Whole numbers can have none: `embedding_bag` leads to no indices (torch 2.13;
    tests/observe/torch_api/test_graph.py).
    """
    edges: tuple[tuple[Any, int], ...] = node.next_functions if node is not None else ()
    rows = _arguments(node.name()) if edges else []
    whole = {saved.field for saved in saves_of_or_gone(node) if _is_whole(content(saved))} if rows else set()
    led = [[name for name in row if name not in whole] for row in rows]
    exact = [row for row in led if len(row) == len(edges)]
    positions = [row.index(field) for row in exact or rows if field in row]
    reached = [at for at in positions if at < len(edges)]
    return edges[max(reached)] if reached else (None, 0)


def _is_whole(content: Any) -> bool:
    """Whether what is saved, or what a handle stands for, holds whole numbers."""
    tensor = getattr(content, "alias", content)
    return isinstance(tensor, torch.Tensor) and not (tensor.is_floating_point() or tensor.is_complex())


def output_of(node: Any, field: str) -> int | None:
    """Which of its operator's results a node keeps under a name, as autograd counts them; None for anything else.

    It counts the results that have a gradient (derivatives.yaml). Only the permutation of `linalg_lu` has none and
    comes before others (torch 2.13; tests/conformance/test_results.py).
    """
    name = node.name() if node is not None else ""
    number = _results(name).get(field)
    return number - 1 if number and name.startswith("LinalgLuBackward") else number


def has_gradient(node: Any, output: int) -> bool:
    """Whether a result of a node's operator has a gradient; those that have none are counted last."""
    return output < len(node._input_metadata)


@cache
def _arguments(node: str) -> list[list[str]]:
    """The names of the tensor arguments of a node's operator, a row for each overload."""
    kinds = ("Tensor", "Optional[Tensor]")
    return [[one.name for one in schema.arguments if str(one.type) in kinds] for schema in _schemas(node)]


@cache
def _results(node: str) -> dict[str, int]:
    """Where a node's operator has its results, by the names of derivatives.yaml: "values", or "result1" without one."""
    found = dict[str, int]()
    for schema in _schemas(node):
        if not schema.is_mutable:
            given = {one.name for one in schema.arguments}
            several = len(schema.returns) > 1
            names = [one.name or f"result{position if several else ''}" for position, one in enumerate(schema.returns)]
            found |= {name: position for position, name in enumerate(names) if name not in given}
    return found


def _schemas(node: str) -> Iterator[Any]:
    """The schemas of a node's operator: "ConvolutionBackward0" is of `aten::convolution`."""
    for base, overload in _overloads().get(re.sub(r"Backward\d*$", "", node).lower(), ()):
        yield getattr(getattr(torch.ops.aten, base), overload)._schema


@cache
def _overloads() -> dict[str, list[tuple[str, str]]]:
    """All overloads of aten that are not in place, by the operator's name in lowercase without underscores."""
    found = dict[str, list[tuple[str, str]]]()
    for name in private.operator_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::") and not base.endswith("_"):
            found.setdefault(base.replace("_", "").lower(), []).append((base, overload or "default"))
    return found


def content(saved: Saved) -> Any:
    """The saved tensor, or what a pack hook returned for it; None once released."""
    return content_of(saved.raw)


def content_of(raw: Any) -> Any:
    """The same of PyTorch's SavedTensor."""
    try:
        return raw.data
    except RuntimeError:
        return None


def keeps(node: Any, packed: Any) -> bool:
    """Whether a node keeps what a pack hook returned."""
    try:
        return any(content(saved) is packed for saved in saves_of(node))
    except RuntimeError:  # of a Function that has given up what it kept
        return False


def released(node: Any) -> bool:
    """Whether a node kept tensors and has given them up: then reading `_saved_*` raises, and a Function even sooner."""
    try:
        for saved in saves_of(node):
            if saved.field != "tensors" and content(saved) is None:
                getattr(node, saved.attribute.removeprefix("_raw"))
    except RuntimeError:
        return True
    return False


def saves_of_or_gone(node: Any) -> list[Saved]:
    """As `saves_of`, but empty for a Function that was freed."""
    try:
        return list(saves_of(node))
    except RuntimeError:
        return []


def stale(roots: Iterable[Any]) -> Iterator[Stale]:
    """The stale saves that no hook packed: reading `_saved_*` makes PyTorch's own check and says both versions."""
    for node in walk(roots):
        for saved in saves_of_or_gone(node):
            tensor = content(saved)
            if not isinstance(tensor, torch.Tensor):
                continue
            versions = _check(saved)
            if versions is not None:
                yield Stale(saved, tensor, *versions)


def _check(saved: Saved) -> tuple[int, int] | None:
    attribute = saved.attribute.removeprefix("_raw")
    try:
        if saved.field == "tensors" and not hasattr(type(saved.node), attribute):
            saved.node.saved_tensors  # noqa: B018 - reading it runs the check
        else:
            value = getattr(saved.node, attribute)
            if saved.position is not None:
                value[saved.position]
    except RuntimeError as error:
        match = _VERSIONS.search(str(error))
        if match:
            return int(match[1]), int(match[2])
    return None
