"""What to do about a clobber. It depends on the text of the write, the operator, the tensor and where it ran."""

from __future__ import annotations

import ast

from noclobber.model.clobber import Clobber
from noclobber.model.events import Write
from noclobber.model.finding import Cure, Suggestion
from noclobber.model.operators import ACTIVATIONS, RANDOM_FILLS, SMOOTH
from noclobber.model.source import Site
from noclobber.rules.shared.causes import overlapping
from noclobber.rules.shared.labels import later, same_line
from noclobber.rules.shared.stepping import inside_backward, spelled_call
from noclobber.rules.shared.wording import is_custom, name_in_words, op_in_words
from noclobber.rules.shared.writetext import (
    by_iteration,
    fills_by_loop,
    form,
    is_rebindable,
    masked,
    only_for_caller,
    part_of,
    target_of,
    text_at,
    words_at,
)
from noclobber.syntax.names import dotted
from noclobber.syntax.tree import statement_of
from noclobber.syntax.writes import Form, base_of

_WHOLE = RANDOM_FILLS | {"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"}
_ACTIVATIONS = {f"{name}_" for name in ACTIVATIONS | SMOOTH} | {"clamp_min_"}


def cures(clobber: Clobber) -> tuple[Suggestion, ...]:
    """Return the helps that fit, the likeliest first."""
    write = next(iter(overlapping(clobber)), None)
    if write is None:
        return (Suggestion('stop at the write itself: `with noclobber.watch(on_write="raise"):`'),)
    if clobber.save.unchecked == "packed":
        return (
            Suggestion("let the pack hook return memory of its own for each save: `tensor.clone()`, or a new buffer"),
        )
    if not write.in_forward:
        return _in_backward(clobber, write)
    if write.untracked:
        return _question(write)
    library = write.site is not None and write.site.inside is not None and form(write.site) is Form.CALL
    if write.site is not None and library and not same_line(write.site, clobber.save.site):
        return _of_library(clobber, write, write.site)
    if write.via == "set_data":
        return (
            Suggestion(
                "give the new tensor its own name, or assign to `.data` after the last backward", cure=Cure.LATER
            ),
        )
    if write.via == "swap":
        return (Suggestion("swap the tensors after the last backward that needs them", cure=Cure.LATER),)
    if write.via == "data":
        return _alias(clobber, write)
    if op_in_words(write.op) == "embedding_renorm_":
        return (
            Suggestion(
                "read a copy where `max_norm` rewrites rows: `weight.clone()`, or embed once and reuse the result",
                cure=Cure.CLONE_FOR_READER,
            ),
        )
    if clobber.save.tensor.kind == "parameter" or ".grad" in words_at(write.site):
        return _AVERAGE if _averages(write) else _parameter(write)
    if clobber.save.tensor.kind == "buffer":
        return _buffer(clobber, write)
    return _activation(clobber, write)


def _question(write: Write) -> tuple[Suggestion, ...]:
    name = dotted(base_of(target_of(write.site))) or write.tensor.name or "h"
    unchanged = f"`{name} = {name} + (new - {name}).detach()`"
    return (
        Suggestion(
            "autograd does not see this write: decide whether it is part of the function or the gradient should "
            "ignore it"
        ),
        Suggestion(
            f"if it is part of the function, write out of place with gradients on; if not, {unchanged}",
            cure=Cure.OUT_OF_PLACE,
        ),
    )


def _is_rebindable(clobber: Clobber, write: Write) -> bool:
    """Return True if the statement could bind a new tensor instead of writing into the old one.

    For `h[i] += e` only where `h` is a list: for a tensor, `h[i] = h[i] + e` writes in place again.
    """
    target = target_of(write.site)
    if not is_rebindable(write.site) or not isinstance(target, ast.Subscript) or form(write.site) is Form.FLAG:
        return is_rebindable(write.site)
    line = write.site.line if write.site else 0
    stored = any(
        op_in_words(one.op) in ("copy_", "fill_", "index_put_") and one.site and one.site.line == line
        for one in clobber.writes
    )
    return not stored and write.tensor.nbytes >= clobber.save.tensor.nbytes


