"""When the user's lines are watched: only while foreign code may hold the memory of a live save, and not too dearly."""

import copy
import gc
import io
import sys

import numpy as np
import torch
from torch import nn

from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen.sites import site_of
from noclobber.observe.detectors.foreign_memory import byte_monitor
from noclobber.observe.detectors.foreign_memory.line_tracer import Lines, gettrace, statement
from tests.observe.foreign import watched


def kept(w):
    return (torch.ones(w.shape, requires_grad=True) * w).sum()


def following():
    """Whether user lines are being watched at present."""
    return CONTEXT.memory.foreign_writers.lines.here() is not None


def test_lines_are_watched_only_while_an_alias_of_a_live_save_is_out():
    def program():
        w = torch.ones(3)
        assert not following()
        y, a = kept(w), w.numpy()
        assert following()
        y.backward()
        assert not following()
        y = kept(w)
        assert following()
        del a
        gc.collect()
        assert not following()
        return y

    watched(program)


def test_memory_that_nobody_else_holds_is_not_watched():
    def program():
        x = torch.from_numpy(np.ones(3))
        y = kept(x) + kept(torch.as_tensor([1.0, 2.0])) + kept(torch.from_numpy(np.ones((4, 3))[1]))
        w = torch.ones(3)
        y = y + kept(w)
        assert w.numpy().sum() == np.asarray(w).sum() == 3
        assert w.untyped_storage().nbytes() == 12
        assert not following()
        return y

    assert watched(program).writes == []


def test_what_torch_does_itself_hands_nothing_out():
    def program():
        net = nn.Linear(3, 3)
        y = net(torch.ones(2, 3)).sum()
        repr(net.weight)
        copy.deepcopy(net)
        torch.save(net.state_dict(), io.BytesIO())
        y.backward()
        torch.optim.AdamW(net.parameters()).step()
        list(torch.utils.data.DataLoader(torch.ones(4, 3), batch_size=2))
        return dict(CONTEXT.memory.foreign_writers.handed)

    assert watched(program).value == {}


def test_what_was_handed_out_is_forgotten_with_its_storage():
    def program():
        for size in range(1, 50):
            torch.ones(size).numpy()
        kept_array = torch.ones(3).numpy()
        gc.collect()
        return kept_array, len(CONTEXT.memory.foreign_writers.handed)

    assert watched(program).value[1] == 1


def test_comparing_takes_about_a_fifth_of_the_time_at_most(monkeypatch):
    monkeypatch.setattr(byte_monitor, "AT_FIRST", 0)
    now, spent = [0.0], []

    def clock():
        now[0] += 1e-4
        return now[0]

    def dear(*args):
        now[0] += 0.002
        spent.append(0.002)
        return fingerprint(*args)

    fingerprint = byte_monitor.fingerprint
    monkeypatch.setattr(byte_monitor, "fingerprint", dear)
    monkeypatch.setattr(byte_monitor, "perf_counter", clock)

    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        begin = clock()
        while clock() < begin + 0.3:
            a[0] = 1
        passed = clock() - begin
        a[0] = 2
        y.backward()
        return passed

    found = watched(program)
    assert 0.02 < sum(spent) < 0.25 * found.value + 0.01
    assert len(found.writes) == 1


def test_what_is_being_compared_is_watched_meanwhile(monkeypatch):
    """Another thread that finds nothing to compare ends the following of lines."""
    compare, meanwhile = byte_monitor.ByteMonitor._compare, []

    def comparing(monitor, *args):
        meanwhile.append(bool(monitor))
        return compare(monitor, *args)

    monkeypatch.setattr(byte_monitor.ByteMonitor, "_compare", comparing)

    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        for _ in range(5):
            a[0] = 1
        y.backward()

    watched(program)
    assert meanwhile
    assert all(meanwhile)


def followed(array):
    def called(value):
        array[0] = value
        return value

    def counted():
        yield 1
        array[1] = 2

    array[2] = called(3)
    for i in counted():
        array[i] += 1
    array.extend(
        b"abc",
    )
    sorted([2, 1], key=lambda value: value)


def test_every_line_is_told_once_it_has_run_and_its_write_is_shown():
    seen, array = [], bytearray(4)
    state = bytes(array)

    def passed(place):
        nonlocal state
        if bytes(array) != state:
            state = bytes(array)
            span = site_of(statement(place)).span()
            seen.append((span.line - start, span.column, span.end_column))

    def failed(failure):
        raise failure

    start = followed.__code__.co_firstlineno
    lines = Lines(passed, failed)
    assert lines.start(sys._getframe())
    followed(array)
    lines.end()
    assert seen == [(2, 9, 17), (9, 5, 13), (11, 9, 22), (7, 9, 17), (12, 5, 6)]
    array[0] = 9
    assert len(seen) == 5
    assert gettrace() is None


def test_a_failure_of_ours_is_not_the_programs():
    failures = []

    def passed(place):
        raise ValueError

    lines = Lines(passed, failures.append)
    lines.start(sys._getframe())
    followed(bytearray(4))
    lines.end()
    assert failures
    assert {type(failure) for failure in failures} == {ValueError}
