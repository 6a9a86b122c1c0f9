"""Under `install` a step is remembered as a whole. What it has written is what a write log of its own would have."""

import functools

import pytest
import torch

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen.history import RECENT
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.layout import geometry


@pytest.fixture
def installed():
    handle = noclobber.install()
    yield
    handle.uninstall()


def written():
    """The storages that steps have written, each with its geometry and the version before."""
    found = [one for one in CONTEXT.memory.recent if one.step is not None]
    return [(one.key, one.geometry, one.version) for one in found]


def now(parameters):
    return [(storages.storage_key(one), geometry(one), one._version) for one in parameters]


def with_gradients(*shapes):
    parameters = [torch.randn(shape).requires_grad_() for shape in shapes]
    for one in parameters:
        one.grad = torch.ones_like(one)
    return parameters


def test_each_step_has_written_what_its_parameters_were_on(installed):
    parameters = with_gradients((3, 3), (4,), (2, 5))
    optimizer = torch.optim.SGD(parameters, 0.1)
    expected = now(parameters)
    optimizer.step()
    parameters[1].grad = None  # nothing is written there
    expected += now(parameters[::2])
    optimizer.step()
    parameters[0].data = parameters[0].data.t()  # the same memory, in another order
    expected += now(parameters[::2])
    optimizer.step()
    parameters[2].data = torch.zeros(2, 5)
    expected += now(parameters[::2])
    optimizer.step()
    optimizer.add_param_group({"params": with_gradients(7)})
    parameters = [*parameters[::2], optimizer.param_groups[1]["params"][0]]
    expected += now(parameters)
    optimizer.step()
    assert written() == expected


def test_the_same_address_may_show_other_numbers(installed):
    parameter = torch.zeros(4, dtype=torch.float16).requires_grad_()
    optimizer, expected = torch.optim.SGD([parameter], 0.1), []
    for dtype in (torch.float16, torch.bfloat16):
        parameter.grad = None
        parameter.data = parameter.data.view(dtype)
        parameter.grad = torch.ones(4, dtype=dtype)
        expected += now([parameter])
        optimizer.step()
    assert written() == expected


def test_steps_and_other_writes_come_in_the_order_they_were_made(installed):
    parameters = with_gradients(3, 4)
    optimizer = torch.optim.Adam(parameters, 0.1)
    other = torch.zeros(2)
    for _ in range(3):
        other.add_(1)
        optimizer.step()
    recent = [one for one in CONTEXT.memory.recent if one.step is not None or one.written.op == "aten::add_"]
    assert [one.written.op for one in recent] == ["aten::add_", "Adam.step", "Adam.step"] * 3
    assert [one.moment for one in recent] == sorted(one.moment for one in recent)


def test_a_sparse_parameter_is_remembered_too(installed):
    sparse = torch.eye(3).to_sparse().requires_grad_()
    plain = torch.zeros(3, requires_grad=True)
    sparse.grad, plain.grad = torch.eye(3).to_sparse(), torch.ones(3)
    optimizer = torch.optim.SGD([sparse, plain], 0.1)
    expected = now([sparse, plain])
    optimizer.step()
    assert written() == expected


def test_old_steps_are_forgotten_and_a_large_one_is_kept(installed):
    if CONTEXT.native is not None:
        pytest.skip("the native part takes the steps, and keeps writes by a limit of its own")
    parameters = with_gradients(*[(1,)] * 100)
    optimizer = torch.optim.SGD(parameters, 0.1)
    for _ in range(RECENT // 100 + 10):
        optimizer.step()
    assert 0 < sum(len(one.keys) for one in CONTEXT.memory.steps) <= RECENT
    parameters = with_gradients(*[(1,)] * (RECENT + 1))
    optimizer = torch.optim.SGD(parameters, 0.1)
    expected = now(parameters)
    optimizer.step()
    assert written()[-len(expected) :] == expected


def test_a_step_of_equal_code_in_another_file_is_of_that_file(installed, tmp_path):
    """Equal code objects are told apart: Python compares what they do, not their file."""
    for name in ("one.py", "other.py"):
        path = tmp_path / name
        path.write_text("def run(opt):\n    opt.step()\n")
        names = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        names["run"](torch.optim.SGD(with_gradients((2,)), 0.1))
        assert CONTEXT.memory.recent[-1].step.site.code.co_filename == str(path)


def adam_of_a_sparse_gradient():
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    torch.optim.Adam(embedding.parameters()).step()


def one_that_a_hook_stops(register="register_step_pre_hook"):
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def stop(*_):
        raise RuntimeError("not finite")

    getattr(optimizer, register)(stop)
    optimizer.step()


class Stops(torch.optim.Optimizer):
    def step(self, closure=None):
        raise RuntimeError("not finite")


def one_of_the_programs_own():
    Stops([torch.ones(3, requires_grad=True)], {}).step()


@pytest.mark.parametrize(
    "step",
    [
        adam_of_a_sparse_gradient,
        one_that_a_hook_stops,
        functools.partial(one_that_a_hook_stops, "register_step_post_hook"),
        one_of_the_programs_own,
    ],
)
@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_a_step_that_raises_is_over(step):
    with noclobber.watch() as watched:
        with pytest.raises(RuntimeError):
            step()
        x = torch.ones(3, requires_grad=True)
        h = x * 2
        with torch.no_grad():
            h.mul_(3)
        h.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))  # 6 is right
    assert [(one.code, one.message) for one in watched.findings] == [
        ("NC208", "`h` is changed under `no_grad`: the gradient leaves that out")
    ]
