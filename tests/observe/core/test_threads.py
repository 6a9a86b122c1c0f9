"""Threads: contended ones train under noclobber as without it; a read is blamed on the backward call of its thread."""

import contextlib
import functools
import gc
import os
import random
import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import noclobber
from noclobber.model.seen.live_saves import EVERYWHERE, LiveSaves
from noclobber.model.source import source_line
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import spare_key

SECONDS = float(os.environ.get("NOCLOBBER_TEST_SECONDS", "2"))
"""How long contended threads train in each mode; `make fuzz-threads` takes longer."""
MODES = {
    "install": noclobber.install,
    "versions": functools.partial(noclobber.watch, contents=False),
    "contents": noclobber.watch,
    "preserve": noclobber.preserve,
}


@pytest.fixture
def contended():
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def step(seed, saves):
    """One training step, with many saves, writes that meet live saves, and views; its gradients, by itself right."""
    torch.manual_seed(seed)  # of all threads: nothing random is drawn here
    x = torch.linspace(0, 1, 4).add_(seed).requires_grad_()
    w = torch.ones(4)
    h = x
    for _ in range(saves):
        h = (h * w).sigmoid()
        w = w.clone()
        w.mul_(1.5)
        with torch.no_grad():
            w[:2].add_(0.5)
    h.sum().backward()
    return x.grad


def in_threads(count, work):
    """The errors that threads end with."""
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return errors


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("contended")
def test_contended_threads_train_as_without_noclobber(mode):
    right = {seed: step(seed, 20) for seed in range(4)}
    until, wrong = time.process_time() + SECONDS, []

    def train(seed):
        while time.process_time() < until:
            if not torch.equal(step(seed, 20), right[seed]):
                wrong.append(seed)

    with warnings.catch_warnings():
        warnings.simplefilter("error", noclobber.ClobberWarning)
        with MODES[mode]():
            errors = in_threads(4, train)
    assert not errors
    assert not wrong


@pytest.mark.usefixtures("contended")
def test_contended_threads_find_what_each_of_them_does():
    def wrong(number):
        for _ in range(30):
            x, w = torch.ones(3, requires_grad=True), torch.ones(3)
            y = x * w
            w.data.mul_(2)
            y.sum().backward()

    with pytest.warns(noclobber.ClobberWarning, match="NC201"), noclobber.watch() as seen:
        errors = in_threads(4, wrong)
    assert not errors
    assert [(one.code, one.count) for one in seen.findings] == [("NC201", 120)]


@pytest.mark.usefixtures("contended")
def test_many_saves_are_swept_while_others_are_made():
    """More saves are alive at once than the table keeps unsorted."""

    def hold(number):
        x = torch.ones(2, requires_grad=True)
        kept = [x.exp() for _ in range(3000)]
        w = torch.ones(2)
        for _ in range(200):
            y = x * w
            w.add_(0)
            kept.append(y)
        assert len(kept) == 3200

    with noclobber.watch() as seen:
        assert not in_threads(4, hold)
    assert not seen.findings


class Cyclic:
    """Goes with a garbage collection, in the midst of anything, and saves, writes and reads then."""

    def __init__(self, went):
        self.itself, self.went = self, went

    def __del__(self):
        x, w = torch.ones(2, requires_grad=True), torch.ones(2)
        y = x * w
        w.mul_(1)
        self.went.append(y)
        del y


@pytest.mark.parametrize("mode", ["versions", "contents"])
def test_code_that_runs_in_a_garbage_collection(mode):
    went, before = [], gc.get_threshold()
    x, w = torch.ones(2, requires_grad=True), torch.ones(2)
    with MODES[mode]() as seen:
        gc.set_threshold(5, 2, 2)
        try:
            for _ in range(400):
                Cyclic(went)
                y = x * w
                w.mul_(1)
                weakref.finalize(y, went.append, None)
                del went[:-10], y
        finally:
            gc.set_threshold(*before)
            gc.collect()
    assert went
    assert not seen.findings
    assert not seen.report.coverage.lost


def test_a_read_is_blamed_on_the_backward_of_its_own_thread():
    one_is_in, other_is_in, over = threading.Event(), threading.Event(), threading.Event()

    def waits(g):
        other_is_in.set()
        assert over.wait(20)

    def goes_on(g):
        one_is_in.set()
        assert other_is_in.wait(20)

    def innocent():
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.register_hook(waits)
        assert one_is_in.wait(20)
        y.sum().backward()

    def guilty():
        x, w = torch.ones(3, requires_grad=True), torch.ones(3)
        y = x * w
        z = y * 1
        z.register_hook(goes_on)
        w.data.mul_(3)
        z.sum().backward()  # read
        over.set()

    with pytest.warns(noclobber.ClobberWarning), noclobber.watch() as seen:
        assert not in_threads(2, lambda number: (innocent, guilty)[number]())
    (finding,) = seen.findings
    (read,) = [one for one in finding.labels if one.role == "read"]
    assert source_line(read.span.path, read.span.line).endswith("# read")


