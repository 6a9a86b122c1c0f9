"""What each node of an autograd graph keeps, and which saves are stale or freed. This works with nothing armed."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from noclobber.observe.torch_api.dispatch import registry

UNNUMBERED = 2**64 - 1
"""The sequence number of AccumulateGrad nodes."""
VIEWS = frozenset(
    f"{name}Backward{number}"
    for name in """
    T Transpose Permute Select Slice View Alias AsStrided Diagonal Expand Narrow Real Imag ReshapeAlias Squeeze
    Unfold Unsqueeze ViewAsComplex ViewAsReal
    """.split()  # noqa: SIM905
    for number in range(4)
)
"""The nodes of operators that give one view."""
MANY_VIEWS = ("SplitBackward0", "SplitWithSizesBackward0", "UnbindBackward0")
"""The nodes of operators that give several."""
_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")


class Saved(NamedTuple):
    """A saved tensor of a node. `position` is its place where the node keeps a list under this name, else None."""

    node: Node
    field: str
    attribute: str
    position: int | None
    raw: Any
    """PyTorch's SavedTensor. Its `data` is the saved tensor, or what a pack hook returned for it, without a version
    check (torch 2.13). It raises RuntimeError once it is released."""


class Stale(NamedTuple):
    """A save that no hook packed and whose version moved: the tensor as it is now, and both versions."""

    saved: Saved
    tensor: torch.Tensor
    current: int
    expected: int


def metadata(node: Any) -> dict[str, object]:
    """Return the dict that a node keeps for whoever asks; it lives as long as the node. PyTorch's own type of it is
    wrong (torch 2.13)."""
    kept: dict[str, object] = node.metadata
    return kept


class _Mark:
    __slots__ = ("__weakref__",)


_MARK = "noclobber: mark"


class Output(NamedTuple):
    """An output of a node, which is not kept alive.

    Each thread numbers its own nodes, so nodes of two threads may have one number. The mark in the `metadata` of a node
    tells it from all others, and goes with it.
    """

    number: int
    mark: weakref.ref[_Mark]
    output_nr: int

    def is_gone(self) -> bool:
        return self.mark() is None

    def is_of(self, node: Node, output_nr: int) -> bool:
        if output_nr != self.output_nr or node._sequence_nr() != self.number:
            return False
        return (mark := metadata(node).get(_MARK)) is not None and mark is self.mark()


def output_ref(node: Node, output_nr: int) -> Output:
    """Return what stands for this output of a node."""
    mark: Any = metadata(node).setdefault(_MARK, _Mark())
    return Output(int(node._sequence_nr()), weakref.ref(mark), output_nr)


def maker_of(tensor: torch.Tensor) -> Node | None:
    """Return the node that made a tensor; None for a leaf, and where PyTorch refuses to say: of one of several views
    whose base was written. Ask only where PyTorch itself asks too: of a view, it may make another node."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def made_or_base_of(tensor: torch.Tensor) -> Node | None:
    """Return the node that made a tensor, or what it is a view of; None for a leaf, and outside of the graph. This can
    be asked at any time."""
    if not tensor.requires_grad:
        return None
    return maker_of(tensor if tensor._base is None else tensor._base)


def roots_of(outputs: Iterable[object]) -> list[Node]:
    """Return the nodes that a backward call of these tensors and GradientEdges starts from."""
    roots = []
    for output in outputs:
        node = maker_of(output) if isinstance(output, torch.Tensor) else getattr(output, "node", None)
        if node is not None:
            roots.append(node)
    return roots


def walk(roots: Iterable[Node]) -> Iterator[Node]:
    """Return every node that can be reached from the roots, each once."""
    waiting = list(roots)
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def edges(outputs: Iterable[object]) -> Iterator[tuple[Node | None, Node, int]]:
    """Yield the edges that gradients flow along: the node that passes a gradient on, the node that gets it, its index.

    The first node is None for the tensors that the backward call starts from.
    """
    outputs = list(outputs)
    for output in outputs:
        if isinstance(output, torch.Tensor) and (node := maker_of(output)) is not None:
            yield None, node, output.output_nr
    for node in walk(roots_of(outputs)):
        for following, index in node.next_functions:
            if following is not None:
                yield node, following, index


def times_of_reads(along: list[tuple[Node | None, Node, int]]) -> dict[Node, int]:
    """Return when the nodes that pass gradients on read what they are of, as sequence numbers. A view reads nothing
    when it is made: what is computed from it does."""
    users: dict[Node, list[Node]] = {}
    for node, following, _ in along:
        if node is not None:
            users.setdefault(node, [])
            users.setdefault(following, []).append(node)
    times: dict[Node, int] = {}
    for node in sorted(users, key=lambda one: -int(one._sequence_nr())):  # a node is made after what it is of
        own = node._sequence_nr()
        is_view = _is_view(node)
        times[node] = max([own, *(times.get(one, own) for one in users[node])]) if is_view else own
    return times


