"""Regions under `preserve` that run anew in other surroundings: in regions, under hooks, later; and what they cost."""

import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import noclobber
from tests.observe.preserve.test_preserve import leaf
from tests.observe.preserve.test_preserve_checkpoint import direct, not_reentrant, reentrant

pytestmark = pytest.mark.usefixtures("either_size")


@pytest.fixture(params=[reentrant, not_reentrant])
def run(request):
    return request.param


def identity(region):
    """The region under the program's own hooks, which keep the very tensor."""

    def under_hooks(h):
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            return region(h)

    return under_hooks


HOWS = {
    "reentrant": reentrant,
    "not reentrant": not_reentrant,
    "to its end": lambda region, x: checkpoint(region, x, use_reentrant=False, early_stop=False),
    "in a reentrant one": lambda region, x: reentrant(partial(not_reentrant, region), x),
    "in one": lambda region, x: not_reentrant(partial(not_reentrant, region), x),
    "reentrant in one": lambda region, x: reentrant(partial(reentrant, region), x),
    "under hooks": lambda region, x: not_reentrant(identity(region), x),
    "reentrant under hooks": lambda region, x: reentrant(identity(region), x),
}


def forward(run):
    x, c, w = leaf(3, 4), torch.ones(4), leaf(4, 4)

    def region(h):
        a = ((h * c) @ w).exp()
        b = a.sum() * a
        a.mul_(3)
        return (b + a.detach() * c).sin() * a.detach()

    y = run(region, x)
    c.mul_(7)
    with torch.no_grad():
        w.mul_(0.5)
    return x, c, y.sum()


@pytest.mark.parametrize("how", HOWS)
def test_several_backwards_in_the_block_and_after_it(how):
    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        x, _, total = forward(direct)
        total.backward()
        once = x.grad
    with noclobber.preserve():
        x, c, total = forward(HOWS[how])
        total.backward(retain_graph=True)
    total.backward(retain_graph=True)
    torch.testing.assert_close(x.grad, once * 2)
    in_thread = threading.Thread(target=lambda: total.backward(retain_graph=True))
    in_thread.start()
    in_thread.join()
    torch.testing.assert_close(x.grad, once * 3)
    assert c.tolist() == [7.0] * 4
    with noclobber.watch() as watched:
        total.backward()
    torch.testing.assert_close(x.grad, once * 4)
    assert watched.findings == ()


@pytest.mark.parametrize("after", [False, True])
def test_a_selective_checkpoint(after):
    """It counts the operators that it sees, and serves one backward."""

    def selective(region, x):
        policy = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
        return checkpoint(region, x, use_reentrant=False, context_fn=policy)

    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        right, _, total = forward(direct)
        total.backward()
    with noclobber.preserve():
        x, _, total = forward(selective)
        if not after:
            total.backward()
    if after:
        total.backward()
    torch.testing.assert_close(x.grad, right.grad)


def test_a_write_after_the_block_raises(run):
    x, c = leaf(4), torch.ones(4)
    with noclobber.preserve():
        y = run(lambda h: (h * c).sin(), x)
    c.mul_(7)
    with pytest.raises(noclobber.ClobberError):
        y.sum().backward()


def test_copies_go_with_the_graph(run, monkeypatch):
    copies, native = [], torch.Tensor.clone
    x, c = leaf(4), torch.ones(4)
    with noclobber.preserve():
        y = run(lambda h: (h * c).sin(), x)
        gc.collect()
        gc.disable()
        try:
            monkeypatch.setattr(
                torch.Tensor, "clone", lambda one: copies.append(weakref.ref(new := native(one))) or new
            )
            c.mul_(7)
            assert [copy() is None for copy in copies] == [False]
            y.sum().backward()
            assert len(copies) > 0
            assert all(copy() is None for copy in copies), "y, and so its node, is still alive"
        finally:
            gc.enable()


def test_nothing_is_kept_of_what_no_region_can_reach_any_more(run):
    with noclobber.preserve() as kept:
        x, held = leaf(4), {"c": torch.ones(4)}
        memory = held["c"].data
        y = run(lambda h: h * held.get("c", 2), x)
        del held["c"]
        memory.mul_(7)
        del y
    assert [row for row in kept.kept if row.again] == []


def test_the_report_names_the_region(run):
    with noclobber.preserve() as kept:
        x, c = leaf(4), torch.ones(4)
        y = run(lambda h: h.sin() + c, x)
        c.mul_(7)
        y.sum().backward()
    [row] = kept.kept
    assert (row.bytes, row.times, row.again) == (16, 1, True)
    assert "will read again" in kept.report
    assert row.save.span().line == run.__code__.co_firstlineno + 1


OF_VIEW = "of a leaf that is a view"
BASES = {
    "computed": lambda: leaf(3, 4) * 1,
    "of a leaf": lambda: leaf(3, 4).detach().clone().requires_grad_(),
    OF_VIEW: lambda: torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_(),
}


@pytest.mark.parametrize("under", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("of", [lambda base, view: base, lambda base, view: view], ids=["the base", "the view"])
@pytest.mark.parametrize("kind", BASES)
def test_a_region_that_reaches_a_tensor_and_a_view_of_it(run, kind, of, under):
    """A write without gradients moves the version of the view, and not its place in the graph. Only the view of a leaf
    that is a view leads nowhere then (the next test)."""

    def gradient(how, write):
        x, base = leaf(3, 4), BASES[kind]()
        base.retain_grad()
        view = base.t()
        y = how(lambda h: (h @ view.abs()) @ base, x)
        if write:
            with under():
                of(base, view).mul_(0.5)
        y.sin().sum().backward()
        return x.grad + base.grad

    right = gradient(direct, write=False)
    with noclobber.preserve():
        if run is reentrant and kind == OF_VIEW:
            with pytest.raises(noclobber.ClobberError):
                gradient(run, write=True)
        else:
            assert torch.equal(gradient(run, write=True), right)


def test_a_view_of_a_leaf_that_is_a_view_leads_nowhere_once_it_was_written():
    def led(leaf):
        view = leaf.t()
        with torch.no_grad():
            leaf.mul_(1)
        return view.grad_fn.next_functions[0][0]

    assert led(torch.ones(3, 4, requires_grad=True)) is not None
    assert led(torch.ones(12).reshape(3, 4).requires_grad_()) is None