def counted(y):
    with torch.no_grad():
        y.mul_(2)  # write


def through_data(y):
    y.data.mul_(2)  # write


def through_the_hooks_of_the_program(y):
    y.detach().mul_(2)  # write


@pytest.mark.parametrize("write", [counted, through_data, through_the_hooks_of_the_program])
@pytest.mark.parametrize("numbered", ["forward", "write"])
def test_a_write_is_blamed_in_whatever_thread_it_is(write, numbered):
    """Each thread counts its nodes for itself, the one that has made many and the one that makes its first."""

    def thread_of(what):
        if what == numbered:
            for _ in range(50):
                torch.ones(2, requires_grad=True).exp()

    def forward(saved):
        thread_of("forward")
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t) if own else contextlib.nullcontext():
            saved.append(torch.ones(3, requires_grad=True).exp())

    def overwrite(saved):
        thread_of("write")
        write(saved[0])

    own, saved = write is through_the_hooks_of_the_program, []
    with warnings.catch_warnings(), noclobber.watch(contents=True) as seen:
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            one.submit(forward, saved).result()
            other.submit(overwrite, saved).result()
            with contextlib.suppress(RuntimeError):
                saved[0].sum().backward()
    (finding,) = seen.findings
    (label,) = [one for one in finding.labels if one.role == "write"]
    assert source_line(label.span.path, label.span.line).endswith("# write")


def test_a_write_before_the_save_is_not_blamed_for_a_later_one_in_another_thread():
    y, x = torch.ones(3), torch.ones(3, requires_grad=True)
    with warnings.catch_warnings(), noclobber.watch() as seen:
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(1) as other:
            for _ in range(50):
                torch.ones(2, requires_grad=True).exp()
            y.mul_(2)
            z = other.submit(lambda: x * y).result()
            other.submit(lambda: y.mul_(2)).result()  # write
            with contextlib.suppress(RuntimeError):
                z.sum().backward()
    (finding,) = seen.findings
    (label,) = [one for one in finding.labels if one.role == "write"]
    assert source_line(label.span.path, label.span.line).endswith("# write")


def test_a_block_watches_the_thread_that_begins_it():
    """Also one that ran before any other block began."""
    go, begun, found = threading.Event(), threading.Event(), []

    def own_block():
        begun.set()
        assert go.wait(20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with noclobber.watch() as seen:
                x = torch.ones(3, requires_grad=True)
                y = x.exp()
                y.data.zero_()
                y.sum().backward()
        found.extend(seen.findings)

    thread = threading.Thread(target=own_block)
    thread.start()
    assert begun.wait(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with noclobber.watch():
            go.set()
            thread.join()
    assert [one.code for one in found] == ["NC201"]


def test_a_thread_that_ran_before_is_named_in_the_coverage():
    def train():
        torch.ones(2, requires_grad=True).exp().sum().backward()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with noclobber.watch() as seen:
            pool.submit(train).result()
        pool.submit(train).result()
    assert any("threads that ran before" in one for one in seen.report.coverage.unseen)


@pytest.mark.parametrize("contents", [False, True])
def test_a_thread_that_goes_on_between_two_blocks_is_watched_whole_in_the_second(contents):
    """Its first write between the blocks takes the key off; its first save in the second puts it on again."""
    turn, seen = threading.Barrier(2), noclobber.watch(contents=contents)

    def goes_on():
        turn.wait(20)  # the first block ends
        turn.wait(20)
        torch.ones(3).add_(1)
        turn.wait(20)  # the second block begins
        turn.wait(20)
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.mul_(2)  # write
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    thread = threading.Thread(target=goes_on)
    with seen:
        thread.start()
        turn.wait(20)
    turn.wait(20)
    turn.wait(20)
    with seen:
        turn.wait(20)
        thread.join()
    (finding,) = seen.findings
    (label,) = [one for one in finding.labels if one.role == "write"]
    assert source_line(label.span.path, label.span.line).endswith("# write")


@pytest.mark.usefixtures("contended")
def test_blocks_begin_and_end_in_many_threads():
    def watch(number):
        for _ in range(20):
            with MODES[random.Random(number).choice(list(MODES))]():
                assert torch.equal(step(number, 3), right[number])

    right = {number: step(number, 3) for number in range(4)}
    engine = torch.autograd._engine_run_backward
    assert not in_threads(4, watch)
    assert torch.autograd._engine_run_backward is engine
    assert not spare_key.key_is_set()


def test_replicas_in_threads_as_data_parallel_runs_them():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True), nn.Linear(3, 1))
    inputs = [torch.randn(2, 3) for _ in range(3)]

    def gradients():
        net.zero_grad()
        results = [None] * len(inputs)

        def run(number):
            results[number] = net(inputs[number])

        assert not in_threads(len(inputs), run)
        torch.stack(results).sum().backward()
        return [one.grad.clone() for one in net.parameters()]

    bare = gradients()
    for mode in MODES.values():
        with mode() as seen:
            watched = gradients()
        assert all(torch.equal(one, other) for one, other in zip(bare, watched, strict=True))
        assert not getattr(seen, "findings", ())


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_workers(workers):
    data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=workers)
    net = nn.Linear(1, 1)
    with noclobber.watch(contents=True) as seen:
        for (batch,) in loader:
            net(batch).relu_().sum().backward()
    assert not seen.findings
    assert not seen.report.coverage.lost


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent():
    """A thread that stays behind in the parent may hold any of noclobber's locks when another one forks."""
    context = torch.multiprocessing.get_context("fork")
    held, over = threading.Event(), threading.Event()
    live = LiveSaves(lambda one: one, lambda _: EVERYWHERE)

    def hold():
        with live._lock:
            held.set()
            over.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    child = context.Process(target=live.sort)
    child.start()
    child.join(20)
    alive = child.is_alive()
    over.set()
    thread.join()
    child.kill()
    assert not alive


