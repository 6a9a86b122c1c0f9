"""Sparse tensors: their values lie in memory that is written as any other."""

import random

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.observe.hearing import bare, hear, is_marked

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
LAYOUTS = {
    "coo": torch.Tensor.to_sparse_coo,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda tensor: tensor.to_sparse_bsr((2, 2)),
    "bsc": lambda tensor: tensor.to_sparse_bsc((2, 2)),
}


def itself(matrix):
    matrix.mul_(2)  # written


def its_values(matrix):
    matrix.values()[1:].mul_(2)  # written


def through_data(matrix):
    matrix.values()[1:].data.mul_(2)  # written


def through_numpy(matrix):
    matrix.values().numpy()[1:] *= 2  # written


def with_the_same(matrix):
    matrix.values().data.mul_(1)


def a_clone(matrix):
    matrix.clone().mul_(2)


def of(layout, write):
    def program():
        w = torch.ones(4, 2, requires_grad=True)
        matrix = LAYOUTS[layout](torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 1.0]]).repeat(2, 1))
        y = matrix @ w
        write(matrix)
        y.square().sum().backward()
        return w.grad

    return program


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_values_share_memory_and_version(layout):
    matrix = LAYOUTS[layout](torch.eye(4))
    values, before = matrix.detach().values(), matrix._version
    values.fill_(2.0)
    assert matrix._version == before + 1
    assert matrix.to_dense().max() == 2.0


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("write", [itself, its_values])
def test_a_write_that_moves_the_version_is_named(layout, write):
    def refused():
        with pytest.raises(RuntimeError) as error:
            of(layout, write)()
        return str(error.value)

    heard, message = hear(refused)
    assert message == bare(refused)
    assert [(is_marked(one.writes[-1].site, "written"), one.writes[-1].overlaps) for one in heard.clobbers] == [
        (True, True)
    ]


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("write", [through_data, through_numpy])
def test_a_silent_write_is_found(layout, write):
    assert not torch.equal(bare(of(layout, write)), bare(of(layout, a_clone)))
    heard, _ = hear(of(layout, write))
    (found,) = heard.clobbers
    assert write is through_numpy or is_marked(found.writes[-1].site, "written")


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("write", [with_the_same, a_clone])
def test_what_changes_no_value_is_quiet(layout, write):
    heard, gradient = hear(of(layout, write))
    assert torch.equal(gradient, bare(of(layout, a_clone)))
    assert heard.clobbers == heard.events == heard.failures == []


def write_values(matrix, draw):
    """Write the values of a matrix, or a part of them, as programs do. Some of that changes nothing."""
    values = matrix.detach().values()[draw.randint(0, 2) :]
    draw.choice([
        lambda: values.mul_(1.5),
        lambda: values.data.mul_(1.5),
        lambda: values.numpy().__imul__(1.5),
        lambda: values.data.mul_(1.0),
        lambda: matrix.clone().detach().values().mul_(3),
    ])()  # fmt: skip


def at_random(seed):
    """A few products with a sparse matrix, and writes to it before and after them."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dense = (torch.rand(4, 4) > 0.5) * torch.rand(4, 4) + torch.eye(4)
    matrix = dense.to_sparse_coo().coalesce() if draw.random() < 0.5 else dense.to_sparse_csr()
    learned = matrix.detach().requires_grad_() if draw.random() < 0.3 else matrix
    w = torch.randn(4, 2, requires_grad=True)
    h, total = w, w.sum()
    for _ in range(draw.randint(2, 5)):
        kind = draw.randint(0, 4)
        if kind < 2:
            h = learned @ h
        elif kind == 2:
            h = h.tanh()
        else:
            write_values(learned, draw)
        total = total + h.sum()
    (total + h.pow(2).sum()).backward()
    return [w.grad, *([] if learned.grad is None else [learned.grad.to_dense()])]


@pytest.mark.parametrize("seed", range(80))
def test_what_makes_a_gradient_wrong_is_found_and_nothing_else(seed):
    def result():
        try:
            return at_random(seed)
        except RuntimeError as error:
            return str(error)

    (heard, ours), alone = hear(result), result()
    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        right = result()
    if isinstance(alone, str):
        assert ours == alone
        assert heard.clobbers
    else:
        assert all(map(torch.equal, ours, alone))
        assert bool(heard.clobbers) == (not all(map(torch.equal, alone, right)))