def _in_backward(clobber: Clobber, write: Write) -> tuple[Suggestion, ...]:
    if clobber.save.tensor.kind == "parameter":
        return inside_backward(write, "change the weights")
    where = "this `backward`" if is_custom(clobber.save.node) else "this hook or `backward`"
    return (
        Suggestion(f"return a new tensor from {where} and leave the saved tensor unchanged", cure=Cure.OUT_OF_PLACE),
    )


def _of_library(clobber: Clobber, write: Write, call: Site) -> tuple[Suggestion, ...]:
    """Return the help for a write inside a library: it is about the program's own line, which calls the library."""
    if op_in_words(write.op) in _ACTIVATIONS:
        return (Suggestion("build this module with `inplace=False`", cure=Cure.FLAG),)
    what, read = spelled_call(call, "the call"), clobber.read.site
    below = read is not None and read.code is call.code and call.lasti < read.lasti and read.line > call.line
    after = f"below line {read.line}" if below and read else "below the last backward that needs these values"
    alone = isinstance(statement_of(call), ast.Expr)
    if clobber.save.tensor.kind == "tensor":
        name = clobber.save.tensor.name or "t"
        return (
            Suggestion(f"give {what} a clone, or keep one for the forward: `{name}.clone()`", cure=Cure.CLONE_ARGUMENT),
            *[Suggestion(f"or move {what} {after}")] * alone,
        )
    if not alone:
        return (
            Suggestion(f"run the backward that needs the old values before {what}"),
            Suggestion("or make this call on a copy of the module: `copy.deepcopy`"),
        )
    return (
        Suggestion(f"move {what} {after}"),
        Suggestion("or run the forward after it, so that backward reads the new values"),
    )


def _alias(clobber: Clobber, write: Write) -> tuple[Suggestion, ...]:
    if clobber.save.tensor.kind == "parameter" and _averages(write):
        return _AVERAGE
    if clobber.save.tensor.kind == "parameter":
        words = (
            "change the weights after the last backward that needs them, under `torch.no_grad()`, not through `.data`"
        )
        return (Suggestion(words, cure=Cure.LATER),)
    return (
        Suggestion(
            "write out of place: autograd does not see a write through `.data`, but backward still reads the changed "
            "values",
            cure=Cure.OUT_OF_PLACE,
        ),
    )


def _parameter(write: Write) -> tuple[Suggestion, ...]:
    op, text = op_in_words(write.op), words_at(write.site)
    again = "or run the forward again after it"
    if "clamp" in op:
        return (Suggestion(f"clip the weights after the last backward that needs them, {again}", cure=Cure.LATER),)
    if ".grad" in text or op in ("sub_", "_foreach_sub_"):
        return (
            Suggestion(
                f"update the weights after the last backward that needs them, {again}, or detach what does not need it",
                cure=Cure.LATER,
            ),
        )
    return (Suggestion(f"change the weights after the last backward that needs them, {again}", cure=Cure.LATER),)


def _averages(write: Write) -> bool:
    """Return True for the update of a moving average: `t.mul_(m).add_(s, alpha=1 - m)`, `t.lerp_(s, 0.01)`."""
    text = words_at(write.site)
    return "lerp_" in op_in_words(write.op) or ("mul_" in text and "add_" in text)


_AVERAGE = (
    Suggestion("update the moving average after the last backward of the iteration", cure=Cure.LATER),
    Suggestion(
        "or, if the output of the averaged model needs no gradient, run its forward inside `with torch.no_grad():`",
        cure=Cure.NO_GRAD,
    ),
)
"""A target mostly needs no gradient, and a forward without gradients saves nothing."""


def _buffer(clobber: Clobber, write: Write) -> tuple[Suggestion, ...]:
    target = target_of(write.site)
    name = text_at(write.site, target) if isinstance(target, ast.Attribute) else ""
    read_copy = Suggestion(f"or let the forward read a copy: `{name or 'buffer'}.clone()`", cure=Cure.CLONE_FOR_READER)
    if _is_rebindable(clobber, write):
        return (Suggestion("rebind the buffer instead of writing into it", cure=Cure.OUT_OF_PLACE), read_copy)
    return (
        Suggestion(
            f"rebind the buffer instead of writing into it: `{name or 'self.buffer'} = new`", cure=Cure.OUT_OF_PLACE
        ),
        read_copy,
    )


