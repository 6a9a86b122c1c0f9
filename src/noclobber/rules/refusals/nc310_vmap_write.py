"""NC310 vmap-write: in-place write of mapped values into a tensor that is not mapped

What happens
    Inside `torch.vmap` a tensor that exists once is written with a value that exists once for each sample. PyTorch
    refuses: "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a Tensor `other` in
    extra_args that has more elements than `self`".

Why
    The function looks as if it worked on one sample, but it runs on all of them at once. A tensor made inside by
    `torch.zeros` has room for one result, not for one result per sample.

Example
    import torch

    def place(value):
        canvas = torch.zeros(3)
        canvas[0] = value
        return canvas

    torch.vmap(place)(torch.ones(2))

Instead
    import torch

    def place(value):
        canvas = value.new_zeros(3)
        canvas[0] = value
        return canvas

    torch.vmap(place)(torch.ones(2))

Notes
    `new_zeros`, `new_full` and `zeros_like` of a mapped tensor make one tensor for each sample. So do operations
    out of place. `canvas += value` raises the shape error of NC308, "doesn't match the broadcast shape".
    A batch norm that tracks statistics writes them in place: use `torch.func.replace_all_batch_norm_modules_`, or
    `track_running_stats=False`. Random in-place operations with `randomness="different"` need a mapped tensor too.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Cause, Cure, Finding, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.refusing import Text, refused

_ONCE = "under `vmap` the written tensor exists once, but the value exists once for each sample"
_CANVAS = (
    Suggestion(
        "make the tensor from a mapped one: `value.new_zeros(shape)` instead of `torch.zeros(shape)`",
        cure=Cure.OWN_ROWS,
    ),
    Suggestion("or write out of place", cure=Cure.OUT_OF_PLACE),
)
_MAPPED = "in-place write of mapped values to a tensor that is not mapped by `vmap`"
TEXTS = (
    Text(
        ["vmap: Cannot ask for different inplace randomness on an unbatched tensor"],
        "random in-place write to a tensor that is not mapped by `vmap`",
        _CANVAS,
        'with `randomness="different"` each sample needs its own memory',
    ),
    Text(
        [
            "Batch norm got a batched tensor as input while the [running_mean or running_var, which will be updated in "
            "place, were not batched]."
        ],
        "batch norm under `vmap` writes running statistics that are not mapped",
        [
            "replace the statistics: `torch.func.replace_all_batch_norm_modules_(net)`",
            "or build the module with `track_running_stats=False`, or use `net.eval()`",
        ],
        _ONCE,
    ),
    Text(
        ["accessing `data` under vmap", "mutating directly with `data` under vmap"],
        "`.data` used under `vmap`",
        [Suggestion("use `.detach()` to read, and an operation out of place to write", cure=Cure.OUT_OF_PLACE)],
        "`.data` bypasses the mapping and gives one tensor for all samples",
        told="`.data` is used here",
    ),
    Text(
        [
            f"vmap: {op} *extra_args) [is not possible because there exists a Tensor] * in extra_args that has more "
            "elements than"
            for op in ("inplace arithmetic(self,", "*")
        ],
        _MAPPED,
        _CANVAS,
        _ONCE,
        cause=Cause.UNMAPPED,
    ),
)
_LARGER = Text(
    ["doesn't match the broadcast shape", "Bad in-place call: input tensor size"],
    _MAPPED,
    _CANVAS,
    _ONCE,
    cause=Cause.UNMAPPED,
)


def find(event: Event) -> Finding | None:
    """A refused write under `vmap`. The text of a larger shape counts where `vmap` maps what is written alone."""
    texts = (*TEXTS, _LARGER) if isinstance(event, Refusal) and event.unmapped else TEXTS
    return refused(texts, event)
