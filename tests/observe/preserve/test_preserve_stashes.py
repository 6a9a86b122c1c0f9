"""What custom Functions keep on their ctx under `preserve`: the old bytes, at their place in the graph."""

import gc
import weakref
from collections import namedtuple

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import noclobber
from tests.observe.preserve.test_preserve import leaf

pytestmark = pytest.mark.usefixtures("either_size")


class OfInput(Function):
    """Keeps what it was given."""

    @staticmethod
    def forward(ctx, a):
        ctx.a = a
        return a**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient * ctx.a**2


class InList(Function):
    """Keeps what it was given and a number that it computed itself, in a list."""

    @staticmethod
    def forward(ctx, a):
        ctx.kept = [a, a.detach() + 1]
        return a**2

    @staticmethod
    def backward(ctx, gradient):
        a, more = ctx.kept
        return 2 * gradient * a * (more - a.detach())


class OfOutput(Function):
    """Keeps what it returns."""

    @staticmethod
    def forward(ctx, a):
        ctx.out = a.exp()
        return ctx.out

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.out


WRITES = {
    "in the graph": lambda h, y: h.mul_(5),
    "through data": lambda h, y: h.data.mul_(5),
    "in part": lambda h, y: h.data[1:].zero_(),
    "other data": lambda h, y: setattr(h, "data", torch.zeros(3)),
    "other data, then the old memory": lambda h, y: (lambda old: (setattr(h, "data", torch.zeros(3)), old.zero_()))(
        h.detach()
    ),
    "a swap": lambda h, y: torch.utils.swap_tensors(h, torch.zeros_like(h)),
    "what is returned": lambda h, y: y.data.mul_(5),
}


def gradients(function, write, create_graph):
    x = leaf(3)
    h = x * 2
    y = function.apply(h)
    write(h, y)
    first = torch.autograd.grad(y.sum(), x, create_graph=create_graph)[0]
    return [first, torch.autograd.grad((first**2).sum(), x)[0]] if create_graph else [first]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("function", [OfInput, InList, OfOutput])
def test_the_gradient_is_right(function, write, create_graph):
    if function is OfOutput and write == "what is returned" and create_graph:
        pytest.skip("see the next test")
    right = gradients(function, lambda h, y: None, create_graph)
    with noclobber.preserve():
        ours = gradients(function, WRITES[write], create_graph)
    torch.testing.assert_close(ours, right)


def test_the_place_of_an_output_in_the_graph_can_not_be_kept():
    with noclobber.preserve(), pytest.raises(noclobber.ClobberError, match=r"ctx\.save_for_backward"):
        gradients(OfOutput, WRITES["what is returned"], create_graph=True)


@pytest.mark.parametrize("function", [OfInput, InList, OfOutput])
def test_several_backwards_after_the_block_has_ended(function):
    once = gradients(function, lambda h, y: None, create_graph=False)[0]
    with noclobber.preserve():
        x = leaf(3)
        h = x * 2
        y = function.apply(h)
        h.data.mul_(3)
        y.data.mul_(3)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], once)


def test_what_a_backward_writes_to_its_own_stash_is_meant():
    class Counts(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.a = a.detach().clone()
            ctx.alias = ctx.a
            return a * 1

        @staticmethod
        @once_differentiable
        def backward(ctx, gradient):
            ctx.a.add_(1)
            return gradient * ctx.a

    with noclobber.preserve():
        x = leaf(3)
        y = Counts.apply(x)
        y.grad_fn.alias.mul_(0)
        found = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(3)]
    torch.testing.assert_close(found, [x.detach() + times for times in (1, 2, 3)])


def test_what_a_backward_writes_into_its_saves_is_undone():
    class Scratch(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a.square()

        @staticmethod
        @once_differentiable
        def backward(ctx, gradient):
            (a,) = ctx.saved_tensors
            return a.data.mul_(2) * gradient

    with noclobber.preserve():
        x = leaf(3)
        h = x * 1
        y = Scratch.apply(h)
        h.data.zero_()
        found = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(3)]
    torch.testing.assert_close(found, [x.detach() * 2] * 3)


@pytest.mark.parametrize("function", [OfInput, InList])
def test_nothing_lives_longer(function):
    with noclobber.preserve():
        x = leaf(3)
        h = x * 2
        y = function.apply(h)
        h.data.mul_(3)
        y.sum().backward()
        nodes = [weakref.ref(y.grad_fn), weakref.ref(h)]
        gc.collect()
        gc.disable()
        try:
            del y, h
            assert [node() for node in nodes] == [None, None]
        finally:
            gc.enable()


def test_a_stash_whose_memory_was_made_in_inference_mode():
    def gradient(write):
        w = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        with torch.inference_mode():
            w.data = w.data.clone()
        y = OfInput.apply(w)
        if write:
            w.data = torch.zeros_like(w)
        y.sum().backward()
        return w.grad.tolist()

    right = gradient(write=False)
    assert right == [3.0, 12.0, 27.0]
    assert gradient(write=True) != right
    with noclobber.preserve():
        assert gradient(write=True) == right


Pair = namedtuple("Pair", ["by", "of"])


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.all = {"pairs": [Pair(2, x)]}
        return x * x

    @staticmethod
    def backward(ctx, g):
        ((by, of),) = ctx.all["pairs"]
        assert type(ctx.all["pairs"][0]) is Pair
        return by * of * g


def test_what_lies_deeper_on_a_ctx_gets_its_old_bytes():
    x = leaf()
    with noclobber.preserve():
        h = x * 1.5
        y = Nested.apply(h)
        with torch.no_grad():
            h.mul_(3)
        y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * 1.5 * 1.5 * x.detach())
