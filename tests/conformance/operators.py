"""Programs from PyTorch's database of operators: forward, backward, twice backward, in place, with `out=`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map_only

from tests.conformance.observed import Body, Program, See, copied

WRITTEN_SAMPLES = 5
"""Of how many samples what may be saved is written before backward."""
FIRST = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def entries() -> dict[str, Callable[[], list[list[Program]]]]:
    """By name: what makes the programs of each sample of an operator that runs on CPU."""
    return {f"operator {op.full_name}": partial(_programs, op) for op in op_db if op.supported_dtypes("cpu")}


def _programs(op: Any) -> list[list[Program]]:
    dtypes = op.supported_dtypes("cpu")
    dtype = next((one for one in FIRST if one in dtypes), None) or min(dtypes, key=str)
    grad = bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))
    samples = enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad))
    made = [list(_of_sample(op, sample, number, grad)) for number, sample in samples]
    if op.error_inputs_func is not None:
        made += [[_refused(op, one.sample_input, number)] for number, one in enumerate(op.error_inputs("cpu"))]
    return made


def _of_sample(op: Any, sample: Any, number: int, grad: bool) -> Iterator[Program]:
    def program(variant: str, body: Callable[..., None], writes: bool = False) -> Program:
        def start() -> Body:
            given, args, kwargs = copied((sample.input, sample.args, sample.kwargs))
            return partial(body, given, args, kwargs)

        return Program(f"{variant}, sample {number}", start, writes)

    def whole(results: Any) -> Any:
        return sample.output_process_fn_grad(results)

    function = partial(op.gradcheck_wrapper, op.get_op())
    yield program("function", partial(_forward_and_back, function, whole, op.supports_gradgrad))
    for variant, inplace in (("in place", op.get_inplace()), ("in-place operator", op.get_inplace_operator())):
        if inplace is not None:
            yield program(variant, partial(_in_place, inplace, whole))
    if grad and number < WRITTEN_SAMPLES:
        for variant, (which, silently) in WRITTEN.items():
            yield program(variant, partial(_written, function, whole, which, silently), True)
    if op.get_inplace() is not None and grad:
        yield program("in place on a leaf", partial(_in_place_on_leaf, op.get_inplace()))
    if op.supports_out:
        for variant, make in OUTS.items():
            yield program(variant, partial(_out, op.get_op(), make))


def _refused(op: Any, sample: Any, number: int) -> Program:
    def start() -> Body:
        given, args, kwargs = copied((sample.input, sample.args, sample.kwargs))
        return lambda see: see("result", op(given, *args, **kwargs))

    return Program(f"refused, sample {number}", start)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_flatten(tree)[0] if isinstance(one, torch.Tensor)]


def _forward_and_back(
    function: Callable[..., Any],
    whole: Callable[[Any], Any],
    twice: bool,
    given: Any,
    args: Any,
    kwargs: Any,
    see: See,
) -> None:
    result = function(given, *args, **kwargs)
    see("result", result)
    see("inputs", (given, args, kwargs))
    leaves = [one for one in _tensors((given, args, kwargs)) if one.requires_grad]
    back(whole(result), leaves, twice, see)


def back(result: Any, leaves: list[torch.Tensor], twice: bool, see: See) -> None:
    """Show the gradients of `leaves`, as `backward` adds them up and as `grad` returns them, and theirs in turn."""
    outputs = [one for one in _tensors(result) if one.requires_grad]
    if not outputs or not leaves:
        return
    cotangents = [torch.randn_like(one).requires_grad_() for one in outputs]
    torch.autograd.backward(outputs, [one.detach() for one in cotangents], retain_graph=True)
    see("gradients", [leaf.grad for leaf in leaves])
    if not twice:
        torch.autograd.backward(outputs, [one.detach() for one in cotangents])
        see("sums of gradients", [leaf.grad for leaf in leaves])
        return
    first = torch.autograd.grad(outputs, leaves, cotangents, create_graph=True, allow_unused=True)
    see("gradients in the graph", first)
    again = [one for one in first if one is not None and one.requires_grad]
    if again:
        seeds = [torch.randn_like(one) for one in again]
        see("second gradients", torch.autograd.grad(again, [*leaves, *cotangents], seeds, allow_unused=True))


def _in_place(
    function: Callable[..., Any], whole: Callable[[Any], Any], given: Any, args: Any, kwargs: Any, see: See
) -> None:
    leaves = [one for one in _tensors((given, args, kwargs)) if one.requires_grad]
    written = tree_map_only(torch.Tensor, torch.clone, given)
    result = function(written, *args, **kwargs)
    see("result", result)
    see("written", written)
    see("inputs", (given, args, kwargs))
    back(whole(result), leaves, False, see)


WRITTEN = {
    "inputs written": ("inputs", False),
    "result written": ("result", False),
    "inputs written unseen": ("inputs", True),
    "result written unseen": ("result", True),
}


def _written(
    function: Callable[..., Any],
    whole: Callable[[Any], Any],
    which: str,
    silently: bool,
    given: Any,
    args: Any,
    kwargs: Any,
    see: See,
) -> None:
    """What the operator may have saved is written before backward; `silently` past the version counters."""
    leaves = [one for one in _tensors((given, args, kwargs)) if one.requires_grad]
    given, args, kwargs = tree_map_only(torch.Tensor, torch.clone, (given, args, kwargs))
    result = function(given, *args, **kwargs)
    for tensor in _tensors((given, args, kwargs) if which == "inputs" else result):
        if tensor.is_floating_point() or tensor.is_complex():
            (tensor.data if silently else tensor).mul_(2)
    see("result", result)
    back(whole(result), leaves, False, see)


def _in_place_on_leaf(function: Callable[..., Any], given: Any, args: Any, kwargs: Any, see: See) -> None:
    function(given, *args, **kwargs)
    see("written", given)


def _as_large(result: torch.Tensor) -> torch.Tensor:
    return torch.full_like(result, 1)


def _none(result: torch.Tensor) -> torch.Tensor:
    return result.new_empty(0)


def _too_large(result: torch.Tensor) -> torch.Tensor:
    return result.new_ones((*result.shape, 2))


def _of_other_dtype(result: torch.Tensor) -> torch.Tensor:
    return torch.full_like(result, 1, dtype=torch.int64)


OUTS = {
    "out": _as_large,
    "out that is resized": _none,
    "out that is too large": _too_large,
    "out of another dtype": _of_other_dtype,
}


def _out(
    function: Callable[..., Any],
    make: Callable[[torch.Tensor], torch.Tensor],
    given: Any,
    args: Any,
    kwargs: Any,
    see: See,
) -> None:
    with torch.no_grad():
        out = tree_map_only(torch.Tensor, make, function(given, *args, **kwargs))
        result = function(given, *args, **kwargs, out=out)
        see("result", result)
        see("out", out)
    function(given, *args, **kwargs, out=out)  # refused where an input is in the graph
    see("out again", out)
