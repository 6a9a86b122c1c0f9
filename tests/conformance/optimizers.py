"""Programs from PyTorch's database of optimizers: steps one by one, foreach, fused and differentiable, by option."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs as inputs_with_ways,
)
from torch.testing._internal.common_optimizers import optim_db

from tests.conformance.observed import Body, Program, See

STEPS = 3


def entries() -> dict[str, Callable[[], list[list[Program]]]]:
    """By name: what makes the programs of each set of options of an optimizer."""
    return {f"optimizer {info.name}": partial(_programs, info) for info in optim_db}


def _programs(info: Any) -> list[list[Program]]:
    made = []
    for number, options in enumerate(inputs_with_ways("cpu", torch.float32, info)):
        name = f"{options.desc}, sample {number}"
        made.append([_program(f"{variant}, {name}", info, options, body) for variant, body in _variants(info, options)])
    if info.optim_error_inputs_func is not None:
        for number, one in enumerate(info.optim_error_inputs_func("cpu", torch.float32)):
            made.append([_refused(info, one.optimizer_error_input, f"refused, sample {number}")])
    return made


def _variants(info: Any, options: Any) -> Iterator[tuple[str, Callable[..., None]]]:
    sparse = info.only_supports_sparse_grads
    yield "steps", partial(train, _embedding if sparse else _network)
    if options.kwargs.get("differentiable"):
        yield "steps in the graph", steps_in_the_graph
    elif not sparse:
        yield "two networks", partial(two_networks, _network)


def _program(name: str, info: Any, options: Any, body: Callable[..., None]) -> Program:
    def start() -> Body:
        kwargs = deepcopy(options.kwargs)
        return partial(body, partial(_optimizer, info, kwargs), info.step_requires_closure)

    return Program(name, start)


def _refused(info: Any, options: Any, name: str) -> Program:
    def start() -> Body:
        kwargs, params = deepcopy(options.kwargs), options.params

        def body(see: See) -> None:
            given = params if params is not None else [torch.nn.Parameter(torch.ones(3, 4))]
            see("state", info.optim_cls(given, **kwargs).state_dict())

        return body

    return Program(name, start)


def _optimizer(info: Any, kwargs: Any, params: list[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of these parameters, or of the matrices among them, where it takes no others (Muon)."""
    with suppress(ValueError):
        made: torch.optim.Optimizer = info.optim_cls(params, **kwargs)
        return made
    matrices: torch.optim.Optimizer = info.optim_cls([one for one in params if one.dim() == 2], **kwargs)
    return matrices


def _network() -> tuple[torch.nn.Module, torch.Tensor]:
    network = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    return network, torch.randn(6, 4)


def _embedding() -> tuple[torch.nn.Module, torch.Tensor]:
    return torch.nn.Embedding(7, 3, sparse=True), torch.tensor([1, 2, 2, 5])


Optimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def train(
    model: Callable[[], tuple[torch.nn.Module, torch.Tensor]], optimizer: Optimizer, closure: bool, see: See
) -> None:
    """A few steps of training; the parameters, their gradients and the optimizer's state after each."""
    network, given = model()
    params = list(network.parameters())
    made = optimizer(params)

    def loss() -> torch.Tensor:
        made.zero_grad()
        value: torch.Tensor = network(given).pow(2).mean()
        value.backward()
        return value

    for number in range(STEPS):
        if not closure:
            loss()
        made.step(loss if closure else None)
        see(f"parameters after step {number}", params)
        see(f"gradients at step {number}", [one.grad for one in params])
        see(f"state after step {number}", made.state_dict())


def two_networks(
    model: Callable[[], tuple[torch.nn.Module, torch.Tensor]], optimizer: Optimizer, closure: bool, see: See
) -> None:
    """Two networks and two optimizers by turns, as of a GAN: a step of one between the other's forward and backward."""
    (one, given), (other, _) = model(), model()
    first, second = optimizer(list(one.parameters())), optimizer(list(other.parameters()))

    def losses() -> torch.Tensor:
        value: torch.Tensor = one(given).pow(2).mean() + other(given).abs().mean()
        value.backward(retain_graph=True)
        return value

    for number in range(STEPS):
        error = other(given).pow(2).mean()
        if not closure:
            losses()
        first.step(losses if closure else None)
        first.zero_grad()
        second.zero_grad()
        error.backward()
        see(f"gradients at step {number}", [param.grad for param in other.parameters()])
        if not closure:
            second.step()
        see(f"parameters after step {number}", [*one.parameters(), *other.parameters()])


def steps_in_the_graph(optimizer: Optimizer, closure: bool, see: See) -> None:
    """Steps that are in the graph themselves, as of learning to learn: backward goes through the optimizer."""
    start = torch.randn(3, 4, requires_grad=True)
    weight = start.clone()
    made = optimizer([weight])
    for _ in range(STEPS):
        weight.grad = (start * 0.5).sin()
        made.step()
    see("weight", weight)
    weight.pow(2).sum().backward()
    see("gradient", start.grad)
