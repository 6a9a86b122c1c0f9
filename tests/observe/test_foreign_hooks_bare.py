"""The program's own saved-tensor hooks run, nest and fail as they do without noclobber, and give memory back."""

import gc
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from noclobber.observe.recorder import RECORDER

from .hearing import bare, hear


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
        RECORDER.memory.rereads.sort()
        RECORDER.memory.rereads.sweep()
        return sum(map(len, RECORDER.memory.rereads.by_storage.values()))

    def kept():
        x = torch.ones(3, requires_grad=True)
        with identity():
            y = x.sin()
        y.sum().backward()

    before = alive()
    hear(kept)
    assert alive() == before
