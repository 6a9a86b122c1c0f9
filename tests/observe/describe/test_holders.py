"""At a write that meets a live save the names are noted under which the program holds the memory, and nothing else."""

import contextlib
import gc
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import noclobber
from noclobber.model.seen.live_saves import FEWEST_BEFORE_SWEEP
from noclobber.observe.describe import holders

KEPT = []
LAST = None

pytestmark = pytest.mark.usefixtures("looks_anew")
count_of_frozen = gc.get_freeze_count


def made():
    return torch.ones(3, requires_grad=True).exp()


class Cell:
    def __init__(self):
        self.state = made()


def a_variable():
    h = made()
    h += 1
    return h


def another_name():
    h = made()
    other = h
    h += 1
    return h * other


def a_view():
    h = made()
    row = h[:2]
    h += 1
    return h.sum() * row


def a_view_of_other_bytes():
    h = made()
    row = h[:2]
    h[2:].mul_(2)
    return h.sum() * row


def in_dead_frames_and_in_the_graph_alone():
    h = made()

    def used(t):
        return (t * t)[:1]

    y = used(h.view(-1))
    h += 1
    return h * y


def a_list():
    h = made()
    rows = [h]
    h += 1
    return rows[0] * h


def an_item():
    rows = [made()]
    rows[0] += 1
    return rows[0]


def two_items_of_one_list():
    h = made()
    rows = [h, h]
    del h
    rows[0] += 1
    return rows[1]


def an_item_of_a_tuple():
    pair = (made(), 1)
    pair[0].add_(1)
    return pair[0]


def an_item_of_a_dict():
    cache = {"h": made()}
    cache["h"] *= 2
    return cache["h"]


def an_attribute():
    cell = Cell()
    cell.state += 1
    return cell.state


def a_buffer():
    net = nn.Module()
    net.register_buffer("last", made())
    net.last += 1
    return net.last


def an_argument():
    def shift(t):
        t += 1
        return t

    h = made()
    return shift(h) * 1


def an_argument_of_a_module():
    class Shift(nn.Module):
        def forward(self, t):
            t += 1
            return t

    h = made()
    return Shift()(h) * 1


def a_closure():
    h = made()

    def later():
        return h * 2

    h.add_(1)
    return later()


def a_variable_of_the_file():
    global LAST
    LAST = made()
    h = LAST
    h += 1
    return h * LAST


def of_a_module_in_place():
    h = made()
    return nn.ReLU(inplace=True)(h)


def a_set():
    h = made()
    some = {h}
    h += 1
    return next(iter(some))


def a_variable_of_a_generator():
    def waiting():
        mine = h
        yield
        yield mine

    h = made()
    some = waiting()
    next(some)
    h += 1
    return next(some)


def its_data():
    h = made()
    data = h.data
    data.neg_()
    return h


def an_output():
    h = torch.ones(3)
    y = h * torch.ones(3, requires_grad=True)
    torch.add(torch.ones(3), 1, out=h)
    return y


def a_default():
    h = made()

    def held(value=h):
        return value

    h += 1
    return held()


NAMES = {
    a_variable: {"h"},
    another_name: {"h", "other"},
    a_view: {"h", "row"},
    a_view_of_other_bytes: {"h"},
    in_dead_frames_and_in_the_graph_alone: {"h"},
    a_list: {"h", "rows[0]"},
    an_item: {"rows[0]"},
    two_items_of_one_list: {"rows[0]", ""},
    an_item_of_a_tuple: {"pair"},
    an_item_of_a_dict: {"cache['h']"},
    an_attribute: {"cell.state"},
    a_buffer: {"net.last"},
    an_argument: {"t", "h"},
    an_argument_of_a_module: {"t", "h"},
    a_closure: {"h"},
    a_variable_of_the_file: {"h", "LAST"},
    of_a_module_in_place: {"h"},
    a_set: {"h", ""},
    a_variable_of_a_generator: {"h", "mine"},
    a_default: {"h", ""},
    its_data: {"h", "data"},
    an_output: {"h"},
}


def in_another_file():
    h = made()
    KEPT.append({1: {2: {3: {4: {5: {6: {7: {8: h}}}}}}}})
    h += 1
    return h


def in_an_array():
    h = torch.zeros(3)
    array = h.detach().numpy()
    y = h * torch.ones(3, requires_grad=True)
    h += 1
    return y + float(array.sum())


def in_another_thread():
    h, begun, over = made(), threading.Event(), threading.Event()

    def hold(mine):
        begun.set()
        over.wait(30)
        return mine

    thread = threading.Thread(target=hold, args=(h,))
    thread.start()
    begun.wait(30)
    h += 1
    over.set()
    thread.join()
    return h


def whose_gradient_is_retained():
    h = made()
    h.retain_grad()
    h += 1
    return h


def with_an_attribute_of_its_own():
    h = made()
    h.tag = "first"
    h += 1
    return h


def with_a_weak_reference():
    h = made()
    alive = weakref.ref(h)
    h += 1
    return alive() * 1


def on_the_stack_of_a_generator():
    def waiting():
        yield torch.add(h.view(3), (yield))

    h = made()
    some = waiting()
    next(some)
    h += 1
    return some.send(h)


def on_the_stack_of_a_sum_that_waits():
    def waiting(mine):
        yield mine + (yield)

    h = made()
    some = waiting(h)
    next(some)
    h += 1
    return some.send(h)


def what_a_loop_will_still_give():
    h, total = made(), 0
    for part in (h[:1], h[1:2]):
        total = total + part * part
        h += 1
    return total.sum() + h


UNKNOWN = [
    on_the_stack_of_a_sum_that_waits,
    what_a_loop_will_still_give,
    on_the_stack_of_a_generator,
    in_another_file,
    in_an_array,
    in_another_thread,
    whose_gradient_is_retained,
    with_an_attribute_of_its_own,
    with_a_weak_reference,
]


