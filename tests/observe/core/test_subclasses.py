"""Tensors and parameters of a subclass on memory of their own: their writes are seen like those of plain tensors."""

import warnings

import pytest
import torch

import noclobber
from tests.observe.hearing import bare, hear, is_marked


class Named(torch.Tensor):
    """A subclass that changes nothing."""


class Passing(torch.Tensor):
    """A subclass that passes everything on."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Weight(torch.nn.Parameter):
    """A subclass of a parameter."""


def leaf(kind, size=3):
    return Weight(torch.ones(size)) if kind is Weight else torch.ones(size).as_subclass(kind).requires_grad_()


KINDS = pytest.mark.parametrize("kind", [Named, Passing, Weight])
SIZES = pytest.mark.parametrize("size", [3, 100_000])


@KINDS
@SIZES
@pytest.mark.parametrize("contents", [False, True])
def test_a_silent_write_is_blamed_on_its_line(kind, size, contents):
    def program():
        x = leaf(kind, size)
        y = x.exp()
        y.data.mul_(2)  # write
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program, contents)
    assert torch.equal(gradient, bare(program))
    (clobber,) = heard.clobbers
    assert clobber.writes[0].op == "aten::mul_"
    assert kind is Passing or is_marked(clobber.writes[0].site, "write")


@KINDS
def test_a_counted_write_is_found_and_can_be_stopped(kind):
    def program():
        y = leaf(kind).exp()
        y.mul_(2)
        y.sum().backward()

    def caught():
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            program()

    heard, _ = hear(caught)
    assert [[one.op for one in clobber.writes] for clobber in heard.clobbers] == [["aten::mul_"]]
    with pytest.raises(noclobber.ClobberError, match="stopped this write before it happened"):
        noclobber.watch(on_write="raise")(program)()


@KINDS
def test_an_optimizer_step_is_told(kind):
    def program():
        x = leaf(kind)
        first, second = (x**2).sum(), (x**3).sum()
        first.backward()
        torch.optim.SGD([x], lr=0.1).step()  # step
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()

    heard, _ = hear(program)
    (clobber,) = heard.clobbers
    assert is_marked(clobber.writes[0].step.site, "step")


@KINDS
@SIZES
@pytest.mark.parametrize("write", [lambda y: y.data.mul_(2), lambda y: y.__iadd__(2)], ids=["data", "counted"])
def test_gradients_are_right_under_preserve(kind, size, write):
    x = leaf(kind, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with noclobber.preserve():
            y = x.exp()
            write(y)
            y.sum().backward()
    assert torch.equal(x.grad.as_subclass(torch.Tensor), torch.ones(size).exp())


def test_a_sparse_save_is_read_without_a_failure():
    """It has no address."""

    def program():
        w = torch.ones(4, 3, requires_grad=True)
        with torch.sparse.check_sparse_tensor_invariants():
            a = torch.sparse_coo_tensor([[0, 1, 2], [1, 3, 0]], [1.0, 2.0, 3.0], (3, 4)).coalesce()
        torch.sparse.mm(a, w).sum().backward()
        return w.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert heard.clobbers == heard.events == []