def _activation(clobber: Clobber, write: Write) -> tuple[Suggestion, ...]:
    op, kind = op_in_words(write.op), form(write.site)
    if kind is not Form.CALL and (function := only_for_caller(write.site)):
        words = (
            f"let `{function}` return a new tensor, and let its caller use that: only the caller reads what is written"
        )
        return (Suggestion(words, cure=Cure.OUT_OF_PLACE),)
    if kind is not Form.CALL and (part := part_of(write.site)):
        name, whole = part
        words = f"a new tensor for `{name}` alone would not reach it"
        return (
            Suggestion(
                f"make a new `{whole}` out of place: `{name}` is a part of it, and {words}", cure=Cure.OUT_OF_PLACE
            ),
        )
    if kind is Form.FLAG or op in _ACTIVATIONS:
        words = (
            f"let `{op.rstrip('_')}` write a new tensor"
            if kind is not Form.CALL
            else "build this module with `inplace=False`"
        )
        return (Suggestion(words, cure=Cure.FLAG),)
    if _is_rebindable(clobber, write):
        return (Suggestion("write out of place", cure=Cure.OUT_OF_PLACE),)
    if kind is Form.CALL:
        words = "let the module or function called here write out of place"
        return (Suggestion(words, cure=Cure.OUT_OF_PLACE),)
    if _indexed(write):
        return (_items(clobber, write, op),)
    if op in _WHOLE:
        return (_whole(clobber, write, op),)
    if by_iteration(write.site):
        return (
            Suggestion(
                "collect the new tensors in a list and use that list: assigning to the loop variable changes nothing "
                "outside of the loop",
                cure=Cure.OUT_OF_PLACE,
            ),
        )
    instead = f": `{op.rstrip('_')}` instead of `{op}`" if op else ""
    return (Suggestion(f"bind the result to a new name{instead}, or write into a clone", cure=Cure.CLONE_FIRST),)


def _whole(clobber: Clobber, write: Write, op: str) -> Suggestion:
    if op in RANDOM_FILLS:
        return Suggestion(
            "draw into a new tensor each time: `torch.randn_like`, `torch.rand_like`, `torch.empty_like(t)`",
            cure=Cure.OUT_OF_PLACE,
        )
    if clobber.save.site and write.site and later(clobber.save.site, write.site):
        return Suggestion(
            "take a new tensor in each iteration instead of reusing this one, or give the forward a clone",
            cure=Cure.CLONE_ARGUMENT,
        )
    target = target_of(write.site)
    name = text_at(write.site, target) if isinstance(target, (ast.Name, ast.Attribute)) else ""
    example = f": `{name} = new`" if name else ""
    return Suggestion(
        f"bind the new value to the name instead of writing it into this tensor{example}", cure=Cure.OUT_OF_PLACE
    )


def _items(clobber: Clobber, write: Write, op: str) -> Suggestion:
    """For `h[i] = e`: a choice of values for a mask, a list and a stack in a loop, a clone otherwise."""
    target = target_of(write.site)
    owner = target.value if isinstance(target, ast.Subscript) else None
    base = text_at(write.site, owner) if isinstance(owner, (ast.Name, ast.Attribute, ast.Subscript)) else ""
    named = f"`{base}`" if base else name_in_words(clobber.save.tensor)
    if chosen := masked(write.site, base or "h"):
        return Suggestion(f"choose instead of writing: {chosen} makes a new tensor", cure=Cure.OUT_OF_PLACE)
    if fills_by_loop(write.site):
        return Suggestion("collect the parts in a list and `torch.stack` or `torch.cat` them after the loop")
    if op in ("masked_fill_", "masked_scatter_"):
        return Suggestion(
            f"choose instead of writing: `torch.where(mask, new, {base or 'old'})` makes a new tensor",
            cure=Cure.OUT_OF_PLACE,
        )
    cloned = f"`{base} = {base}.clone()`" if base else "clone it"
    return Suggestion(f"write into a clone: {cloned} before this assignment to {named}", cure=Cure.CLONE_FIRST)


def _indexed(write: Write) -> bool:
    return isinstance(target_of(write.site), ast.Subscript) or form(write.site) is Form.ITEM
