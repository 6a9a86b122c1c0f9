"""`run --every N`: the first backward calls are watched, and then some in a row of each N."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import served

from .running import noclobber, write

SECOND = """
    import torch
    for number in range(60):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        if number % 2:
            y.data.mul_(2)
        y.sum().backward()
    """
RAISED = """
    import torch
    raised = []
    for number in range(60):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = y.sin()
        if number % 3:
            y.mul_(2)
        try:
            (y + z).sum().backward()
        except RuntimeError as error:
            raised.append(number)
            assert "modified by an inplace operation" in str(error)
        else:
            print(x.grad.tolist())
    print(raised)
    """
TURNS = """
    import torch
    first, second = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    one, other = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (first, second))
    for number in range(30):
        made = first(torch.ones(1, 2))
        judged = second(made)
        judged.sum().backward(retain_graph=True)
        if number >= 10:
            other.step()
        try:
            (-judged.sum()).backward()
        except RuntimeError:
            pass
        one.step()
    """


def test_some_backward_calls_in_a_row_are_watched(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": SECOND})
    ended = noclobber(["run", "--every", "20", "train.py"], tmp_path)
    assert "seen 8 times at these lines" in ended.stderr, "of the 30 that there are"
    assert "not watched: 47 of 60 backward calls (`--every 20` watches the others)" in ended.stderr
    assert ended.status == 1


def test_few_are_all(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": SECOND})
    for every in ("3", "100"):
        ended = noclobber(["run", "--every", every, "train.py"], tmp_path)
        assert ("seen 30 times" in ended.stderr) == (every == "3")
        assert ("not watched" in ended.stderr) == (every == "100")


def test_each_error_of_pytorch_comes_whether_its_step_is_watched_or_not(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": RAISED})
    bare = served.run(["train.py"], tmp_path)
    ours = noclobber(["run", "--every", "10", "-o", "report.json", "train.py"], tmp_path)
    assert ours.stdout == bare.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["code"] for one in report["findings"]] == ["NC101"]


def test_what_two_optimizers_do_by_turns_is_found_later_too(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": TURNS})
    ended = noclobber(["run", "--every", "10", "train.py"], tmp_path)
    assert "error[NC103]" in ended.stderr


def test_children_choose_by_themselves(tmp_path: Path) -> None:
    main = "import subprocess, sys; subprocess.run([sys.executable, 'train.py'])"
    write(tmp_path, {"train.py": SECOND, "main.py": main})
    ended = noclobber(["run", "--every", "20", "main.py"], tmp_path)
    assert "seen 8 times at these lines" in ended.stderr


@pytest.mark.parametrize("options", [["--ledger"], ["--hints"], ["--fake"]])
def test_it_goes_with_nothing_that_needs_all(options: list[str], tmp_path: Path) -> None:
    ended = noclobber(["run", "--every", "20", *options, "-c", "1"], tmp_path)
    assert "do not go together" in ended.stderr
    assert ended.status == 2
