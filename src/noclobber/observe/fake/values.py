"""Values in a run that has none. Small tensors that no parameter reaches are known: data, lengths, counters. Everything
else gets a stand-in when the program asks for it, and the place is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.utils import _pytree as pytree

from noclobber.model.source import Site
from noclobber.observe.core.seen.sites import Place, caller, identity, site_of
from noclobber.observe.core.seen.written import tensors, what_is_written
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor
from noclobber.observe.torch_api.tensors.tensor_state import tensors_in

MOST = 2**20
"""Elements that a known tensor may have."""
_KNOWN, _GUESS = "_noclobber_known", "_noclobber_guess"
aten = torch.ops.aten


@dataclass(slots=True, eq=False)
class Known:
    """The values of a fake tensor, on the CPU. `fate` is shared with all that lies on the same memory."""

    tensor: torch.Tensor
    fate: list[bool]

    def __deepcopy__(self, memo: dict[int, object]) -> Known:
        """Return the values of a copy, whose memory is its own: copies of tensors get what tensors carry."""
        with modes.aside():
            return Known(self.tensor.clone(), [self.fate[0]])


def known(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor, as a real tensor on the CPU; None if they are not known."""
    if not isinstance(tensor, FakeTensor):
        return tensor.detach() if tensor.numel() <= MOST and tensor.is_cpu and not tensor.requires_grad else None
    held: Known | None = vars(tensor).get(_KNOWN)
    return held.tensor if held is not None and held.fate[0] else None


def know(tensor: FakeTensor, values: torch.Tensor, fate: list[bool] | None = None) -> FakeTensor:
    setattr(tensor, _KNOWN, Known(values, fate or [True]))
    return tensor


def share(tensor: FakeTensor, other: FakeTensor) -> None:
    """Know of a tensor what is known of another, whose memory it has got."""
    for what in (_KNOWN, _GUESS):
        vars(tensor).pop(what, None)
        if what in vars(other):
            setattr(tensor, what, vars(other)[what])


def _forget(tensors: Iterable[torch.Tensor]) -> None:
    """Forget the values of memory that an operator has written, as what it wrote is not known."""
    for one in tensors:
        if (held := vars(one).get(_KNOWN)) is not None:
            held.fate[0] = False
        vars(one).pop(_GUESS, None)


def written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [one for one in _writes(func, args, kwargs) if isinstance(one, FakeTensor)]


def _writes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes, also real ones, whose values are the program's."""
    known = what_is_written(func)
    return [] if known is None else list(tensors(known, tuple(args), kwargs))


