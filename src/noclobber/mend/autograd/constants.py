"""What may be a constant in a loop: detached before it. Only the author knows whether it is one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from noclobber.mend.change import Change, change
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Edit
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.units import listed
from noclobber.rules.shared.carrying import is_renewed, may_be_constant
from noclobber.syntax.edits import before
from noclobber.syntax.names import (
    uses,
)


def taken_as_constant(scene: Scene) -> Iterator[Change]:
    """`old = old.detach()` before the loops whose turns read `old`, and run what has made it again themselves: whether
    it is a constant in them only the author knows."""
    read, event = scene.place("read"), scene.finding.event
    if read is None or not isinstance(event, (Clobber, Refusal)) or not may_be_constant(event):
        return
    site = event.read.site if isinstance(event, Clobber) else event.site
    if any(is_renewed(site, one) is not False for one in event.carried):
        return
    file, scope = read.file, read.file.scope(read.row)
    edits = list[Edit | None]()
    for name in dict.fromkeys(one.name for one in event.carried):
        loops = [one for one in file.loops(read.row) if file.indent(one) is not None]
        root = re.split(r"\W", name)[0]
        around = [one for one in loops if not any(one in file.around(each) for each in uses(scope, root, ast.Store))]
        edits.append(before(file, around[-1], f"{name} = {name}.detach()") if around else None)
    yield from change(f"detach {listed([f'`{one.name}`' for one in event.carried])} before the loop", edits, 1)
