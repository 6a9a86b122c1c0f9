"""All cures, and what they give for a finding: the change that a report shows, and those that `fix` tries by running.

A cure is one function: it says for which findings it fits, by their records and their source, its edits, when these are
sound, and what they cost. Nothing else decides about advice. To add one, write it and put it here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from noclobber.mend.autograd.declared import marked_dirty
from noclobber.mend.autograd.detached_state import detached
from noclobber.mend.autograd.modes import recorded
from noclobber.mend.autograd.no_grad import under_mode
from noclobber.mend.autograd.seen_by_autograd import let_see
from noclobber.mend.change import LAST_RESORT, Change, Mend
from noclobber.mend.copies.checkpointed_regions import not_again, run_alike
from noclobber.mend.copies.clone_first import argument_cloned, into_clone, value_cloned
from noclobber.mend.copies.clone_for_reader import kept_as_clone
from noclobber.mend.copies.own_bytes import (
    apart,
    expanded,
    made_from_mapped,
    not_shared,
    own_gradients,
    packed_apart,
    recorded_views,
    returned_apart,
)
from noclobber.mend.copies.own_copies import on_copies
from noclobber.mend.flags import without_cache, without_flag, written_in_place
from noclobber.mend.holders.seen import is_read_elsewhere
from noclobber.mend.new_tensors.new_tensor import put_into, written_anew
from noclobber.mend.new_tensors.new_wholes import new_wholes
from noclobber.mend.new_tensors.returned import given_new
from noclobber.mend.new_tensors.view_writes import views
from noclobber.mend.order.earlier_backwards import backward_first
from noclobber.mend.order.forward_below import below_step
from noclobber.mend.order.forwards_in_loops import moved_in
from noclobber.mend.order.kept_values import not_kept
from noclobber.mend.order.later_writes import put_off
from noclobber.mend.order.steps import reordered, summed
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Edit, Finding
from noclobber.syntax.names import root_of

CURES: tuple[Mend, ...] = (
    under_mode,
    recorded,
    made_from_mapped,
    value_cloned,
    argument_cloned,
    given_new,
    marked_dirty,
    moved_in,
    not_kept,
    summed,
    detached,
    reordered,
    below_step,
    put_off,
    backward_first,
    run_alike,
    expanded,
    not_shared,
    own_gradients,
    recorded_views,
    let_see,
    views,
    new_wholes,
    into_clone,
    written_anew,
    put_into,
    apart,
    packed_apart,
    returned_apart,
    without_flag,
    without_cache,
    kept_as_clone,
    on_copies,
    written_in_place,
    not_again,
)
"""The likeliest first: the first sound change is shown, and what costs the same is tried in this order."""
MOST = 8
"""Changes of one finding: each is tried by running the program."""
MOST_MORE = 6
"""Last resorts that are tried beyond these where none is proven."""


def sound(finding: Finding, read: Callable[[str], str]) -> Iterator[Change]:
    """Yield the sound changes of a finding, that of each cure, the one to show first.

    Where autograd did not see the write, only its author knows whether it should be part of the gradient: but for what
    nothing reads again. For memory of a pack hook, what the unpack hook gives may be new: the line that saves says
    nothing about that memory.
    """
    scene = Scene(finding, read)
    fitting = (apart,) if scene.is_unseen else (given_new, packed_apart) if scene.unchecked == "packed" else CURES
    first = (next(cure(scene), None) for cure in fitting)
    yield from (one for one in first if one is not None and one.is_sound)


def candidates(finding: Finding, read: Callable[[str], str], fitting: tuple[Mend, ...] = CURES) -> list[Change]:
    """The changes to try for a finding, by some cures, the likeliest and smallest first; empty where none is known.

    `read` gives the text of a file, with plain line ends; it raises OSError where there is none.
    """
    scene = Scene(finding, read)
    found = sorted(_distinct(one for cure in fitting for one in cure(scene)), key=lambda one: one.cost)
    if kept := set(_to_be_kept(scene)):
        found = [one for one in found if one.is_sound or kept.isdisjoint(map(_bound_by, one.edits))]
    likely = [one for one in found if one.cost < LAST_RESORT][:MOST]
    return likely + [one for one in found if one.cost >= LAST_RESORT][: MOST_MORE if scene.is_judged else 0]


def _to_be_kept(scene: Scene) -> Iterator[str]:
    """The written names that have to hold the same tensor on, as another function reads it."""
    for write in scene.writes():
        root = root_of(write.target)
        if isinstance(root, ast.Name) and is_read_elsewhere(scene.finding, write.file, write.statement):
            yield root.id


def _bound_by(edit: Edit) -> str:
    """The name that the text of an edit binds or stores into; empty for any other text."""
    bound = re.match(r"\s*(\w+)(\[.*\])? = ", edit.replacement)
    return bound[1] if bound else ""


def _distinct(found: Iterable[Change]) -> Iterator[Change]:
    """The changes without those whose edits another one has: the one that is sound, else the cheapest, stays, at the
    least cost."""
    best: dict[object, Change] = {}
    for one in (each for each in found if each.edits):
        key = frozenset((edit.span, edit.replacement) for edit in one.edits)
        other = best.get(key, one)
        first = max(other, one, key=lambda each: (each.is_sound, -each.cost))
        best[key] = replace(first, cost=min(one.cost, other.cost))
    yield from best.values()
