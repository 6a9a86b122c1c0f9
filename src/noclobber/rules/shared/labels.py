"""Labels of a clobber: saved here, overwritten here, read here, and the library line that did it; loops in words."""

from __future__ import annotations

import ast
import dis
import os
import re
from types import CodeType

from noclobber.model.reports.finding import Label, Role, label
from noclobber.model.seen.events import Read, Save, Tensor, Write
from noclobber.model.source import Owner, Site, cell_of, owner_of
from noclobber.rules.shared.wording import is_compiled, keeps, name_in_words, op_in_words, version_in_words
from noclobber.syntax.tree import statement_of

_NUMPY = ("numpy", "__array__", "from_numpy")
_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+?)(?:\.py)?(?:[/\\]|$)")


def known(role: Role, site: Site | None, text: str) -> tuple[Label, ...]:
    """Return the label of a site; empty where it is not known."""
    return () if site is None else (label(role, site, text),)


def save_label(save: Save) -> tuple[Label, ...]:
    """ "`h` is saved here: sigmoid keeps its result (version 0)"; empty where the site is not known."""
    why = f": {keeps(save)}" if save.node or save.field == "argument" else ""
    text = f"{spelled(save.tensor, save.site)} is saved here{why} (version {save.version})"
    return known("save", save.site, text)


def spelled(tensor: Tensor, site: Site | None, otherwise: str = "a tensor") -> str:
    """A tensor as the statement at a site spells it: "`self.cache`" of `net.blocks.0.cache`; else by its name."""
    name = (tensor.name or "").rpartition(".")
    found = statement_of(site) if name[0] else None
    for one in ast.walk(found) if found is not None else ():
        if isinstance(one, ast.Attribute) and one.attr == name[2] and isinstance(one.value, (ast.Name, ast.Attribute)):
            return f"`{ast.unparse(one)}`"
    return name_in_words(tensor, otherwise)


def write_label(write: Write, save: Save | None = None, *, verb: str = "overwrites it") -> tuple[Label, ...]:
    """ "`add_` overwrites it here (version 0 -> 1)", with the loop wording where the write precedes the save.

    Where only a window is known, the label is on its first line: the write is there or after it.
    """
    site = line_to_show(write)
    if site is None:
        return ()
    if write.since is not None and not same_line(write.since, write.site):
        until = f", before {where(write.site)}" if write.site is not None else ""
        text = f"{writer_in_words(write)} {verb} somewhere from here on{until}"
        return (label("write", site, text),)
    when = later(save.site, site) if save is not None and save.site is not None else ""
    aliased = write.via == "data" and not (save is not None and is_compiled(save.node))
    how = "through an alias with its own version counter" if aliased else ""
    place = ", ".join(part for part in ("here", when, how) if part)
    text = f"{writer_in_words(write)} {verb} {place}{version_in_words(write)}"
    return (label("write", site, text),)


def in_step(write: Write) -> tuple[Label, ...]:
    """The line that writes in the `step` of an optimizer of the user's own; empty for those of a library."""
    step = write.step.site if write.step is not None else None
    if step is None or write.site is None or write.since is not None or same_line(step, write.site):
        return ()
    if owner_of(write.site.code.co_filename) is not Owner.USER or not write.op.startswith("aten::"):
        return ()
    return (label("write", write.site, f"`{op_in_words(write.op)}` writes it here, in that step"),)


def read_label(read: Read, *, after: Site | None = None, verb: str = "reads it") -> tuple[Label, ...]:
    """ "backward reads it here, in SigmoidBackward0"; empty where the site is not known.

    `after` is the write before it: where the source has the read first, the loop wording says why.
    """
    if read.site is None:
        return ()
    when = later(after, read.site) if after is not None else ""
    place = ", ".join(part for part in ("here", when, read.node and f"in {read.node}") if part)
    return (label("read", read.site, f"{reader_in_words(read)} {verb} {place}"),)


def write_and_read(write: Write, read: Read, *, writes: str = "overwrites it", reads: str) -> tuple[Label, ...]:
    """Return the labels of a write and of the read after it, and of the library's line that wrote."""
    site = line_to_show(write)
    library = inside_label(site, f"{writer_in_words(write)} runs here")
    return (*write_label(write, verb=writes), *read_label(read, after=site, verb=reads), *library)


def inside_label(site: Site | None, text: str) -> tuple[Label, ...]:
    """The library's own line, where the user's line called into a library that did the work; else empty."""
    if site is None or site.inside is None:
        return ()
    package = _PACKAGE.search(site.inside.code.co_filename)
    return (label("inside", site.inside, f"{text}, inside {f'`{package[1]}`' if package else 'a library'}"),)


def line_to_show(write: Write) -> Site | None:
    """Return the line to show: the call of an optimizer's `step`, the start of a window, else the write."""
    if write.since is not None:
        return write.since
    return write.step.site if write.step is not None and write.step.site is not None else write.site


_WRITERS = {
    "step": "an optimizer step", "gathered": "an update of the shards", "set_data": "the assignment to `.data`",
    "data=": "the assignment to `.data`", "swap": "`swap_tensors`", "process": "another process",
}  # fmt: skip
"""By the way of a write, or its operator."""


def writer_in_words(write: Write) -> str:
    """ "`add_`", "`Adam.step`", "the assignment to `.data`", "`swap_tensors`"."""
    if write.step is not None:
        return f"`{write.step.optimizer}.step`"
    if write.via in _WRITERS or write.op in _WRITERS:
        return _WRITERS.get(write.via) or _WRITERS[write.op]
    if write.via == "foreign":
        return "numpy" if write.handed is not None and write.handed.by in _NUMPY else "code outside of torch"
    return f"`{op_in_words(write.op)}`" if write.op else "an operator"


def reader_in_words(read: Read) -> str:
    """ "backward", "`autograd.grad`", "this access"."""
    return {"backward": "backward", "grad": "`autograd.grad`", "access": "this access"}[read.call]


def same_line(one: Site | None, other: Site | None) -> bool:
    """Whether two sites lie on one line of one file."""
    if one is None or other is None:
        return False
    first, second = one.span(), other.span()
    return (first.path, first.line) == (second.path, second.line)


def later(first: Site, second: Site) -> str:
    """Say why `second`, which ran after `first`, is at or before it in the source.

    "in a later iteration" if a loop of that code holds both, "in a later call" if the function ran again. Empty
    if the source order is the order of time, or the code objects differ. Empty too if one call did both: that call may
    have run two modules, one after the other.
    """
    if first.code is not second.code or second.lasti >= first.lasti:
        return ""
    return "in a later iteration" if looped(first.code, second.lasti, first.lasti) else "in a later call"


def looped(code: CodeType, start: int, end: int) -> bool:
    """Whether a loop of `code` holds the instructions at both offsets: a jump back over them."""
    return any(
        "JUMP_BACKWARD" in one.opname and isinstance(one.argval, int) and one.argval <= start and end <= one.offset
        for one in dis.get_instructions(code)
    )


def where(site: Site | None) -> str:
    """ "line 12 of train.py"; "an unknown line" where the site is not known."""
    if site is None:
        return "an unknown line"
    span = site.span()
    return f"line {span.line} of {cell_of(span.path) or os.path.basename(span.path)}"


def subject(tensor: Tensor, kind: str = "") -> str:
    """ "the parameter `fc.weight`", "the buffer `bn.running_mean`", "`h`", "a tensor of shape (3,)"."""
    kind = kind or tensor.kind
    if kind == "tensor":
        return name_in_words(tensor)
    return f"the {kind} {name_in_words(tensor)}" if tensor.name else name_in_words(tensor, f"a {kind}")
