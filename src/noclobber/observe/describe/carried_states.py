"""Finds the states that carry a freed graph into a newer one, by the names that the program has for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from noclobber.model.events import Carried
from noclobber.model.source import Owner, Site, owner_of
from noclobber.observe.core.history import Memory
from noclobber.observe.describe.tensor_names import user_frames
from noclobber.observe.torch_api import graph, private

if TYPE_CHECKING:
    from torch.autograd.graph import Node

_DEEPEST = 6
_MOST = 20_000
_MOST_STATES = 4


class _Held(NamedTuple):
    """A value that the program can reach. `scopes` are the code objects whose text may assign it."""

    name: str
    kind: Literal["name", "attribute", "item", "tuple"]
    value: Any
    scopes: tuple[CodeType, ...]


class Edge(NamedTuple):
    """An edge from the newer graph into an older one: the older node, and which of its outputs."""

    node: Node
    output: int


def carried(edges: list[Edge], boundary: int, frame: FrameType | None, memory: Memory) -> list[Carried]:
    """Return the states that lead along these edges, from a graph of now to nodes before `boundary`, by short names.

    `boundary` is the number of the next node when the same line last ended a backward. A state still holds the old
    tensor, or its next value: then the same statement made both. So both nodes are of one kind, with one shape, and the
    same number of nodes was made from each of them until its backward, or both saved at one place. What is not known to
    be a state in this way is left out.
    """
    distances = {edge: boundary - edge.node._sequence_nr() for edge in edges}
    now, found = private.next_node(), dict[int, list[_Held]]()

    def leads_there(edge: Edge, node: Node, tensor: torch.Tensor) -> bool:
        if (node, tensor.output_nr) == edge:
            return True
        as_far = now - node._sequence_nr() == distances[edge]
        return _is_alike(edge, node, tensor) and (as_far or _is_of_one_place(edge, node, memory))

    with private.plain():
        for held in _held(frame):
            node = _node_of(held.value)
            if node is not None and any(leads_there(edge, node, held.value) for edge in edges):
                found.setdefault(id(held.value), []).append(held)
    return [_state(names) for names in list(found.values())[:_MOST_STATES]]


def _state(names: list[_Held]) -> Carried:
    """Return the state that has these names."""
    variable = next((one.name for one in names if one.kind == "name"), "")
    held = next((one for one in names if one.kind != "name"), names[0])
    scopes = tuple(Site(code, 0) for code in held.scopes)
    return Carried(held.name, held.kind, scopes, variable if held.kind != "name" else "")


def edges_into_freed(roots: list[Node], boundary: int) -> list[Edge]:
    """Return the edges from nodes since `boundary` to older ones that lead to a freed node."""
    crossing = dict.fromkeys(
        Edge(older, output)
        for node in graph.walk(roots)
        if boundary <= node._sequence_nr() < graph.UNNUMBERED
        for older, output in node.next_functions
        if older is not None and older._sequence_nr() < boundary
    )
    return [edge for edge in crossing if any(map(graph.released, graph.walk([edge.node])))]


def _node_of(value: Any) -> Any:
    """Return the node of a tensor; None without one, and for a view that a write may have given another node."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad or (value._is_view() and value._version):
        return None
    return value.grad_fn


def _is_alike(edge: Edge, node: Node, value: torch.Tensor) -> bool:
    made = edge.node._input_metadata
    if edge.node.name() != node.name() or edge.output != value.output_nr or edge.output >= len(made):
        return False
    return tuple(made[edge.output].shape) == tuple(value.shape) and made[edge.output].dtype == value.dtype


def _is_of_one_place(edge: Edge, node: Node, memory: Memory) -> bool:
    before, place = memory.place_of(edge.node._sequence_nr()), memory.place_of(node._sequence_nr())
    return place is not None and before == place


# -- what the program can reach ----------------------------------------------------------------------------------------


def _held(frame: FrameType | None) -> Iterator[_Held]:
    """Yield the tensors that the program's variables lead to, those with short ways first."""
    waiting, seen, held = deque[tuple[int, _Held]](), dict[int, object](), 0
    for user_frame in user_frames(frame):
        code = user_frame.f_code
        for scope in (user_frame.f_locals, user_frame.f_globals):
            waiting += [(0, _Held(name, "name", value, (code,))) for name, value in list(scope.items())]
    while waiting and held < _MOST:
        held += 1
        depth, one = waiting.popleft()
        if isinstance(one.value, torch.Tensor):
            yield one
        elif depth < _DEEPEST and id(one.value) not in seen:
            seen[id(one.value)] = one.value  # held, so that no other object gets its id
            waiting += [(depth + 1, part) for part in _parts(one)]


def _parts(held: _Held) -> Iterator[_Held]:
    """Yield what a value holds: items of lists, tuples and dicts, attributes of objects, variables of closures."""
    value, name, kind = held.value, held.name, type(held.value)
    if issubclass(kind, tuple):
        yield from (_Held(f"{name}[{index}]", "tuple", one, held.scopes) for index, one in enumerate(tuple(value)))
    elif issubclass(kind, (list, deque)):
        yield from (_Held(f"{name}[{index}]", "item", one, held.scopes) for index, one in enumerate(list(value)))
    elif issubclass(kind, dict):
        items = ((key, one) for key, one in list(value.items()) if type(key) in (str, int))
        yield from (_Held(f"{name}[{key!r}]", "item", one, held.scopes) for key, one in items)
    elif kind is FunctionType:
        if owner_of(value.__code__.co_filename) is Owner.USER and value.__closure__:
            cells = zip(value.__code__.co_freevars, value.__closure__, strict=True)
            yield from (
                _Held(free, "name", cell.cell_contents, (value.__code__,)) for free, cell in cells if _is_full(cell)
            )
    elif issubclass(kind, torch.nn.Module) or not kind.__module__.startswith(("torch.", "builtins")):
        codes = tuple(_methods(kind)) or held.scopes
        yield from (_Held(part, "attribute", one, codes) for part, one in _attributes(name, value))


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _attributes(name: str, value: object) -> Iterator[tuple[str, object]]:
    attributes: Mapping[str, object] = getattr(value, "__dict__", {})
    for attribute, one in list(attributes.items()):
        if isinstance(value, torch.nn.Module) and attribute in ("_modules", "_buffers", "_parameters"):
            for part, inner in list(one.items() if isinstance(one, dict) else ()):
                yield (f"{name}[{part}]" if part.isdigit() else f"{name}.{part}"), inner
        else:
            yield f"{name}.{attribute}", one


def _methods(kind: type) -> Iterator[CodeType]:
    """Yield the code of a class's methods that the program itself wrote."""
    for owner in kind.__mro__:
        for one in list(vars(owner).values()):
            code = getattr(one, "__code__", None)
            if isinstance(code, CodeType) and owner_of(code.co_filename) is Owner.USER:
                yield code
