"""NC303 multi-view-write: in-place write to one of several views that a single operation made

What happens
    `split`, `chunk` and `unbind` make several views in one operation, and so do `for row in t` and `a, b = t`. Then
    one of the views, or the tensor they were taken from, is written in place. PyTorch refuses: "Output 0 of Split
    is a view and is being modified inplace. This view is the output of a function that returns multiple views".

Why
    After a write to a view, autograd rebuilds the history of the view from its base. It can do so for an operation
    with one result, but not for one of several results.

Example
    import torch

    x = torch.ones(4, requires_grad=True) * 2
    left, right = x.chunk(2)
    left += 1

Instead
    import torch

    x = torch.ones(4, requires_grad=True) * 2
    left, right = x.chunk(2)
    left = left + 1

Notes
    A slice is a view with one result, so `x[:2] += 1` is accepted. `for row in t: row *= s` is refused, and
    `for i in range(len(t)): t[i] *= s` is accepted. `squeeze_`, `unsqueeze_` and `t_` count as writes.
    The error "its base or another view of its base has been modified inplace" comes later than the write: PyTorch
    raises it where the view is used again.
    A custom Function that returns several views of its input is refused too: return clones.
"""

from __future__ import annotations

import ast
from functools import partial

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.operators import SPLITS, TWIN_IS_VIEW
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.refusing import ASIDE, Text, blamed, writes_it
from noclobber.rules.shared.texts import A_VIEW, ITS_BASE
from noclobber.rules.shared.wording import op_in_words
from noclobber.rules.shared.writetext import by_iteration, is_rebindable, write_of
from noclobber.syntax.names import calls
from noclobber.syntax.tree import FOR


def _below(refusal: Refusal) -> list[Help]:
    clone = "clone them where they are made: `a, b = (part.clone() for part in x.split(2))`"
    aside = "write out of place, or " * is_rebindable(write_of(refusal.written), refused=True)
    return [
        Suggestion("make the views after the write, if they are to show it", cure=Cure.LATER),
        f"or, if they are to keep the old values: {aside}{clone}",
    ]


def _helps(refusal: Refusal) -> list[Help]:
    write = write_of(blamed(refusal))
    op = op_in_words(refusal.op) if refusal.op else ""
    if op in TWIN_IS_VIEW:
        return [f"use `{op.rstrip('_')}`, which leaves the view as it is"]
    if is_rebindable(write, refused=True):
        return [ASIDE]
    gone_through = [one.iter for one in write.file.around(write.node) if isinstance(one, FOR)]
    # The parts of `t.unbind(1)` may lie along another dimension than those of `t`.
    is_split = any(calls(one, *SPLITS) for one in gone_through)
    if by_iteration(write) and is_split:
        joined = "`torch.stack` after `unbind`, `torch.cat` after `split` and `chunk`"
        return [f"collect new parts in a list, and join them along the same dimension: {joined}"]
    if by_iteration(write) and any(isinstance(one, (ast.Tuple, ast.List)) for one in gone_through):
        return [Suggestion("bind the names to new tensors: `a, b = a.relu(), b.relu()`", cure=Cure.OUT_OF_PLACE)]
    if by_iteration(write):
        index = "index instead of iterating: `for i in range(len(t)): t[i] *= s`"
        return [index, Suggestion("or work on the whole tensor at once, out of place", cure=Cure.OUT_OF_PLACE)]
    return ["write to a slice of the base, `x[:n] += y`, or to a clone of the part"]


_text = partial(
    Text,
    note="one operation made several views; autograd cannot rebuild the history of one of them after a write",
    created="several views are made here",
)
_FORBIDDEN = (
    "Such functions do not allow the output views to be modified inplace. You should replace the inplace operation by "
    "an out-of-place one."
)
TEXTS = (
    _text(
        [f"{ITS_BASE} This view is the output of a function that returns multiple views. {_FORBIDDEN} unless created"],
        "in-place write to the base of several views that a single operation made",
        _below,
        told=partial(writes_it, target="the base of the views"),
    ),
    _text(
        [f"{A_VIEW} This view [is the output of a function that returns multiple views]. {_FORBIDDEN} unless created"],
        "in-place write to one of several views that a single operation made",
        _helps,
        told=partial(writes_it, target="one of them"),
    ),
)
