"""Watching for foreign writes changes nothing: PyTorch, tracers, values, exceptions."""

import subprocess
import sys
import threading
import warnings
from concurrent.futures.thread import _WorkItem

import numpy as np
import pytest
import torch
import torch.utils.dlpack
from torch import nn

import noclobber
from noclobber.observe.detectors.foreign_memory import line_tracer
from tests.observe.foreign import watched

METHODS = ("numpy", "data_ptr", "untyped_storage", "__dlpack__", "share_memory_")
FUNCTIONS = ("from_numpy", "frombuffer", "as_tensor", "asarray", "from_dlpack", "to_dlpack")


def kept(w):
    return (torch.ones(w.shape, requires_grad=True) * w).sum()


def names():
    return (
        {name: vars(torch.Tensor).get(name) for name in METHODS},
        {name: getattr(torch, name) for name in FUNCTIONS},
        {name: getattr(torch.utils.dlpack, name) for name in ("from_dlpack", "to_dlpack")},
        sys.gettrace,
        threading.Thread._bootstrap_inner,
    )


def test_everything_is_put_back():
    before = names()
    with noclobber.watch(contents=True):
        assert all(now != then for now, then in zip(names(), before, strict=True))
    assert names() == before


def test_waiting_for_threads_is_put_back():
    def waiting():
        return vars(threading.Condition)["wait"], vars(_WorkItem)["run"]

    before = waiting()
    with noclobber.watch(contents=True):
        assert (waiting() == before) == (sys.version_info >= (3, 12)), "there all threads are followed anyway"
    assert waiting() == before


def test_nothing_is_replaced_without_contents():
    before = names()[:4]
    with noclobber.watch(contents=False):
        assert names()[:4] == before


def test_what_replaces_a_function_passes_for_it():
    places = [(torch.Tensor, name) for name in METHODS] + [(torch, name) for name in FUNCTIONS]
    natives = [getattr(owner, name) for owner, name in places]
    with noclobber.watch(contents=True):
        for (owner, name), native in zip(places, natives, strict=True):
            ours = getattr(owner, name)
            assert (ours.__name__, ours.__doc__) == (native.__name__, native.__doc__)
        with pytest.raises(RuntimeError, match="requires grad"):
            torch.ones(3, requires_grad=True).numpy()
        with pytest.raises(TypeError, match="expected np"):
            torch.from_numpy([1])
        with pytest.raises(RuntimeError):
            torch.ones(3).to_sparse().data_ptr()
        assert torch.as_tensor(data=[1, 2], dtype=torch.int8).tolist() == [1, 2]


def train():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer, batch, losses = torch.optim.Adam(net.parameters()), np.ones((5, 3), dtype=np.float32), []
    for step in range(4):
        batch += step
        loss = net(torch.from_numpy(batch)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().numpy().tolist() for p in net.parameters()]


def test_values_are_bit_identical_and_a_buffer_refilled_after_backward_is_right():
    found = watched(train)
    assert found.value == train()
    assert found.writes == []


def test_an_exception_is_the_programs_own():
    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        a[7] = 1
        return y

    with pytest.raises(IndexError, match="out of bounds") as error:
        watched(program)
    assert error.traceback[-1].name == "program"


def test_the_program_sees_no_tracer_and_none_is_left():
    seen = []

    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        seen.append((sys.gettrace(), threading.gettrace(), sys.getprofile()))
        return y, a, sys._getframe()

    frame = watched(program).value[2]
    assert seen == [(None, None, None)]
    assert sys.gettrace() is line_tracer.gettrace() is None
    assert frame.f_trace is sys._getframe().f_trace is None


def test_a_tracer_that_the_program_sets_meanwhile_is_kept():
    events = []

    def tracer(frame, event, argument):
        events.append((frame.f_code.co_name, event))
        return tracer

    def called():
        return 1

    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        sys.settrace(tracer)
        called()
        found = sys.gettrace()
        sys.settrace(None)
        a[0] = 3
        return y, found

    assert watched(program).value[1] is tracer
    assert [event for name, event in events if name == "called"] == ["call", "line", "return"]
    assert sys.gettrace() is None


def test_a_function_mode_of_the_program_is_asked_nothing_more():
    class Counts(torch.overrides.TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.calls.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    def program():
        w = torch.ones(3)
        with Counts() as counts:
            a = w.numpy()
            b = torch.from_numpy(a)
            a[0] = 1
        return counts.calls, b

    assert watched(program).value[0] == program()[0]


def test_the_default_device_is_honoured_by_functions_that_were_replaced_before_it_was_set():
    def program():
        with torch.device("meta"):
            return torch.as_tensor([1.0]).device.type

    assert watched(program).value == program() == "meta"


def test_a_thread_that_is_watched_ends_as_it_would():
    def program():
        w = torch.ones(3)
        y, a = kept(w), w.numpy()
        tracers = []
        thread = threading.Thread(target=lambda: tracers.append((sys.gettrace(), a.sum())))
        thread.start()
        thread.join()
        return y, tracers

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watched(program).value[1] == [(None, 3.0)]


def test_scripted_functions_compile_as_before():
    def scripted():
        return torch.jit.script(rounded)(torch.ones(2)).tolist()

    table = torch.jit._builtins._get_builtin_table()
    before = dict(table)
    assert watched(scripted).value == scripted() == [1, 2]
    assert table == before


def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor([int(x[0]), 2])


COMPILED = """
import sys, torch, noclobber, numpy as np
from contextlib import nullcontext
def product(x, array):
    return (x * torch.from_numpy(array) * torch.as_tensor(2.0)).sin().sum()
x, array, w = torch.ones(3, requires_grad=True), np.ones(3, dtype=np.float32), torch.ones(3)
def run(around, compiled):
    with around:
        compiled = compiled or torch.compile(product, backend="eager", fullgraph=True)
        for _ in range(2):
            compiled(x, array).backward()
        y = (x * w).sum()
        a = w.numpy()
        compiled(x, torch.from_numpy(a).numpy()).backward()
    return compiled
compiled = run(noclobber.watch(contents=True), None)
run(nullcontext(), compiled)
run(nullcontext(), None)
run(noclobber.watch(contents=True), compiled)
names = torch._C._dynamo.eval_frame, torch._dynamo.eval_frame, torch._dynamo.decorators
assert all(type(module.set_eval_frame) is type(len) for module in names)
assert torch.from_numpy in torch._dynamo.trace_rules.get_torch_obj_rule_map()
print(x.grad.tolist(), torch._dynamo.utils.counters["graph_break"])
"""


def test_functions_are_compiled_without_a_break_whether_or_not_we_were_there_first():
    run = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", COMPILED], capture_output=True, text=True
    )
    assert run.stderr == ""
    assert run.stdout.endswith("Counter()\n")
