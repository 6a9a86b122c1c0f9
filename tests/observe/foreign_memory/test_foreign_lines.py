"""The line of a write by foreign code: in loops, in functions, in libraries, in hooks, in threads."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from noclobber.model.source import source_line
from tests.observe.foreign import line, marked, watched


def kept(w):
    """A graph that keeps `w`."""
    return (torch.ones(w.shape, requires_grad=True) * w).sum()  # saved


def one_array_for_all_frames():
    frame, losses = np.zeros(3), []
    for step in range(4):
        frame[:] = step  # written
        losses.append(kept(torch.from_numpy(frame)))  # handed
    sum(losses).backward()


def test_every_frame_but_the_last_was_overwritten_in_the_loop():
    writes = watched(one_array_for_all_frames).writes
    assert [{line(write.site)} for write in writes] == [marked(one_array_for_all_frames, "written")] * 3
    assert {line(write.handed.site) for write in writes} == marked(one_array_for_all_frames, "handed")
    assert {write.since for write in writes} == {None}


def in_a_function():
    def clear(array):
        if array.size:
            array[:] = 0  # written
        return array.size

    w = torch.ones(3)
    y = kept(w)
    assert clear(w.numpy()) == 3
    y.backward()


def in_a_generator():
    def batches(array):
        for i in range(3):
            array[:] = i  # written
            yield array

    array = np.ones(3)
    y = kept(torch.from_numpy(array))
    for _ in batches(array):
        pass
    y.backward()


def in_a_comprehension():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()
    [a.itemset(i) if hasattr(a, "itemset") else a.put(i, 7) for i in range(3)]  # written
    y.backward()


def while_an_exception_passes():
    def fails(array):
        array[:] = 0  # written
        raise KeyError

    w = torch.ones(3)
    y = kept(w)
    try:
        fails(w.numpy())
    except KeyError:
        y.backward()


def in_a_library():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()
    np.random.default_rng(0).shuffle(a[:0])
    np.put_along_axis(a, np.array([1]), 5, 0)  # written
    y.backward()


def in_a_method_of_the_model():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = np.ones(3, dtype=np.float32)
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, step):
            self.buffer += step  # written
            return (self.scale * torch.from_numpy(self.buffer)).sum()

    model = Model()
    (model(1) + model(2)).backward()


def over_several_lines():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()
    np.copyto(  # written
        a,
        7,
    )
    y.backward()


def on_the_line_of_the_backward():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()
    a.fill(3), y.backward()  # written


def in_a_hook():
    w = torch.ones(3, requires_grad=True)
    a = w.detach().numpy()

    def hook(grad):
        a[0] = 5  # written

    y = w.exp() * w
    z = y * 2
    z.register_hook(hook)
    z.sum().backward()


def in_a_thread():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()

    def work():
        a[:] = 3  # written

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    y.backward()


def in_a_task_of_a_pool():
    def work(a):
        a[:] = 3  # written

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        w = torch.ones(3)
        y = kept(w)
        pool.submit(work, w.numpy()).result()
        y.backward()


def in_a_thread_that_was_there_before():
    orders, done = queue.Queue(), threading.Event()

    def work():
        a = orders.get()
        a[:] = 3  # written
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.01)
    w = torch.ones(3)
    y = kept(w)
    orders.put(w.numpy())
    done.wait()
    thread.join()
    y.backward()


def after_a_harmless_write_that_torch_saw():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()
    w.data.mul_(1)
    a[:] = 3  # written
    y.backward()


def with_a_second_backward():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()
    y.backward(retain_graph=True)
    a[:] = 3  # written
    y.backward()


def restored_in_between():
    w = torch.ones(3)
    y, a = kept(w), w.numpy()
    a[1] += 1
    a[1] -= 1
    a[2] = 9  # written
    y.backward()


LINES = [
    in_a_function,
    in_a_generator,
    in_a_comprehension,
    while_an_exception_passes,
    in_a_library,
    in_a_method_of_the_model,
    over_several_lines,
    on_the_line_of_the_backward,
    in_a_hook,
    in_a_thread,
    in_a_task_of_a_pool,
    in_a_thread_that_was_there_before,
    after_a_harmless_write_that_torch_saw,
    with_a_second_backward,
    restored_in_between,
]


@pytest.mark.parametrize("program", LINES, ids=lambda p: p.__name__)
def test_the_line(program):
    (write,) = watched(program).writes
    assert ({line(write.site)}, write.since) == (marked(program, "written"), None)
    assert (write.op, write.via) == ("", "foreign")


def test_the_span_is_what_was_assigned_to():
    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        a[1:] = [float(i) for i in range(2)]
        y.backward()

    span = watched(program).writes[0].site.span()
    assert source_line(span.path, span.line)[span.column - 1 : span.end_column - 1] == "a[1:]"


def test_a_write_that_torch_saw_is_not_foreign():
    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        w.data.mul_(2)  # written
        y.backward()
        return a

    (write,) = watched(program).writes
    assert ({line(write.site)}, write.op, write.via) == (marked(program, "written"), "aten::mul_", "data")