def test_a_nested_backward_works_for_its_own_call():
    """The engine takes the state of the thread that calls it along; noclobber finds the call by that (torch 2.13)."""
    seen = []

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            outer = engine_state.backward_call()
            with torch.enable_grad():
                y = torch.ones(2, requires_grad=True)
                z = y * 3
                z.register_hook(lambda g: seen.append((outer, engine_state.backward_call())))
                z.sum().backward()
            seen.append((outer, engine_state.backward_call()))
            return g

    with noclobber.watch():
        Nested.apply(torch.ones(2, requires_grad=True)).sum().backward()
        assert engine_state.backward_call() is None
    (first, inner), (second, again) = seen
    assert first is second is again
    assert inner is not None
    assert inner is not first


class Triples(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, writes):
        if writes:
            x.mul_(3)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 3, None


def a_function_writes_its_input(first):
    h = torch.ones(3, requires_grad=True) * 1
    y = Triples.apply(h, first)
    (y if first else h + y).sum().backward()


def a_hooked_view_is_written(first):
    h = torch.ones(4, requires_grad=True) * 1
    view = h[:2]
    if first:  # and no backward comes
        view.register_hook(lambda g: g)
        view.mul_(3)
    else:
        h.sum().backward()


@pytest.mark.parametrize("program", [a_function_writes_its_input, a_hooked_view_is_written])
def test_what_a_thread_did_is_not_told_of_nodes_of_the_next_one_with_the_same_numbers(program):
    with noclobber.watch() as watched:
        for first in (True, False):
            thread = threading.Thread(target=program, args=(first,))
            thread.start()
            thread.join()
    assert not watched.findings


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def written_by_another_thread_after_use():
    h = torch.ones(3, requires_grad=True) * 2
    loss = (h * 3).sum()
    in_a_thread(lambda: h.data.zero_())
    loss.backward()


def made_and_written_in_another_thread():
    made = []

    def forward():
        made.append(sum(torch.ones(3, requires_grad=True) * 2 for _ in range(20)))
        made[0].data.mul_(2)

    in_a_thread(forward)
    (made[0] * 3).sum().backward()


def written_and_used_in_another_thread():
    made, h = [], torch.ones(3, requires_grad=True) * 2

    def forward():
        h.data.mul_(2)
        made.append((h * 3).sum())

    in_a_thread(forward)
    made[0].backward()


@pytest.mark.parametrize(
    ("program", "codes"),
    [
        (written_by_another_thread_after_use, []),
        (made_and_written_in_another_thread, ["NC208"]),
        (written_and_used_in_another_thread, ["NC208"]),
    ],
)
@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_writes_that_autograd_does_not_see_beside_reads_of_another_thread(program, codes):
    for _ in range(30):  # this thread has the higher numbers, or the lower ones if it is new
        torch.ones(3, requires_grad=True) * 1
    for around in (lambda run: run(), in_a_thread):
        with noclobber.watch() as watched:
            around(program)
        assert [one.code for one in watched.findings] == codes
