"""The lines of a program that do something with the gradients that they read, other than to set them to zero."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.trials.job import Ended, Result
from noclobber.model.source import Owner, owner_of
from noclobber.observe.gradient_trace.evidence import Event
from noclobber.syntax.names import called, called_by, is_stored
from noclobber.syntax.tree import File, parse, walk

_SETTING = ("zero_", "detach_", "requires_grad_")
_CLIPPING = ("clip_grad", "grad_norm")
"""Parts of the names of functions that read the gradients of the weights that they are given."""
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "register_full_backward_hook")
"""What is called with gradients: nothing shows what it makes of them."""
At = tuple[str, int]
"""The path of a file, and a line in it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """`read` are the lines of each expression that reads gradients, `hooked` those that give them to a hook."""

    read: list[tuple[str, range]]
    hooked: list[At]

    def of(self, events: list[Event]) -> list[Event]:
        """Return the reads that these lines have made, of what was recorded."""
        reads = (event for event in events if event["kind"] == "read")
        return [one for one in reads if any(one["at"][0] == path and one["at"][1] in some for path, some in self.read)]

    def unreached(self, events: list[Event], result: Result) -> str:
        """Return in words which line a run did not come to, or gives a gradient to code whose use of it nothing shows;
        empty where none does."""
        seen = {event["at"] for event in self.of(events)}
        left = [(path, lines[0]) for path, lines in self.read if not any((path, line) in seen for line in lines)]
        found = [*self.hooked, *(left if result.ended is Ended.LIMIT else [])]
        return f"line {found[0][1]} reads gradients, and no run shows which" if found else ""


def lines_reading(patch: Patch, result: Result) -> Lines:
    """Return these lines of the program's own files, as a patch leaves them. A file that cannot be parsed has none."""
    found = Lines([], [])
    for path in {*result.files, *patch.after}:
        try:
            file = parse(path, patch.read(path)) if owner_of(path) is Owner.USER else None
        except (OSError, ValueError):
            continue
        if file is not None:
            nodes = [one for one in walk(file.tree, ast.expr) if _reads(file, one)]
            found.read.extend((path, range(one.lineno, (one.end_lineno or one.lineno) + 1)) for one in nodes)
            hooks = [one for one in walk(file.tree, ast.Call) if called(one) in _HOOKS]
            found.hooked.extend((path, one.lineno) for one in hooks)
    return found


def _reads(file: File, node: ast.expr) -> bool:
    """Return True for `p.grad` that is neither set, nor set to zero, nor only asked for whether it is there; for
    `getattr(p, "grad")`, and for what clips gradients."""
    if isinstance(node, ast.Call):
        return any(word in called(node) for word in _CLIPPING)
    if isinstance(node, ast.Constant):
        return node.value == "grad"
    above = file.above[node]
    if (
        not isinstance(node, ast.Attribute)
        or node.attr != "grad"
        or is_stored(file, node)
        or called_by(file, node) is not None
    ):
        return False
    is_asked = isinstance(above, ast.Compare) and all(isinstance(one, ast.Constant) for one in above.comparators)
    return not is_asked and not (isinstance(above, ast.Attribute) and above.attr in _SETTING)
