"""The line about the cost of noclobber's own Python, after a run in which that was much."""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path
from statistics import median

import pytest

import noclobber
from noclobber.observe.arming import own_cost

from .running import fresh

MUCH = "import noclobber.observe.arming.own_cost as cost; cost.LEAST = cost.PART = 0"
STEPS = """
import torch
{}
w = torch.ones(3, requires_grad=True)
h = w
for _ in range(2000):
    h = h.sin()
h.sum().backward()
"""


@pytest.mark.parametrize(("before", "options"), [(MUCH, []), ("pass", []), (MUCH, ["--ledger"])])
def test_a_run_in_which_python_took_much_says_so(before: str, options: list[str], tmp_path: Path) -> None:
    built_nowhere = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "NOCLOBBER_PURE": ""}
    ended = fresh(["run", *options, "-c", STEPS.format(before)], tmp_path, env=built_nowhere)
    line = r"noclobber: noclobber's own Python took about \d+ s of \d+ s; `noclobber doctor --build-native` brings .*\n"
    assert bool(re.search(line, ended.stderr)) == (before == MUCH and not options), ended.stderr
    assert "nothing found in 1 backward call\n" in ended.stderr
    assert ended.status == 0


def test_who_has_turned_the_native_part_off_is_not_asked_to_build_it(tmp_path: Path) -> None:
    ended = fresh(["run", "-c", STEPS.format(MUCH)], tmp_path, env={"NOCLOBBER_PURE": "1"})
    assert ended.stderr == "noclobber: nothing found in 1 backward call\n"


def test_to_measure_makes_no_backward_call_and_leaves_no_gradient() -> None:
    with noclobber.watch() as seen:
        assert own_cost.in_words(0) == "", "so few saves cost little"
        per_event = own_cost._per_event()
    assert seen.report.coverage.backwards == 0
    assert 0 < per_event < 1e-3


COUNTED = """
import torch
from noclobber.observe.arming import own_cost

def counted(saves, writes, size=3):
    before, clocked = own_cost.taken[0], own_cost.clocked[0]
    h = torch.zeros(size, requires_grad=True)
    for _ in range(saves):
        h = h.sin()
    for _ in range(writes):
        h.mul_(2)
    h.sum().backward()
    return own_cost.taken[0] - before, own_cost.clocked[0] - clocked

print(counted(2, 1), counted(5, 1), counted(2, 4), counted(2, 1, 1_000_000), sep=";")
"""


def test_saves_and_writes_are_counted_and_the_bytes_of_large_tensors_are_clocked(tmp_path: Path) -> None:
    printed = fresh(["run", "-c", COUNTED], tmp_path, env={"NOCLOBBER_PURE": "1"}).stdout
    few, saves, writes, large = [literal_eval(one) for one in printed.split(";")]
    assert few[1] == 0, "the bytes of a small tensor belong to its save"
    assert [saves[0], writes[0]] == [few[0] + 3, few[0] + 3]
    assert large[1] > 0


def test_what_the_native_part_takes_is_what_the_benchmarks_say() -> None:
    table = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text()
    rows = re.findall(r"^\| ([^|]*) \| .*? \| contents \| (python|native) \| ([\d.]+) \|", table, re.MULTILINE)
    more = {(name, by): float(ratio) - 1 for name, by, ratio in rows}
    parts = [
        more[name, "native"] / more[name, "python"] for name, by in more if by == "python" and more[name, by] > 0.2
    ]
    assert pytest.approx(median(parts), abs=0.15) == own_cost.OF_NATIVE