def findings(program, around=noclobber.watch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with contextlib.suppress(RuntimeError), around(contents=True) as seen:
            program()
    return seen.findings


def of_write(program):
    finding, *_ = findings(lambda: program().sum().backward())
    return finding.writes[0].holders


@pytest.fixture(autouse=True)
def nothing_kept():
    yield
    KEPT.clear()


@pytest.mark.parametrize("program", NAMES, ids=lambda p: p.__name__)
def test_all_names_are_noted(program):
    assert {one.name for one in of_write(program)} == NAMES[program]


@pytest.mark.parametrize("program", UNKNOWN, ids=lambda p: p.__name__)
def test_where_something_without_a_name_may_hold_it_nothing_is_known(program):
    assert of_write(program) is None


def test_a_holder_says_in_which_function_it_is():
    lines = {one.name: one.site.code.co_name for one in of_write(an_argument)}
    assert lines == {"t": "shift", "h": "an_argument"}


def test_the_names_of_all_that_was_seen_at_a_line_are_noted():
    def run():
        total = 0
        for turn in range(3):
            h = made()
            first = h if turn == 1 else None
            h += 1
            total = total + h
            del first
        return total

    assert {one.name for one in of_write(run)} == {"h", "first"}


def test_the_holders_of_a_view_that_may_not_be_written():
    def refused():
        a, _ = torch.ones(4, requires_grad=True).exp().chunk(2)
        a.mul_(2)

    (finding,) = findings(refused)
    assert {one.name for one in finding.event.holders} == {"a"}


def test_what_a_loop_alone_goes_through_holds_no_part_that_it_gave():
    def refused():
        h = made()
        for _, (row, _) in enumerate(zip(h.unbind(), range(3), strict=True)):
            row.mul_(2)

    (finding,) = findings(refused)
    assert {one.name for one in finding.event.holders} == {"h", "row"}


def test_what_a_variable_goes_through_may_be_gone_through_elsewhere():
    def refused():
        rows = iter(made().unbind())
        for row in rows:
            row.mul_(2)

    (finding,) = findings(refused)
    assert finding.event.holders is None


def test_of_a_refused_write_without_elements_nothing_is_known():
    x = torch.ones(0, requires_grad=True)
    with pytest.raises(RuntimeError), noclobber.watch() as seen:
        x.add_(1)
    (finding,) = seen.findings
    assert finding.event.holders is None
    assert not seen.report.coverage.lost


def test_a_line_is_looked_at_a_few_times_only(monkeypatch):
    looks, real = [], holders._holders
    monkeypatch.setattr(holders, "_holders", lambda *args: looks.append(args[1]) or real(*args))
    with noclobber.watch(contents=True):
        for _ in range(40):
            h = made()
            h += 1  # a save is alive, and is never read
    assert 0 < len(looks) <= 3
    looks.clear()
    with noclobber.watch(contents=True):
        for _ in range(40):
            h = torch.ones(3, requires_grad=True) * 2
            h += 1  # no save is there
    assert not looks


def loaded(net):
    net.load_state_dict(net.state_dict())


def stepped(net):
    torch.optim.SGD(net.parameters(), 0.1).step()


@pytest.mark.parametrize("write", [loaded, stepped])
def test_what_has_no_other_form_costs_no_look(monkeypatch, write):
    looks, real = [], holders._tensors_on
    monkeypatch.setattr(holders, "_tensors_on", lambda *args: looks.append(args[0]) or real(*args))
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with noclobber.watch():
        kept = net(torch.ones(1, 3)).sum()
        kept.backward(retain_graph=True)
        write(net)
        assert not looks
        h = made()
        h += 1
        assert looks


def test_a_process_looks_for_a_second_in_all(monkeypatch):
    monkeypatch.setattr(holders, "spent", [holders._MOST_SECONDS])
    h = made()
    with noclobber.watch() as seen, contextlib.suppress(RuntimeError):
        kept = h.exp() * h
        h += 1
        kept.sum().backward()
    (finding,) = seen.findings
    assert finding.writes[0].holders is None


def test_beside_more_saves_than_the_collector_sees():
    with noclobber.watch():
        y = torch.ones(3, requires_grad=True)
        for _ in range(3 * FEWEST_BEFORE_SWEEP):
            y = y.sin()
        assert {one.name for one in of_write(a_variable)} == {"h"}


def test_what_the_collector_is_made_to_forget_is_not_known(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", count_of_frozen)
    monkeypatch.setattr(holders, "frozen", count_of_frozen())

    def frozen():
        h = made()
        gc.freeze()
        part = h[:]
        part += 1
        return h

    try:
        assert of_write(frozen) is None
    finally:
        gc.unfreeze()
        gc.freeze()


def test_what_the_program_drops_after_a_look_is_gone_at_once():
    def run():
        big, h = torch.ones(3), made()
        alive = weakref.ref(big)
        h += 1
        del big
        return alive()

    with noclobber.watch(contents=True):
        assert run() is None


def test_the_dict_of_locals_that_the_program_keeps_stays_as_it_is():
    def run():
        h, mine = made(), locals()
        h += 1
        return sorted(mine)

    bare = run()
    with noclobber.watch(contents=True):
        assert set(bare) <= set(run())


def test_variables_are_there_after_a_look_under_a_trace_function():
    def run():
        h, other = made(), torch.ones(3)
        h += 1
        return h * other

    def trace(frame, event, arg):
        return trace

    before = sys.gettrace()
    try:
        with noclobber.watch(contents=True):
            sys.settrace(trace)
            assert torch.equal(run(), run())
    finally:
        sys.settrace(before)
