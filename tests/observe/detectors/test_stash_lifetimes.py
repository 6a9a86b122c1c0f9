"""What a backward does to its own stash is meant; a stash lives no longer than without noclobber."""

import gc
import weakref

import pytest
import torch

import noclobber
from tests.observe.detectors.test_stashes import Square, gradient_of, through_data, through_numpy
from tests.observe.hearing import bare, hear, is_marked


class Replaced(Square):
    @staticmethod
    def backward(ctx, g):
        ctx.x = torch.ones(3) * 1.5
        return 2 * ctx.x * g


class Scratch(Square):
    """What it adds to its own stash is meant: the second backward gives four times the first."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.clone()
        return x * x

    @staticmethod
    def backward(ctx, g):
        result = 2 * ctx.x * g
        ctx.x.add_(ctx.x, alpha=3)
        return result


def test_what_backward_itself_sets_anew_is_quiet():
    heard, _ = hear(gradient_of(Replaced, through_data))
    assert not heard.clobbers


def test_other_elements_of_the_same_memory():
    def program():
        x = torch.ones(3, requires_grad=True)
        buffer = torch.arange(6.0)
        y = Square.apply(x * 1)
        z = Weighted.apply(x, buffer[:3])
        buffer[3:].zero_()
        (y + z).sum().backward()
        return x.grad

    heard, gradient = hear(program, contents=False)
    assert torch.equal(gradient, torch.tensor([2.0, 3.0, 4.0]))
    assert not heard.clobbers


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x * weight

    @staticmethod
    def backward(ctx, g):
        return g * ctx.weight, None


def test_a_second_backward_reads_what_the_first_one_left():
    def program():
        x = torch.ones(3, requires_grad=True)
        y = Scratch.apply(x).sum()
        return torch.autograd.grad(y, x, retain_graph=True) + torch.autograd.grad(y, x)

    heard, (first, second) = hear(program)
    assert torch.equal(second, 4 * first)
    assert not heard.clobbers


def test_a_write_between_two_backwards():
    def program():
        x = torch.ones(3, requires_grad=True)
        h = x * 1
        y = Square.apply(h).sum()
        (first,) = torch.autograd.grad(y, x, retain_graph=True)
        h.data.mul_(2)  # written
        return first, *torch.autograd.grad(y, x)

    heard, (first, second) = hear(program)
    assert not torch.equal(first, second)
    assert [is_marked(clobber.writes[0].site, "written") for clobber in heard.clobbers] == [True]


def test_a_ctx_looks_and_lives_as_without_noclobber():
    with noclobber.watch(contents=True):
        x = torch.ones(3, requires_grad=True)
        h = x * 1
        gone = weakref.ref(h)
        y = Square.apply(h)
        assert vars(y.grad_fn) == {"x": h} or list(vars(y.grad_fn)) == ["x"]
        del h
        assert gone() is not None
        y.grad_fn.x = None
        assert gone() is None
        node = weakref.ref(y.grad_fn)
        del y
        gc.collect()
        assert node() is None
    assert "__setattr__" not in vars(torch.autograd.function.BackwardCFunction)
    # From torch 2.15 on it is written in C++ and has no module.
    assert getattr(torch.autograd.Function.apply, "__module__", None) in (None, "torch.autograd.function")


def test_transforms_and_compiled_functions_work_as_before():
    class Mapped(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    def program():
        per_sample = torch.vmap(torch.func.grad(lambda x: Mapped.apply(x).sum()))(torch.ones(2, 3))
        x = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: Mapped.apply(x) * 2, backend="aot_eager")(x).sum().backward()
        return per_sample, x.grad

    heard, results = hear(program)
    assert all(torch.equal(one, other) for one, other in zip(results, bare(program), strict=True))
    assert not heard.clobbers


def test_a_stash_is_stopped_where_it_is_written():
    with pytest.raises(noclobber.ClobberError), noclobber.watch(contents=True, on_write="raise"):
        gradient_of(Square, through_data)()
    with pytest.raises(noclobber.ClobberError), noclobber.watch(contents=True, on_write="raise"):
        gradient_of(Square, through_numpy)()


def test_the_class_of_a_ctx_is_the_programs_own():
    """Only a ctx whose own tensors have changed is looked at while backward runs, and no other one of its Function."""
    classes = []

    class Looking(Square):
        @staticmethod
        def backward(ctx, g):
            classes.append(
                (type(ctx) is Looking._backward_cls, type(ctx).__name__, isinstance(ctx, Looking._backward_cls))
            )
            return 2 * ctx.x * g

    heard, _ = hear(gradient_of(Looking, through_data))
    hear(gradient_of(Looking, lambda h, y: None))
    assert classes == [(False, "LookingBackward", True), (True, "LookingBackward", True)]
    assert "__getattribute__" not in vars(Looking._backward_cls)
    assert len(heard.clobbers) == 1