def is_after(time: int, made: int, write: int) -> bool:
    """Return True if a node reads the result of another one after it was written. `time` is when it reads, `made` the
    number of the node that made the result, -1 of a leaf; `write` is the number of the next node at the write.

    These numbers count within a thread. A lower one than `made` is of another thread. Such a thread has got the result
    when it was ready, and reads it after what was written before that; what it writes is taken to come later.
    """
    if (time > made) == (write > made):
        return time >= write
    return time < made


def is_read_since(outputs: Iterable[object], made: Node, number: int) -> bool:
    """Return True if a node of the graph from `outputs` with this sequence number or a higher one reads the result of
    an operator, or a view of it, or what it is a view of. What a leaf holds is no result."""
    while _is_view(made) and made.next_functions[0][0] is not None:
        made = made.next_functions[0][0]
    along = list(edges(outputs))
    times = times_of_reads(along)
    readers = (node for node, following, _ in along if node is not None and following is made)
    number_of_made = made._sequence_nr()
    return not hasattr(made, "variable") and any(is_after(times[node], number_of_made, number) for node in readers)


def leads_to(node: Node | None, inputs: Sequence[Any]) -> bool:
    """Return True if a gradient that reaches a node goes on to one of the `inputs`; no inputs means all leaves."""
    if node is None or not inputs:
        return node is not None
    asked = [one.node if not isinstance(one, torch.Tensor) else maker_of(one) or one for one in inputs]
    wanted = {id(one) for one in asked}  # a ctx may have any `variable`
    return any(id(each) in wanted or id(getattr(each, "variable", None)) in wanted for each in walk([node]))


def _is_view(node: Node) -> bool:
    return node.name() in VIEWS or node.name() in MANY_VIEWS


def saves_of(node: Node) -> Iterator[Saved]:
    """Return what a node keeps, by the names of derivatives.yaml ("self", "result", "mat2") or "tensors" of a Function.

    Raises RuntimeError for a Function that was freed.
    """
    kind = type(node)
    for attribute in _attributes(kind):
        raw = getattr(node, attribute)
        field = attribute.removeprefix("_raw_saved_")
        if isinstance(raw, (tuple, list)):
            yield from (Saved(node, field, attribute, index, save) for index, save in enumerate(raw))
        elif raw is not None:
            yield Saved(node, field, attribute, None, raw)


@lru_cache(maxsize=1024)
def _attributes(kind: type) -> tuple[str, ...]:
    return tuple(attribute for attribute in dir(kind) if attribute.startswith("_raw_saved_"))


def source_of(node: Node | None, field: str) -> tuple[Node | None, int]:
    """Return the node that made the input that `node` keeps under a name, and the number of that output.

    The node is None where it cannot be found. A node has one edge for each tensor argument of its operator that can
    have a gradient, in the order of the arguments, and keeps them by their names (derivatives.yaml). Whole numbers have
    no gradient: `embedding_bag` has no edge for its indices (torch 2.13; tests/observe/torch_api/test_graph.py).
    """
    return _edge_of(node, field)[0] or (None, 0)


def is_constant(node: Node | None, field: str) -> bool:
    """Return True if the input that `node` keeps under a name is known to require no gradient."""
    edge, is_sure = _edge_of(node, field)
    return is_sure and edge is not None and edge[0] is None


def is_leaf(node: Node | None, field: str) -> bool:
    """Return True if the input that `node` keeps under a name is known to be a leaf that requires a gradient."""
    edge, is_sure = _edge_of(node, field)
    return is_sure and edge is not None and hasattr(edge[0], "variable")


def _edge_of(node: Node | None, field: str) -> tuple[tuple[Node | None, int] | None, bool]:
    """Return the edge of an input, and whether it is surely that one; None if there is none."""
    if node is None:
        return None, False
    edges = node.next_functions
    rows = _arguments(node.name()) if edges else []
    whole = {saved.field for saved in saves_of_or_gone(node) if _is_whole(content(saved))} if rows else set()
    led = [[name for name in row if name not in whole] for row in rows]
    exact = [row for row in led if len(row) == len(edges)]
    positions = [row.index(field) for row in exact or rows if field in row]
    reached = [at for at in positions if at < len(edges)]
    return edges[max(reached)] if reached else None, bool(exact) and len({*reached}) == 1


def _is_whole(content: object) -> bool:
    """Return True if a saved tensor, or the tensor that a handle stands for, holds whole numbers."""
    tensor = getattr(content, "alias", content)
    return isinstance(tensor, torch.Tensor) and not (tensor.is_floating_point() or tensor.is_complex())


