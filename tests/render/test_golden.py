"""Every format against files to read: `NOCLOBBER_UPDATE_GOLDEN=1 pytest tests/render` writes them anew."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Coverage, Lost, Report
from noclobber.render import render, window
from noclobber.render.formats.terminal import footer
from noclobber.render.window.diff import changes
from noclobber.rules import pages

from . import awkward, catalogue

GOLDEN = Path(__file__).parent / "golden"
FINDINGS = catalogue.FINDINGS | awkward.FINDINGS
SEVERAL = tuple(
    FINDINGS[name]
    for name in (
        "stale_save",
        "optimizer_step",
        "later_iteration",
        "several_lines",
        "hint",
        "unlabelled",
        "control_characters",
    )
)
KEPT = ("full", "concise", "github", "sarif", "junit", "json")
"""The formats that have a golden file."""
REPORTS = {
    "one": Report((FINDINGS["stale_save"],)),
    "several": Report(
        SEVERAL,
        program={
            "argv": ["train.py"],
            "status": 1,
            "fix": {"command": ["noclobber", "fix", "train.py"]},
        },
    ),
    "nothing": Report(coverage=Coverage(contents=True, backwards=12)),
    "nothing_by_versions": Report(coverage=Coverage(backwards=12)),
    "nothing_checked": Report(),
    "nothing_unseen": Report(
        coverage=Coverage(
            "dispatch mode", contents=True, unseen=("a region compiled by Inductor", "sparse tensors"), backwards=3
        )
    ),
    "lost": Report(
        coverage=Coverage(
            lost=(
                Lost("checkpoint regions", "torch 2.16.0 has no `torch.utils.checkpoint._CheckpointFrame`"),
                Lost("custom operators", "KeyError: 'x', undeclared_writes.py:201", internal=True),
            )
        )
    ),
    "nothing_watched": Report(coverage=Coverage("", saves=False, unseen=("everything: torch was not imported",))),
    "warned": Report(
        (FINDINGS["edits_in_two_places"], FINDINGS["hint"]),
        Coverage(unseen=("sparse tensors",), notes=("torch 9.9 is new",)),
    ),
}


def check(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("NOCLOBBER_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="")
    with path.open(encoding="utf-8", newline="") as file:
        assert text == file.read()


@pytest.mark.parametrize("name", FINDINGS)
def test_window(name: str) -> None:
    check(name, window(FINDINGS[name]))


@pytest.mark.parametrize("name", ["long_lines", "words_beneath", "wide_characters"])
def test_narrow_window(name: str) -> None:
    check(f"{name}.80", window(FINDINGS[name], width=80))


@pytest.mark.parametrize("format", KEPT)
def test_several(format: str) -> None:
    report = replace(REPORTS["several"], pages=pages(SEVERAL[:1]))
    text = render(report, format)
    check(f"report.{format}", text.replace(f'"version": "{version("noclobber")}"', '"version": "0.1.0"'))


def test_footers() -> None:
    check("footers", "\n".join(footer(report) for report in REPORTS.values()))


def test_no_golden_file_is_left_over() -> None:
    expected = {*FINDINGS, "footers", "long_lines.80", "words_beneath.80", "wide_characters.80"}
    expected |= {f"report.{format}" for format in KEPT}
    assert {path.stem for path in GOLDEN.iterdir()} == expected


@pytest.mark.parametrize("one", FINDINGS.values(), ids=FINDINGS)
def test_every_place_and_every_word_is_shown(one: Finding) -> None:
    """What the golden files cannot prove for themselves: nothing that a rule said gets lost."""
    text = window(one)
    for label in one.labels:
        assert f"{label.span.line}" in text
        assert label.text.replace("\x1b", "␛") in text
    for suggestion in one.suggestions:
        words = f"help: {suggestion.message}".replace("\x08", "␈")
        assert words in text
        assert (f"{words}\n   |\n" in text.replace("\n  |\n", "\n   |\n")) == bool(changes(suggestion, one))
