"""What to do in words, for a write to what something later needs: a report shows them where no change is sound.

They depend on the facts of the write and on its text: who wrote, what kind of tensor it is, and whether a new tensor
would reach all that goes on with the old one.
"""

from __future__ import annotations

import ast
import re

from noclobber.mend.autograd.leaves import is_guarded
from noclobber.mend.scene import hides, is_of_constants, puts_back
from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Write
from noclobber.model.seen.operators import ACTIVATIONS, RANDOM_FILLS, SMOOTH
from noclobber.model.seen.silent import Drift, LostHook, Overwritten
from noclobber.model.source import Site
from noclobber.rules.shared.labels import later, same_line
from noclobber.rules.shared.stepping import inside_backward, spelled_call
from noclobber.rules.shared.wording import is_custom, name_in_words, op_in_words
from noclobber.rules.shared.writetext import by_iteration, fills_by_loop, is_rebindable, passing_through, write_of
from noclobber.syntax.names import called, calls, dotted, gone_through, is_read_again, is_read_below, keyword, targets
from noclobber.syntax.writes import (
    Form,
    WriteSyntax,
    is_average,
    is_number,
    mask_of,
    seen,
    viewed_by,
    writes_for_caller,
)

_WHOLE = RANDOM_FILLS | {"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"}
_ACTIVATIONS = {f"{name}_" for name in ACTIVATIONS | SMOOTH} | {"clamp_min_"}
_AVERAGE = (
    Suggestion("update the moving average after the last backward of the iteration", cure=Cure.LATER),
    Suggestion(
        "or, if the output of the averaged model needs no gradient, run its forward inside `with torch.no_grad():`",
        cure=Cure.NO_GRAD,
    ),
)
"""A target mostly needs no gradient, and a forward without gradients saves nothing."""
_ASIDE = {
    "packed": "let the pack hook return memory of its own for each save: `tensor.clone()`, or a new buffer",
    "set_data": "give the new tensor its own name, or assign to `.data` after the last backward",
    "swap": "swap the tensors after the last backward that needs them",
    "embedding_renorm_": "read a copy where `max_norm` rewrites rows: `weight.clone()`, or embed once and reuse the "
    "result",
}
"""By the way of the save, or of the write, or by its operator."""


def worded(finding: Finding) -> tuple[Suggestion, ...]:
    """Return what the rule of a finding says to do, or else what its write calls for, the likeliest first."""
    event = finding.event
    if finding.suggestions or not isinstance(event, (Clobber, Drift, Overwritten, LostHook)):
        return finding.suggestions
    write = next((one for one in sorted(finding.writes, key=lambda one: one.order) if one.overlaps), None)
    if write is None:
        return (Suggestion('stop at the write itself: `with noclobber.watch(on_write="raise"):`'),)
    words = _Words(finding, write).all()
    if isinstance(event, LostHook):
        return (*words, Suggestion("or register the hook after the write"))
    if isinstance(event, Overwritten):
        clone = "or let the write take a clone, so that this tensor keeps its value"
        return (*words, Suggestion(clone, cure=Cure.CLONE_FIRST))
    if finding.save is not None and finding.save.unchecked == "ctx" and write.via == "operator":
        return (*words, Suggestion("keep it with `ctx.save_for_backward`, so that PyTorch notices such a write"))
    return words


