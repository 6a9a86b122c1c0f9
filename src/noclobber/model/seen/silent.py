"""Frozen records of other silent errors than a clobbered save: drift, gradient writes, lost hooks, stale casts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Refusal, Save, Tensor, Write
from noclobber.model.seen.hints import Hint
from noclobber.model.source import Site


@dataclass(frozen=True, slots=True)
class Moved:
    """A plain value that a checkpointed region reads and that differs in its second run.

    `name` is "cache.pos", `attribute` its last part, empty for an item of a list or dict. `was` and `now` say the value
    at the beginning of both runs: "0", "None", "a tensor", "another tensor", "2 long".
    """

    name: str
    attribute: str
    was: str
    now: str
    is_variable: bool = False
    """True for a variable: a global, or a name that the region's function closes over."""
    owner: str = ""
    """The name of the class of the object that holds the attribute, if known."""
    replaced: bool = False
    """True if that object is another one now."""
    rebound: bool = True
    """False if the attribute or variable still holds the same object, which itself has changed."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A checkpointed region ran again for backward and gave other bytes than in forward.

    `region` is the call of `checkpoint`; `save` the first tensor that differs (of a reentrant region an output), with
    the place in forward where it was saved; `writes` are those since then to what the region reads, when known. If all
    of them are its own, made in both runs, `repeated` is True. `moved` are plain values that differ, and `sources` the
    user's files that may set them. `unfilled`: the second run stopped after the save and before the operator had made
    what it saved.
    """

    region: Site | None
    save: Save
    writes: tuple[Write, ...]
    read: Read
    reentrant: bool = False
    unfilled: bool = False
    repeated: bool = False
    moved: tuple[Moved, ...] = ()
    sources: tuple[str, ...] = ()
    raised: str = ""
    """The name of the exception that the second run raised, if it did; `save` is empty then."""
    spoils: bool = False
    """The region had saved of the memory before it was written: without the checkpoint, that would be the fault."""
    is_guess: bool = False
    """The region could read what `writes` wrote, but saved nothing of it: perhaps it does not read it."""


@dataclass(frozen=True, slots=True)
class GradientWrite:
    """Code that runs in backward wrote into a gradient that another part of the graph still gets.

    `by` is what it was, `name` the name of the Function or of the hook's own function.
    """

    write: Write
    by: Literal["function", "hook"]
    name: str
    read: Read
    registered: Site | None = None
    """Where the hook was registered."""
    returned: bool = False
    """Whether it is a gradient that the same code has returned itself, in memory that it uses again."""


@dataclass(frozen=True, slots=True)
class SharedGradient:
    """`torch.autograd.grad` returned several gradients in one memory, and one statement wrote to it more than once, as
    if each were alone there. `read` is the call that returned them.

    `first`: it has written once by now. Then it is wrong only where another of these gradients, by their place in what
    was returned, is read later.
    """

    write: Write
    read: Read
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Undeclared:
    """A custom Function, or an operator, wrote an input that is in the graph, and did not say so with `mark_dirty`.

    `beside`: it wrote memory that it was given, and what an earlier call returned lies there too.
    """

    function: str
    write: Write
    call: Site | None
    """The `.apply` line."""
    beside: bool = False

    @property
    def is_operator(self) -> bool:
        """Whether an operator wrote, "mine::norm", which has no `ctx`."""
        return "::" in self.function


@dataclass(frozen=True, slots=True)
class Untracked:
    """A tensor in the graph got values that autograd does not know about, and backward then went through it.

    `how`: under `no_grad` or `inference_mode`, through `.data` or `.detach()`, by `t.data = u`, or by code outside of
    torch. `source` is what was written, where that itself is in a graph, which is cut off there; None where the write
    has its own derivative (`mul_`, `relu_`): it is left out. `is_balanced`: along some dimensions all elements changed
    by one amount, and the gradient with respect to the amounts is zero. `is_of_itself`: what was written is in the
    graph, and computed from the tensor itself.
    """

    write: Write
    how: Literal["no_grad", "inference_mode", "data", "detached", "assigned", "foreign"]
    tensor: Tensor
    read: Read
    source: Tensor | None = None
    is_balanced: bool = False
    is_of_itself: bool = False


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A gradient is taken with respect to a tensor that was overwritten: it is the gradient of the new value."""

    tensor: Tensor
    write: Write
    read: Read


@dataclass(frozen=True, slots=True)
class LostHook:
    """A tensor that is a view was overwritten, and the hooks that were registered on it before do not run any more."""

    tensor: Tensor
    hook: Site | None
    write: Write
    read: Read


@dataclass(frozen=True, slots=True)
class StaleCast:
    """A forward used autocast's cast of a leaf, `tensor`, that was made before a write changed the leaf.

    `cast` is where autocast made and kept it, `used` the forward that used it after the write.
    """

    tensor: Tensor
    dtype: str
    cast: Site | None
    write: Write
    used: Site | None
    read: Read


Event = (
    Clobber
    | Refusal
    | Drift
    | GradientWrite
    | SharedGradient
    | Undeclared
    | Untracked
    | Overwritten
    | LostHook
    | StaleCast
    | Hint
)
"""Whatever a rule may explain."""
