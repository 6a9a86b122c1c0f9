"""The program's own saved-tensor hooks run, nest and fail as they do without noclobber, and give memory back."""

import contextlib
import gc
import warnings
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.torch_api.autograd import hook_stack
from tests.observe import alike
from tests.observe.hearing import bare, hear


def identity():
    return saved_tensors_hooks(lambda t: t, lambda t: t)


def test_hooks_get_the_very_objects():
    def program():
        given, kept = [], []

        class Token:
            pass

        def pack(t):
            given.append(t)
            kept.append((Token(), t.detach()))
            return kept[-1]

        def unpack(value):
            assert any(value is one for one in kept)
            return value[1]

        x = torch.ones(3, requires_grad=True)
        with saved_tensors_hooks(pack, unpack):
            y = x * x
        y.sum().backward()
        return [t is x for t in given], x.grad

    assert hear(program)[1][0] == bare(program)[0] == [True, True]


def test_inner_hooks_hide_outer_ones():
    def program():
        calls, x = [], torch.ones(3, requires_grad=True)
        with saved_tensors_hooks(lambda t: calls.append("outer") or t, lambda t: t):
            with saved_tensors_hooks(lambda t: calls.append("inner") or t, lambda t: t):
                y = x.exp()
            z = y.sin()
        z.sum().backward()
        return calls

    assert hear(program)[1] == bare(program)


def test_errors_in_hooks_are_raised_as_they_are():
    def failing(t):
        raise LookupError("mine")

    x = torch.ones(3, requires_grad=True)

    def in_pack():
        with saved_tensors_hooks(failing, lambda t: t):
            x.exp()

    def in_unpack():
        with saved_tensors_hooks(lambda t: t, failing):
            y = x.exp()
        y.sum().backward()

    def no_tensor():
        with saved_tensors_hooks(lambda t: t, lambda t: 3):
            y = x.exp()
        y.sum().backward()

    for program in (in_pack, in_unpack):
        with pytest.raises(LookupError, match="mine"):
            hear(program)
    with pytest.raises(TypeError, match="expected to be a Tensor"):
        hear(no_tensor)


def test_hooks_that_outlive_the_block():
    hooks, x = identity(), torch.ones(3, requires_grad=True)
    _, y = hear(lambda: hooks.__enter__() or x.exp())
    z = x.exp()
    assert torch.equal(z.grad_fn._raw_saved_result.data, z)
    hooks.__exit__()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    y.sum().backward()
    z.sum().backward()
    assert torch.allclose(x.grad, 2 * x.exp())


def test_hooks_from_before_the_block():
    calls, x = [], torch.ones(3, requires_grad=True)
    hooks = saved_tensors_hooks(lambda t: calls.append(t) or t, lambda t: t)

    def program():
        hooks.__exit__()
        y = x.exp()
        with torch.no_grad():
            y.mul_(2)
        return y

    hooks.__enter__()
    _, y = hear(program)
    x.exp()
    assert calls == []
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_memory_that_hooks_gave_back_is_not_held():
    def program():
        x = torch.ones(3, requires_grad=True)
        with saved_tensors_hooks(torch.clone, lambda t: t):
            h = x * 2
            y = h.exp().sin()
        storage = weakref.ref(h.untyped_storage())
        del h
        gc.collect()
        return storage() is None and y is not None

    assert hear(program)[1]


def test_saves_that_died_are_forgotten():
    def alive():
        gc.collect()
        return sum(CONTEXT.memory.reread.values())

    def kept():
        x = torch.ones(3, requires_grad=True)
        with identity():
            y = x.sin()
        y.sum().backward()

    before = alive()
    hear(kept)
    assert alive() == before


class Recording:
    """Hooks that round what is saved, and note each call."""

    def __init__(self):
        self.calls = []

    def pack(self, t):
        self.calls.append("pack")
        return t.detach().round()

    def unpack(self, t):
        self.calls.append("unpack")
        return t

    def on(self):
        return saved_tensors_hooks(self.pack, self.unpack)


def begun_and_ended_within(around, hooks, x):
    with hooks.on():
        with around():
            x.exp().sum().backward()
            y = x.exp()
        z = x.exp()
    (y + z).sum().backward()


def begun_within_and_ended_after(around, hooks, x):
    hold, block = hooks.on(), around()
    hold.__enter__()
    block.__enter__()
    y = x.exp()
    hold.__exit__(None, None, None)
    z = x.exp()
    with hooks.on():
        u = x.exp()
    (y + z + u).sum().backward()
    block.__exit__(None, None, None)


def begun_within_and_preserved(around, hooks, x):
    with hooks.on(), around():
        with noclobber.preserve():
            y = x.exp()
        z = x.exp()
        with noclobber.install():
            (y + z).sum().backward()


def begun_within_a_backward_with_a_graph(around, hooks, x):
    with hooks.on(), around():
        (gradient,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        gradient.sum().backward()


def begun_within_and_transformed(around, hooks, x):
    with hooks.on(), around():
        y = x.exp()
        with pytest.raises(RuntimeError, match="yet support saved tensor hooks"):
            torch.func.grad(lambda t: t.exp().sum())(x.detach())
        y.sum().backward()


@pytest.mark.parametrize(
    "program",
    [
        begun_and_ended_within,
        begun_within_and_ended_after,
        begun_within_and_preserved,
        begun_within_a_backward_with_a_graph,
        begun_within_and_transformed,
    ],
    ids=lambda program: program.__name__,
)
def test_a_block_within_the_hooks_calls_them(program):
    def outcome(around):
        x, hooks = torch.tensor([1.4, 2.6], requires_grad=True), Recording()
        program(around, hooks, x)
        return hooks.calls, x.grad.tolist(), hook_stack.top_hooks(True)

    alone = outcome(contextlib.nullcontext)
    assert "unpack" in alone[0]
    for around in alike.MODES.values():
        assert outcome(around) == alone


def test_a_write_under_hooks_that_a_block_was_begun_in():
    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings(action="ignore"), identity(), noclobber.watch() as seen:
        y = x.exp()
        y.mul_(0)
        y.sum().backward()
    assert [finding.code for finding in seen.findings] == ["NC204"]
