"""Warnings and log records blame the line that they blame without noclobber, and are shown as often."""

import logging
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import noclobber
from tests.observe import alike
from tests.observe.alike import differing


def say(name):
    """Warn of whoever is called from further and further up."""
    for level in range(1, 8):
        warnings.warn(f"{name} {level}", stacklevel=level)


class Loud(Function):
    """Warns in forward and backward."""

    @staticmethod
    def forward(ctx, x):
        say("forward")
        ctx.save_for_backward(x)
        ctx.x = x
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        say("backward")
        torch.add(gradient, 1, out=torch.ones(1))
        return gradient * ctx.saved_tensors[0] * ctx.x


def leaf():
    return torch.ones(3, requires_grad=True)


def custom_function():
    Loud.apply(leaf()).sum().backward()


def custom_function_in_a_hidden_backward():
    x = leaf()
    torch.autograd.grad(Loud.apply(x).sum(), x, create_graph=True)


def hooks():
    y = leaf().exp()
    y.register_hook(lambda gradient: say("hook"))
    y.grad_fn.register_prehook(lambda gradients: say("prehook"))
    y.grad_fn.register_hook(lambda gradients, outputs: say("hook of a node"))
    y.sum().backward()


def hooks_of_modules():
    net = torch.nn.Linear(2, 2)
    net.register_forward_hook(lambda module, inputs, output: say("forward hook"))
    net.register_full_backward_hook(lambda module, before, after: say("backward hook"))
    net(torch.ones(1, 2)).sum().backward()


def saved_tensors_hooks():
    def pack(tensor):
        say("pack")
        return tensor

    def unpack(tensor):
        say("unpack")
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = leaf().exp()
    y.sum().backward()


def hooks_of_one_save():
    y = leaf().exp()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: (say("pack"), t)[1], lambda t: (say("unpack"), t)[1])
    y.sum().backward()


def region(use_reentrant):
    def function(x):
        say("region")
        return x.exp()

    checkpoint(function, leaf() * 2, use_reentrant=use_reentrant).sum().backward()
    checkpoint(function, torch.ones(3), use_reentrant=use_reentrant)


def region_that_is_not_reentrant():
    region(False)


def region_that_is_reentrant():
    region(True)


def closure():
    optimizer = torch.optim.LBFGS([x := leaf()], max_iter=1)

    def loss():
        say("closure")
        optimizer.zero_grad()
        result = x.square().sum()
        result.backward()
        return result

    optimizer.step(loss)


def create_graph():
    leaf().exp().sum().backward(create_graph=True)


def wrong_size():
    for _ in range(2):
        torch.add(torch.ones(3), 1, out=torch.ones(2))
    torch.add(torch.ones(3), 1, out=torch.ones(2))


def read_only_array():
    array = np.frombuffer(b"\0" * 12, dtype=np.float32)
    for make in (torch.from_numpy, torch.as_tensor, torch.asarray):
        make(array)
    torch.from_numpy(array)
    torch.frombuffer(b"\0" * 12, dtype=torch.float32)


def refused_array():
    torch.from_numpy("no array")


def discarded_imaginary_part():
    torch.ones(2).copy_(torch.ones(2, dtype=torch.cfloat))
    torch.ones(2).data.copy_(torch.ones(2, dtype=torch.cfloat))


def gradient_of_an_inner_tensor():
    (leaf() * 1).grad  # noqa: B018


def in_a_thread():
    import threading

    thread = threading.Thread(target=say, args=("thread",))
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def warn_always():
    """PyTorch says some warnings once in a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


PROGRAMS = [
    custom_function,
    custom_function_in_a_hidden_backward,
    hooks,
    hooks_of_modules,
    saved_tensors_hooks,
    hooks_of_one_save,
    region_that_is_not_reentrant,
    region_that_is_reentrant,
    closure,
    create_graph,
    wrong_size,
    read_only_array,
    refused_array,
    discarded_imaginary_part,
    gradient_of_an_inner_tensor,
    in_a_thread,
]


def warned(program, action):
    """The warnings of a program that is run twice, and what Python has noted of them for the files that are blamed."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        for _ in range(2):
            try:
                program()
            except Exception as error:
                seen.append(warnings.WarningMessage(str(error), type(error), "", 0))
        noted = [getattr(sys.modules[name], "__warningregistry__", {}) for name in (__name__, "torch.autograd.graph")]
    shown = [(str(one.message), one.category.__name__, one.filename, one.lineno) for one in seen]
    harness = alike.__file__
    return [one for one in shown if one[2] != harness], [sorted(map(str, one)) for one in noted]


@pytest.mark.parametrize("action", ["always", "default", "once"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_warning_blames_what_it_blames_without_noclobber(program, action):
    assert differing(lambda: warned(program, action)) == {}
    assert warned(program, "always") != ([], [[], []])


@pytest.mark.parametrize("around", [noclobber.watch, noclobber.preserve])
def test_a_decorated_function_blames_its_caller(around):
    @around()
    def function():
        warnings.warn("blamed", stacklevel=2)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        function()
    assert [one.filename for one in seen] == [__file__]


class Records(logging.Handler):
    """Keeps where records come from."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.getMessage(), record.pathname, record.lineno, record.funcName))


def test_a_log_record_names_the_caller_that_it_names_without_noclobber():
    log = logging.getLogger(__name__)

    def program():
        log.addHandler(records := Records())
        y = leaf().exp()
        y.register_hook(lambda gradient: [log.warning("%d", level, stacklevel=level) for level in range(1, 7)])
        y.sum().backward()
        log.removeHandler(records)
        return records.seen

    log.propagate = False
    assert differing(program) == {}


def test_a_frame_of_an_import_is_passed_over():
    """What this rests on (CPython 3.11 to 3.14)."""
    names = {"warnings": warnings}
    exec(compile("def inner(call): return call()", "<noclobber, like importlib._bootstrap>", "exec"), names)

    def outer():
        return names["inner"](lambda: warnings.warn("blamed", stacklevel=2))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outer()
    assert seen[0].lineno == outer.__code__.co_firstlineno + 1
    assert seen[0].filename == __file__
