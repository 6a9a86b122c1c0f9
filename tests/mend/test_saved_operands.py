"""Which operand of an operator autograd saves in which field, as the cure that clones for the reader takes it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from noclobber.mend.copies.clone_for_reader import _position
from noclobber.model.seen.operators import OPERANDS, nodes_of
from noclobber.rules.shared.wording import stem

SAMPLES = 6
"""Calls of each operator that PyTorch's own table of them has examples for."""


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def calls(op: Any) -> Iterator[tuple[list[Any], Any]]:
    """Yield the arguments of some calls, in the order in which a program gives them, and the node of the result."""
    for sample in islice(op.sample_inputs_func(op, "cpu", torch.float64, requires_grad=True), SAMPLES):
        args = [sample.input, *sample.args]
        if isinstance(sample.input, torch.Tensor):
            args = [one * 1 if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args]
            result = op.op(*args, **sample.kwargs)
            node = next(iter(result), None).grad_fn if isinstance(result, (tuple, list)) else result.grad_fn
            if node is not None:
                yield args, node


def test_a_field_is_the_operand_at_its_place_or_no_operand() -> None:
    asked, wrong = set(), set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            name = op.name.rpartition(".")[2]
            if torch.float64 not in op.dtypes or name == "where":  # its samples begin with the second argument
                continue
            try:
                seen = list(calls(op))
            except Exception:  # no sample that runs here: a release or a build lacks what it needs
                continue
            for args, node in seen:
                if stem(node.name()) not in nodes_of(name):
                    continue
                for field in [one.removeprefix("_saved_") for one in dir(node) if one.startswith("_saved_")]:
                    saved, at = getattr(node, f"_saved_{field}"), _position(name, field)
                    if at is None or not isinstance(saved, torch.Tensor) or not saved.numel():
                        continue
                    own = [isinstance(one, torch.Tensor) and memory(one) == memory(saved) for one in args]
                    if any(own):
                        asked.add(name)
                        if at >= len(own) or not own[at]:
                            wrong.add((name, field, at))
    assert wrong == set()
    assert len(asked) > 90


def test_the_order_of_operands_is_that_of_the_schema() -> None:
    for name, order in OPERANDS.items():
        packet = getattr(torch.ops.aten, {"cdist": "_cdist_forward", "grid_sample": "grid_sampler"}.get(name, name))
        schemas = [[one.name for one in getattr(packet, each)._schema.arguments] for each in packet.overloads()]
        assert any(schema[: len(order.split())] == order.split() for schema in schemas), name
