"""docs/when-is-in-place-allowed.md: each program is run, and what stands below it is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import noclobber

from . import served
from .test_pages import matches

PAGE = (Path(__file__).parents[1] / "docs" / "when-is-in-place-allowed.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_program_of_the_page_is_tested() -> None:
    assert len(BLOCKS) == PAGE.count("```python") == PAGE.count("```text")
    assert len(BLOCKS) > 15


@pytest.mark.parametrize(("program", "shown"), BLOCKS, ids=range(1, len(BLOCKS) + 1))
def test_a_program_prints_what_stands_below_it(program: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(program)
    printed = served.said(["run", "example.py"], tmp_path)
    assert matches(shown, printed), printed


X, IMAGE = torch.rand(3, 3), torch.rand(2, 3, 4, 4)
CALLS = {
    "pow": (torch.pow, X, 2),
    "linear": (torch.nn.Linear(3, 3), X),
    "conv": (torch.nn.Conv2d(3, 3, 1), IMAGE),
    "batch norm": (torch.nn.BatchNorm2d(3), IMAGE),
    "sums": (torch.add, X, X.clone()),
    "sin": (torch.sin, X),
    "exp": (torch.exp, X),
    "sigmoid": (torch.sigmoid, X),
    "tanh": (torch.tanh, X),
    "relu": (torch.relu, X),
    "softmax": (torch.softmax, X, 0),
    "sqrt": (torch.sqrt, X),
}


@pytest.mark.parametrize(("row", "role"), [("y += 1", "output"), ("x += 1", "input")])
def test_the_table_names_operators_rightly(row: str, role: str) -> None:
    (cell,) = re.findall(rf"^\| `{re.escape(row)}` after .*?\| (.*) \|$", PAGE, re.MULTILINE)
    free, kept = re.fullmatch(r".*: (.*)\. Not after (.*)", cell).groups()  # type: ignore[union-attr]
    for names, expected in ((free, False), (kept, True)):
        for name in names.split(", "):
            function, *args = CALLS[name]
            operands = [one for one in noclobber.probe(function, *args).operands if one.role == role]
            assert any(one.kept for one in operands) == expected, name
