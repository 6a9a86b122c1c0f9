"""Hooks that a program registers on one save (`grad_fn._raw_saved_self.register_hooks`) work as without noclobber."""

import gc
import weakref

import pytest
import torch

import noclobber
from tests.observe.alike import differing, outcome_in


def square():
    x = torch.arange(1.0, 4.0, requires_grad=True)
    return x, x.clone().pow(2)


def seen_by_hooks():
    """What the hooks are given, and the gradient that comes of what they return."""
    given = []

    def pack(tensor):
        given.append((tensor.tolist(), tensor.requires_grad, tensor.is_leaf, torch.is_grad_enabled(), tensor._version))
        return tensor.numpy() * 2

    def unpack(array):
        given.append(torch.is_grad_enabled())
        return torch.from_numpy(array)

    x, y = square()
    y.grad_fn._raw_saved_self.register_hooks(pack, unpack)
    y.sum().backward()
    return given, x.grad.tolist()


def on_a_result():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t * 2, lambda t: t)
    y.sum().backward()
    return x.grad.tolist(), y.tolist()


def on_a_leaf():
    x = torch.ones(3, requires_grad=True)
    y = x**3
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t.clone(), lambda t: t)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    gradient.sum().backward()
    return gradient.tolist(), x.grad.tolist()


def on_a_function():
    class Twice(torch.autograd.Function):
        """Saves its input."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    x = torch.ones(3, requires_grad=True)
    y = Twice.apply(x)
    y.grad_fn._raw_saved_tensors[0].register_hooks(lambda t: t + 4, lambda t: t)
    y.sum().backward()
    return x.grad.tolist()


def read_by_name():
    _, y = square()
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t * 3, lambda t: t + 1)
    return y.grad_fn._saved_self.tolist(), y.grad_fn._saved_self.requires_grad


def overwritten_after():
    """PyTorch compares no versions where there are hooks."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t.clone(), lambda t: t)
    y.mul_(2)
    y.sum().backward()
    return x.grad.tolist()


def overwritten_silently_after():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)
    y.mul_(2)
    y.sum().backward()
    return x.grad.tolist()


def again_and_again():
    x, y = square()
    saved = y.grad_fn._raw_saved_self
    saved.register_hooks(lambda t: t, lambda t: t)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return x.grad.tolist()


def twice():
    _, y = square()
    saved = y.grad_fn._raw_saved_self
    saved.register_hooks(lambda t: t, lambda t: t)
    saved.register_hooks(lambda t: t, lambda t: t)


def after_it_was_freed():
    _, y = square()
    saved = y.grad_fn._raw_saved_self
    y.sum().backward()
    saved.register_hooks(lambda t: t, lambda t: t)


def on_nothing():
    """Of this input nothing is saved."""
    x = torch.ones(2, 3, requires_grad=True)
    y = torch.nn.functional.layer_norm(x, (3,))
    y.grad_fn._raw_saved_weight.register_hooks(lambda t: t, lambda t: t)


def under_hooks():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        _, y = square()
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)


def pack_writes():
    _, y = square()
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t.mul_(2), lambda t: t)


def pack_fails():
    _, y = square()
    y.grad_fn._raw_saved_self.register_hooks(lambda t: 1 / 0, lambda t: t)


def unpack_fails():
    _, y = square()
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: 1 / 0)
    y.sum().backward()


def unpack_gives_no_tensor():
    _, y = square()
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: 3)
    y.sum().backward()


def no_functions():
    _, y = square()
    y.grad_fn._raw_saved_self.register_hooks(1, 2)


def frees_memory():
    """What the hooks do not keep is gone with the program's own reference."""
    x, y = square()
    hidden = x * 5
    storage = weakref.ref(hidden.untyped_storage())
    y = hidden**2
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t.tolist(), torch.tensor)
    del hidden
    gc.collect()
    freed = storage() is None
    y.sum().backward()
    return freed, x.grad.tolist()


@pytest.mark.parametrize(
    "program",
    [
        seen_by_hooks,
        on_a_result,
        on_a_leaf,
        on_a_function,
        read_by_name,
        overwritten_after,
        overwritten_silently_after,
        again_and_again,
        twice,
        after_it_was_freed,
        on_nothing,
        under_hooks,
        pack_writes,
        pack_fails,
        unpack_fails,
        unpack_gives_no_tensor,
        no_functions,
        frees_memory,
    ],
    ids=lambda program: program.__name__,
)
def test_hooks_on_one_save_are_as_without_noclobber(program):
    assert differing(program) == {}


def test_a_write_to_what_hooks_have_taken_over_is_not_stopped():
    with noclobber.watch(on_write="raise"):
        assert overwritten_after()


def test_nothing_is_copied_for_hooks_that_have_taken_over():
    with noclobber.preserve() as kept:
        overwritten_after()
    assert kept.kept == ()


def test_a_save_with_hooks_of_its_own_is_named_in_the_coverage():
    with noclobber.watch() as seen:
        on_a_result()
    assert any("registered its own hooks" in one for one in seen.report.coverage.unseen)
    assert seen.report.findings == ()


def test_what_was_not_seen_before_a_block_is_not_in_its_coverage():
    """As in a suite, where all tests share what watches the process."""

    def named(seen):
        return any("registered its own hooks" in one for one in seen.report.coverage.unseen)

    with noclobber.watch() as whole:
        with noclobber.watch() as first:
            on_a_result()
        with noclobber.watch(contents=False) as second:
            torch.ones(3, requires_grad=True).exp().sum().backward()
        assert [named(first), named(second)] == [True, False]
    assert named(whole)


def test_the_method_is_put_back():
    native = torch._C._autograd.SavedTensor.register_hooks
    outcome_in("contents", on_a_result)
    assert torch._C._autograd.SavedTensor.register_hooks is native
