"""Noclobber's hooks are off a thread's stack while a backward runs no Python, and on it wherever a save may be made."""

from functools import partial

import pytest
import torch
from torch.autograd import Function

import noclobber
from noclobber.observe.torch_api.autograd import engine_state, hook_stack
from noclobber.observe.torch_api.dispatch import spare_key
from tests.observe.hearing import bare, hear


def stack():
    """The pairs of hooks on this thread's stack, the uppermost first."""
    found = []
    while (top := hook_stack.top_hooks(True)) is not None:
        found.append(top)
        hook_stack.pop_hooks()
    for pair in reversed(found):
        hook_stack.push_hooks(*pair)
    return found


@pytest.fixture(params=[False, True], ids=["", "hooks in the program"])
def program_has_hooks(request, monkeypatch):
    """Whether a hook was ever registered in this process: then Python may run in any backward, and the hooks stay."""
    monkeypatch.setattr(hook_stack, "program_has_hooks", lambda: request.param)
    return request.param


@pytest.fixture
def in_backward(monkeypatch):
    """The stacks that the engine begins its backwards with, in a program without hooks."""
    monkeypatch.setattr(hook_stack, "program_has_hooks", lambda: False)
    engine, seen = engine_state.engine(), []

    def looking(*args, **kwargs):
        seen.append(stack())
        return engine(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", looking)
    return seen


def calling(backward):
    """The result of a Function whose backward calls `backward` with gradients on."""

    class Calls(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad():
                backward()
            return gradient

    x = torch.ones(3, requires_grad=True)
    return (Calls.apply(x.exp()) * 2).sum()


def clobber():
    w, x = torch.ones(3), torch.ones(3, requires_grad=True)
    y = (x * w).sum()
    w.data.mul_(2)
    y.backward()
    return x.grad


def test_a_backward_that_saves_nothing_runs_without_hooks(in_backward):
    x = torch.ones(3, requires_grad=True)
    with noclobber.watch():
        (before,) = stack()
        x.exp().sum().backward()
        assert stack() == [before]
        assert in_backward == [[]]
        torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        assert stack() == [before]
        assert len(in_backward[1]) == 1
    assert stack() == []


def test_hooks_are_back_after_an_error(in_backward):
    x = torch.ones(3, requires_grad=True)
    with noclobber.watch():
        before, y = stack(), x.exp().sum()
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        assert stack() == before
        assert in_backward == [[], []]


def test_the_hooks_of_the_program_stay(in_backward):
    x = torch.ones(3, requires_grad=True)
    with noclobber.watch(), torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        before = stack()
        x.exp().sum().backward()
        assert stack() == before
        assert in_backward == [before]


def test_saves_that_a_custom_backward_makes_are_watched(program_has_hooks):
    right = torch.ones(3)
    seen = []
    assert not torch.equal(bare(clobber), right)
    heard, _ = hear(lambda: calling(lambda: seen.append(clobber())).backward())
    assert torch.equal(seen[0], bare(clobber))
    assert len(heard.clobbers) == 1


def test_saves_after_a_custom_backward_are_watched(program_has_hooks):
    def program():
        calling(lambda: torch.ones(3, requires_grad=True).exp().sum().backward()).backward()
        return clobber()

    heard, _ = hear(program)
    assert len(heard.clobbers) == 1


@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_a_block_that_begins_in_a_backward_renews_the_hooks(program_has_hooks):
    inside = []

    def nested():
        with noclobber.watch(contents=True) as seen:
            inside.append(len(stack()))
            clobber()
        inside.append(len(seen.findings))

    with noclobber.watch():
        calling(nested).backward()
        assert inside == [1, 1]
        assert len(stack()) == 1
    assert stack() == []


@pytest.mark.parametrize("block", [noclobber.watch, noclobber.install])
def test_nothing_is_left_if_watching_ends_in_a_backward(block, program_has_hooks):
    watch = block()
    end = watch.uninstall if block is noclobber.install else partial(watch.__exit__, None, None, None)
    if block is noclobber.watch:
        watch.__enter__()
    calling(end).backward()
    assert stack() == []
    assert not spare_key.key_is_set()


def test_a_block_that_takes_over_in_a_backward_goes_on_after_it(program_has_hooks):
    first, second = noclobber.watch(), noclobber.watch(contents=True)
    first.__enter__()

    def take_over():
        first.__exit__(None, None, None)
        second.__enter__()

    calling(take_over).backward()
    assert len(stack()) == 1
    array = torch.ones(3).numpy()
    x, w = torch.ones(3, requires_grad=True), torch.from_numpy(array)
    y = (x * w).sum()
    array[:] = 2  # only contents see this
    y.backward()
    with pytest.warns(noclobber.ClobberWarning):
        second.__exit__(None, None, None)
    assert [one.code for one in second.findings] == ["NC202"]
    assert stack() == []
    assert not spare_key.key_is_set()
