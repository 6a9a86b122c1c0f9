"""Files of processes, written by hand, come to one report. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from noclobber.model.reports.finding import Finding, Label
from noclobber.model.reports.process import Process, ranks_of, together
from noclobber.model.reports.report import Coverage, Lost, Report, ReportError, coverage_out
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Tensor
from noclobber.model.source import Span
from noclobber.processes.journal import FORMAT, SUFFIX, Journal
from noclobber.processes.merging import report_of
from noclobber.render import FORMATS, render

COVERED = coverage_out(Coverage(contents=True, unseen=("the inside of compiled regions (2 compiled frames)",)))
HERE = platform.node()
DATE = "2026-11-26T12:05:00+00:00"


def finding(line: int, field: str = "result") -> Finding:
    """A finding at a line."""
    span = Span("train.py", line, 1, line, 9)
    labels = (Label("save", span, "is saved here"), Label("write", span, "overwrites it here", primary=True))
    found = Finding("NC101", "stale-save", "error", "in-place write", labels)
    return found.about(Clobber(Save("MulBackward0", field, Tensor(), 0), (), Read("MulBackward0"), 1))


class Written:
    """A process's file as the process writes it."""

    def __init__(self, folder: Path, number: int, host: str = HERE, **first: Any) -> None:
        self.id = f"{host}-{number}-{number:x}"
        self.journal = Journal(str(folder), self.id)
        given = {
            "run": "first",
            "parent": None,
            "how": "started",
            "pid": number,
            "born": "",
            "above": [],
            "command": ["python", "w"],
        }
        self.journal.write(format=FORMAT, id=self.id, host=host, python="3.11.2", date=DATE, **{**given, **first})

    def watched(self) -> Written:
        """It has imported torch."""
        self.journal.write(torch="2.13.0", coverage=COVERED)
        return self

    def ended(self, status: int = 0) -> Written:
        """It has come to its end."""
        self.journal.counted()
        self.journal.write(end=status, coverage=COVERED, crashes=[])
        return self


def test_equal_findings_of_several_processes_are_one(tmp_path: Path) -> None:
    for rank in range(3):
        written = Written(tmp_path, 10 + rank).watched()
        written.journal.write(who={"rank": rank, "world": 4})
        for times in range(1, 4):
            written.journal.found(finding(5), times)
        if rank == 1:
            written.journal.found(finding(5, "other"), 4)
            written.journal.found(finding(9), 1)
        written.ended()
    report = report_of(str(tmp_path))
    five, nine = report.findings
    assert (five.count, five.fields) == (10, ("result", "other"))
    assert (five.notes[-1], nine.notes[-1]) == ("seen on ranks 0 to 2", "seen on rank 1")
    assert nine.processes == (report.processes[1].id,)
    assert [one.findings for one in report.processes] == [1, 2, 1]
    assert report.coverage.unseen == (
        "the inside of compiled regions (6 compiled frames)",
        "rank 3 of 4: no report of theirs is here",
    )


def test_a_process_alone_is_not_named(tmp_path: Path) -> None:
    Written(tmp_path, 10, command=["python", "tracker"]).ended()
    alone = Written(tmp_path, 11).watched()
    alone.journal.found(finding(5), 1)
    alone.ended()
    assert report_of(str(tmp_path)).findings[0].notes == ()


def test_a_process_that_was_killed_has_what_it_had_found_until_then(tmp_path: Path) -> None:
    killed = Written(tmp_path, 2**22 + 1, parent="p").watched()
    for times in range(1, 7):
        killed.journal.found(finding(5), times)
    path = next(tmp_path.glob(f"*{SUFFIX}"))
    with path.open("ab") as file:
        file.write(b'{"finding": "0123", "same": "45')
    other = Written(tmp_path, os.getpid(), parent="p").watched()
    report = report_of(str(tmp_path))
    assert report.findings[0].count == 4, "counts are written at 1, 2, 4, 8 ..."
    assert [one.state for one in report.processes] == ["running", "lost"]
    assert [note.partition(":")[0] for note in report.coverage.notes] == [
        f"`python w` (pid {os.getpid()}) had not ended yet",
        f"`python w` (pid {2**22 + 1}) ended by a signal",
    ]
    other.ended()


def test_backward_calls_are_summed_and_those_of_a_killed_process_are_at_least_what_it_wrote(tmp_path: Path) -> None:
    killed = Written(tmp_path, 2**22 + 1, parent="p").watched()
    for backwards in range(1, 7):
        killed.journal.checked(backwards, 1)
    other = Written(tmp_path, 11, parent="p").watched()
    other.journal.checked(1, 0)
    other.journal.write(backwards=-1, raised=0)
    other.journal.write(end=0, coverage=coverage_out(Coverage(backwards=10)), crashes=[])
    coverage = report_of(str(tmp_path)).coverage
    assert (coverage.backwards, coverage.raised) == (10 + 3, 1), "they are written at 1, 2, 4, 8 ... calls"


