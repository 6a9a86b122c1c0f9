"""NC208 untracked-write: a tensor in the graph gets values that autograd does not know about

What happens
    A tensor that was computed from parameters is changed under `torch.no_grad()` or `torch.inference_mode()`, or
    through `.data` or `.detach()`, also by numpy, or it gets another tensor's values by `t.data = u`. The program goes
    on with it and calls backward. The gradient leaves the derivative of the change out. If the values were copied from
    another tensor, that tensor gets no gradient.

Why
    Autograd differentiates what it has recorded. Under `no_grad` and `inference_mode`, and for `.data` and `.detach()`,
    nothing is recorded: the values change, but the graph does not. PyTorch cannot know whether you meant that.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    with torch.no_grad():
        h.mul_(3)
    (h**2).sum().backward()
    print(x.grad)  # gives 24, 24, 24; right is 72, 72, 72

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    h = 2 * x
    h = h * 3
    (h**2).sum().backward()
    print(x.grad)  # gives 72, 72, 72

Notes
    Use `no_grad` for what no gradient should see: updates of weights, metrics, initial values. To use generated
    weights in a module: `torch.func.functional_call(module, {"weight": generated}, x)`. To adapt parameters in
    meta-learning: make new tensors (`w - lr * g` with `create_graph=True`), not `w.data -= lr * g`.
    If the gradient should pass as if nothing had happened (straight-through rounding, gradient tricks), write that
    down: `h = h + (h.round() - h).detach()`. noclobber does not report this form.
    A constant that is added changes no gradient: noclobber reports `h.data.add_(noise)` only where the source or the
    graph shows that the noise is computed from `h`, and the loss depends on how much is added.
    A parameter may take its first values from the graph, as ActNorm and variational strategies do. noclobber does not
    report that where no graph used the parameter before, and what the values were computed from gets its gradient in
    the same backward.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.silent import Event, Untracked
from noclobber.rules.shared.account import Help, account
from noclobber.rules.shared.foreign import meant_or_copied
from noclobber.rules.shared.labels import subject, write_and_read, writer_in_words
from noclobber.rules.shared.wording import name_in_words, op_in_words
from noclobber.rules.shared.writetext import passing_through, write_of
from noclobber.syntax.depending import depends_on
from noclobber.syntax.names import called, is_given, keyword, values
from noclobber.syntax.tree import place_of
from noclobber.syntax.writes import Form, WriteSyntax, write_at

SEVERITY = "warning"

_Shift = tuple[str, ast.operator, ast.expr]
"""The name of a tensor, whether something is added to it or taken from it, and what."""

_WHOLE = ("copy_", "data=", "set_", "index_put_", "masked_scatter_", "")
"""Operators that take the values of another tensor as they are."""
_SHIFTS = ("add_", "sub_", "index_add_", "scatter_add_")
"""Operators that add, whatever they are given."""
_ADDING = ("addcmul_", "addcdiv_", "addmm_", "addmv_", "addr_", "addbmm_", "baddbmm_")
"""Methods that add a product to what they write, or to `beta` times that."""
_WHERE = {
    "no_grad": "under `no_grad`",
    "inference_mode": "under `inference_mode`",
    "data": "through `.data`",
    "detached": "through `.detach()`",
    "assigned": "by `t.data = u`",
    "foreign": "by code outside of torch",
}


def find(event: Event) -> Finding | None:
    """The finding for a change that autograd did not record, to a tensor that backward then goes through."""
    if not isinstance(event, Untracked) or _only_shifts(event):
        return None
    what, cut = subject(replace(event.tensor, name=event.tensor.name or _as_written(event))), event.source is not None
    source = f"`{event.source.name}`" if event.source is not None and event.source.name else "the value written"
    headline = (
        f"{what} gets values from the graph {_WHERE[event.how]}: no gradient flows back to them"
        if cut
        else f"{what} is changed {_WHERE[event.how]}: the gradient leaves that out"
    )
    verb = (
        f"cuts {source} off its graph"
        if cut
        else f"changes {name_in_words(event.tensor) if event.tensor.name else 'it'}"
    )
    return account(
        headline,
        write_and_read(event.write, event.read, writes=verb, reads="goes through it"),
        notes=[_unrecorded(event)],
        helps=_cures(event),
    )


def _as_written(event: Untracked) -> str:
    """`x[:, 0]` of `x[:, 0] *= 2`: what a line writes, as it has it; empty where the line may give it to others that
    write. By the time of a backward no name may hold a view."""
    place = place_of(event.write.site)
    write = write_at(place) if place is not None and event.how != "foreign" else None
    if write is None or write.target is None:
        return ""
    of_call = called(write.call) == op_in_words(event.write.op)
    is_there = of_call if write.form is Form.METHOD else write.form in (Form.ITEM, Form.AUGMENTED, Form.FLAG)
    text = _text(write.target) if is_there else ""
    return text if len(text) <= _LONGEST else ""


_LONGEST = 40
"""Characters of what a headline says instead of a name."""


def _only_shifts(event: Untracked) -> bool:
    """Return True for a write that the source shows to add a constant, which does not change the gradient, and for one
    that adds what the source does not show.

    `h.data = h.data + (new - h).detach()` says that the gradient should pass unchanged, as the same does without
    `.data`.
    """
    op, place = op_in_words(event.write.op), place_of(event.write.site)
    may_add = event.how == "assigned" or op in (*_SHIFTS, *_ADDING, "index_put_")
    if event.source is not None or not may_add:
        return False
    if event.is_of_itself:
        return event.is_balanced
    adds = op in _SHIFTS
    if place is None:
        return adds
    shifts = list(_assigned(place.statement) if event.how == "assigned" else _added(write_at(place)))
    if not shifts:
        return adds
    return event.is_balanced or any(
        _is_way_to_another(one, target, op) or not depends_on(place.file, one, target, place.row)
        for target, op, one in shifts
    )


def _added(write: WriteSyntax) -> Iterator[_Shift]:
    """Yield what `h += e`, `h[i] += e`, `h.sub_(e)`, `h.addmm_(a, b)` and the like add or take."""
    row, call = write.statement, write.call
    if not write.name:
        return
    if call is None:
        if isinstance(row, ast.AugAssign) and isinstance(row.op, (ast.Add, ast.Sub)):
            yield write.name, row.op, row.value
        return
    adds = called(call) in (*_SHIFTS, *_ADDING) or is_given(call, "accumulate", value=True)
    if adds and values(call) and keyword(call, "beta") is None:
        op = ast.Sub() if called(call).startswith("sub") else ast.Add()
        yield write.name, op, ast.Tuple(values(call)) if len(values(call)) > 1 else values(call)[0]


def _assigned(row: ast.stmt | None) -> Iterator[_Shift]:
    """Yield what is added in `h.data = h + e` and in `h.data = e + h`, or taken in `h.data = h - e`."""
    if not isinstance(row, ast.Assign) or not isinstance(row.value, ast.BinOp):
        return
    target, sides = _text(row.targets[0]), [row.value.left, row.value.right]
    if isinstance(row.value.op, (ast.Add, ast.Sub)) and _text(sides[0]) == target:
        yield target, row.value.op, sides[1]
    if isinstance(row.value.op, ast.Add) and _text(sides[1]) == target:
        yield target, row.value.op, sides[0]


def _is_way_to_another(shift: ast.expr, target: str, op: ast.operator) -> bool:
    """Return True for `new - h`, which is added to `h`, and for `h - new`, which is taken from it."""
    shift = _bare(shift)
    if not isinstance(shift, ast.BinOp) or not isinstance(shift.op, ast.Sub):
        return False
    return _text(shift.right if isinstance(op, ast.Add) else shift.left) == target


def _text(node: ast.expr) -> str:
    return ast.unparse(_bare(node))


def _bare(node: ast.expr) -> ast.expr:
    """`h` for `h`, `h.data` and `h.detach()`."""
    node = node.func if isinstance(node, ast.Call) and not node.args else node
    return node.value if isinstance(node, ast.Attribute) and node.attr in ("data", "detach") else node


def _unrecorded(event: Untracked) -> str:
    where = _WHERE[event.how]
    if event.how == "foreign":
        return "torch does not see this write: backward goes on without its derivative"
    recorded = f"{where} nothing is recorded" if where.startswith("under") else f"a write {where} is not recorded"
    recorded = "an assignment to `.data` is not recorded" if event.how == "assigned" else recorded
    if event.source is not None:
        return f"{recorded}: backward treats the new values as constants and ends here"
    return f"{recorded}: backward goes on without the derivative of {writer_in_words(event.write)}"


def _cures(event: Untracked) -> Sequence[Help]:
    if event.how == "foreign":
        return meant_or_copied(event.write)
    if event.tensor.kind == "parameter":
        return (
            Suggestion(
                "compute with the new values as a tensor: `torch.func.functional_call(module, {name: new}, x)`",
                cure=Cure.OUT_OF_PLACE,
            ),
            Suggestion(
                "or make adapted weights out of place, `new = w - lr * g`, and use them in the loss",
                cure=Cure.OUT_OF_PLACE,
            ),
        )
    if event.source is not None and op_in_words(event.write.op) in _WHOLE:
        return (
            Suggestion(
                "assign the new tensor to the name (`h = new`), or use `torch.where(mask, new, old)`",
                cure=Cure.OUT_OF_PLACE,
            ),
            "or, if no gradient should flow there, take the value with `.detach()`",
        )
    name, text = event.tensor.name or "", write_of(event.write.site)
    meant = passing_through(name, text, aliased=event.how in ("data", "detached"))
    return (
        Suggestion("let autograd see it: compute the new value out of place", cure=Cure.OUT_OF_PLACE),
        Suggestion(f"or, if the gradient should pass unchanged, {meant}"),
    )
