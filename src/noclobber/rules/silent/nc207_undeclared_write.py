"""NC207 undeclared-write: a custom operator or Function writes in place and does not say so

What happens
    An operator made with `torch.library` writes one of its arguments, but its schema says that it writes none
    (`mutates_args=()`). Or a custom `autograd.Function` writes its input without `ctx.mark_dirty`. Backward then
    uses changed bytes, or skips the Function, and nothing is raised.

Why
    PyTorch changes the version of the arguments that a schema declares as written. It gives an input a new place in
    the graph if `mark_dirty` names it. It never checks whether these declarations are true.

Example
    import torch

    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t.mul_(3)

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    Triple.apply(h)
    h.sum().backward()
    print(x.grad)  # gives 2, 2, 2; right is 6, 6, 6

Instead
    import torch

    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.mark_dirty(t)
            return t.mul_(3)

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    h = Triple.apply(h)
    h.sum().backward()
    print(x.grad)  # gives 6, 6, 6

Notes
    A Function that writes its input calls `ctx.mark_dirty(x)` and returns `x`. Without this call the input keeps
    its old place in the graph, and what is computed from it later skips the Function.
    An operator of `torch.library` names what it writes in `mutates_args`, or as `Tensor(a!)` in its schema. With a
    true declaration the write is an ordinary one, and PyTorch raises if backward needs the old bytes (NC101). Then
    give the operator a clone, or a tensor that no operation has saved.
"""

from __future__ import annotations

import ast

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.silent import Event, Undeclared
from noclobber.rules.shared.account import Help, account
from noclobber.rules.shared.causes import cause, overlapping
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.labels import inside_label, known, same_line, write_label, writer_in_words
from noclobber.rules.shared.story import story
from noclobber.rules.shared.wording import name_in_words
from noclobber.syntax.names import definition, names_in
from noclobber.syntax.tree import Place, place_of, walk
from noclobber.syntax.writes import write_at


def find(event: Event) -> Finding | None:
    """A clobber by an operator whose schema hides the write, or a Function that did not mark its input dirty."""
    if isinstance(event, Undeclared):
        return _function(event)
    if not isinstance(event, Clobber) or cause(event) != "undeclared":
        return None
    writes = sorted(overlapping(event), key=lambda write: write.via != "undeclared")
    return story(
        f"{writer_in_words(writes[0])} writes a tensor that backward still needs, and its schema does not say so",
        event,
        writes,
        notes=[
            f"the schema of {writer_in_words(writes[0])} says that it writes nothing, so no version is counted and "
            "PyTorch raises nothing",
            reason(event.save),
        ],
        helps=[
            'declare the write: `mutates_args={"x"}` with the name of the argument, `Tensor(a!)` in a schema',
            Suggestion(
                "and give the operator a clone, as backward needs the old bytes: `x.clone()`", cure=Cure.CLONE_ARGUMENT
            ),
        ],
    )


def _function(event: Undeclared) -> Finding:
    write, name = event.write, f"`{event.function}`"
    if event.beside:
        return _beside(event)
    call = None if same_line(event.call, write.site) else event.call
    labels = write_label(write, verb="writes the input") + known("create", call, f"{name} is applied here")
    library = inside_label(write.site, f"{writer_in_words(write)} runs here")
    what = name_in_words(write.tensor, "the input")
    who, saying = ("operator", "by its schema") if event.is_operator else ("Function", "without `mark_dirty`")
    leave = f"leave the input as it is, and let {name} write a new tensor"
    return account(
        f"the {who} {name} writes its input and does not say so: later gradients leave it out",
        (*labels, *library),
        notes=[f"{saying}, {what} keeps its old place in the graph: later gradients are as if {name} had not run"],
        helps=[Suggestion(leave, cure=Cure.OUT_OF_PLACE)] if event.is_operator else _meanings(event, leave),
    )


def _meanings(event: Undeclared, leave: str) -> list[Help]:
    """The help for a write to an input: declared first, but where the Function returns something else."""
    dirty = "call `ctx.mark_dirty` on the input, and return it"
    place = place_of(event.write.site)
    returned = list(walk(place.file.scope(place.node), ast.Return)) if place is not None else []
    if place is not None and returned and not any(_may_give(place, write_at(place).name, one) for one in returned):
        return [Suggestion(leave, cure=Cure.OUT_OF_PLACE), f"or, if the caller is to have what it writes: {dirty}"]
    return [dirty, Suggestion(f"or {leave}", cure=Cure.OUT_OF_PLACE)]


def _may_give(place: Place, name: str, row: ast.Return) -> bool:
    """Return True if a function may return what it has written: by its name, or by one that was bound to it."""
    given = names_in(row)
    bound = (definition(place.file, one, row) for one in walk(row, ast.Name))
    return name in given or any(isinstance(one, ast.Name) and one.id == name for one in bound)


def _beside(event: Undeclared) -> Finding:
    write, name = event.write, f"`{event.function}`"
    what = name_in_words(write.tensor, "a tensor")
    verb = f"writes the memory of {what}"
    labels = write_label(write, verb=verb) if write.op else known("write", write.site, f"{name} {verb} here")
    return account(
        f"{name} writes what an earlier call returned and does not say so: later gradients leave the write out",
        (*labels, *inside_label(write.site, f"{name} runs here")),
        notes=[
            f"both calls were given the same memory for their result; {what} keeps its place in the graph, so its "
            "gradient is as if this call had not run"
        ],
        helps=[
            "give each call memory of its own for its result, and join the results: `torch.cat`",
            "or pass the result of the earlier call, declare the write with `ctx.mark_dirty`, and return it",
        ],
    )