def test_a_python_that_goes_on_without_torch_is_named_and_a_servant_is_not(tmp_path: Path) -> None:
    Written(tmp_path, 10, how="first").watched().ended()
    Written(tmp_path, os.getpid(), parent="p", command=["python", "service.py"])
    Written(tmp_path, os.getppid(), parent="p", command=["python", "-c", "import multiprocessing.resource_tracker"])
    assert report_of(str(tmp_path)).coverage.notes == (
        f"`python service.py` (pid {os.getpid()}) had not ended yet: what torch does there later is in no report",
    )


def test_the_server_of_forks_ends_after_the_report(tmp_path: Path) -> None:
    server = ["python", "-c", "from multiprocessing.forkserver import main; main()"]
    Written(tmp_path, os.getppid(), parent="p", command=server).watched()
    forked = Written(tmp_path, os.getpid(), parent="p", how="forked", command=server).watched()
    forked.journal.write(who={"name": "ForkServerProcess-1"})
    (note,) = report_of(str(tmp_path)).coverage.notes
    assert note.startswith(f"`ForkServerProcess-1` (pid {os.getpid()}) had not ended yet: ")


def test_a_python_that_wrote_nothing_was_not_watched(tmp_path: Path) -> None:
    first = Written(tmp_path, 10, how="first").watched()
    for pid, command, python in (
        (20, ["python", "seen.py"], True),
        (21, ["python", "unseen.py"], True),
        (22, ["git", "status"], False),
        (23, ["bash", "-c", "python below.py"], True),
        (None, ["sh", "-c", "python by_system.py"], True),
    ):
        first.journal.write(child=pid, command=command, python=python)
    first.ended()
    Written(tmp_path, 20, parent=first.id, above=[10, 1]).ended()
    Written(tmp_path, 24, parent=first.id, above=[23, 10, 1]).watched().ended()
    Written(tmp_path, 25, parent=first.id, above=[99, 10, 1]).watched().ended()
    report = report_of(str(tmp_path))
    assert [" ".join(one.command) for one in report.processes if one.why] == ["python unseen.py"]
    assert [line for line in report.coverage.unseen if "python" in line] == [
        "`python unseen.py` (pid 21): noclobber did not start there (not installed for that Python, another "
        "environment, `-S`, or `os.exec`)"
    ]


def test_a_process_that_becomes_another_program_is_that_one(tmp_path: Path) -> None:
    first = Written(tmp_path, 10, how="first").watched()
    forked = Written(tmp_path, 11, how="forked", parent=first.id).watched()
    forked.journal.write(child=11, command=["python", "other.py"], python=True)
    Written(tmp_path, 11, "elsewhere").watched().ended()
    report = report_of(str(tmp_path))
    assert [(one.host, one.pid, bool(one.why)) for one in report.processes] == [
        (HERE, 10, False),
        ("elsewhere", 11, False),
        (HERE, 11, True),
    ]
    assert report.processes[2].parent == first.id


def test_each_machine_may_begin_a_run_of_its_own(tmp_path: Path) -> None:
    for host in (HERE, "elsewhere"):
        Written(tmp_path, 10, host, run=host).watched().ended()
    assert report_of(str(tmp_path)).coverage.notes == ()


def test_only_one_run_is_reported_if_that_is_asked(tmp_path: Path) -> None:
    for number, run in ((10, "old"), (11, "new")):
        written = Written(tmp_path, number, run=run).watched()
        written.journal.found(finding(number), 1)
        written.ended()
    both = report_of(str(tmp_path))
    assert len(both.findings) == 2
    assert both.coverage.notes == ("the folder holds several runs; give each run a folder of its own",)
    assert report_of(str(tmp_path), run="new").coverage.notes == ()
    assert [one.primary and one.primary.span.line for one in report_of(str(tmp_path), run="new").findings] == [11]


def test_several_folders_are_one_report_each_with_a_run_of_its_own(tmp_path: Path) -> None:
    for name, line in (("a", 5), ("b", 9)):
        (tmp_path / name).mkdir()
        written = Written(tmp_path / name, 10, run=name).watched()
        written.journal.found(finding(5), 1)
        written.journal.found(finding(line), 1)
        written.ended()
    report = report_of(str(tmp_path / "a"), str(tmp_path / "b"))
    assert [(one.primary and one.primary.span.line, one.count) for one in report.findings] == [(5, 2), (9, 1)]
    assert report.coverage.notes == ()
    (tmp_path / "c").mkdir()
    with pytest.raises(ReportError, match="no process has written there"):
        report_of(str(tmp_path / "a"), str(tmp_path / "c"))


@pytest.mark.parametrize("text", ["", "x\n", "[]\n", '{"format": "noclobber-process/9"}\n', '{"format": 1', "[" * 9**5])
def test_files_that_are_none_of_ours_are_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / f"x-1-1{SUFFIX}").write_text(text)
    with pytest.raises(ReportError, match="no process has written there"):
        report_of(str(tmp_path))


@pytest.mark.parametrize(
    "line",
    [
        {"finding": "ab", "same": "cd", "count": 1, "shown": {}},
        {"finding": "ab"},
        {"torch": "2.13", "coverage": {}},
        {"lost": []},
        [],
        {"child": 3, "command": 4},
    ],
    ids=json.dumps,
)
def test_a_damaged_line_is_passed_over(tmp_path: Path, line: object) -> None:
    written = Written(tmp_path, 10).watched()
    with next(tmp_path.iterdir()).open("a") as file:
        file.write(json.dumps(line) + "\n")
    written.journal.found(finding(5), 1)
    written.ended()
    assert len(report_of(str(tmp_path)).findings) == 1


