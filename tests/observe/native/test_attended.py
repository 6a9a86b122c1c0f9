"""The native part leaves to Python the writes that a way of seeing waits for, by their storage, and no others."""

import subprocess
import sys
from textwrap import dedent, indent

import pytest
import torch

from noclobber.observe.torch_api.tensors import tensor_state

PROGRAM = """
import torch, noclobber
from noclobber.observe.core.writes import kernel_functions

class Solves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, start):
        return run(start.detach().clone())

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Overwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx, start):
        run(start)
        return start.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Adjoint(Solves):
    @staticmethod
    def backward(ctx, gradient):
        return run(gradient.clone())

class Scales(Solves):
    @staticmethod
    def backward(ctx, gradient):
        return run(gradient)

def run(tensor):
    for _ in range(50):
        tensor.mul_(0.5)
    return tensor

passed = []
with noclobber.watch():
    context, before = kernel_functions.told()

    def counting(written, tensor):
        passed.append(written.op)
        return before(written, tensor)

    kernel_functions.tell((context, counting))
    x = torch.ones(3, requires_grad=True)
    h = x * 2
{}
print(sum(passed.count(f"aten::{{op}}_") for op in ("mul", "zero", "detach")))
"""
IN_FUNCTION = "Solves.apply(h)"
BESIDE_A_HOOKED_VIEW = """
h.view(-1).register_hook(lambda gradient: None)
run(torch.ones(3))
"""
BESIDE_ANOTHER_SAVE_OF_PYTHON = """
cell = torch.nn.Parameter(torch.ones(3))
y = cell * h
with torch.no_grad():
    cell.add_(1)  # Python makes a handle of the save
run(torch.ones(3))
"""
BY_THE_ENGINE = """
h.register_hook(lambda gradient: None)
torch.stack([h[i % 3] for i in range(50)]).sum().backward()
"""
THE_INPUT = "Overwrites.apply(h)"
IN_A_BACKWARD = "Adjoint.apply(h).sum().backward()"
THE_GRADIENT = "(Scales.apply(h) + h).mul(2).sum().backward()"
THE_GRADIENT_ALONE = "(Scales.apply(h) * 2).sum().backward()"
BY_A_HOOK = """
h.register_hook(lambda gradient: run(gradient.clone()))
h.sum().backward()
"""
THE_HOOKED_VIEW = """
view = h.view(-1)
view.register_hook(lambda gradient: None)
run(view)
"""
BESIDE_DATA_THAT_WAS_READ = """
h.data.sum()
run(torch.ones(3))
"""
THE_DATA = "run(h.data)"
BESIDE_FORWARD_HOOKS = """
torch.nn.Linear(3, 3).register_forward_hook(lambda module, args, result: None)
run(torch.ones(3))
"""
UNDER_FORWARD_HOOKS = """
module = torch.nn.Linear(3, 3)
module.register_forward_hook(lambda module, args, result: None)
run(h)
"""
A_PARAMETER = """
with torch.no_grad():
    run(torch.nn.Parameter(torch.ones(3)))
"""
IN_A_STEP = """
class Own(torch.optim.Optimizer):
    def step(self):
        with torch.no_grad():
            run(x)

Own([x], {}).step()
torch.optim.SGD([x], lr=0.1).step(lambda: run(torch.ones(3)).sum())
"""
DETACHED_OUTSIDE_OF_THE_GRAPH = """
for _ in range(50):
    torch.ones(3).detach_()
"""
DETACHED_IN_THE_GRAPH = """
for _ in range(50):
    (h * 1).detach_()
"""
BESIDE_A_VIEW_OF_A_FUNCTION = """
class Shows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, memory, start):
        return memory.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient

shown = Shows.apply(torch.ones(3), h)
with torch.no_grad():
    run(torch.ones(3))
"""


class Holders(torch.autograd.Function):
    """Gives the number of the holders of its gradient, which is also one of the engine's up to torch 2.10."""

    @staticmethod
    def forward(ctx, start):
        return start.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.full_like(gradient, tensor_state.use_count(gradient))


ENGINE_HOLDS = torch.autograd.grad((Holders.apply(start := torch.ones((), requires_grad=True)) * 1), start)[0] > 1


@pytest.mark.parametrize(
    ("writes", "count"),
    [
        (IN_FUNCTION, 0),
        (BESIDE_A_HOOKED_VIEW, 0),
        (BESIDE_ANOTHER_SAVE_OF_PYTHON, 0),
        (BESIDE_DATA_THAT_WAS_READ, 0),
        (BESIDE_A_VIEW_OF_A_FUNCTION, 0),
        (BY_THE_ENGINE, 0),
        (IN_A_BACKWARD, 0),
        (DETACHED_OUTSIDE_OF_THE_GRAPH, 0),
        (DETACHED_IN_THE_GRAPH, 50),
        (BESIDE_FORWARD_HOOKS, 0),
        (A_PARAMETER, 0),
        (IN_A_STEP, 0),
        (UNDER_FORWARD_HOOKS, 50),
        (THE_DATA, 50),
        (BY_A_HOOK, 50),
        (THE_GRADIENT, 50),
        (THE_GRADIENT_ALONE, 50 if ENGINE_HOLDS else 0),
        (THE_INPUT, 50),
        (THE_HOOKED_VIEW, 50),
    ],
    ids=[
        "in a Function",
        "beside a hooked view",
        "beside a save",
        "beside data",
        "beside a view of a Function",
        "the engine's",
        "in a backward",
        "detached outside of the graph",
        "detached in the graph",
        "beside forward hooks",
        "a parameter",
        "in a step",
        "under forward hooks",
        "the data",
        "a hook's",
        "the gradient",
        "a gradient that nobody else holds",
        "the input",
        "the hooked view",
    ],
)
def test_only_writes_that_are_waited_for_are_passed_to_python(native: dict[str, str], writes: str, count: int) -> None:
    program = PROGRAM.format(indent(dedent(writes), "    "))
    done = subprocess.run([sys.executable, "-c", program], env=native, capture_output=True, text=True, check=True)
    assert int(done.stdout) == count


def test_a_step_on_other_memory_than_live_saves_stays_native(native: dict[str, str]) -> None:
    script = """
        import torch, noclobber
        from noclobber.observe.core.writes import optimizer_steps
        asked, parameters = [], optimizer_steps.parameters
        optimizer_steps.parameters = lambda optimizer: asked.append(optimizer) or parameters(optimizer)
        maker, critic = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        with noclobber.watch():
            made = maker(torch.ones(2, 3)).tanh()
            critic(made.detach()).sum().backward()
            optimizer.step()
            print(len(asked))
            loss = critic(made).sum()
            optimizer.step()
            print(len(asked))
    """
    run = [sys.executable, "-c", dedent(script)]
    done = subprocess.run(run, env=native, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"], done.stderr