def patch(patches: Patches) -> None:
    """Let `trunc_normal_` draw once: it draws again until all numbers lie between the limits (torch 2.13)."""

    def draw(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.normal_()

    patches.put(torch.nn.init, "_no_grad_trunc_normal_", draw)


_FACTS = ("_amp_foreach_non_finite_check_and_unscale_",)
"""Operators that find no infinite number here: what they write stays known."""


def follow(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
    """Work out the values of what an operator returned, where all that it read is known."""
    outputs = [one for one in tensors_in(result) if isinstance(one, FakeTensor)]
    inputs = list(tensors_in(args, kwargs))
    writes = written(func, args, kwargs) if func._schema.is_mutable else []
    if func._schema.name.partition("::")[2] in _FACTS:
        return
    is_of_program = func._schema.is_mutable and len(writes) < len(_writes(func, args, kwargs))
    if is_of_program or not _computed(func, args, kwargs, inputs, outputs):
        _forget(writes)
        for one in outputs:
            if one.numel() == 1 or one.dtype is torch.bool:
                setattr(one, _GUESS, _guessed(func, args, inputs, one))


def _computed(func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[FakeTensor]) -> bool:
    """Compute an operator on known values; return True if that could be done."""
    if not (outputs or func._schema.is_mutable) or sum(one.numel() for one in outputs) > MOST:
        return False
    if not inputs and any(one.dtype.is_floating_point and one.numel() > 1 for one in outputs):
        return False  # a new tensor of random numbers, or of numbers that a parameter begins with
    if any(one.requires_grad for one in inputs) or any(known(one) is None for one in inputs):
        return False
    if any(one.layout is not torch.strided for one in (*inputs, *outputs)):
        return False
    real_args, real_kwargs = pytree.tree_map_only(torch.Tensor, known, (tuple(args), dict(kwargs)))
    real_args, real_kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (real_args, real_kwargs))
    try:
        with modes.aside():
            made = func(*real_args, **real_kwargs)
    except Exception:
        return False
    values = list(tensors_in(made))
    if [one.shape for one in values] != [one.shape for one in outputs]:
        return False
    fates = {}
    for one in inputs:
        if isinstance(one, FakeTensor):
            held = vars(one)[_KNOWN]
            fates[storages.storage_key(held.tensor)] = held.fate
    for output, value in zip(outputs, values, strict=True):
        know(output, value, fates.get(storages.storage_key(value)))
    return True


_FIRST = {"argmax", "argmin", "multinomial", "bernoulli", "searchsorted", "bucketize"}
"""Operators whose result is an index: 0 is one everywhere."""
_THROUGH = {
    "any", "all", "max", "min", "amax", "amin", "mean", "detach", "alias", "clone", "view", "_unsafe_view", "squeeze",
    "unsqueeze", "select", "slice", "expand", "_to_copy", "index", "reshape", "lift_fresh", "copy_", "fill_",
}  # fmt: skip
"""Operators whose result is like what they read."""
_ELEMENT = {
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or",
    "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or", "add", "sub", "mul", "div", "neg", "abs", "sqrt",
    "rsqrt", "exp", "log", "pow", "minimum", "maximum", "clamp", "where", "reciprocal", "rsub", "round", "floor",
    "ceil",
}  # fmt: skip
"""Operators that are computed element by element: a stand-in of each element gives one of the result."""


def guess(tensor: torch.Tensor) -> bool | int | float | complex:
    """Return a plausible value for each element of a tensor."""
    guessed: bool | int | float | complex | None = vars(tensor).get(_GUESS)
    if guessed is not None:
        return guessed
    if tensor.dtype is torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() or tensor.is_complex() else 1


def _guessed(func: Any, args: Sequence[Any], inputs: list[torch.Tensor], output: torch.Tensor) -> Any:
    name = func._schema.name.partition("::")[2].rstrip("_")
    if name in _FIRST:
        return 0
    if name == "sum" and inputs and inputs[0].dtype is torch.bool:
        return half(inputs[0].numel())
    if name in _THROUGH and inputs:
        return _as(output, guess(inputs[-1] if name == "copy" else inputs[0]))
    if name in _ELEMENT and not output.is_floating_point():
        small = pytree.tree_map_only(torch.Tensor, _one, tuple(args))
        try:
            return _as(output, func(*small).item())
        except Exception:
            return None
    return None


def _one(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tensor(guess(tensor), dtype=tensor.dtype, device="cpu")


def _as(output: torch.Tensor, value: Any) -> Any:
    if output.dtype is torch.bool:
        return bool(value)
    return value if output.is_floating_point() or output.is_complex() else int(value)


def half(count: int) -> int:
    """Return how many elements of a mask are taken to be set."""
    return (count + 1) // 2


IN_A_ROW = 500
"""Questions at one place, and no other, after which the answer is once False, or 0."""


class Asked:
    """The places that asked for values that nobody knows."""

    def __init__(self) -> None:
        self._places: dict[tuple[object, ...], tuple[Place | None, str]] = {}
        self._last: tuple[object, ...] = ()
        self._in_a_row = 0

    def note(self, what: str) -> bool:
        """Note that the program asks for a value here. Return True if it has asked here so often in a row that it may
        wait for another answer, as `while mask.any()` does."""
        place = caller()
        key = (*identity(place), what)
        self._places.setdefault(key, (place, what))
        self._in_a_row = self._in_a_row + 1 if key == self._last else 1
        self._last = key
        return self._in_a_row % IN_A_ROW == 0

    def sites(self) -> list[tuple[Site | None, str]]:
        """Return each place with what it asked for, in the order in which they came."""
        found = [(site_of(place), what) for place, what in self._places.values()]
        lines = {(site and (site.span().path, site.line), what): (site, what) for site, what in found}
        return list(lines.values())


Answer = Callable[..., Any]


def padded(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, value: float, total: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `_pad_packed_sequence` does, which reads and writes numbers in C++ (torch 2.13, PackedSequence.cpp)."""
    sizes = batch_sizes.tolist()
    out = torch.full((max(total, len(sizes)), sizes[0], *data.shape[1:]), value, dtype=data.dtype, device=data.device)
    begin = at = 0
    for size, equal in groupby(sizes):
        steps = len(list(equal))
        rows = data[begin : begin + steps * size].view(steps, size, *data.shape[1:])
        out[at : at + steps, :size] = rows
        begin, at = begin + steps * size, at + steps
    lengths = torch.tensor([sum(size > row for size in sizes) for row in range(sizes[0])])
    return out.transpose(0, 1) if batch_first else out, lengths


class Answers:
    """What is answered to the operators whose result depends on values. `fresh` makes a fake tensor."""

    def __init__(self, asked: Asked, fresh: Callable[[Callable[[], torch.Tensor]], torch.Tensor]) -> None:
        self._asked = asked
        self._fresh = fresh
        self.of: dict[Any, Answer] = {
            aten._local_scalar_dense.default: self._scalar,
            aten.equal.default: self._equal,
            aten._pack_padded_sequence.default: self._packed,
            aten._ctc_loss.default: self._ctc_loss,
            aten._ctc_loss.Tensor: self._ctc_loss,
            aten._ctc_loss_backward.default: self._ctc_loss_backward,
            aten._ctc_loss_backward.Tensor: self._ctc_loss_backward,
            aten.linalg_lstsq.default: self._least_squares,
        }
        guesses: tuple[tuple[Any, str, Answer], ...] = (
            (aten.allclose.default, "allclose", lambda one, other, *_, **__: one.shape == other.shape),
            (aten.nonzero.default, "nonzero", self._nonzero),
            (aten.masked_select.default, "", self._masked_select),
            (aten.repeat_interleave.Tensor, "", self._repeats),
            (aten.bincount.default, "bincount", self._bincount),
            (aten._unique2.default, "unique", lambda tensor, *_, **__: self._distinct(tensor, None)),
            (aten.unique_dim.default, "unique", lambda tensor, dim, *_, **__: self._distinct(tensor, dim)),
            (aten.unique_consecutive.default, "unique", lambda one, _=0, __=0, dim=None: self._distinct(one, dim)),
        )
        self.of |= {func: self._known_or(func, what, guess) for func, what, guess in guesses}

    def _known_or(self, func: Any, what: str, guess: Answer) -> Answer:
        """Return what runs an operator on known values. Where they are not known, it guesses, and notes `what`."""

        def answer(*args: Any, **options: Any) -> Any:
            tensors = list(tensors_in(args, options))
            if any(known(one) is None for one in tensors):
                if what:
                    self._asked.note(what)
                return guess(*args, **options)
            real_args, real_options = pytree.tree_map_only(torch.Tensor, known, (args, options))
            made, device = func(*real_args, **real_options), tensors[0].device
            return pytree.tree_map_only(torch.Tensor, lambda value: self._like(value, device), made)

        return answer

    def _like(self, values: torch.Tensor, device: torch.device) -> torch.Tensor:
        made = self._new(values.shape, values.dtype, device)
        return know(made, values) if isinstance(made, FakeTensor) else made

    def _new(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self._fresh(lambda: torch.empty(shape, dtype=dtype, device=device))

    def _scalar(self, tensor: torch.Tensor) -> Any:
        if (values := known(tensor)) is not None:
            return values.item()
        stuck, value = self._asked.note("item"), guess(tensor)
        return type(value)(0) if stuck else value

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        values, others = known(one), known(other)
        if values is not None and others is not None:
            return torch.equal(values, others)
        if one.shape == other.shape:
            self._asked.note("equal")
        return one.shape == other.shape

    def _lengths(self, lengths: Any, count: int, full: int, what: str) -> list[int]:
        """Return the lengths of some sequences; all are full where that is not known."""
        if isinstance(lengths, torch.Tensor):
            if (values := known(lengths)) is None:
                self._asked.note(what)
                return [full] * count
            lengths = values
        return [int(one) for one in lengths]

    def _packed(self, input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        count, full = input.shape[:2] if batch_first else (input.shape[1], input.shape[0])
        found = self._lengths(lengths, count, full, "pack_padded_sequence")
        sizes = [sum(one > at for one in found) for at in range(max(found))]
        data = self._new((sum(sizes), *input.shape[2:]), input.dtype, input.device)
        with modes.aside():
            return data, torch.tensor(sizes)  # operators in C++ read it

    def _ctc_loss(
        self, chances: torch.Tensor, targets: torch.Tensor, steps: Any, lengths: Any, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = chances.shape[1] if chances.dim() == 3 else 1
        full = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // count)
        longest = max(self._lengths(lengths, count, full, "ctc_loss"), default=0)
        sizes = (count, chances.shape[0], 2 * longest + 1)
        loss = self._new(sizes[: chances.dim() - 2], chances.dtype, chances.device)
        return loss, self._new(sizes, chances.dtype, chances.device)

    def _ctc_loss_backward(self, gradient: torch.Tensor, chances: torch.Tensor, *given: Any, **_: Any) -> torch.Tensor:
        alpha = next(one for one in reversed(given) if isinstance(one, torch.Tensor))
        _beta = self._new(alpha.shape, alpha.dtype, alpha.device)  # needed meanwhile (torch 2.13, LossCTC.cpp)
        return self._new(chances.shape, chances.dtype, chances.device)

    def _least_squares(self, one: torch.Tensor, other: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
        shape = (*one.shape[:-2], one.shape[-1], *other.shape[one.dim() - 1 :])
        nothing = (self._new((0,), dtype, one.device) for dtype in (one.dtype, torch.int64, one.dtype))
        return (self._new(shape, other.dtype, one.device), *nothing)

    def _nonzero(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._new((half(tensor.numel()), tensor.dim()), torch.int64, tensor.device)

    def _masked_select(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        selected = known(mask)
        shape: torch.Size = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
        if selected is None:
            self._asked.note("masked_select")
        count = half(shape.numel()) if selected is None else int(selected.expand(shape).sum())
        return self._new((count,), tensor.dtype, tensor.device)

    def _repeats(self, repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
        if output_size is None:
            self._asked.note("repeat_interleave")
        size = output_size if output_size is not None else repeats.numel()
        return self._new((size,), repeats.dtype, repeats.device)

    def _bincount(self, tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
        dtype = torch.int64 if weights is None else weights.dtype
        return self._new((max(minlength, 2),), dtype, tensor.device)

    def _distinct(self, tensor: torch.Tensor, dim: int | None) -> tuple[torch.Tensor, ...]:
        """Return some rows of a dimension, or elements of all; which one each is; and how often each is there."""
        shape = (tensor.numel(),) if dim is None else tuple(tensor.shape)
        at = dim or 0
        count, of_each = half(shape[at]), tuple(tensor.shape) if dim is None else (shape[at],)
        return (
            self._new((*shape[:at], count, *shape[at:][1:]), tensor.dtype, tensor.device),
            self._new(of_each, torch.int64, tensor.device),
            self._new((count,), torch.int64, tensor.device),
        )
