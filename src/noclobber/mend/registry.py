"""Which kinds of fixes are tried for the findings of which rule. Smaller costs are tried first."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from noclobber.mend import (
    callers,
    checkpointed_regions,
    clones,
    copying,
    detached_state,
    flags,
    forwards_in_loops,
    functions,
    later_writes,
    leaves,
    modes,
    read_tensors,
    row_lists,
    step_order,
    summed_losses,
    tensor_creation,
    untracked_writes,
    view_writes,
)
from noclobber.mend.aliasing import is_seen_here_only, safely
from noclobber.mend.candidate import Candidate
from noclobber.mend.fills import local_result, rebound_fill
from noclobber.mend.finding import Scene, kind_of, name_of
from noclobber.mend.out_of_place import guarded_out_of_place, out_of_decorator, rebound
from noclobber.model.events import Refusal
from noclobber.model.finding import Cause
from noclobber.model.hints import Opportunity
from noclobber.syntax.in_place import in_place
from noclobber.syntax.tree import last_line
from noclobber.syntax.writes import Form, WriteSyntax, is_in_vain, out_of_place, write_at, writes

MOST_DETACHED = 3
"""Values that are tried detached."""
Kind = Callable[[Scene], Iterator[Candidate]]


def stale(scene: Scene) -> Iterator[Candidate]:
    """A write between save and read: out of place, else a clone before it or at the save."""
    found = scene.writes()
    is_weight = kind_of(scene.finding) == "parameter"
    for write in found:
        if functions.method_around(write.file, write.statement) == "backward":
            yield from functions.new_gradient(write)
        yield from _calling(scene, write)
        yield from view_writes.into_new(write, 3)
        yield from later_writes.put_off(scene, write, 1 if is_weight else 4)
        if is_weight:
            continue
        is_part = isinstance(write.target, ast.Subscript) and _is_stored(scene, write)
        yield from rebound(write, 4 if is_part and write.form is not Form.ITEM else 1)
        yield from rebound_fill(write)
        if write.call is None or writes(write.call):
            yield from clones.before_write(write, scene, 2 if is_part else 3)
        yield from row_lists.as_list(write, 2)
    edits = [edit for write in found for edit in out_of_place(write)]
    if len(found) > 1 and edits and not is_weight and not any(is_in_vain(write, edits) for write in found):
        yield Candidate("write out of place", tuple(edits), 2)
    yield from read_tensors.from_clone(scene, 2)
    yield from clones.at_save(scene, 2)
    yield from untracked_writes.on_copies(scene)
    yield from _in_library(scene)


def disjoint(scene: Scene) -> Iterator[Candidate]:
    """A write beside the bytes that are read: a clone of these alone, before one of all that is written."""
    yield from clones.at_save(scene, 2)
    yield from stale(scene)


def stepped(scene: Scene) -> Iterator[Candidate]:
    """A step between forward and backward."""
    if not any(step_order.optimizer(one.row) for one in scene.places("write")):
        yield from stale(scene)
        return
    if _reads_first(scene):
        yield from forwards_in_loops.moved_in(scene)
        yield from detached_state.carried(scene)
    else:
        yield from summed_losses.summed_and_stepped_once(scene)
        yield from islice(detached_state.handed_over(scene), MOST_DETACHED)
    yield from step_order.reordered(scene)
    yield from callers.across(scene)
    if not _reads_first(scene):  # a graph that was built before an earlier step must be built again, or cut off
        yield from untracked_writes.on_copies(scene)


def drifted(scene: Scene) -> Iterator[Candidate]:
    """A change between the two runs of a checkpointed region. A new tensor under the old name is a change as well."""
    if any(step_order.optimizer(one.row) for one in scene.places("write")):
        yield from stepped(scene)
        return
    if scene.finding.save is not None and scene.finding.save.unchecked == "policy":
        yield from (one for write in scene.writes() for one in later_writes.put_off(scene, write))
        yield from stale(scene)
        return
    yield from checkpointed_regions.run_as_before(scene)
    for write in scene.writes():
        yield from later_writes.put_off(scene, write)
        yield from checkpointed_regions.closed_over(scene, write)
    yield from checkpointed_regions.given_clones(scene)
    yield from checkpointed_regions.on_own_copies(scene)


def freed(scene: Scene) -> Iterator[Candidate]:
    """A graph that an earlier backward has freed. One that is kept for a carried state grows with every iteration."""
    yield from detached_state.kept_in_place(scene)
    yield from forwards_in_loops.moved_in(scene)
    yield from summed_losses.summed(scene)
    yield from detached_state.carried(scene)
    once = scene.finding.cause is Cause.BUILT_ONCE and forwards_in_loops.steps_in_loop(scene)
    if not once and scene.finding.cause is not Cause.CARRIED:
        yield from detached_state.retained(scene, 1)


def silent(scene: Scene) -> Iterator[Candidate]:
    """A write through an alias with its own version counter."""
    is_weight = kind_of(scene.finding) in ("parameter", "buffer")
    hidden = [write for write in scene.writes() if untracked_writes.hides(write.target) and not is_weight]
    seen = [one for write in hidden for one in untracked_writes.tracked(write, scene)]
    yield from seen or stepped(scene)


def foreign(scene: Scene) -> Iterator[Candidate]:
    """Bytes that code outside of torch changes."""
    yield from tensor_creation.not_shared(scene)
    yield from clones.at_save(scene, 2)
    yield from untracked_writes.on_copies(scene)
    if any(one.via == "process" for one in scene.finding.writes):
        yield from untracked_writes.local_copy(scene)


def unsynced(scene: Scene) -> Iterator[Candidate]:
    """A buffer that a module rewrites."""
    yield from tensor_creation.unsynced(scene)
    yield from stale(scene)


def unchecked(scene: Scene) -> Iterator[Candidate]:
    """A write that PyTorch would notice if its check were on."""
    yield from stale(scene)
    for place in scene.places("save"):
        yield from functions.saved_for_backward(place)


def gradient(scene: Scene) -> Iterator[Candidate]:
    """A write in a hook or in the backward of a Function."""
    for write in scene.writes():
        yield from functions.new_gradient(write)


def declared(scene: Scene) -> Iterator[Candidate]:
    """A custom Function that writes its input."""
    for write in scene.writes():
        yield from functions.marked_dirty(write, 2)
    for place in scene.places("read"):
        yield from clones.arguments(place, 1)
    yield from functions.tangent_in_place(scene)


def hidden(scene: Scene) -> Iterator[Candidate]:
    """Values that a tensor of the graph gets without autograd. Only certain changes: nothing can be compared."""
    for write in scene.writes():
        yield from guarded_out_of_place(write)
        yield from out_of_decorator(write)
        yield from view_writes.into_new(write)
        yield from untracked_writes.functional_call(write)
        yield from untracked_writes.tracked(write, scene, 2)


def overwritten(scene: Scene) -> Iterator[Candidate]:
    """A tensor whose gradient is asked for, or whose hook is lost, after a write."""
    for write in scene.writes():
        yield from rebound(write)
        yield from rebound_fill(write)
        yield from _calling(scene, write)
        yield from clones.before_write(write, scene)
        yield from functions.hook_later(scene, write)


def leaf(scene: Scene) -> Iterator[Candidate]:
    """A write to a leaf or a view of one."""
    for place in scene.places("read"):
        yield from clones.arguments(place, 1)
    for write in scene.writes():
        yield from view_writes.inlined(write)
        yield from leaves.guarded(write) if leaves.is_update(write, kind_of(scene.finding)) else ()
        yield from leaves.cloned_leaf(write)
        yield from safely(write, 3)
        yield from _calling(scene, write)


def view(scene: Scene) -> Iterator[Candidate]:
    """A write to a view that may not be written: one of several, made without gradients, or by a Function."""
    for write in scene.writes():
        yield from functions.new_gradient(write) if scene.finding.cause is Cause.HOOKED and not write.name else ()
        yield from view_writes.by_index(write)
        yield from view_writes.one_by_one(write)
        yield from view_writes.inlined(write)
        yield from view_writes.into_new(write, 2, stacked=scene.finding.code == "NC303")
        yield from view_writes.cloned_parts(write, 3)
        if scene.finding.code == "NC304":
            yield from leaves.guarded(write) if kind_of(scene.finding) == "parameter" else ()
            yield from safely(write, 1)
            yield from tensor_creation.with_grad(scene, write)
        yield from safely(write, 2)
        yield from _calling(scene, write)
        if is_seen_here_only(write):
            yield from clones.before_write(write, scene, 4)


def inference(scene: Scene) -> Iterator[Candidate]:
    """A tensor made in inference mode."""
    for write in scene.writes():
        yield from safely(write, 1)
    yield from modes.no_grad_instead(scene)
    yield from clones.at_save(scene, 2)


def fitting(scene: Scene) -> Iterator[Candidate]:
    """A write whose result does not fit the memory that should hold it."""
    for write in scene.writes():
        if scene.finding.code == "NC310" or "vmap" in write.file.text:
            yield from tensor_creation.mapped(write)
        if scene.finding.code == "NC307":  # first of all, fix what an object keeps where it is made
            yield from tensor_creation.own_bytes(scene, write, -1 if "." in write.name else 2)
            yield from copying.of_value(write) if scene.finding.cause is Cause.READS_TARGET else ()
        yield from local_result(write)
        yield from safely(write, 1)
        if is_seen_here_only(write):
            yield from clones.before_write(write, scene, 3)


def refused(scene: Scene) -> Iterator[Candidate]:
    """Other writes that PyTorch forbids."""
    for write in scene.writes():
        yield from view_writes.into_new(write)
        yield from safely(write, 1)
        if is_seen_here_only(write):
            yield from rebound_fill(write)
            yield from clones.before_write(write, scene, 4) if scene.place("save") else ()
        yield from _calling(scene, write)
    yield from clones.at_save(scene, 5)


def general(scene: Scene) -> Iterator[Candidate]:
    """What a write can be changed into whatever its cause. A run shows which of it is right here."""
    refused = isinstance(scene.finding.event, Refusal)
    for write in scene.writes():
        yield from leaves.guarded(write) if refused and leaves.is_update(write, kind_of(scene.finding)) else ()
        yield from later_writes.put_off(scene, write, 3)
        if kind_of(scene.finding) == "parameter":  # what takes its place is no weight of the module any more
            continue
        yield from safely(write, 1)
        yield from rebound_fill(write)
        yield from view_writes.inlined(write)
        yield from view_writes.into_new(write, 2)
        yield from clones.before_write(write, scene, 2)
        yield from row_lists.as_list(write, 2)
        yield from _calling(scene, write)
    yield from clones.at_save(scene, 3)
    for place in scene.places("read"):
        yield from clones.arguments(place, 3)


def opportunity(scene: Scene) -> Iterator[Candidate]:
    """An operator that could write into its input."""
    hint = scene.finding.event
    if not isinstance(hint, Opportunity):
        return
    spelling = hint.spelling
    for place in scene.places("write")[:1]:
        if spelling.how == "module":
            yield from flags.flagged(scene, place, spelling.name)
            continue
        for one in in_place(place, hint.op, hint.argument, spelling, numbers=hint.numbers):
            yield Candidate("write in place", (one.edit,), 1)


def _is_stored(scene: Scene, write: WriteSyntax) -> bool:
    """Return True if `h[i] += e` puts the result back into a tensor; where `h` is a list, nothing is copied."""
    last = last_line(write.statement)
    return not isinstance(write.statement, ast.AugAssign) or any(
        one.op.endswith(("::copy_", "::fill_", "::index_put_"))
        and one.site is not None
        and write.statement.lineno <= one.site.line <= last
        for one in scene.finding.writes
    )


def _calling(scene: Scene, write: WriteSyntax) -> Iterator[Candidate]:
    """A write that a module or function called here does: its flag, or a clone for an argument."""
    if write.call is None or writes(write.call):
        return
    places = [one for one in scene.places("write") if one.file is write.file and one.row is write.statement]
    yield from flags.flags(scene, places)
    for one in places:
        yield from clones.arguments(one, 2, name_of(scene.finding))


def _in_library(scene: Scene, cost: int = 8) -> Iterator[Candidate]:
    """The write itself, in the library that does it: shown, and never written."""
    for place in scene.places("inside"):
        for one in rebound(write_at(place)):
            yield Candidate(f"{one.title} in the library", one.edits, cost)


def _reads_first(scene: Scene) -> bool:
    step, read = scene.place("write"), scene.place("read")
    same = step is not None and read is not None and step.file is read.file
    return same and step is not None and read is not None and getattr(read.node, "lineno", 0) < step.row.lineno


KINDS: Mapping[str, Sequence[Kind]] = {
    "NC101": (stale,), "NC102": (disjoint,), "NC103": (stepped,), "NC104": (freed,), "NC105": (unsynced,),
    "NC201": (silent,), "NC202": (foreign,), "NC203": (stepped,), "NC204": (unchecked,), "NC205": (drifted,),
    "NC206": (gradient,), "NC207": (declared,), "NC208": (hidden,), "NC209": (overwritten,), "NC210": (overwritten,),
    "NC301": (leaf,), "NC302": (leaf,), "NC303": (view,), "NC304": (view,), "NC305": (view,), "NC306": (inference,),
    "NC307": (fitting,), "NC308": (fitting,), "NC309": (fitting,), "NC310": (fitting,), "NC311": (fitting,),
    "NC312": (declared,), "NC901": (opportunity,), "NC313": (declared,), "NC399": (refused,),
}  # fmt: skip
