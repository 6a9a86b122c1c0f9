"""What happened in a program, as frozen records: Save, Write, Step, Read, Refusal. They are made when a finding is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from noclobber.model.seen.overlap import Region
from noclobber.model.source import Site

_ITEM_SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
Kind = Literal["parameter", "buffer", "tensor"]
Via = Literal[
    "operator", "step", "gathered", "data", "set_data", "swap", "unversioned", "undeclared", "foreign", "process"
]
"""How bytes changed: a counted operator, an optimizer step, a step of shards that were then gathered, a write through
`.data` or another alias with its own version counter, `t.data = u`, `swap_tensors`, an operator that bumps no counter,
an operator whose schema does not say that it writes, code that torch never saw (numpy, a kernel), or another
process."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a reader knows it. `name` is `h`, or `net.fc.weight`; None if no variable holds it any more."""

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    device: str = "cpu"
    name: str | None = None
    kind: Kind = "tensor"
    region: Region | None = None
    is_state: bool = False
    """Whether it is an attribute or a buffer, and in a graph, which whatever reads it next reaches."""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements; 0 where the element type is not a known one."""
        if self.region is not None:
            return self.region.nbytes
        return prod(self.shape) * _ITEM_SIZES.get(self.dtype.removeprefix("torch."), 0)


@dataclass(frozen=True, slots=True)
class Save:
    """Autograd kept a tensor for backward. `node` is "SigmoidBackward0", `field` "result", `self`, "mat2" ...

    `unchecked` says why autograd does not compare versions: saved-tensor hooks switch its check off ("packed": `tensor`
    is what the program's pack hook returned, on other memory than that of the saved tensor), and it does not see what a
    custom Function keeps as an attribute of its `ctx` (then `field` is "ctx.x", and `applied` is where the Function was
    called), nor what the policy of a selective checkpoint keeps (`node` is empty then). Of an argument that a
    checkpointed region keeps, `node` is empty and `field` is "argument".
    """

    node: str
    field: str
    tensor: Tensor
    version: int
    site: Site | None = None
    is_output: bool = False
    unchecked: Literal["", "hooks", "packed", "ctx", "policy"] = ""
    applied: Site | None = None
    is_constant: bool = False
    """Whether the tensor is known to require no gradient: a write that autograd does not see is hidden from nothing."""
    is_leaf: bool = False
    """Whether it is known to be a leaf that requires a gradient, as parameters are: a write to it is in no graph."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of an optimizer's `step`. `optimizer` is its class name. `is_of_torch`: no code of the program runs in
    it but a closure."""

    optimizer: str
    site: Site | None = None
    is_of_torch: bool = False


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One of the program's optimizers, as a function that leads to a read names it.

    `module` is the name of the module whose parameters are what it steps; empty if there is none. `is_apart`: it and
    the others have no parameter in common, each requires a gradient, and no variable holds it. `shares`: it has a
    parameter in common with another one. `touched` are the names of all modules that have a parameter which it steps.
    """

    name: str
    module: str = ""
    is_apart: bool = False
    shares: bool = False
    touched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handed:
    """A tensor's memory was handed to code that torch does not see. `by` is "numpy", "from_numpy" ..."""

    by: str
    site: Site | None = None


_INDEX = re.compile(r"\[[^\]]*\]")


def without_indexes(name: str) -> str:
    """Return "rows[]" for "rows[0]" and for "rows[i]"."""
    return _INDEX.sub("[]", name)


@dataclass(frozen=True, slots=True)
class Holder:
    """A name under which the program holds memory: `h`, `self.state`, `rows[0]`.

    `site` is where the frame stands whose variable the name begins with; None for a variable of the file. The name is
    empty for what cannot be bound to another tensor, as an item of a tuple, or a second item of one list.
    """

    name: str
    site: Site | None = None


MOST_CALLS = 8
"""Calls that a `Write` has; one more, the first, means that some between it and the others are left out."""
MOST_MODULES = 3
"""Modules that a `Write` has; so many mean that there may be others."""


@dataclass(frozen=True, slots=True)
class Write:
    """An operator, or foreign code, changed bytes of a storage. `op` is "aten::add_", and "" for foreign code;
    `overlaps` says whether the bytes written are among the bytes saved (exact for strided views; True where only the
    storage is known). `since` is set where the line is not known: the bytes were last seen whole there, and found
    changed at `site`. `handed` is how foreign code came by the memory, when known."""

    op: str
    site: Site | None = None
    order: int = 0
    via: Via = "operator"
    version_before: int | None = None
    version_after: int | None = None
    tensor: Tensor = field(default_factory=Tensor)
    overlaps: bool = True
    step: Step | None = None
    since: Site | None = None
    handed: Handed | None = None
    in_forward: bool = True
    """False where the write ran while a backward was under way: in a hook, a custom Function's backward, accumulation.
    True in a checkpointed region that backward ran again."""
    again: bool = False
    """True where such a region made it in its second run."""
    nested: bool = False
    """Whether that backward was called inside another, as a re-entrant checkpoint does."""
    untracked: bool = False
    """Whether autograd was kept from seeing it (`no_grad`, `.data`), though what it wrote is computed from leaves."""
    holders: tuple[Holder, ...] | None = None
    """All names under which the program held the written bytes when this line wrote; None if that is not known."""
    apart: tuple[Holder, ...] = ()
    """Variables that held tensors of other memory whenever this line was seen to write."""
    is_widest: bool = False
    """Whether no tensor that the line's variables lead to was seen to have a wider element type; False if not known."""
    modules: tuple[str, ...] = ()
    """The modules that were called when this line wrote, as far as it was seen: "net.blocks.0"."""
    calls: tuple[Site, ...] = ()
    """The calls that lead from the program's first line to this one, which is the last. Of writes in a row at one line,
    the first has them."""

    @property
    def is_statistics(self) -> bool:
        """Whether a batch norm in training mode rewrote its running statistics."""
        return "batch_norm" in self.op


@dataclass(frozen=True, slots=True)
class Read:
    """Backward unpacked a save, or would have. `call` is "backward", "grad", or "access" (a `_saved_*` attribute)."""

    node: str
    site: Site | None = None
    call: Literal["backward", "grad", "access"] = "backward"
    calls: tuple[Site, ...] = ()
    """As of a `Write`, where a step has written what it reads."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A state that carries an older graph along. `name` is what the program calls it: `net.cell.mem`, `states['v'][0]`.

    `kind` says what holds it last: a name, an attribute, an item of a list or dict, a tuple. `scopes` are where the
    functions begin whose text may assign it.
    """

    name: str
    kind: Literal["name", "attribute", "item", "tuple"] = "name"
    scopes: tuple[Site, ...] = ()
    variable: str = ""
    """A plain variable that holds it too; empty if there is none."""
    whole: Literal["", "list", "dict", "tuple"] = ""
    """For an item: what it is in, if that holds nothing but tensors."""
    is_renewed: bool = True
    """Whether it holds its next value by now, and not the tensor of the older graph, which may be made just once."""
    is_alone: bool = True
    """Whether nothing else that lasts holds the tensor."""
    grows: bool = False
    """Whether it is in a list that holds tensors of the newest graph beside it: nothing empties the list."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """PyTorch raised an error about an in-place operation. `message` is PyTorch's own, complete."""

    message: str
    site: Site | None = None
    op: str | None = None
    tensor: Tensor = field(default_factory=Tensor)
    created: Site | None = None
    """Where the forbidden view was made, when known."""
    saved: Site | None = None
    """Where the tensor concerned was saved, when known (a freed graph, a pack hook)."""
    saved_node: str | None = None
    written: Site | None = None
    """Where the write was, when the exception surfaced on another line."""
    call: Literal["write", "backward", "grad", "save", "access"] = "write"
    repeated_root: bool | None = None
    """For a freed graph: True where the roots of this backward were already run through, False where only an older part
    of the graph was; None if not known."""
    shared: bool = False
    """For an older part of a freed graph: whether another backward freed it since the same line last ran one. Else it
    is of an earlier iteration: a carried state."""
    freed: Site | None = None
    """The backward that freed it, when known."""
    overwritten: Site | None = None
    """Where a save that was detached in place was also overwritten after that; None if it was not, or is not known."""
    carried: tuple[Carried, ...] = ()
    """The states that carry the freed graph into this iteration, when known."""
    are_all_carried: bool = False
    """Whether nothing but these states leads to the freed graph."""
    is_run_anew: bool = False
    """Whether none has a new value, and nodes since the last backward of the line lead to leaves that they come from:
    each turn runs the same module itself."""
    is_cached: bool = False
    """Whether `torch.nn.utils.parametrize.cached()` keeps a weight that the freed graph computed."""
    are_stored_freed: bool = False
    """Whether nothing leads to the freed graph but what writes like that at `written` put there after it was freed."""
    holders: tuple[Holder, ...] | None = None
    """As of a `Write`, for what was not written; so are `is_widest`, `modules` and `calls`."""
    is_widest: bool = False
    modules: tuple[str, ...] = ()
    calls: tuple[Site, ...] = ()
    carries_gradient: bool | None = None
    """Whether what the operator was given, beside the tensor that it writes, is in a graph; None if not known."""
    of_itself: bool = False
    """Whether that graph leads to nothing but the leaf itself, as that of a decay of weights does."""
    is_saved: bool = True
    """Whether a graph keeps the memory that was to be written, or that is not known."""
    keeps_others: bool = False
    """Whether a graph keeps another leaf of what holds the leaf that was to be written, as a module does."""
    is_computed: bool = False
    """Whether that memory belongs to a tensor that a graph has computed, and not to a leaf."""
    expanded: bool = False
    """Whether it was a view of a leaf in which one element stands for several, so that with gradients off the write
    changes more than what it names."""
    unmapped: bool = False
    """Whether `torch.vmap` maps something that the operator was given, and not the tensor that it writes."""
