"""What stands before a loop of steps and is computed of what nothing trains, detached where it is made.

It was seen that a backward of the loop reaches the graph of an earlier turn through these variables alone, and that no
optimizer had, and nothing had written, the leaves behind them (`Refusal.apart`). So the loop needs only their values.
The other gradients are lost. That is sound where the files ask for none but those of modules and tensors that were
seen to be apart, step nothing else, and have no backward or hook that may do more than to give a gradient.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from noclobber.mend.change import Change, change
from noclobber.mend.gradients import ASKING, reads_other_gradients
from noclobber.mend.order.forwards_in_loops import last_read
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure, Edit
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Carried, Refusal
from noclobber.model.units import listed
from noclobber.rules.shared.carrying import is_renewed, may_be_constant
from noclobber.syntax.edits import append, before
from noclobber.syntax.names import (
    UNRECORDING,
    attributes_set,
    called,
    dotted,
    first_name,
    imported_from,
    is_own,
    is_stored,
    last_name,
    named,
    owner,
    parameters,
    uses,
    uses_in,
)
from noclobber.syntax.tree import LOOP, File, Turns, functions, starts, walk

_OF_GRAPHS = ("grad_fn", "is_leaf", "requires_grad", "param_groups", "add_param_group")
"""Names that tell a constant from a tensor in a graph, or hand an optimizer more."""
_OF_VALUES = ("shape", "size", "dim", "ndim", "dtype", "device")
"""What is the same of a tensor without its graph."""
_SETTING = ("load_state_dict", "swap_tensors", "vector_to_parameters")
"""What gives weights other memory, or changes them unseen, as does an assignment to `.data`."""
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


def detached_constants(scene: Scene) -> Iterator[Change]:
    """`features = encoder(x).detach()`, where the loop alone reads `features`; a line before the loop for an argument
    of its function."""
    (read, loop), event = last_read(scene), scene.finding.event
    if read is None or loop is None or not isinstance(event, Refusal) or event.apart is None:
        return
    if not event.are_all_carried or any(is_renewed(event.site, one) is not False for one in event.carried):
        return
    if any(_may_miss_gradients(one, {*event.apart}) for one in scene.files()):
        return
    edits = [_detached(read.file, loop, one) for one in event.carried]
    title = f"detach {listed([f'`{one.name}`' for one in event.carried])}, which no optimizer changes"
    yield from change(title, edits, 1, Cure.CONSTANT, is_sound=True, way="constant")


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


def _detached(file: File, loop: Turns, state: Carried) -> Edit | None:
    """The edit for one constant; None unless it is bound once, or an argument, and read in the loop alone."""
    name, scope = state.name, file.scope(loop)
    is_argument = name in parameters(scope)
    found = [one for one in named(scope if is_argument else file.tree) if dotted(one) == name]
    found = [one for one in found if getattr(file.above[one], "attr", "") not in _OF_VALUES]
    stored = [one for one in found if is_stored(file, one)]
    inside = [one for one in found if one not in stored and loop in file.around(one)]
    if not inside or len(found) != len(inside) + len(stored) or state.kind not in ("name", "attribute"):
        return None
    if is_argument:
        is_plain = isinstance(loop, LOOP) and not stored and is_own(scope, name) and file.indent(loop) is not None
        return before(file, loop, f"{name} = {name}.detach()") if is_plain else None
    row = file.above[stored[0]] if len(stored) == 1 else None
    is_first = isinstance(row, ast.Assign) and len(row.targets) == 1 and starts(row) < starts(loop)
    return append(file, row.value, ".detach()") if isinstance(row, ast.Assign) and is_first else None


def _may_miss_gradients(file: File, apart: Collection[str]) -> bool:
    """Return True if a file may read, clip or step by other gradients than those of what is apart, or asks whether a
    tensor is in a graph."""
    loaded = [one for one in named(file.tree) if not is_stored(file, one)]
    asks = any(last_name(one) in _OF_GRAPHS for one in loaded)
    changed = [one for one in named(file.tree) if last_name(one) in (_SETTING if one in loaded else ("data",))]
    if asks or any(map(file.loops, changed)) or reads_other_gradients(file, lambda one: _is_known(file, one, apart)):
        return True
    return any(_may_ask(file, one, apart) for one in walk(file.tree, ast.Call))


def _may_ask(file: File, call: ast.Call, apart: Collection[str]) -> bool:
    name, of = called(call), owner(call)
    if name in ASKING:
        return not _is_known(file, of, apart)
    if name in _CLIPS or _makes_optimizer(file, call):
        given = call.args[0] if call.args else None
        parts = given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
        return not all(called(one) in ASKING or _is_known(file, one, apart) for one in parts)
    if name in ("getattr", "attrgetter"):
        return not all(isinstance(one, ast.Constant) for one in call.args[name == "getattr" :])
    return "grad" in name and name not in (*UNRECORDING, "zero_grad")


def _makes_optimizer(file: File, call: ast.Call) -> bool:
    """Return True for `torch.optim.SGD(...)`, also by a name that is imported from there."""
    name, parts = dotted(call.func), dotted(call.func).split(".")
    if "lr_scheduler" in parts or name in imported_from(file, "torch.optim.lr_scheduler"):
        return False
    return "optim" in parts or name in imported_from(file, "torch.optim")


def _is_known(file: File, node: ast.expr | None, apart: Collection[str]) -> bool:
    """Return True for a dotted name that is apart, and that is one thing wherever it stands in the file."""
    name, root = dotted(node), first_name(node)
    if node is None or name not in apart:
        return False
    bound = [one for one in uses_in(file.tree, root) if is_stored(file, one)]
    is_given = any(root in parameters(one) for one in functions(file.tree))
    if root == "self":
        return [dotted(one) for one in attributes_set(file, last_name(node))].count(name) == 1
    return len(bound) == 1 and not is_given and not file.loops(bound[0])
