"""NC205 recompute-drift: a checkpointed region runs again in backward, with changed tensors

What happens
    `torch.utils.checkpoint` keeps the inputs of a region and runs it again in backward. Between the two runs
    something that the region reads has changed: a weight (an optimizer stepped), a buffer, a tensor that its
    function closes over, a counter, the random state. Backward computes with other values than forward did, and
    nothing is raised.

Why
    The second run makes new tensors, so there is no old version to compare with. The only check,
    `determinism_check`, compares shapes, types and devices, and the number of tensors. If the second run takes
    another path, PyTorch raises "A different number of tensors was saved". The same program without checkpoint
    raises (NC101, NC103).

Example
    import torch
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(3, requires_grad=True)
    scale = torch.full((3,), 2.0)
    y = checkpoint(lambda t: (t * scale) ** 2, x, use_reentrant=False)
    scale.zero_()
    y.sum().backward()
    print(x.grad)  # gives 0, 0, 0; right is 8, 8, 8

Instead
    import torch
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(3, requires_grad=True)
    scale = torch.full((3,), 2.0)
    y = checkpoint(lambda t, s: (t * s) ** 2, x, scale.clone(), use_reentrant=False)
    scale.zero_()
    y.sum().backward()
    print(x.grad)  # gives 8, 8, 8

Notes
    If you rebind a name that the region closes over (`scale = new`), the second run reads the new tensor. Pass
    tensors as arguments instead. The same is true of plain values: a position, a step counter, a flag such as
    `training`, an attribute that is None the first time. The report names the value that differs, and what it was.
    Writes that the region itself makes happen twice, such as the statistics of a batch norm. They do no harm if the
    region does not read them back. Where it does, make the write outside of the region, or call the region without
    `checkpoint`: it then runs once, and keeps in memory what it saves.
    `preserve_rng_state=True`, the default, restores torch's random state, so that dropout drops the same elements.
    It does not restore `random`, numpy, or your own generator.
    A selective checkpoint (`create_selective_checkpoint_contexts`) keeps the results that its policy names, and the
    second run takes them instead of computing them again. A write to such a result, also one that the region itself
    makes, changes what the second run gets: PyTorch raises "Tensor cached during selective activation checkpoint has
    been mutated". It stays silent if the result is a view with its own version counter, as that of a batched `matmul`
    is, or with `allow_cache_entry_mutation=True`. Write out of place.
    The second run stops as soon as everything is saved. `rrelu` saves its noise before it draws it. If a region
    ends with an `rrelu` in training, backward therefore reads noise that was never drawn. `early_stop=False` runs
    the region to its end.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from noclobber.model.reports.finding import Cause, Cure, Finding, Suggestion, label_at
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Tensor, Write
from noclobber.model.seen.silent import Drift, Event, Moved
from noclobber.model.source import source_text
from noclobber.rules.shared.account import Help, account
from noclobber.rules.shared.assigned import assignment, is_read
from noclobber.rules.shared.causes import cause, is_step, overlapping
from noclobber.rules.shared.labels import known, read_label, same_line, spelled, subject, writer_in_words
from noclobber.rules.shared.refusing import Text, refused
from noclobber.rules.shared.stepping import step_cures
from noclobber.rules.shared.story import story
from noclobber.rules.shared.wording import name_in_words, node_in_words
from noclobber.rules.shared.writetext import words_at, write_of
from noclobber.syntax.names import calls, dotted, is_given, is_read_besides
from noclobber.syntax.tree import place_of, starts

_DETACHES = "aten::detach_"
_TAKEN = (
    "the second run of the region takes the kept tensor as it is now, and does not compute it again; a write that is "
    "part of the region is then made a second time"
)
_OTHER_WAY = "something that the region reads has changed since forward, so the second run takes another path"
TEXTS = (
    Text(
        ["Tensor cached during selective activation checkpoint has been mutated"],
        "a tensor that a selective checkpoint keeps for backward was written in place",
        [
            Suggestion(
                "write out of place in the checkpointed function, and in what gets its tensors", cure=Cure.OUT_OF_PLACE
            )
        ],
        _TAKEN,
        told="the operator that made the tensor runs here, and takes it as it was kept",
    ),
    Text(
        [
            "torch.utils.checkpoint: Recomputed values",
            "torch.utils.checkpoint: A different number of tensors",
            "torch.utils.checkpoint: trying to save more tensors",
        ],
        "a checkpointed region saves other tensors when backward runs it again",
        [
            "let the region depend only on its arguments, not on a counter, flag or buffer that changes meanwhile; "
            "above all not on one that the region changes"
        ],
        _OTHER_WAY,
        told="backward runs the region again here",
    ),
)
_AGAIN = (
    "checkpoint runs the region again in backward, with the current parameters, buffers and closed-over tensors; it "
    "compares only shapes and types, so PyTorch raises nothing"
)


def find(event: Event) -> Finding | None:
    """A checkpointed region whose second run gave other bytes than its first."""
    if isinstance(event, Clobber):
        return _kept(event) if cause(event) == "policy" else None
    if not isinstance(event, Drift):
        return refused(TEXTS, event)
    if event.unfilled:
        return _stopped(event)
    moved = [one for one in event.moved if is_read(one, event.sources)]
    if moved and (event.raised or event.repeated or all(one.is_statistics for one in event.writes)):
        return _differs(event, moved)
    clobber = Clobber(event.save, event.writes, event.read, event.save.version)
    writes = [replace(one, via="operator") if one.op == _DETACHES else one for one in overlapping(clobber)]
    if event.repeated and (event.is_guess or all(write.is_statistics for write in writes)):
        writes = [write for write in writes if not _is_only_counted(event, write)]
    writes.sort(key=lambda write: (not is_step(write), not _is_position(write.tensor)))
    if not writes and (drawn := _drawn(event)) is not None:
        return drawn
    differs = f"raises {event.raised}" if event.raised else "gives other bytes"
    headline, verb = f"a checkpointed region {differs} when backward runs it again", "overwrites it"
    if writes:
        what = subject(writes[0].tensor)
        reads = "may read" if event.is_guess and not _is_read(event, writes[0]) else "reads"
        headline = f"{writer_in_words(writes[0])} changes {what}, which a checkpointed region {reads} again in backward"
        verb = f"overwrites {name_in_words(writes[0].tensor, f'a tensor that the region {reads},')}"
        if writes[0].op == _DETACHES:
            verb = f"takes {name_in_words(writes[0].tensor, 'a tensor that the region reads')} out of the graph"
    computed = f"{name_in_words(event.save.tensor)} is computed here in forward, and again for backward"
    region = None if same_line(event.region, event.save.site) else event.region
    return story(
        headline,
        clobber,
        writes,
        notes=[_OTHER_WAY if event.raised else _AGAIN, *map(_in_words, moved)],
        helps=_cures(event, replace(clobber, writes=tuple(writes))),
        verb=verb,
        saved=known("save", event.save.site, computed),
        created=known("save", region, "the region is checkpointed here"),
    )


def _is_position(tensor: Tensor) -> bool:
    """Return True for one whole number: what a region counts in it says where it reads and writes all else."""
    return tensor.shape == () and tensor.dtype.startswith("int")


def _is_read(drift: Drift, write: Write) -> bool:
    """Return True if the file of the region reads what was written, by its name, in a line that does not write it."""
    place = place_of(drift.save.site or drift.region)
    lines = {one.site.line for one in drift.writes if one.site is not None}
    name = write.tensor.name or write_of(write.site).name  # by then only a variable of the region may have held it
    return place is not None and is_read_besides(place.file, name, lines)


_BY_OTHER_NAMES = ("buffers(", "state_dict(", "getattr(", "vars(", "__dict__")


def _is_only_counted(drift: Drift, write: Write) -> bool:
    """Return True for what both runs write, as batch norm its statistics, and nothing in the region's file reads."""
    row = write_of(write.site).statement
    is_alone = write.is_statistics or isinstance(row, ast.Expr | ast.AugAssign)
    place = place_of(drift.save.site or drift.region)
    text = source_text(place.file.path) if place is not None else "vars("
    return is_alone and not _is_read(drift, write) and not any(one in text for one in _BY_OTHER_NAMES)


