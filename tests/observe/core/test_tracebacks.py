"""What a program prints of an error has none of noclobber's frames, and is what it prints without noclobber."""

from __future__ import annotations

import re
import threading
import traceback
from pathlib import Path

import pytest
import torch

import noclobber
from noclobber.model.tracebacks import without_own_frames
from tests import served


def leaf():
    return torch.ones(3, requires_grad=True)


def stale():
    y = leaf().exp()
    y.mul_(2)
    y.sum().backward()


def written_leaf():
    leaf().mul_(2)


def filled_leaf():
    torch.exp(leaf(), out=torch.ones(3))


class Dividing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by=1):
        return x / 2 if by else 1 / by

    @staticmethod
    def backward(ctx, gradient):
        return 1 / 0


def failing_backward():
    Dividing.apply(leaf()).sum().backward()


def failing_forward():
    Dividing.apply(leaf(), 0)


def assigned():
    leaf().data = torch.ones(3, dtype=torch.int)


def beyond_the_end():
    torch.zeros(3).index_add_(0, torch.tensor([7]), torch.ones(1))


def failing_pack_hook():
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: 1 / 0, lambda tensor: tensor):
        leaf().exp()


def failing_cell():
    torch.nn.LSTMCell(4, 3)(torch.ones(2, 5))


def printed(program):
    try:
        program()
    except Exception:
        return re.sub(r"noclobber\.ClobberError", "RuntimeError", traceback.format_exc())


@pytest.mark.parametrize(
    "program",
    [
        stale,
        written_leaf,
        filled_leaf,
        failing_backward,
        failing_forward,
        assigned,
        beyond_the_end,
        failing_pack_hook,
        failing_cell,
    ],
    ids=lambda program: program.__name__,
)
def test_a_caught_error_is_printed_as_without_noclobber(program):
    bare = printed(program)
    with noclobber.watch():
        watched = printed(program)
    assert watched.startswith(bare)


def test_so_is_an_error_of_an_operator_that_returns_several_views():
    def program():
        torch.ones(4).split([1, 2])

    bare = printed(program)
    with noclobber.watch():
        assert printed(program) == bare


def test_a_stopped_write_is_raised_at_its_line():
    with noclobber.watch(on_write="raise"):
        text = printed(stale)
    assert [line.split(" in ")[1] for line in text.splitlines() if line.startswith("  File")] == ["printed", "stale"]


def test_threads_and_chains_too(monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda about: shown.extend(traceback.format_exception(about[1])))
    with pytest.raises(ValueError) as chained, noclobber.watch():  # noqa: PT011, PT012
        thread = threading.Thread(target=stale)
        thread.start()
        thread.join()
        try:
            stale()
        except RuntimeError as error:
            raise ValueError from error
    chain = "".join(traceback.format_exception(chained.value))
    assert chain.count("error[NC101]") == 1
    assert "in stale" in chain
    for text in (chain, "".join(shown)):
        assert "src/noclobber" not in text
        assert "<noclobber" not in text


def test_a_circle_and_a_group_are_gone_through_once():
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    without_own_frames(BaseExceptionGroup("several", [first]))  # ends
    assert (first.__cause__, second.__cause__) == (second, first)


def test_a_program_that_ends_by_a_chain_is_shown_without_them(tmp_path):
    program = tmp_path / "chain.py"
    program.write_text(
        "import torch\ny = torch.ones(3, requires_grad=True).exp()\ny.mul_(2)\ntry: y.sum().backward()\n"
        "except RuntimeError as error: raise ValueError('x') from error\n"
    )
    done = served.run(["-m", "noclobber", "run", str(program)], tmp_path)
    assert str(Path(noclobber.__file__).parent) not in done.stderr
    assert "<noclobber" not in done.stderr
    assert done.stderr.count("error[NC101]") == 1