class _Words:
    """A finding, its first write, and the text of that."""

    def __init__(self, finding: Finding, write: Write) -> None:
        self.finding, self.write, self.text = finding, write, write_of(write.site)
        self.op, self.form, self.statement = op_in_words(write.op), self.text.form, ast.unparse(self.text.statement)
        about = write.tensor if isinstance(finding.event, Drift) or finding.tensor is None else finding.tensor
        self.kind = about.kind

    def all(self) -> tuple[Suggestion, ...]:
        save, write = self.finding.save, self.write
        if save is not None and save.unchecked in _ASIDE:
            return (Suggestion(_ASIDE[save.unchecked]),)
        if not write.in_forward:
            return self._in_backward()
        if write.untracked:
            return self._question()
        inside = write.site is not None and write.site.inside is not None and self.form is Form.CALL
        if write.site is not None and inside and not same_line(write.site, save.site if save is not None else None):
            return self._of_library(write.site)
        if aside := _ASIDE.get(write.via) or _ASIDE.get(self.op):
            cure = Cure.CLONE_FOR_READER if write.via not in _ASIDE else Cure.LATER
            return (Suggestion(aside, cure=cure),)
        is_trained = self.kind == "parameter" or (save is not None and save.is_leaf)
        if is_trained or (write.via != "data" and self.takes_gradient):
            return self._of_weights()
        if write.via == "data" and not (save is not None and save.is_constant):
            words = "write out of place: autograd does not see a write through `.data`, but backward still reads the "
            return (Suggestion(f"{words}changed values", cure=Cure.OUT_OF_PLACE),)
        if write.via == "data" and hides(self.text.target) and not is_of_constants(self.text):
            words = "write out of place, and detach what is written: through `.data` no gradient flows into it"
            return (Suggestion(words, cure=Cure.OUT_OF_PLACE),)
        return self._of_buffer() if self.kind == "buffer" else (self._of_activation(),)

    @property
    def takes_gradient(self) -> bool:
        """Whether the text reads a `.grad`; `autograd.grad` is a call."""
        return re.search(r"(?<!autograd)\.grad\b", self.statement) is not None

    def _source(self, *kinds: type[ast.expr]) -> str:
        """The text of what is written, without `.data`, if it is of one of the kinds."""
        return seen(self.text.file.source(self.text.target)) if isinstance(self.text.target, kinds) else ""

    def _in_backward(self) -> tuple[Suggestion, ...]:
        if self.kind == "parameter":
            return inside_backward(self.write, "change the weights")
        save = self.finding.save
        where = "this `backward`" if save is not None and is_custom(save.node) else "this hook or `backward`"
        words = f"return a new tensor from {where} and leave the saved tensor unchanged"
        return (Suggestion(words, cure=Cure.OUT_OF_PLACE),)

    def _question(self) -> tuple[Suggestion, ...]:
        name = self.text.name or self.write.tensor.name or "h"
        unchanged = passing_through(name, self.text, aliased=self.write.via == "data")
        asked = "decide whether it is part of the function or the gradient should ignore it"
        part = f"if it is part of the function, write out of place with gradients on; if not, {unchanged}"
        return (Suggestion(f"autograd does not see this write: {asked}"), Suggestion(part, cure=Cure.OUT_OF_PLACE))

    def _of_library(self, call: Site) -> tuple[Suggestion, ...]:
        """The help for a write inside a library: it is about the program's own line, which calls the library."""
        if self.op in _ACTIVATIONS:
            return (self._of_module(),)
        what, event = spelled_call(call, "the call"), self.finding.event
        read = event.read.site if isinstance(event, Clobber) else None
        below = read is not None and read.code is call.code and call.lasti < read.lasti and read.line > call.line
        after = f"below line {read.line}" if below and read else "below the last backward that needs these values"
        alone = isinstance(self.text.statement, ast.Expr)
        if self.kind == "tensor":
            name = (self.finding.tensor and self.finding.tensor.name) or "t"
            words = f"give {what} a clone, or keep one for the forward: `{name}.clone()`"
            return (Suggestion(words, cure=Cure.CLONE_ARGUMENT), *[Suggestion(f"or move {what} {after}")] * alone)
        if not alone:
            return (
                Suggestion(f"run the backward that needs the old values before {what}"),
                Suggestion("or make this call on a copy of the module: `copy.deepcopy`"),
            )
        return (
            Suggestion(f"move {what} {after}"),
            Suggestion("or run the forward after it, so that backward reads the new values"),
        )

    def _of_module(self) -> Suggestion:
        """The help for a module that works in place. What it is given may be read below as what it has made of it."""
        call, row = self.text.node, self.text.statement
        name = dotted(call.args[0]) if isinstance(call, ast.Call) and call.args else ""
        is_read = name not in ("", *map(dotted, targets(row))) and is_read_below(self.text.file, name, row)
        kept = f"; what reads `{name}` below then gets its old value" if is_read else ""
        return Suggestion(f"build this module with `inplace=False`{kept}", cure=Cure.FLAG)

    def _of_weights(self) -> tuple[Suggestion, ...]:
        if is_average(self.text.statement):
            return _AVERAGE
        is_weight = self.kind == "parameter" or self.takes_gradient
        what, them = ("the weights", "them") if is_weight else ("this leaf", "it")
        later, again = f"after the last backward that needs {them}", "or run the forward again after it"
        if self.write.via == "data":
            words = f"change {what} {later}, under `torch.no_grad()`, not through `.data`"
        elif self.takes_gradient or self.op in ("sub_", "_foreach_sub_"):
            words = f"update {what} {later}, {again}, or detach what does not need it"
        else:
            words = f"{'clip' if 'clamp' in self.op else 'change'} {what} {later}, {again}"
        return (Suggestion(words, cure=Cure.LATER),)

    def _of_buffer(self) -> tuple[Suggestion, ...]:
        name, words = self._source(ast.Attribute), "rebind the buffer instead of writing into it"
        words += "" if self._may_be_bound() else f": `{name or 'self.buffer'} = new`"
        return (
            Suggestion(words, cure=Cure.OUT_OF_PLACE),
            Suggestion(f"or let the forward read a copy: `{name or 'buffer'}.clone()`", cure=Cure.CLONE_FOR_READER),
        )

    def _may_be_bound(self) -> bool:
        """Return True if the statement could bind a new tensor instead of writing into the old one.

        For `h[i] += e` only where `h` is a list: for a tensor, `h[i] = h[i] + e` writes in place again.
        """
        write, site, saved = self.write, self.write.site, self.finding.tensor
        if not is_rebindable(self.text) or not self._source(ast.Subscript) or self.form is Form.FLAG:
            return is_rebindable(self.text)
        line = site.line if site is not None else 0
        return not puts_back(self.finding, [line]) and (saved is None or write.tensor.nbytes >= saved.nbytes)

    def _of_activation(self) -> Suggestion:
        op, text, is_call = self.op, self.text, self.form is Form.CALL
        if not is_call and (function := writes_for_caller(text)):
            words = f"let `{function}` return a new tensor, and let its caller use that: only the caller reads what is "
            return Suggestion(f"{words}written", cure=Cure.OUT_OF_PLACE)
        name, whole = text.name, "" if is_call else dotted(viewed_by(text))
        if whole not in ("", name) and is_read_again(text.file, whole, text.statement):
            words = f"`{name}` is a part of it, and a new tensor for `{name}` alone would not reach it"
            return Suggestion(f"make a new `{whole}` out of place: {words}", cure=Cure.OUT_OF_PLACE)
        if self.form is Form.FLAG or op in _ACTIVATIONS:
            words = f"let `{op.rstrip('_')}` write a new tensor"
            return self._of_module() if is_call else Suggestion(words, cure=Cure.FLAG)
        if self._may_be_bound():
            saved = self.finding.save
            leaves = is_guarded(text.file, text.statement) and not (saved is not None and saved.is_constant)
            where = ", with gradients on: under `no_grad` the new tensor would leave the graph" if leaves else ""
            return Suggestion(f"write out of place{where}", cure=Cure.OUT_OF_PLACE)
        if is_call:
            return Suggestion("let the module or function called here write out of place", cure=Cure.OUT_OF_PLACE)
        if self._source(ast.Subscript) or self.form is Form.ITEM:
            return self._of_items()
        if op in _WHOLE:
            return self._of_whole()
        if by_iteration(text):
            over = gone_through(text.file, text.statement, text.name)
            is_dict = over is not None and calls(over, "items", "values") != []
            words = f"collect the new tensors in a {'dict' if is_dict else 'list'} and use that: assigning to the loop "
            return Suggestion(f"{words}variable changes nothing outside of the loop", cure=Cure.OUT_OF_PLACE)
        if text.call is not None and keyword(text.call, "out") is not None:
            words = f"call `{called(text.call)}` without `out=`, which makes a new tensor"
            return Suggestion(f"{words}, or give it another one to fill each time", cure=Cure.OUT_OF_PLACE)
        if not op:
            return Suggestion("bind the result to a new name, or write into a clone", cure=Cure.CLONE_FIRST)
        words = f"bind the result to a new name: `{op.rstrip('_')}` instead of `{op}`"
        return Suggestion(words, cure=Cure.OUT_OF_PLACE)

    def _of_whole(self) -> Suggestion:
        save, site = self.finding.save, self.write.site
        if self.op in RANDOM_FILLS:
            words = "draw into a new tensor each time: `torch.randn_like`, `torch.rand_like`, `torch.empty_like(t)`"
            return Suggestion(words, cure=Cure.OUT_OF_PLACE)
        if save is not None and save.site and site and later(save.site, site):
            words = "take a new tensor in each iteration instead of reusing this one, or give the forward a clone"
            return Suggestion(words, cure=Cure.CLONE_ARGUMENT)
        name = self._source(ast.Name, ast.Attribute)
        words = "bind the new value to the name instead of writing it into this tensor"
        return Suggestion(words + (f": `{name} = new`" if name else ""), cure=Cure.OUT_OF_PLACE)

    def _of_items(self) -> Suggestion:
        """For `h[i] = e`: a choice of values for a mask, a list and a stack in a loop, a clone otherwise."""
        text, target = self.text, self.text.target
        owner = target.value if isinstance(target, ast.Subscript) else None
        base = seen(text.file.source(owner)) if isinstance(owner, (ast.Name, ast.Attribute, ast.Subscript)) else ""
        chosen = _masked(text, base or "h")
        if not chosen and fills_by_loop(text):
            return Suggestion("collect the parts in a list and `torch.stack` or `torch.cat` them after the loop")
        if not chosen and self.op in ("masked_fill_", "masked_scatter_"):
            chosen = f"`torch.where(mask, new, {base or 'old'})`"
        if chosen:
            return Suggestion(f"choose instead of writing: {chosen} makes a new tensor", cure=Cure.OUT_OF_PLACE)
        tensor = self.finding.tensor or self.write.tensor
        named = f"`{base}`" if base else name_in_words(tensor)
        words = f"`{base} = {base}.clone()`" if base else "clone it"
        return Suggestion(f"write into a clone: {words} before this assignment to {named}", cure=Cure.CLONE_FIRST)


def _masked(write: WriteSyntax, name: str) -> str:
    """What says the same as `h[mask] = e` and makes a new tensor: `masked_fill`, `clamp` or `torch.where`.

    Empty where the text does not show that the index is a mask.
    """
    mask, statement = mask_of(write), write.statement
    if mask is None:
        return ""
    text = write.file.source(mask)
    if not isinstance(statement, ast.Assign) or not is_number(statement.value):
        return f"`torch.where({text}, new, {name})`"
    number = write.file.source(statement.value)
    filled = f"`{name}.masked_fill({text}, {number})`"
    if not isinstance(mask, ast.Compare) or write.file.source(mask.left) != name:
        return filled
    bounds = {"min": (ast.Lt, ast.LtE), "max": (ast.Gt, ast.GtE)}
    same = [write.file.source(one) for one in mask.comparators] == [number]
    clamped = [f"`{name}.clamp({key}={number})`" for key, ops in bounds.items() if isinstance(mask.ops[0], ops)]
    return " or ".join([filled, *clamped]) if same else filled