def _differs(drift: Drift, moved: list[Moved]) -> Finding:
    """The finding for a plain value that differs in the second run, the first of `moved`."""
    near = dict.fromkeys(site.span().path for site in (drift.region, drift.read.site) if site is not None)
    one, span = moved[0], assignment(moved[0], drift.sources, tuple(near))
    again = "when backward runs it again"
    headline = f"`{one.name}`, which a checkpointed region reads, is {one.now} {again} and was {one.was} in forward"
    if drift.raised:
        headline = f"a checkpointed region raises {drift.raised} {again}: `{one.name}` is {one.now}, and was {one.was}"
    labels = [
        *known("create", drift.region, "the region is checkpointed here"),
        *([label_at("write", span, f"`{one.name}` changes here: {one.was} in forward, {one.now} now")] if span else ()),
        *read_label(drift.read, verb="runs the region again"),
    ]
    changed = "" if span else "; noclobber did not see which line changed it"
    notes = [
        f"checkpoint runs the region again in backward, where `{one.name}` is {one.now}{changed}",
        *map(_in_words, moved[1:]),
    ]
    return account(headline, labels, notes=notes, helps=_PLAIN, cause=Cause.MOVED)


def _drawn(drift: Drift) -> Finding | None:
    """The finding where the function that computes calls `next` before: each run of the region takes one more value."""
    place = place_of(drift.save.site)
    scope = place.file.scope(place.node) if place is not None else None
    drawn = [one for one in calls(scope, "next") if isinstance(one.func, ast.Name) and one.args and dotted(one.args[0])]
    drawn = [one for one in drawn if place is not None and starts(one) < starts(place.row)]
    if place is None or not drawn:
        return None
    of = place.file.source(drawn[0].args[0])
    labels = [
        *known("create", drift.region, "the region is checkpointed here"),
        label_at("write", place.file.span(drawn[0]), "each run of the region takes the next value here"),
        *known(
            "save", drift.save.site, f"{name_in_words(drift.save.tensor)} is not the same when it is computed again"
        ),
        *read_label(drift.read, verb="runs the region again"),
    ]
    headline = f"a checkpointed region takes another value from `{of}` when backward runs it again"
    helps = [
        f"call `next({of})` before the region, and give `checkpoint` the value as an argument: both runs get the same"
    ]
    return account(headline, labels, notes=[_AGAIN], helps=helps, cause=Cause.MOVED)


