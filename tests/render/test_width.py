"""Words fit the width of a terminal: in windows, in pages and in the summary of `fix`. Code is never broken."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from noclobber.cli import main
from noclobber.fix.verb import Fixed
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.page import PROGRAMS
from noclobber.model.reports.probe import Case, Formula, OperatorPage
from noclobber.render import window
from noclobber.render.tables import operator
from noclobber.render.tables.page import page
from noclobber.render.text import visible
from noclobber.rules import catalogue

from . import awkward
from . import catalogue as findings

PAGES = {one.code: one.text for one in catalogue()}


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize(
    "one", (findings.FINDINGS | awkward.FINDINGS).values(), ids=findings.FINDINGS | awkward.FINDINGS
)
def test_a_window(one: Finding, width: int) -> None:
    text = window(replace(one, suggestions=()), width=width)
    long = [
        line
        for line in text.splitlines()
        if cell_len(line) > width and not line.endswith("...") and " --> " not in line and " ::: " not in line
    ]
    assert long == []
    for label in one.labels:
        assert pressed(label.text) in pressed(text)


def pressed(text: str) -> str:
    """A text without blanks, line ends and the margin of a window."""
    return re.sub(r"[\s|]+", "", "".join(visible(line) for line in text.splitlines()))


def test_words_of_a_window_where_no_width_is_known() -> None:
    one = findings.FINDINGS["stale_save"]
    label = replace(one.labels[0], text="is saved here, " * 30)
    assert label.text.strip() in window(replace(one, labels=(label, *one.labels[1:])))


@pytest.mark.parametrize("width", [40, 60, 100])
@pytest.mark.parametrize("text", PAGES.values(), ids=PAGES)
def test_a_page(text: str, width: int) -> None:
    section, code = "", []
    shown = page(text, width)
    for line in text.strip().splitlines():
        section = line if line and not line.startswith(" ") else section
        code += [line] if section in PROGRAMS and line else []
    words = [line.strip().removeprefix("- ") for line in shown.splitlines() if line not in code and len(line) > width]
    assert [line for line in words if " " in line] == [], "only a word that is wider stands alone"
    assert [line for line in shown.splitlines() if line in code] == code
    assert shown.split() == text.split()
    assert page(text, None) == text.strip() + "\n"


def test_the_summary_of_fix() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n-" + "x" * 60
    command = "next: noclobber fix --write " + "train.py " * 9
    change = "      +" + "y = y + 1; " * 9
    words = ["NC101 train.py:4: in-place write to a tensor that backward still needs", "  fix: " + "word " * 20, ""]
    lines = list(Fixed(0, words=[*words, patch, command, change]).lines(40))
    assert lines[-5:] == [*patch.split("\n"), command, change]
    assert max(map(len, lines[:-5])) <= 40
    assert lines[:2] == ["NC101 train.py:4: in-place write to a", "  tensor that backward still needs"]
    assert list(Fixed(0, words=words).lines(None)) == words


def test_the_page_of_an_operator() -> None:
    case = Case("exp(self)", (), ("result",), ("self",))
    notes = ("what is kept depends on the device that the tensors are on, and on the release of PyTorch",)
    one = OperatorPage("torch.exp", "2.13.0", ("exp keeps its result, " * 6,), (case,), (), (), notes)
    assert max(map(len, operator.page(one, 50).splitlines())) <= 50
    assert operator.page(one, 50).split() == operator.page(one).split()


def test_a_table_that_is_wider_than_the_terminal_has_a_block_for_each_row() -> None:
    case = Case(
        "batch_norm(Tensor input, Tensor weight, Tensor bias)", ("input", "weight"), ("input",), ("bias",), True
    )
    formula = Formula("Node", "batch_norm(Tensor input, Tensor weight, Tensor bias)\n  input: backward of, it", (), ())
    one = OperatorPage("torch.exp", "2.13.0", (), (case,), (case,), (formula,), ())
    text = operator.page(one, 40)
    assert max(map(len, text.splitlines())) <= 40
    assert (
        """
  batch_norm(Tensor input, Tensor
      weight, Tensor bias)
    requires grad: input, weight
    kept: input *
    free: bias
"""
        in text
    )
    assert "  call  " in operator.page(one, 200)


def test_the_list_of_rules_and_the_meaning_of_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for words in ([], ["a leaf Variable that requires grad is being used in an in-place operation."]):
        assert main(["explain", *words]) == 0
        said = capsys.readouterr().out.splitlines()
        assert len(said) > 20
        assert max(map(len, said)) <= 60
