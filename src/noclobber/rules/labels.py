"""Labels of a clobber: saved here, overwritten here, read here, and the library line that did it; loops in words."""

from __future__ import annotations

import dis
import os
import re
from types import CodeType

from noclobber.model.events import Read, Save, Tensor, Write
from noclobber.model.finding import Label, label
from noclobber.model.source import Site
from noclobber.rules.wording import keeps, name_in_words, op_in_words, version_in_words

_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+?)(?:\.py)?(?:[/\\]|$)")


def save_label(save: Save, *, primary: bool = False) -> tuple[Label, ...]:
    """ "`h` is saved here: sigmoid keeps its result (version 0)"; empty where the site is not known."""
    if save.site is None:
        return ()
    why = f": {keeps(save)}" if save.node else ""
    text = f"{name_in_words(save.tensor)} is saved here{why} (version {save.version})"
    return (label("save", save.site, text, primary=primary),)


def write_label(
    write: Write, save: Save | None = None, *, primary: bool = True, verb: str = "overwrites it"
) -> tuple[Label, ...]:
    """ "`add_` overwrites it here (version 0 -> 1)", with the loop wording where the write precedes the save."""
    site = site_of(write)
    if site is None:
        return ()
    when = later(save.site, site) if save is not None and save.site is not None else ""
    how = "through an alias with its own version counter" if write.via == "data" else ""
    place = ", ".join(part for part in ("here", when, how) if part)
    text = f"{writer_in_words(write)} {verb} {place}{version_in_words(write)}"
    return (label("write", site, text, primary=primary),)


def read_label(read: Read, *, after: Site | None = None, primary: bool = False) -> tuple[Label, ...]:
    """ "backward reads it here, in SigmoidBackward0"; empty where the site is not known.

    `after` is the write before it: where the source has the read first, the loop wording says why.
    """
    if read.site is None:
        return ()
    reader = {"backward": "backward", "grad": "`autograd.grad`", "access": "this access"}[read.call]
    when = later(after, read.site) if after is not None else ""
    place = ", ".join(part for part in ("here", when, read.node and f"in {read.node}") if part)
    return (label("read", read.site, f"{reader} reads it {place}", primary=primary),)


def inside_label(site: Site | None, text: str) -> tuple[Label, ...]:
    """The library's own line, where the user's line called into a library that did the work; else empty."""
    if site is None or site.inside is None:
        return ()
    return (label("inside", site.inside, f"{text}, inside {package_of(site.inside)}"),)


def package_of(site: Site) -> str:
    """ "`timm`" for a file of the installed package timm; "a library" where the path does not tell."""
    found = _PACKAGE.search(site.code.co_filename)
    return f"`{found[1]}`" if found else "a library"


def site_of(write: Write) -> Site | None:
    """Where a reader should look: for an optimizer the call of its `step`, else the write itself."""
    return write.step.site if write.step is not None and write.step.site is not None else write.site


def writer_in_words(write: Write) -> str:
    """ "`add_`", "`Adam.step`", "the assignment to `.data`", "`swap_tensors`"."""
    if write.step is not None:
        return f"`{write.step.optimizer}.step`"
    if write.via == "step":
        return "an optimizer step"
    if write.via == "set_data":
        return "the assignment to `.data`"
    if write.via == "swap":
        return "`swap_tensors`"
    if write.via == "foreign":
        return "code outside of torch"
    return f"`{op_in_words(write.op)}`"


def later(first: Site, second: Site) -> str:
    """How `second`, which ran after `first`, came to lie at or before it in the same code.

    "in a later iteration" where a loop of that code holds both, "in a later call" where the function ran again; empty
    where the source order is the order of time, or the code objects differ.
    """
    if first.code is not second.code or second.lasti > first.lasti:
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
    return f"line {span.line} of {os.path.basename(span.path)}"


def subject(tensor: Tensor, kind: str = "") -> str:
    """ "the parameter `fc.weight`", "the buffer `bn.running_mean`", "`h`", "a tensor of shape (3,)"."""
    kind = kind or tensor.kind
    if kind == "tensor":
        return name_in_words(tensor)
    return f"the {kind} {name_in_words(tensor)}" if tensor.name else name_in_words(tensor, f"a {kind}")
