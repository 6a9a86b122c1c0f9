"""Which backward calls are said to be checked: those whose saves noclobber has seen, to their end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import noclobber

PARTLY = "saves from before watching began, or of threads that ran before"
EARLIER = "backward calls of graphs that were made before watching began"


def loss() -> Tensor:
    return torch.ones(3, requires_grad=True).exp().sum()


def raise_in_backward() -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        Raises.apply(loss()).backward()


def in_a_thread() -> None:
    thread = threading.Thread(target=lambda: loss().backward())
    thread.start()
    thread.join()


def of_a_graph_of_a_thread() -> None:
    made: list[Tensor] = []
    thread = threading.Thread(target=lambda: made.append(loss()))
    thread.start()
    thread.join()
    made[0].backward()


def reentrant() -> None:
    x = torch.ones(3, requires_grad=True)
    checkpoint(torch.exp, x, use_reentrant=True).sum().backward()


def vjp_afterwards() -> None:
    _, pull = torch.func.vjp(torch.exp, torch.ones(3))
    pull(torch.ones(3))


def of_a_leaf() -> None:
    torch.ones((), requires_grad=True).backward()


CALLS = {
    "forward only": (loss, 0, 0),
    "backward": (lambda: loss().backward(), 1, 0),
    "grad": (lambda: torch.autograd.grad(x := torch.ones(1, requires_grad=True), x), 1, 0),
    "twice": (lambda: [loss().backward(), loss().backward(create_graph=True)], 2, 0),
    "of a leaf": (of_a_leaf, 1, 0),
    "in a thread": (in_a_thread, 1, 0),
    "of a graph that a thread made": (of_a_graph_of_a_thread, 1, 0),
    "one within another": (reentrant, 1, 0),
    "raises": (raise_in_backward, 0, 1),
    "a transform": (lambda: torch.func.grad(lambda x: x.exp().sum())(torch.ones(3)), 0, 0),
    "the function that a transform returns": (vjp_afterwards, 0, 0),
    "a transform of a transform": (lambda: torch.func.hessian(lambda x: x.exp().sum())(torch.ones(3)), 0, 0),
    "under no_grad": (torch.no_grad()(lambda: torch.ones(3).exp_()), 0, 0),
}


@pytest.mark.parametrize(("program", "checked", "raised"), CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_calls_are_counted(program: Callable[[], object], checked: int, raised: int) -> None:
    with noclobber.watch() as watch:
        program()
    coverage = watch.report.coverage
    assert (coverage.backwards, coverage.raised) == (checked, raised)
    assert not {EARLIER, PARTLY} & {*coverage.unseen}


def test_what_a_graph_saved_before_the_block_is_not_called_watched() -> None:
    factor = torch.full((3,), 3.0)
    product = torch.ones(3, requires_grad=True) * factor
    with noclobber.watch() as watch:
        factor.data.zero_()
        product.sum().backward()
    assert (watch.report.findings, watch.report.coverage.unseen) == ((), (PARTLY,))


def test_nor_is_what_a_thread_saved_that_ran_before() -> None:
    loss()  # the numbers of this thread's nodes are higher than those of the other one
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        factor = torch.full((3,), 3.0)
        with noclobber.watch() as watch:
            product = pool.submit(lambda: torch.ones(3, requires_grad=True) * factor).result()
            factor.data.zero_()
            product.sum().backward()
    assert (watch.report.findings, watch.report.coverage.unseen) == ((), (PARTLY,))


def test_a_block_counts_its_own_calls() -> None:
    with noclobber.watch() as outer:
        loss().backward()
        made_here = loss()
        with noclobber.watch(contents=True) as inner:
            made_here.backward()
            loss().backward()
            made_within = loss()
        made_within.backward()
    assert (outer.report.coverage.backwards, inner.report.coverage.backwards) == (4, 2)
    assert EARLIER not in outer.report.coverage.unseen


@pytest.mark.parametrize("installed", [False, True])
def test_a_graph_from_before_the_block_is_not_called_checked(installed: bool) -> None:
    with noclobber.watch():
        loss().backward()
    installation = noclobber.install() if installed else None
    try:
        earlier = loss()
        with noclobber.watch() as watch:
            earlier.backward()
            assert (watch.report.coverage.backwards, watch.report.coverage.unseen) == (0, (EARLIER,))
            loss().backward()
        assert watch.report.coverage.backwards == 1
    finally:
        if installation is not None:
            installation.uninstall()


def test_a_graph_that_is_compiled_as_a_whole_is_not_called_checked() -> None:
    compiled = torch.compile(lambda x: x.exp().sum(), backend="aot_eager")
    with noclobber.watch() as watch:
        compiled(torch.ones(3, requires_grad=True)).backward()
        assert watch.report.coverage.backwards == 0
        (compiled(torch.ones(3, requires_grad=True)) * 2).backward()
    coverage = watch.report.coverage
    assert coverage.backwards == 1
    assert any("compiled" in one for one in coverage.unseen)


def test_steps_that_are_not_watched_do_not_count() -> None:
    watch = noclobber.watch(every=100)
    for _ in range(5):
        with watch:
            loss().backward()
    assert watch.report.coverage.backwards == 3