def output_of(node: Node | None, field: str) -> int | None:
    """Return which result of its operator a node keeps under a name, as autograd counts results; None for no result.

    Autograd counts only the results that have a gradient (derivatives.yaml). Only the permutation of `linalg_lu` has
    none and comes before others (torch 2.13; tests/conformance/test_results.py).
    """
    name = node.name() if node is not None else ""
    number = _results(name).get(field)
    return number - 1 if number and name.startswith("LinalgLuBackward") else number


@cache
def _arguments(node: str) -> list[list[str]]:
    """Return the names of the tensor arguments of a node's operator, one list for each overload."""
    kinds = ("Tensor", "Optional[Tensor]")
    return [
        [argument.name for argument in schema.arguments if str(argument.type) in kinds] for schema in _schemas(node)
    ]


@cache
def _results(node: str) -> dict[str, int]:
    """Return the positions of an operator's results by the names of derivatives.yaml.

    A result without a name of its own is "result", or "result1" where there are several.
    """
    positions: dict[str, int] = {}
    for schema in _schemas(node):
        if not schema.is_mutable:
            arguments = {argument.name for argument in schema.arguments}
            several = len(schema.returns) > 1
            names = [one.name or f"result{position if several else ''}" for position, one in enumerate(schema.returns)]
            positions |= {name: position for position, name in enumerate(names) if name not in arguments}
    return positions


def operator_of(node: str) -> str | None:
    """Return the operator of a node by its name: "aten::addcmul" for "AddcmulBackward0"; None for a Function's."""
    return next((schema.name for schema in _schemas(node)), None)


def _schemas(node: str) -> Iterator[torch.FunctionSchema]:
    """Return the schemas of a node's operator: "ConvolutionBackward0" is the node of `aten::convolution`."""
    for base, overload in _overloads().get(re.sub(r"Backward\d*$", "", node).lower(), ()):
        yield getattr(getattr(torch.ops.aten, base), overload)._schema


@cache
def _overloads() -> dict[str, list[tuple[str, str]]]:
    """Return all overloads of aten that are not in place, by the operator's name in lowercase without underscores."""
    overloads: dict[str, list[tuple[str, str]]] = {}
    for name in registry.operator_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::") and not base.endswith("_"):
            overloads.setdefault(base.replace("_", "").lower(), []).append((base, overload or "default"))
    return overloads


def content(saved: Saved) -> Any:
    """Return the saved tensor, or what a pack hook returned for it; None once it is released."""
    return content_of(saved.raw)


def content_of(raw: Any) -> object:
    """Return the same as `content`, of PyTorch's SavedTensor."""
    try:
        return raw.data
    except RuntimeError:
        return None


def keeps(node: Node, packed: object) -> bool:
    """Return True if a node keeps this object, which a pack hook returned."""
    try:
        return any(content(saved) is packed for saved in saves_of(node))
    except RuntimeError:  # from a Function that was freed
        return False


def released(node: Node) -> bool:
    """Return True if a node kept tensors and has released them.

    Reading `_saved_*` then raises; on a Function reading `_raw_saved_tensors` raises before that.
    """
    try:
        for saved in saves_of(node):
            if saved.field != "tensors" and content(saved) is None:
                getattr(node, saved.attribute.removeprefix("_raw"))
    except RuntimeError:
        return True
    return False


def saves_of_or_gone(node: Node) -> list[Saved]:
    """Return what `saves_of` returns, as a list; empty for a Function that was freed."""
    try:
        return list(saves_of(node))
    except RuntimeError:
        return []


def stale(roots: Iterable[Node]) -> Iterator[Stale]:
    """Return the stale saves that no hook packed. Reading `_saved_*` runs PyTorch's own check, which names both
    versions."""
    for node in walk(roots):
        for saved in saves_of_or_gone(node):
            tensor = content(saved)
            if not isinstance(tensor, torch.Tensor):
                continue
            versions = _check(saved)
            if versions is not None:
                yield Stale(saved, tensor, *versions)


def _check(saved: Saved) -> tuple[int, int] | None:
    """Return the current and the expected version where PyTorch says that a save is stale; None otherwise."""
    attribute = saved.attribute.removeprefix("_raw")
    try:
        if saved.field == "tensors" and not hasattr(type(saved.node), attribute):
            cast(BackwardCFunction, saved.node).saved_tensors  # noqa: B018 - reading it runs the check
        else:
            value = getattr(saved.node, attribute)
            if saved.position is not None:
                value[saved.position]
    except RuntimeError as error:
        match = _VERSIONS.search(str(error))
        if match:
            return int(match[1]), int(match[2])
    return None
