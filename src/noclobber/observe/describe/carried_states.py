"""Finds the states that carry an older graph into a newer one, by the names that the program has for them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.graph import Node

from noclobber.model.seen.events import Carried
from noclobber.model.source import Site
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.describe.reachable import Held, can_hold_another, reachable
from noclobber.observe.describe.tensor_names import user_frames
from noclobber.observe.torch_api.autograd import engine_state, graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages
from noclobber.syntax.assigning import computes_from_itself, is_fresh, set_in

_MOST_STATES = 4
_FEW = 6


class Edge(NamedTuple):
    """An edge from the newer graph into an older one: the older node, and which of its outputs."""

    node: Node
    output: int


def carried(
    edges: list[Edge], boundary: int, site: Site | None, frame: FrameType | None, memory: Memory
) -> tuple[tuple[Carried, ...], bool, set[int | None]]:
    """Return the states that lead along these edges, from a graph of now to nodes before `boundary`, by short names;
    whether each edge is known to be of one of them; and the keys of their storages.

    `boundary` is the number of the next node when the same line last ended a backward. A state still holds the old
    tensor, or its next value. Then one statement made both, and both nodes are of one kind, with one shape, and as many
    nodes were made from each of them until its backward, or both saved at one place. Or a statement computes the state
    from itself, in a few operations: another may have made its first value. What is not known to be a state in one of
    these ways is left out. So are variables that hand nothing on, by what the source says at the `site` of the
    backward, where other states lead along all of these edges.
    """
    distances = {edge: boundary - edge.node._sequence_nr() for edge in edges}
    now, leading = engine_state.next_node(), list[tuple[Held, list[Edge]]]()

    def leads_there(edge: Edge, node: Node, held: Held) -> bool:
        if (node, held.value.output_nr) == edge:
            return True
        if not _is_alike(edge, held.value):
            return False
        is_same = edge.node.name() == node.name() and edge.output == held.value.output_nr
        if is_same and now - node._sequence_nr() == distances[edge]:
            return True
        place = memory.place_of(node._sequence_nr()) if is_same else None
        at_one_place = place is not None and place == memory.place_of(edge.node._sequence_nr())
        return at_one_place or _computes_itself(held, edge, node)

    with modes.plain():
        for held in reachable(user_frames(frame)):
            node = _node_of(held.value)
            if node is None or (held.kind == "attribute" and not can_hold_another(held)):
                continue
            there = [edge for edge in edges if leads_there(edge, node, held)]
            leading += [(held, there)] * bool(there)
    lasting = [one for one in leading if not is_fresh(site, re.split(r"\W", one[0].name)[0])]
    known = {edge for _, there in leading for edge in there}
    found: dict[int, list[Held]] = {}
    for held, _ in lasting if known == {edge for _, there in lasting for edge in there} else leading:
        found.setdefault(id(held.value), []).append(held)
    states = tuple(
        _state(some, edges, set(found), boundary)
        for names in list(found.values())[:_MOST_STATES]
        for some in _apart(names)
    )
    are_all = bool(edges) and known == set(edges) and len(found) <= _MOST_STATES
    return states, are_all, {storages.storage_key(held.value) for held, _ in leading}


def _state(names: list[Held], edges: list[Edge], known: set[int], boundary: int) -> Carried:
    """Return the state that has these names: what one of these edges leads to, or the next value of that. `known` are
    the ids of all states; nodes from `boundary` on are of the newest graph."""
    value = names[0].value
    renewed = (value.grad_fn, value.output_nr) not in edges
    variable = next((one.name for one in names if one.kind == "name"), "")
    held = next((one for one in names if one.kind != "name"), names[0])
    scopes = tuple(Site(code, 0) for code in held.scopes)
    whole, variable = _whole(held, known), variable if held.kind != "name" else ""
    items = [*map(_node_of, held.owner)] if held.kind == "item" and isinstance(held.owner, (list, deque)) else []
    ages = {node._sequence_nr() >= boundary for node in items if node is not None}
    is_alone = len(set(map(_place, names))) == 1
    return Carried(held.name, held.kind, scopes, variable, whole, renewed, is_alone, grows=len(ages) == 2)


def _apart(names: list[Held]) -> list[list[Held]]:
    """Return each variable by itself, where a tensor has no other names and the code uses several: all hand it on."""
    codes = names[0].scopes
    used = {name for code in codes for name in (*code.co_names, *code.co_varnames, *code.co_freevars)}
    own = [[one] for one in names if one.scopes == codes and one.name in used]
    return own if len(own) > 1 and all(one.kind == "name" for one in names) else [names]


def _place(held: Held) -> tuple[int, str]:
    """What holds a tensor, whatever its name there: a variable, or an attribute or an item of an object."""
    return (0 if held.owner is None else id(held.owner)), re.split(r"[.\[]", held.name)[-1]


def _whole(held: Held, known: set[int]) -> Literal["", "list", "dict", "tuple"]:
    """Return what an item is in, if that holds nothing but tensors. A class of the program's own is what it is made of,
    unless it says itself what its items are; a named tuple is none."""
    kinds: dict[type, Literal["list", "dict", "tuple"]] = {list: "list", dict: "dict", tuple: "tuple"}
    owner = type(held.owner)
    made = next((one for one in owner.__mro__[: 1 if issubclass(owner, tuple) else None] if one in kinds), None)
    own = [one for one in owner.__mro__ if one is not made] if made is not None and owner is not made else []
    changed = any(name in vars(one) for one in own[:-1] for name in _OF_ITEMS)
    kind = kinds[made] if made is not None and not changed and held.kind in ("item", "tuple") else None
    inside = held.owner.values() if kind == "dict" else held.owner
    return kind if kind is not None and all(id(one) in known or _is_like(one, held.value) for one in inside) else ""


def _is_like(item: Any, state: torch.Tensor) -> bool:
    """Return True for a tensor that has no graph, or one that ends as that of a state does: no weight, and nothing that
    was made of weights before the loop."""
    if not isinstance(item, torch.Tensor) or not item.requires_grad:
        return isinstance(item, torch.Tensor)
    one, other = _node_of(item), _node_of(state)
    return one is not None and other is not None and one.name() == other.name()


_OF_ITEMS = ("__getitem__", "__setitem__", "__iter__", "items", "keys", "values", "update")
"""Methods by which a container gives its items, and gets new ones."""


def crossing(roots: list[Node], boundary: int) -> Iterator[tuple[Node, Edge]]:
    """Yield the edges from nodes since `boundary` to older ones, each with the newer node."""
    for newer in graph.walk(roots):
        if boundary <= newer._sequence_nr() < graph.UNNUMBERED:
            for older, output in newer.next_functions:
                if older is not None and older._sequence_nr() < boundary:
                    yield newer, Edge(older, output)


def edges_into(roots: list[Node], boundary: int, is_wanted: Callable[[Node], bool]) -> list[Edge]:
    """Return the edges that cross `boundary` and lead to a wanted node, such as a freed one."""
    edges = dict.fromkeys(edge for _, edge in crossing(roots, boundary))
    return [edge for edge in edges if any(map(is_wanted, graph.walk([edge.node])))]


def leads_anew(roots: list[Node], boundary: int, keys: Collection[int | None]) -> bool:
    """Return True if a node since `boundary` leads straight to a leaf with a storage of these keys."""
    newer = (one for one in graph.walk(roots) if boundary <= one._sequence_nr() < graph.UNNUMBERED)
    leaves = (getattr(leaf, "variable", None) for one in newer for leaf, _ in one.next_functions)
    return any(isinstance(leaf, torch.Tensor) and storages.storage_key(leaf) in keys for leaf in leaves)


def _node_of(value: Any) -> Any:
    """Return the node of a tensor; None without one, and for a view that a write may have given another node."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad or (value._is_view() and value._version):
        return None
    return value.grad_fn


def _is_alike(edge: Edge, value: torch.Tensor) -> bool:
    made = edge.node._input_metadata
    if edge.output >= len(made):
        return False
    return tuple(made[edge.output].shape) == tuple(value.shape) and made[edge.output].dtype == value.dtype


def _computes_itself(held: Held, edge: Edge, node: Node) -> bool:
    """Return True if a statement such as `self.mean = 0.9 * self.mean + 0.1 * loss` may have made a value out of what
    the edge leads to: it is a few operations away."""
    near = {node}
    for _ in range(_FEW):
        following = [one for each in near for one in each.next_functions if one[0] is not None]
        if edge in following:
            codes = held.scopes
            return any(computes_from_itself(row, held.name) for _, row, _ in set_in(codes, held.name))
        near = {one for one, _ in following if one is not None}
    return False
