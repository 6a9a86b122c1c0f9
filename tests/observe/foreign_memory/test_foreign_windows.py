"""Where the line of a foreign write cannot be known: a window, from where the bytes were last seen whole."""

import sys

import pytest
import torch

import noclobber
from noclobber.observe.detectors.foreign_memory import byte_monitor, exported_saves
from tests.observe.foreign import line, marked, watched


def kept(w):
    """A graph that keeps `w`."""
    return (torch.ones(w.shape, requires_grad=True) * w).sum()  # saved


def too_dear():
    w = torch.ones(3)
    y = kept(w)
    a = w.numpy()  # handed
    a[1] = 2
    y.backward()  # read


def test_it_is_a_window_where_comparing_is_too_dear(monkeypatch):
    monkeypatch.setattr(byte_monitor, "SHARE", 0)
    monkeypatch.setattr(byte_monitor, "AT_FIRST", 0)
    (write,) = watched(too_dear).writes
    assert write.via == "foreign"
    assert [{line(site)} for site in (write.since, write.handed.site, write.site)] == [
        marked(kept, "saved"),
        marked(too_dear, "handed"),
        marked(too_dear, "read"),
    ]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring leaves a tracer alone")
def test_it_is_a_window_where_the_program_has_a_tracer_of_its_own():
    def tracer(frame, event, argument):
        return None

    def program():
        sys.settrace(tracer)
        try:
            too_dear()
        finally:
            assert sys.gettrace() is tracer
            sys.settrace(before)

    before = sys.gettrace()
    found = watched(program)
    assert {line(found.writes[0].since)} == marked(kept, "saved")
    assert any(exported_saves.HAS_TRACER in unseen for unseen in found.report.coverage.unseen)


def test_it_is_a_window_where_the_memory_was_handed_out_before():
    w = torch.ones(3)
    a = w.numpy()

    def program():
        y = kept(w)
        a[1] = 2
        y.backward()  # read

    (write,) = watched(program).writes
    assert [{line(write.since)}, {line(write.site)}] == [marked(kept, "saved"), marked(program, "read")]
    assert write.handed is None


def test_a_write_is_not_blamed_on_who_had_the_memory_before():
    """The memory of the save that was handed out is soon that of the next one, which holds the same numbers."""

    def read_by_numpy():
        y = torch.ones(3, requires_grad=True).exp()
        y.detach().numpy().sum()
        y.sum().backward()

    def written_by_torch():
        z = torch.ones(3, requires_grad=True).exp()
        z.data.mul_(2)
        z.sum().backward()

    def in_turns():
        for _ in range(50):
            read_by_numpy()
            written_by_torch()

    with pytest.warns(noclobber.ClobberWarning), noclobber.watch(contents=True) as seen:
        in_turns()
    assert [(one.code, one.count) for one in seen.findings] == [("NC201", 50)]
