"""The gradients that the pages of the silent rules give are those that PyTorch computes. This test runs PyTorch."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
import torch

from noclobber.rules import Rule, catalogue

from .test_pages import sections

SILENT = [rule for rule in catalogue() if rule.code.startswith("NC2")]
OF_A_SAVE = [rule for rule in SILENT if rule.code in ("NC201", "NC202", "NC203")]
"""Whose example is wrong because of what autograd itself has saved, with no other hooks in the way."""


def claimed(program: str, word: str) -> list[float]:
    """The numbers that a page puts after a word: "gives 0, 0, 0; right is 8, 8, 8"."""
    (found,) = re.findall(rf"#.*\b{word} ((?:-?[\d.]+(?:, )?)+)", program)
    return [float(number) for number in found.split(", ")]


def printed(program: str) -> list[float]:
    """The gradient that a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "page.py", "exec"), {"__name__": "__main__"})
    (numbers,) = re.findall(r"tensor\(\[(.*?)\]", out.getvalue())
    return [float(number) for number in numbers.split(",")]


@pytest.mark.parametrize("rule", SILENT, ids=lambda rule: rule.code)
def test_the_example_is_silent_and_gives_the_wrong_gradient_that_the_page_names(rule: Rule) -> None:
    program = sections(rule)["Example"]
    assert printed(program) == claimed(program, "gives") != claimed(program, "right is")


@pytest.mark.parametrize("rule", SILENT, ids=lambda rule: rule.code)
def test_the_program_instead_gives_the_right_gradient(rule: Rule) -> None:
    instead = sections(rule)["Instead"]
    assert printed(instead) == claimed(instead, "gives") == claimed(sections(rule)["Example"], "right is")


@pytest.mark.parametrize("rule", OF_A_SAVE, ids=lambda rule: rule.code)
def test_what_the_page_calls_right_is_what_untouched_saves_give(rule: Rule) -> None:
    program = sections(rule)["Example"]
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
        assert printed(program) == claimed(program, "right is")
