"""NC301 leaf-write: in-place write to a leaf tensor that requires grad

What happens
    A parameter, or another tensor made with `requires_grad=True`, is written in place while gradients are recorded.
    PyTorch refuses: "a leaf Variable that requires grad is being used in an in-place operation".

Why
    The gradient of a leaf belongs to the value that the program gave the leaf. After a recorded write the leaf
    would be the result of an operation. No tensor would hold the old value, and `.grad` would belong to nothing.

Example
    import torch

    weight = torch.ones(3, requires_grad=True)
    weight.prod().backward()
    weight -= 0.1 * weight.grad

Instead
    import torch

    weight = torch.ones(3, requires_grad=True)
    weight.prod().backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad

Notes
    Put updates by hand, weight clipping, moving averages and initialisations under `torch.no_grad()`: no gradient
    should flow through them. Start a sum of losses from a tensor that does not require grad, or do not write the
    sum in place.
    An activation can be a leaf too, made by `requires_grad_()` or by a library that fine-tunes. Write it out of
    place.
    `.data` hides this error, and it hides many useful errors with it.
    Older releases say "has been used" instead of "is being used". So does PyTorch if a custom Function calls
    `ctx.mark_dirty` on a leaf.
    A view is also called a leaf if it was taken before its base was written with a tracked value. Take each view
    right before you write to it.
"""

from __future__ import annotations

import ast
from functools import partial

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.refusing import APPLIED, Text, blamed, named, writes_it
from noclobber.rules.shared.wording import op_in_words
from noclobber.rules.shared.writetext import by_iteration, computes, words_at, write_of
from noclobber.syntax.names import called, differentiates
from noclobber.syntax.tree import place_of
from noclobber.syntax.writes import Form

_VIEWS = ("view", "split", "chunk", "unbind", "narrow", "select", "flatten", "reshape", "transpose", "permute")
_INITS = ("normal_", "uniform_", "fill_", "zero_", "copy_", "random_", "bernoulli_", "trunc_normal_", "fill_diagonal_")
_GUARD = "inside `with torch.no_grad():`"
_LEAF = "a leaf tensor that requires grad"
_WHY = "the gradient of a leaf belongs to its value in forward; a recorded write would replace that value"
_VIEW = "a view that was taken before its base was written with a tracked value counts as a leaf too"


def _headline(refusal: Refusal) -> str:
    return f"in-place write to {_LEAF if _perhaps_a_view(refusal) else named(refusal, _LEAF)}"


def _created(refusal: Refusal) -> str:
    return "the view is made here" if _of_a_view(refusal) else "the leaf is made here"


def _helps(refusal: Refusal) -> list[Help]:
    """What to do: the cause is read from the text of the write."""
    write, text = write_of(blamed(refusal)), words_at(blamed(refusal))
    form, op = write.form, op_in_words(refusal.op) if refusal.op else ""
    if refusal.carries_gradient and not refusal.of_itself and differentiates(write.file):
        new = "collect the new tensors, and go on with these" if by_iteration(write) else "go on with a new tensor"
        cut = "the program differentiates through this value, and `no_grad` would cut that"
        return [Suggestion(f"{new}: {cut}", cure=Cure.OUT_OF_PLACE)]
    parameter = refusal.tensor.kind == "parameter"
    if _perhaps_a_view(refusal):
        return ["take each view right before it is written, or put the parts together with `torch.cat`"]
    if not parameter and (form is Form.FLAG or _sums(text)):
        first = "start the sum from a tensor that does not require grad" if _sums(text) else "write a new tensor"
        return [Suggestion(f"{first}, with an operation out of place", cure=Cure.OUT_OF_PLACE)]
    guard = _update(op, text, parameter=parameter)
    if guard is not None:
        return [Suggestion(guard, cure=Cure.NO_GRAD)]
    guard = f"if no gradient should flow through the write, do it {_GUARD}"
    if parameter or form in (Form.CALL, Form.OTHER):
        return [Suggestion(guard, cure=Cure.NO_GRAD)]
    aside = Suggestion("write out of place, so that the gradient flows through", cure=Cure.OUT_OF_PLACE)
    return [aside, Suggestion(f"or, {guard}", cure=Cure.NO_GRAD)]


def _update(op: str, text: str, *, parameter: bool) -> str | None:
    """Return the help for writes that train or set up a model: no gradient should flow through them."""
    if "clamp" in op or "clamp_" in text or "clip_" in text:
        return f"clip the weights {_GUARD}"
    if "lerp_" in op + text or ("mul_(" in text and "add_(" in text):
        return f"update the moving average {_GUARD}, and give the averaged model `requires_grad_(False)`"
    if ".grad" in text or ("grad" in text and op in ("sub_", "add_", "_foreach_sub_", "_foreach_add_")):
        is_weight = parameter or ".grad" in text  # else it may be a sample, or an attack on one
        return f"update the weights {_GUARD}, or leave it to an optimizer" if is_weight else f"update it {_GUARD}"
    if op in _INITS or any(f".{name}(" in text for name in _INITS):
        return f"set the values {_GUARD}, or with a function of `torch.nn.init`"
    return None


def _sums(text: str) -> bool:
    """`total += loss`: a running sum."""
    statement = ast.parse(text).body[0] if text else None
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
        return False
    names = {getattr(node, "id", getattr(node, "attr", "")).lower() for node in ast.walk(statement)}
    return any(word in name for name in names for word in ("loss", "total", "sum", "acc", "cost"))


def _perhaps_a_view(refusal: Refusal) -> bool:
    """Return True if the tensor is, or may be, a view that counts as a leaf: no parameter, and a computed copy."""
    site = blamed(refusal)
    copied = "copy_(" in words_at(site) and computes(write_of(site))
    return refusal.tensor.kind != "parameter" and (copied or _of_a_view(refusal))


def _of_a_view(refusal: Refusal) -> bool:
    """Whether the so-called leaf was made by taking a view."""
    place = place_of(refusal.created)
    if refusal.tensor.kind == "parameter" or place is None:
        return False
    made = place.node
    return isinstance(made, ast.Subscript) or (isinstance(made, ast.Call) and called(made) in _VIEWS)


_text = partial(Text, headline=_headline, told=partial(writes_it, target="the leaf"), created=_created)
TEXTS = (
    _text(
        ["a leaf Variable that requires grad has been used in an in-place operation unless view of a leaf Variable"],
        helps=[Suggestion("give the Function a clone: `Function.apply(x.clone())`", cure=Cure.CLONE_ARGUMENT)],
        note="the Function marks this input dirty with `ctx.mark_dirty`, and the input is a leaf",
        surfaced=APPLIED,
    ),
    _text(
        ["a leaf Variable that requires grad is being used in an in-place operation unless view of a leaf Variable"],
        helps=_helps,
        note=lambda refusal: [_WHY, *[_VIEW] * _perhaps_a_view(refusal)],
    ),
)
