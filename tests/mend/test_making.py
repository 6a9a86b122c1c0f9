"""The tables of what gives a new tensor, asked of the installed torch."""

from __future__ import annotations

import collections
import io
import random

import pytest
import torch
from torch import nn

from noclobber.mend.holders.making import FUNCTIONS, KEEPING_NOTHING, MODULES, PASSING, TAKING
from noclobber.mend.new_tensors.view_writes import SAVING_NOTHING
from noclobber.model.seen.operators import FLAT, MAYBE_SAME, SPLITS, VIEWS

COMPOSED = {"cross_entropy", "interpolate", "logsigmoid", "normalize", "softmin", "softsign"}
"""Functions in Python that run operators of other names."""


@pytest.mark.parametrize("name", sorted(FUNCTIONS - COMPOSED))
def test_no_overload_of_a_function_gives_its_argument_or_a_view_of_it(name):
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        if schema.is_mutable:
            continue  # `out=`, which the rewrites do not take for one of these
        assert all(result.alias_info is None for result in schema.returns), overload


@pytest.mark.parametrize("name", sorted(MODULES | PASSING))
def test_a_module_of_the_tables_is_there(name):
    assert issubclass(getattr(nn, name), nn.Module)


@pytest.mark.parametrize("name", sorted(KEEPING_NOTHING | TAKING))
def test_a_method_of_the_tables_is_there(name):
    assert hasattr(torch.Tensor, name)


@pytest.mark.parametrize("kind", [list, dict, set, collections.deque, collections.Counter, io.StringIO, random.Random])
def test_no_container_has_a_method_that_takes_a_tensor(kind):
    assert not [name for name in TAKING if hasattr(kind, name)]


ALIKE = {
    "relu": lambda t: torch.relu(t),
    "abs": lambda t: t.abs(),
    "clamp that changes nothing": lambda t: t.clamp(-9, 9),
    "round of whole numbers": lambda t: t.round(),
    "interpolate to the same size": lambda t: nn.functional.interpolate(t[None, None], size=t.shape)[0, 0],
    "normalize": lambda t: nn.functional.normalize(t),
    "repeat once": lambda t: t.repeat(1, 1),
    "tile once": lambda t: t.tile(1, 1),
    "cat of one": lambda t: torch.cat([t]),
    "index_select of all": lambda t: t.index_select(0, torch.arange(3)),
    "where always": lambda t: torch.where(t == t, t, t),
    "tril of all": lambda t: t.tril(9),
    "roll by nothing": lambda t: t.roll(0),
    "flip of nothing": lambda t: t.flip([]),
    "max_pool of ones": lambda t: nn.functional.max_pool2d(t[None, None], 1)[0, 0],
    "avg_pool of ones": lambda t: nn.functional.avg_pool2d(t[None, None], 1)[0, 0],
    "repeat_interleave once": lambda t: t.repeat_interleave(1, 0),
    "a product with one": lambda t: t.mul(1),
    "softsign": lambda t: nn.functional.softsign(t),
    "softmin": lambda t: nn.functional.softmin(t, 0),
    "logsigmoid": lambda t: nn.functional.logsigmoid(t),
    "sum over nothing": lambda t: t[None].sum(0),
    "mean over one": lambda t: t[None].mean(0),
    "amax over one": lambda t: t[None].amax(0),
    "cumsum over one": lambda t: t[None].cumsum(0)[0],
}


@pytest.mark.parametrize("operation", ALIKE.values(), ids=ALIKE)
def test_where_there_is_nothing_to_do_the_tensor_is_new_all_the_same(operation):
    t = torch.arange(9.0).view(3, 3)
    result = operation(t)
    assert result.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()


GIVEN = {
    "diagonal": (), "expand": (4, 4), "expand_as": (torch.ones(4, 4),), "movedim": (0, 1), "narrow": (0, 0, 2),
    "permute": (1, 0), "reshape": (16,), "select": (0, 1), "squeeze": (), "swapaxes": (0, 1), "swapdims": (0, 1),
    "transpose": (0, 1), "unflatten": (0, (2, 2)), "unsqueeze": (0,), "view": (16,), "view_as": (torch.ones(16),),
    "chunk": (2,), "split": (2,), "tensor_split": (2,), "to": (torch.float32,),
}  # fmt: skip
"""What the methods of the tables are called with."""
COMPLEX = dict.fromkeys(["imag", "view_as_real"], torch.complex64)


@pytest.mark.parametrize("name", sorted(VIEWS | MAYBE_SAME | SPLITS))
def test_a_view_shares_its_bytes(name):
    whole = torch.randn(4, 2 if name == "view_as_complex" else 4).to(COMPLEX.get(name, torch.float32))
    found = getattr(whole, name, None)
    if found is None:  # a function
        found = getattr(torch, name)(whole)
    found = found(*GIVEN.get(name, ())) if callable(found) else found
    for part in found if name in SPLITS else (found,):
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


TWO = ("eq", "ge", "gt", "heaviside", "le", "logical_and", "logical_or", "lt", "ne")


@pytest.mark.parametrize("name", sorted(FLAT - {"len"}))
def test_a_small_change_changes_nothing_of_what_has_no_derivative(name):
    def result(values):
        torch.manual_seed(0)
        given = (values.new_full((3,), 0.5),) if name in TWO else (1,) if name == "multinomial" else ()
        found = getattr(values, name)(*given)
        return found.tolist() if isinstance(found, torch.Tensor) else found

    values = torch.tensor([0.2, 0.7, 0.4], dtype=torch.float64)
    assert result(values) == result(values + 1e-6)


@pytest.mark.parametrize("name", SAVING_NOTHING)
def test_rows_are_written_one_after_the_other_by_what_saves_nothing_of_them(name):
    """Of `x`, whose rows share one version. The gradient is that of a new tensor for each row."""
    torch.default_generator.manual_seed(0)
    x, w = torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64) + 1
    x, w = x.requires_grad_(), w.requires_grad_()
    given = {"neg_": lambda i: (), "zero_": lambda i: (), "fill_": lambda i: (w[i].sum(),)}.get(name, lambda i: (w[i],))

    def gradients(written):
        h = x * 2
        return torch.autograd.grad(written(h).square().sum(), (x, w), allow_unused=True)

    def in_place(h):
        for i in range(len(h)):
            getattr(h[i], name)(*given(i))
        return h

    def anew(h):
        return torch.stack([getattr(row.clone(), name)(*given(i)) for i, row in enumerate(h)])

    for one, right in zip(gradients(in_place), gradients(anew), strict=True):
        assert (one is None) is (right is None)
        assert right is None or torch.equal(one, right)
