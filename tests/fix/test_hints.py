"""`noclobber fix --hints` from outside: what it changes is the same to the last bit, and takes less memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import served
from tests.cli.running import noclobber, write

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.last = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)

        def forward(self, x):
            h = self.first(x)
            y = self.act(h)
            z = self.last(y)
            scaled = z * 2
            shifted = scaled + 1
            return shifted.sum()

    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(1000, 64)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x)
        loss.backward()
        optimizer.step()
    print([one.sum().item() for one in net.parameters()])
    """
MEASURE = """
import sys
from noclobber.observe.memory.measured_peak import MeasuredPeak
peak = MeasuredPeak()
peak.begin()
exec(compile(open("train.py").read(), "train.py", "exec"))
print(peak.end())
"""


def measured(folder: Path) -> tuple[str, int]:
    """What a program prints, and its peak in a process of its own."""
    *lines, peak = served.run(["-c", MEASURE], folder).stdout.splitlines()
    return "\n".join(lines), int(peak)


def test_the_peak_falls_and_nothing_else_changes(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": NET})
    before = measured(tmp_path)
    done = noclobber(["fix", "--hints", "--write", "train.py"], tmp_path)
    assert done.status == 0, done.stderr
    assert "nn.ReLU(inplace=True)" in done.stdout
    assert "+        scaled = z.mul_(2)" in done.stdout
    assert done.stderr.count("all gradients the same to the last bit; measured: the peak falls from") == 2
    announced = [float(one) for one in re.findall(r"memory falls by ([\d.]+) kB", done.stderr)]
    after = measured(tmp_path)
    assert after[0] == before[0]
    assert before[1] - after[1] == pytest.approx(1000 * sum(announced), rel=0.05)
    assert done.stderr.endswith("noclobber: written: train.py\n")


def test_what_changes_a_result_is_withdrawn(tmp_path: Path) -> None:
    """`tolist` reads the memory without an operator, so that nothing seems to need `h` afterwards."""
    program = """
        import torch
        x = torch.full((1000,), 0.5, requires_grad=True)
        h = x + 1
        y = h * 3
        torch.empty(9000)
        print(h.tolist()[0])
        y.sum().backward()
        """
    write(tmp_path, {"train.py": program})
    done = noclobber(["fix", "--hints", "train.py"], tmp_path)
    assert (done.status, done.stdout) == (0, "")
    assert "  withdrawn: line 1 of what it prints is `4.5`, and was `1.5`" in done.stderr


LATE = """
    import torch

    def f(x):
        h = x + 1
        y = h * 3
        torch.empty(9000)
        return h, y

    x = torch.full((1000,), 0.5, requires_grad=True)
    """
READ_LATER = {
    "in a later step": """
    for step in range(9):
        h, y = f(x)
        (y.sum() + (h.sum() if step == 8 else 0)).backward()
    print(x.grad.sum().item())
    """,
    "when training is over": """
    for step in range(9):
        f(x)[1].sum().backward()
    with torch.no_grad():
        print(f(x)[0].sum().item())
    """,
    "without an operator, when training is over": """
    for step in range(9):
        f(x)[1].sum().backward()
    print(f(x)[0].detach().numpy()[0])
    """,
}


@pytest.mark.parametrize("how", READ_LATER)
def test_what_is_read_later_stays(how: str, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": LATE + READ_LATER[how]})
    done = noclobber(["fix", "--hints", "train.py"], tmp_path)
    assert (done.status, done.stdout) == (0, "")
    assert done.stderr.startswith("noclobber: no in-place write lowers the peak of memory")


def test_a_program_that_does_not_end_in_time_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": LATE + "\n    while True:\n        f(x)[1].sum().backward()\n"})
    done = noclobber(["fix", "--hints", "--seconds", "1", "train.py"], tmp_path)
    assert done.status == 2
    still = "the program still runs after 1 s, and what it reads later is not known"
    assert done.stderr == f"noclobber: error: {still}: give it less to do, or more time with `--seconds`\n"


def test_lines_are_those_of_the_file_as_it_is(tmp_path: Path) -> None:
    """`act` is built above `forward`, and a line longer afterwards."""
    write(tmp_path, {"train.py": NET.replace("nn.ReLU(),", "nn.ReLU(\n                ),")})
    done = noclobber(["fix", "--hints", "train.py"], tmp_path)
    lines = (tmp_path / "train.py").read_text().splitlines()
    places = [int(one) for one in re.findall(r"^NC901 train.py:(\d+)", done.stderr, re.MULTILINE)]
    assert sorted(lines[place - 1].strip() for place in places) == ["scaled = z * 2", "y = self.act(h)"]


def test_compiled_functions_are_said_to_run_as_written(tmp_path: Path) -> None:
    compiled = LATE + "\n    g = torch.compile(f, backend='eager')\n    g(x)[1].sum().backward()\n"
    write(tmp_path, {"train.py": compiled})
    said = "not watched: compiled functions in their compiled form: here they run uncompiled"
    assert said in noclobber(["fix", "--hints", "train.py"], tmp_path).stderr
    assert said in noclobber(["run", "--hints", "train.py"], tmp_path).stderr
    assert said not in noclobber(["run", "train.py"], tmp_path).stderr


@pytest.mark.parametrize("how", ["y.data.mul_(2)", "y.mul_(2)"])
def test_a_program_with_a_wrong_gradient_is_fixed_first(how: str, tmp_path: Path) -> None:
    program = f"""
        import torch
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        {how}
        y.sum().backward()
        """
    write(tmp_path, {"train.py": program})
    done = noclobber(["fix", "--hints", "train.py"], tmp_path)
    assert done.status == 2
    assert done.stderr == ("noclobber: error: an in-place write breaks a gradient; first run: noclobber fix train.py\n")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import torch\ntorch.ones(9)", "noclobber: no in-place write lowers the peak of memory (measured: 36 B)"),
        ("print(1)", "noclobber: nothing to fix: torch was never imported"),
        ("import torch\nraise SystemExit(3)", "noclobber: error: the program failed, but not because"),
    ],
)
def test_a_program_without_hints(program: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": program})
    assert said in noclobber(["fix", "--hints", "train.py"], tmp_path).stderr


def test_only_what_is_proven_is_written(tmp_path: Path) -> None:
    done = noclobber(["fix", "--hints", "--write", "--unproven", "train.py"], tmp_path)
    assert done.status == 2
    assert done.stderr.endswith("error: `--hints` writes only what is proven: leave out `--unproven`\n")


def test_the_whole_program_is_run(tmp_path: Path) -> None:
    done = noclobber(["fix", "--hints", "--backwards", "3", "train.py"], tmp_path)
    assert done.status == 2
    assert done.stderr.endswith("error: `--hints` runs the whole program: leave out `--backwards`\n")
