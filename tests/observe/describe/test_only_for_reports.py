"""What describes a finding runs only for a finding: a program that is right never reaches it."""

import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch

import noclobber
from noclobber.observe import describe
from noclobber.observe.describe import clobbers
from tests.observe.programs import RIGHT, SILENT

FOLDER = str(Path(describe.__file__).parent)
LOOKED_AT = ("holders.py", "called.py", "reachable.py")
"""What looks who holds the memory the first times that a line writes (`MOST_LOOKS`): it is not to be had later."""
WEIGHED = {"touch", "_touch", "since", "is_other", "is_read"}
"""What decides whether there is a finding: whether bytes overlap, what a region has written, and whether a node reads
what has changed (batch norm in training does not read its statistics)."""


def reached(program):
    """How often each function of describe/ is called while a program runs."""
    calls = Counter()

    def called(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(FOLDER) and not path.endswith(LOOKED_AT):
            calls[frame.f_code.co_qualname.partition(".")[0]] += 1

    torch.manual_seed(0)
    with noclobber.watch():
        sys.setprofile(called)
        threading.setprofile(called)
        try:
            program()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return calls


def function_that_writes_its_input():
    class WritesRow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scratch, value, index):
            ctx.index = index
            scratch.data[index] = value
            return scratch

        @staticmethod
        def backward(ctx, g):
            return g, g[ctx.index], None

    x = torch.ones(3, requires_grad=True)
    rows = torch.empty(3, 4)
    for i in range(4):
        rows = WritesRow.apply(rows, x * i, (..., i))
    rows.sum().backward()


def generation_under_no_grad():
    net, cache = torch.nn.Linear(4, 4), torch.zeros(8, 4)
    with torch.no_grad():
        for i in range(8):
            cache[i] = net(cache[max(i - 1, 0)])


@pytest.mark.parametrize("program", RIGHT, ids=lambda p: p.__name__)
def test_a_program_that_is_right_reaches_nothing_that_describes(program):
    assert set(reached(program)) <= WEIGHED


@pytest.mark.parametrize("program", [function_that_writes_its_input, generation_under_no_grad])
def test_a_write_that_may_have_to_be_told_later_is_not_named_before(program):
    """Such a write keeps what leads to its tensor later (`later_of`), and looks for no name."""
    assert set(reached(program)) <= WEIGHED | {"later_of", "weak"}


@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_a_program_that_is_wrong_reaches_it():
    assert "tensor_of" in reached(SILENT[0])


def test_of_a_line_that_is_wrong_in_each_turn_a_few_turns_are_described(monkeypatch):
    """Each description goes through all writes since the save: of 400 turns they took 40 s."""
    described, native = [], clobbers.clobber_of

    def clobber_of(handle, *rest):
        described.append(handle)
        return native(handle, *rest)

    monkeypatch.setattr(clobbers, "clobber_of", clobber_of)
    a = torch.tensor([0.5, 0.2], requires_grad=True)
    y = torch.zeros(300)
    with noclobber.watch() as seen:
        for n in range(2, 300):
            y[n] = a[0] * y[n - 1] + a[1] * y[n - 2]
        with pytest.raises(RuntimeError):
            y.sum().backward()
    (finding,) = seen.findings
    assert finding.count == 298
    assert len(described) < 50
