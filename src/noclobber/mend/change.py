"""A change: edits to the source that may mend a finding, and what is known about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure, Edit

Way = Literal["same", "anew", "gathered", "summed"]
"""How the gradients of a patched program compare with the right ones. same: call by call. anew: a forward that ran once
runs again, so later losses come from newer weights. gathered: one step comes after all backwards, so later losses keep
their weights. summed: two backwards are one, of the sum of their losses."""

LAST_RESORT = 6
"""The cost from which a change is a last resort: tried only if no other is proven."""


@dataclass(frozen=True, slots=True)
class Change:
    """Edits to one or more files, to be made together. An edit of an empty span inserts.

    `title` is an imperative without a full stop. `cost`: smaller is tried first, roughly the lines touched. `is_sound`:
    the conditions beside the edits make it right as it stands, so a report shows it. Any other change is only tried.
    `cure` says which words of a report say the same as a sound one.
    """

    title: str
    edits: tuple[Edit, ...]
    cost: int = 0
    cure: Cure | None = None
    is_sound: bool = False
    way: Way = "same"


def change(
    title: str,
    edits: Iterable[Edit | None],
    cost: int = 0,
    cure: Cure | None = None,
    is_sound: bool = False,
    way: Way = "same",
) -> Iterator[Change]:
    """Give a change of some edits; none where one of them cannot be made, or where there are none."""
    wanted = tuple(edits)
    made = tuple(one for one in wanted if one is not None)
    if made and len(made) == len(wanted):
        yield Change(title, made, cost, cure, is_sound, way)


Mend = Callable[[Scene], Iterator[Change]]
"""One cure: gives its changes for a finding, a sound one first; none where it does not fit."""
