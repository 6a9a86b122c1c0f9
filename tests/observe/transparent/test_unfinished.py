"""A process in which a backward has raised ends as it does without noclobber."""

import inspect
import os
import subprocess
import sys

import pytest
import torch

from noclobber.observe.torch_api.autograd import engine_state


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("meant to fail")


def forward():
    """The backward of `Fails` runs first, while the other branch waits in the engine's queue."""
    x = torch.ones(4, requires_grad=True)
    return x.exp().sum() + Fails.apply(x).sum()


FORWARD = f"import sys\nimport torch\nimport noclobber\n{inspect.getsource(Fails)}{inspect.getsource(forward)}"
CAUGHT = """
with noclobber.watch():
    try:
        forward().backward()
    except RuntimeError as error:
        print(error)
"""
LATER = """
with noclobber.watch():
    loss = forward()
try:
    loss.backward()
except RuntimeError as error:
    print(error)
del loss
"""
UNCAUGHT = """
with noclobber.watch():
    forward().backward()
"""
EXITS = """
try:
    with noclobber.watch():
        forward().backward()
except RuntimeError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("rest", "status"),
    [(CAUGHT, 0), (LATER, 0), (UNCAUGHT, 1), (EXITS, 3)],
    ids=["caught", "later", "uncaught", "exits"],
)
def test_a_process_in_which_a_backward_raised_keeps_its_exit_status(rest, status):
    environ = {**os.environ, "NOCLOBBER_PURE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", FORWARD + rest]
    run = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert run.returncode == status, run.stderr
    assert "meant to fail" in run.stdout + run.stderr


def test_the_emptied_queue_holds_no_saves_any_more():
    packed = []

    class Packed:
        def __init__(self, tensor):
            self.tensor = tensor.detach()
            packed.append(1)

        def __del__(self):
            packed.pop()

    with torch.autograd.graph.saved_tensors_hooks(Packed, lambda kept: kept.tensor):
        loss = forward()
        with pytest.raises(RuntimeError, match="meant to fail"):
            loss.backward()
        del loss
    assert packed
    engine_state.empty_queue()
    assert not packed
