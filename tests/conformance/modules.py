"""Programs from PyTorch's database of modules: in training and in evaluation, in place, twice before backward, lazy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_map_only

from tests.conformance.observed import Body, Program, See, copied
from tests.conformance.operators import back

DTYPES = (torch.float32, torch.float64, torch.complex64)


def entries() -> dict[str, Callable[[], list[list[Program]]]]:
    """By name: what makes the programs of each input of a module."""
    return {f"module {info.name}": partial(_programs, info) for info in module_db}


def _programs(info: Any) -> list[list[Program]]:
    dtypes = info.supported_dtypes("cpu")
    dtype = next((one for one in DTYPES if one in dtypes), None) or min(dtypes, key=str)
    made = []
    for training in (True, False):
        torch.default_generator.manual_seed(0)
        given = info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training)
        for number, one in enumerate(given):
            name = f"{'train' if training else 'eval'}, sample {number}"
            made.append([_program(f"{variant}, {name}", *of) for variant, *of in _variants(info, one, dtype, training)])
    if info.module_error_inputs_func is not None:
        given = info.module_error_inputs_func(info, "cpu", dtype, requires_grad=True, training=True)
        refused = enumerate(one.module_error_input for one in given)
        made += [[_program(f"refused, sample {n}", info, one, dtype, True, once)] for n, one in refused]
    return made


Make = Callable[[], torch.nn.Module]


def _variants(info: Any, given: Any, dtype: torch.dtype, training: bool) -> list[tuple[Any, ...]]:
    of = (info, given, dtype, training)
    variants: list[tuple[Any, ...]] = [("once", *of, once), ("twice", *of, twice)]
    if info.is_lazy:
        variants.append(("lazy", *of, lazy))
    if "inplace" in inspect.signature(info.module_cls).parameters:
        variants.append(("in place", *of, once, True))
    return variants


def _program(
    name: str,
    info: Any,
    given: Any,
    dtype: torch.dtype,
    training: bool,
    body: Callable[..., None],
    inplace: bool = False,
) -> Program:
    def start() -> Body:
        constructor = given.constructor_input
        args, kwargs = deepcopy(constructor.args), dict(deepcopy(constructor.kwargs))
        if inplace:
            kwargs["inplace"] = True
        forward = given.forward_input
        inputs = copied((forward.args, forward.kwargs)) if forward is not None else ((), {})

        def make() -> torch.nn.Module:
            module: torch.nn.Module = info.module_cls(*args, **kwargs)
            return module.to(dtype).train(training)

        return partial(body, make, *inputs, inplace, info.supports_gradgrad)

    return Program(name, start)


def once(make: Make, args: Any, kwargs: Any, inplace: bool, gradgrad: bool, see: See) -> None:
    """Forward, backward, backward of the gradients; the state that is left."""
    module = make()
    leaves = _leaves(module, args, kwargs)
    given = tree_map_only(torch.Tensor, torch.clone, args) if inplace else args
    result = module(*given, **kwargs)
    see("result", result)
    see("inputs", (given, kwargs))
    see("state", module.state_dict())
    back(result, leaves, gradgrad, see)
    see("state at the end", module.state_dict())


def twice(make: Make, args: Any, kwargs: Any, inplace: bool, gradgrad: bool, see: See) -> None:
    """Two forwards before one backward: what the first has saved of the module's state, the second may write."""
    module = make()
    leaves = _leaves(module, args, kwargs)
    results = module(*args, **kwargs), module(*args, **kwargs)
    see("results", results)
    see("state", module.state_dict())
    back(results, leaves, gradgrad, see)


def lazy(make: Make, args: Any, kwargs: Any, inplace: bool, gradgrad: bool, see: See) -> None:
    """A module that learns its shapes from its input, or from what it loads, or by being copied first."""
    module, loaded = make(), make()
    copy = deepcopy(module)
    copy.load_state_dict(module.state_dict())
    see("result", module(*args, **kwargs))
    loaded.load_state_dict(module.state_dict())
    see("result of what was loaded", loaded(*args, **kwargs))
    see("result of the copy", copy(*args, **kwargs))
    see("state", [one.state_dict() for one in (module, loaded, copy)])


def _leaves(module: torch.nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    return [one for one in (*module.parameters(), *tensors) if one.requires_grad]