def test_what_failed_inside_noclobber_is_told_of_every_process(tmp_path: Path) -> None:
    for number in (10, 11):
        written = Written(tmp_path, number).watched()
        written.journal.write(lost={"way": "checkpoint regions", "why": f"failed in {number}", "internal": True})
        written.ended()
    written.journal.write(end=0, coverage=None, crashes=["ValueError('x')"])
    lost = report_of(str(tmp_path)).coverage.lost
    assert lost == (
        Lost("checkpoint regions", "failed in 10", True),
        Lost("checkpoint regions", "failed in 11", True),
        Lost("a child process", "ValueError('x')", True),
    )


def test_a_folder_that_is_gone_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    written = Written(tmp_path / "gone", 10).watched()
    written.journal.found(finding(5), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_report_with_processes_is_read_back(tmp_path: Path) -> None:
    Written(tmp_path, 10).watched().ended()
    Written(tmp_path, 11).watched().ended()
    report = report_of(str(tmp_path))
    assert Report.from_json(report.to_json()) == report


PROCESS = Process("a-1-1", None, 1, "a", ("python", "w.py"))


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ([PROCESS], "in the main process"),
        ([replace(PROCESS, parent="p")], "in `python w.py` (pid 1)"),
        (
            [replace(PROCESS, parent="p", command=("python", "-c", "import a\nimport b\n" + "c = 1\n" * 20))],
            f"in `python -c import a import b{' c = 1' * 11} c  ...` (pid 1)",
        ),
        ([replace(PROCESS, parent="p", name="SpawnProcess-1")], "in `SpawnProcess-1` (pid 1)"),
        ([replace(PROCESS, rank=1)], "on rank 1"),
        ([replace(PROCESS, rank=rank) for rank in (7, 0, 1, 2, 5)], "on ranks 0 to 2, 5 and 7"),
        ([replace(PROCESS, rank=0, worker=3, pid=9)], "in data loader worker 3 of rank 0 (pid 9)"),
        ([replace(PROCESS, rank=0), replace(PROCESS, parent="p")], "in rank 0 and `python w.py` (pid 1)"),
        (
            [replace(PROCESS, parent="p", pid=pid, name="P") for pid in range(6)],
            "in `P` (pid 0), `P` (pid 1), `P` (pid 2) and 3 more",
        ),
    ],
)
def test_where_something_was_seen(processes: list[Process], words: str) -> None:
    assert together(processes) == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [({3}, "rank 3"), ({0, 1}, "ranks 0 and 1"), (range(8), "ranks 0 to 7"), ({0, 2, 3, 4}, "ranks 0 and 2 to 4")],
)
def test_ranks_in_words(ranks: set[int], words: str) -> None:
    assert ranks_of(ranks) == words


def places(value: object, above: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The way to each part of a line."""
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way for key, inner in rows for way in [(*above, key), *places(inner, (*above, key))]]


ANYTHING = [None, True, -1, 10**30, "", "x\x1b[31m\ud800", [], {}, [None], {"a": 1}, "1" * 50, 1.5, "DELETE"]


def test_whatever_stands_in_a_line_is_shown_or_passed_over(tmp_path: Path) -> None:
    written = Written(tmp_path, 10, how="first").watched()
    written.journal.write(who={"rank": 0, "world": 2})
    written.journal.write(child=20, command=["python", "x.py"], python=True)
    written.journal.write(lost={"way": "w", "why": "y", "internal": True})
    for times in range(1, 5):
        written.journal.found(finding(5, "a"), times)
        written.journal.found(finding(5, "b"), times)
    written.ended()
    path = next(tmp_path.iterdir())
    whole = path.read_text().splitlines()
    shown = 0
    for number, line in enumerate(whole):
        for way in places(json.loads(line)):
            for put in ANYTHING:
                damaged = json.loads(line)
                holder = damaged
                for key in way[:-1]:
                    holder = holder[key]
                if put == "DELETE":
                    del holder[way[-1]]
                else:
                    holder[way[-1]] = put
                path.write_text("\n".join([*whole[:number], json.dumps(damaged), *whole[number + 1 :]]) + "\n")
                try:
                    report = report_of(str(tmp_path))
                except ReportError:
                    continue
                shown += 1
                assert Report.from_json(report.to_json()) == report
                for format in FORMATS:
                    assert isinstance(render(report, format), str)
    assert shown > 100


def test_only_files_are_read(tmp_path: Path) -> None:
    Written(tmp_path, 10).watched().ended()
    (tmp_path / f"b-9{SUFFIX}").mkdir()
    os.mkfifo(tmp_path / f"c-1{SUFFIX}")
    with (tmp_path / f"d-2{SUFFIX}").open("wb") as file:
        file.truncate(5 << 30)
    assert len(report_of(str(tmp_path)).processes) == 1
