"""NC206 grad-clobber: code that runs in backward writes into a gradient or a saved tensor that others still need

What happens
    A hook on a tensor or a module, or the `backward` of a custom Function, writes in place: into the gradient that it
    gets, or into a tensor that was saved. Another part of the graph gets the same tensor later, and computes with
    the changed values. Nothing is raised.

Why
    Autograd does not copy gradients: an addition passes the same tensor to both of its inputs, and other operations
    pass on a view of it. PyTorch compares no versions of gradients, and for saved tensors a write through `.data`
    changes none. The other branch may get the gradient before or after the write: this depends on the order in
    which the graph was built.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    a, b = x * 1, torch.ones(3, requires_grad=True) * 1
    b.register_hook(lambda g: g.mul_(10))
    ((a + b) * 2).sum().backward()
    print(x.grad)  # gives 20, 20, 20; right is 2, 2, 2

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    a, b = x * 1, torch.ones(3, requires_grad=True) * 1
    b.register_hook(lambda g: g * 10)
    ((a + b) * 2).sum().backward()
    print(x.grad)  # gives 2, 2, 2

Notes
    A hook that returns a new tensor replaces the gradient for its own tensor alone. In a `backward`, `grad_output`
    belongs to the caller: make new tensors, even if memory is short. A kernel that writes the gradient into the
    memory of a saved activation is only right if nothing else has saved that activation.
    A `backward` that computes in a buffer returns a clone of it: autograd takes a view of the buffer as it is, and the
    next run would overwrite the `.grad` that it has become.
    What `torch.autograd.grad` returns for both inputs of an addition is one tensor, too. A loop that scales each
    gradient in place, or a clip, scales it twice.
    Hooks on leaves that run after accumulation (`register_post_accumulate_grad_hook`) may write into `.grad`.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Write
from noclobber.model.seen.silent import Event, GradientWrite, SharedGradient
from noclobber.rules.shared.account import Help, account
from noclobber.rules.shared.causes import cause, overlapping
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.labels import (
    inside_label,
    known,
    line_to_show,
    same_line,
    write_and_read,
    write_label,
    writer_in_words,
)
from noclobber.rules.shared.story import story
from noclobber.syntax.names import dotted, is_read_below, is_stored, names_in, root_of
from noclobber.syntax.tree import COMPREHENSION, FOR, place_of, within
from noclobber.syntax.writes import write_at

_PASSED_ON = "autograd passes one gradient tensor to several parts of the graph, such as both inputs of an addition"

_NOT_COPIED = (
    "autograd does not copy what a backward returns: it becomes the `.grad` of a leaf, or what the next node gets"
)
_FOR_EACH = "overwrites that memory once for each gradient"
_SILENT = "PyTorch compares no versions of gradients, so it raises nothing"


def find(event: Event) -> Finding | None:
    """A write into a gradient, or one in backward into a saved tensor that PyTorch does not notice."""
    if isinstance(event, GradientWrite):
        return _gradient(event)
    if isinstance(event, SharedGradient):
        is_told = _spoils_another(event) if event.first else _is_for_each(event.write)
        return _shared(event) if is_told else None
    if not isinstance(event, Clobber) or cause(event) != "backward":
        return None
    notes = ["the write ran in backward and changed no version that PyTorch compares, so PyTorch raises nothing"]
    return story(
        "code that runs in backward overwrites a tensor that another part of backward still needs",
        event,
        overlapping(event),
        notes=[*notes, reason(event.save)],
    )


def _gradient(event: GradientWrite) -> Finding:
    if event.returned:
        return _returned(event)
    who, helps = _who(event), list[Help]()
    registered = None if same_line(event.registered, event.write.site) else event.registered
    hook = known("create", registered, "the hook is registered here")
    reads, words = f"runs {who}", "make a new tensor, and leave `grad_output` as it is"
    if event.by == "hook":
        reads, words = "runs the hook", "return a new gradient from the hook"
    else:
        helps = [Suggestion("or work on a copy: `grad = grad_output.clone()`", cure=Cure.CLONE_FIRST)]
    write = replace(event.write, version_before=None)  # not shown: nothing compares the versions of gradients
    return account(
        f"{who} writes into a gradient that another part of the graph still gets",
        [*hook, *write_and_read(write, event.read, writes="overwrites the gradient", reads=reads)],
        notes=[
            f"{_PASSED_ON}; parts that run later get the changed values",
            _SILENT,
        ],
        helps=[Suggestion(words, cure=Cure.OUT_OF_PLACE), *helps],
    )


def _returned(event: GradientWrite) -> Finding:
    who, write = _who(event), replace(event.write, version_before=None)
    return account(
        f"{who} writes again to memory in which it has returned a gradient that is still needed",
        write_and_read(write, event.read, writes="overwrites the gradient", reads=f"runs {who}"),
        notes=[_NOT_COPIED, _SILENT],
        helps=["return a new tensor each time, or a clone of the memory that is used again: `buffer.clone()`"],
    )


def _is_for_each(write: Write) -> bool:
    """Return True if a statement writes several gradients, as a loop over them does, and not one several times. A call
    of a library, or an operator for lists, is given them all."""
    place = place_of(write.site)
    if place is None or write.op.startswith("aten::_foreach_") or (write.site is not None and write.site.inside):
        return True
    file, target = place.file, write_at(place).target
    around = [one for one in file.around(place.node) if isinstance(one, (*FOR, *COMPREHENSION))]
    turns = [one for each in around for one in (each.generators if isinstance(each, COMPREHENSION) else [each])]
    return target is not None and any(names_in(target) & names_in(one.target) for one in turns)


def _spoils_another(event: SharedGradient) -> bool:
    """Return True if `ga, gb = torch.autograd.grad(...)` gives names to gradients in one memory, one is written, and
    another is read below, having got no other value."""
    made, written = place_of(event.read.site), place_of(event.write.site)
    row = made.row if made is not None else None
    names = row.targets[0].elts if isinstance(row, ast.Assign) and isinstance(row.targets[0], ast.Tuple) else []
    if made is None or written is None or made.file.scope(made.row) is not written.file.scope(written.row):
        return False
    file, scope, target = made.file, made.file.scope(made.row), root_of(write_at(written).target)
    shared = [one.id for place, one in enumerate(names) if place in event.first and isinstance(one, ast.Name)]
    stored = [one.id for one in within(scope, ast.Name) if is_stored(file, one)]
    others = [one for one in shared if one != dotted(target) and stored.count(one) == 1]
    return dotted(target) in shared and any(is_read_below(file, one, written.row) for one in others)


def _shared(event: SharedGradient) -> Finding:
    write, site = replace(event.write, version_before=None), line_to_show(event.write)
    labels = [
        *known("create", event.read.site, "gradients that share memory are returned here"),
        *write_label(write, verb="overwrites that memory" if event.first else _FOR_EACH),
        *inside_label(site, f"{writer_in_words(write)} runs here"),
    ]
    headline = "one statement writes several times into gradients that share memory"
    return account(
        "a write to one gradient changes another one, which shares its memory" if event.first else headline,
        labels,
        notes=[f"{_PASSED_ON}; `torch.autograd.grad` returns it for each of them", _SILENT],
        helps=[
            Suggestion(
                "give each gradient its own memory: `[one.clone() for one in torch.autograd.grad(...)]`",
                cure=Cure.OWN_ROWS,
            ),
            Suggestion("or make new tensors instead of writing into these", cure=Cure.OUT_OF_PLACE),
        ],
    )


def _who(event: GradientWrite) -> str:
    if event.by == "function":
        return f"the backward of `{event.name}`" if event.name else "the backward of a custom Function"
    named = event.name and not event.name.startswith("<")
    return f"the hook `{event.name}`" if named else "a hook"