def _in_words(moved: Moved) -> str:
    return f"`{moved.name}` was {moved.was} in forward and is {moved.now} now"


_PLAIN = (
    "give the region the value as an argument of `checkpoint`: both runs get the same arguments; change the "
    "attribute or variable outside of the region",
    Suggestion("or change it after the last backward that runs the region again", cure=Cure.LATER),
)


def _kept(clobber: Clobber) -> Finding:
    """The finding for a write to a tensor that the policy of a selective checkpoint keeps."""
    save, found = clobber.save, overlapping(clobber) or clobber.writes
    # A result may have a version counter of its own, apart from that of what it is a view of (a batched `matmul`).
    writes = [replace(one, via="operator") if ".data" not in words_at(one.site) else one for one in found]
    name = spelled(save.tensor, save.site) if save.tensor.name else "what is computed"
    silent = (
        "the write moves another version counter than the one that checkpoint compares, or checkpoint compares none"
    )
    return story(
        "in-place write to a tensor that a selective checkpoint keeps for backward",
        clobber,
        writes,
        notes=[_TAKEN, *[f"PyTorch raises nothing: {silent}"] * (not clobber.raised)],
        saved=known("save", save.site, f"the policy of the checkpoint keeps {name} here"),
    )


def _stopped(event: Drift) -> Finding:
    """The finding for a second run that ended before the last operator filled what it had saved."""
    save, node = event.save, node_in_words(event.save.node)
    return story(
        f"a checkpointed region stops too early when it runs again: the `{save.field}` of {node} is not filled",
        Clobber(save, (), event.read, save.version),
        (),
        notes=[
            "checkpoint runs the region again in backward, and stops it as soon as everything is saved; "
            f"{node} saves its `{save.field}` before it fills it, so backward reads memory that was never written"
        ],
        helps=(
            "let the region run to its end: `early_stop=False`",
            "or, where a library calls checkpoint: run the forward inside "
            "`torch.utils.checkpoint.set_checkpoint_early_stop(False)`",
        ),
        saved=known("save", save.site, f"{node} keeps its `{save.field}` here, and fills it afterwards"),
    )


def _cures(drift: Drift, clobber: Clobber) -> Sequence[Help]:
    if not clobber.writes:
        region = place_of(drift.region)
        call = region.node if region is not None else None
        if isinstance(call, ast.Call) and is_given(call, "preserve_rng_state", False):
            return ("let checkpoint restore the random state: `preserve_rng_state=True`",)
        return (
            "the region must compute the same when it runs again: no counters, no globals that change",
            "draw random numbers with torch's own generator: `preserve_rng_state=True` restores it",
        )
    write = clobber.writes[0]
    if write.op == _DETACHES:
        name = write.tensor.name or "t"
        return (f"use `{name}.detach()` for what comes later: `{name}` itself stays in the graph",)
    # The help is about the tensor that was written, which is not the tensor that differs.
    about = replace(clobber, save=replace(clobber.save, tensor=write.tensor))
    if is_step(write):
        return step_cures(about, replace(write, nested=write.nested or drift.reentrant))
    if write.tensor.kind == "parameter":
        return ()
    # No edit: the region that reads a name, or an attribute, reads what is bound to it when it runs again.
    return (
        Suggestion(
            "make this change after the last backward that runs the region again; a change that the region makes "
            "itself happens twice",
            cure=Cure.LATER,
        ),
        Suggestion(
            "or, where the region only reads the tensor, give it a clone as an argument of `checkpoint`",
            cure=Cure.CLONE_ARGUMENT,
        ),
    )
