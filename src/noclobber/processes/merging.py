"""Makes one report of the files that the processes of a run have written, also while they still write."""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from noclobber.model.finding import Finding
from noclobber.model.process import Process, State, ranks_of, together
from noclobber.model.report import Coverage, Lost, Report, ReportError, coverage_in, finding_in
from noclobber.processes.journal import FINDING, FORMAT, SUFFIX

if TYPE_CHECKING:
    from noclobber.session import Session

_NOT_THERE = "noclobber did not start there (not installed for that Python, another environment, or `-S`)"
_TIMES = re.compile(r"(.*) \((\d+) times\)")
_KEYS = re.compile(rb'\{"finding": "(\w+)", "same": "(\w+)", "count": (\d+),')


def with_own(files: Report, session: Session, program: dict[str, Any]) -> Report:
    """Return the report of a session and of the files that its process and others have written."""
    if not any(one.why or (one.counts and one.parent is not None) for one in files.processes):
        return replace(session.report(program), processes=files.processes)
    # What could not be written, as the folder is full, is known of this process at least.
    written = {finding.identity() for finding in files.findings}
    own = tuple(finding for finding in session.findings if finding.identity() not in written)
    return replace(files, findings=(*session.advised(files.findings + own), *session.hints()), program=program)


@dataclass(slots=True)
class _Read:
    """What one file says."""

    first: dict[str, Any]
    who: dict[str, Any] = field(default_factory=dict)
    torch: str | None = None
    unsupported: str = ""
    coverage: Coverage | None = None
    lost: dict[Lost, None] = field(default_factory=dict)
    children: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """How often each finding was seen, by the key of its identity."""
    ended: bool = False
    status: int | None = None


class _Findings:
    """The findings of all files, each parsed once; `places` are those of the files that have it."""

    def __init__(self) -> None:
        self._parsed: set[bytes] = set()
        self.found: dict[str, Finding] = {}
        self.places: dict[str, list[int]] = {}

    def add(self, line: bytes, file: int, counts: dict[str, int]) -> None:
        """Add the line of a finding. Raises ValueError, KeyError and TypeError if it is damaged."""
        keys = _KEYS.match(line)
        if keys is None:
            raise ValueError("a finding without keys")
        same = keys[2].decode()
        if keys[1] not in self._parsed:
            finding = finding_in(json.loads(line)["shown"])
            self._parsed.add(keys[1])
            known = self.found.setdefault(same, finding)
            if known is not finding:
                self.found[same] = known.with_field_of(finding)
        if same not in counts:
            self.places.setdefault(same, []).append(file)
        counts[same] = max(int(keys[3]), counts.get(same, 0))


def files_in(folder: str) -> list[str]:
    """Return the files of processes in a folder, the oldest first. Raises OSError if it cannot be read."""
    with os.scandir(folder) as entries:
        paths = [(one.name.rpartition("-")[2], one.path) for one in entries if one.name.endswith(SUFFIX)]
    return [path for _, _, path in sorted((len(time), time, path) for time, path in paths)]


def report_of(folder: str, run: str = "") -> Report:
    """Return the report of all processes whose files are in a folder; with `run`, only those of one run.

    Findings show all that the rules propose.

    Raises OSError if the folder cannot be read, and ReportError if no file in it is of a process.
    """
    findings, read = _Findings(), list[_Read]()
    for path in files_in(folder):
        one = _read(path, len(read), findings, run)
        if one is not None:
            read.append(one)
    if not read:
        raise ReportError("no process has written there")
    processes = [_process(one) for one in read]
    gone = _replaced(read, processes)
    unwatched = list(_unwatched(read, gone))
    shown = tuple(one for number, one in enumerate(processes) if number not in gone) + tuple(unwatched)
    several = sum(one.counts for one in shown) > 1
    merged = []
    for same, finding in findings.found.items():
        seen_by = [processes[number] for number in findings.places[same]]
        count = sum(read[number].counts[same] for number in findings.places[same])
        merged.append(replace(finding.repeated(count), processes=tuple(one.id for one in seen_by)))
        if several:
            merged[-1] = replace(merged[-1], notes=(*finding.notes, f"seen {together(seen_by)}"))
    first = read[0]
    program = {
        "argv": list(processes[0].command),
        "status": next((one.status for one in processes if one.status), 0),
        "torch": next((one.torch for one in read if one.torch), None),
        "python": first.first["python"],
    }
    return Report(tuple(merged), _coverage(read, shown), program, shown)


def _read(path: str, number: int, findings: _Findings, run: str) -> _Read | None:
    """Return what a file says; None if it is not of a process of the run. A damaged line is passed over."""
    read: _Read | None = None
    with open(path, "rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # the last one, which is still written
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                if read is None:
                    first = json.loads(line)
                    if first["format"] == FORMAT and run in ("", first["run"]):
                        read = _Read(first)
                elif line.startswith(FINDING):
                    findings.add(line, number, read.counts)
                else:
                    _note(read, json.loads(line))
            if read is None:
                return None
    return read


def _note(read: _Read, line: dict[str, Any]) -> None:
    match line:
        case {"again": str(same), "count": int(count)}:
            read.counts[same] = max(count, read.counts.get(same, 0))
        case {"who": dict(who)}:
            read.who = who
        case {"torch": str(torch), "coverage": coverage}:
            read.torch, read.coverage = torch, coverage_in(coverage)
        case {"unsupported": str(why)}:
            read.unsupported = why
        case {"lost": lost}:
            read.lost[Lost(lost["way"], lost["why"], lost["internal"])] = None
        case {"child": _, "command": list()}:
            read.children.append(line)
        case {"end": status, "coverage": coverage}:
            read.ended = True
            read.status = status if status is not None else read.status
            if coverage is not None:
                read.coverage = coverage_in(coverage)
            if read.first["how"] != "first":  # the first process tells its own
                read.lost |= {Lost("a child process", str(crash), True): None for crash in line["crashes"]}


def _process(read: _Read) -> Process:
    first, who = read.first, read.who
    return Process(
        id=first["id"],
        parent=first["parent"],
        pid=first["pid"],
        host=first["host"],
        command=tuple(first["command"]),
        name=who.get("name", ""),
        rank=who.get("rank"),
        world=who.get("world"),
        worker=who.get("worker"),
        torch=read.torch,
        python=first["python"],
        why=read.unsupported if read.torch is None else "",
        state="ended" if read.ended else _state(first["pid"], first["host"]),
        status=read.status,
        findings=len(read.counts),
    )


def _state(pid: int, host: str) -> State:
    """Return whether a process that has not told its end still runs. Of another machine nobody here knows."""
    if host != platform.node() or os.name != "posix":  # on Windows `os.kill` ends a process, with whatever signal
        return "running"
    with suppress(AttributeError, ChildProcessError):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return "lost"  # a child of this process that nobody has waited for
    try:
        os.kill(pid, 0)
    except PermissionError:
        return "running"
    except OSError:
        return "lost"
    return "running"


def _replaced(read: Sequence[_Read], processes: Sequence[Process]) -> set[int]:
    """Return the numbers of the processes that became another program (`exec`) without having found anything."""
    # One that came to its own end has only tried: `os.execvp` tries one folder after the other.
    became = {
        (one.first["host"], child["child"])
        for one in read
        for child in one.children
        if not (one.ended and child["child"] == one.first["pid"])
    }
    return {
        number
        for number, (one, process) in enumerate(zip(read, processes, strict=True))
        if (process.host, process.pid) in became and one.first["how"] != "started" and not one.counts
    }


def _unwatched(read: Sequence[_Read], gone: set[int]) -> Iterator[Process]:
    """Yield the Pythons that were started and have written nothing."""
    started = [one.first for one in read if one.first["how"] == "started"]
    for number, one in enumerate(read):
        of_this = [first for first in started if first["parent"] == one.first["id"]]
        known = {child["child"] for child in one.children}
        unknown = sum(not known & {first["pid"], *first["above"]} for first in of_this)
        for order, child in enumerate(one.children):
            pid = child["child"]
            if pid == one.first["pid"] and one.ended:
                continue
            if not child["python"] or any(pid in (first["pid"], *first["above"]) for first in of_this):
                continue
            if pid is None and unknown:
                continue  # `os.system` does not tell the pid
            parent = one.first["parent"] if number in gone else one.first["id"]
            yield Process(
                f"{one.first['id']}-{order}",
                parent,
                pid or 0,
                one.first["host"],
                tuple(child["command"]),
                why=_NOT_THERE,
                state="lost" if pid is None else _state(pid, one.first["host"]),
            )


def _coverage(read: Sequence[_Read], processes: Sequence[Process]) -> Coverage:
    """Return what all of them covered together: only what every watched process did is said of all."""
    covered = [one.coverage for one in read if one.coverage is not None]
    unseen: Counter[str] = Counter()
    for coverage in covered:
        for what in coverage.unseen:
            many = _TIMES.fullmatch(what)
            unseen[many[1] if many else what] += int(many[2]) if many else 1
    lines = [f"{what} ({times} times)" if times > 1 else what for what, times in unseen.items()]
    lines += [f"{_named(one)}: {one.why}" for one in processes if one.why]
    lines += _missing(processes)
    notes = list(dict.fromkeys(note for coverage in covered for note in coverage.notes))
    if _are_several(read):
        notes.append("the folder holds several runs; give each run a folder of its own")
    for state, words in (("running", "had not ended yet"), ("lost", "ended by a signal")):
        some = [one for one in processes if one.watched and one.state == state]
        if some:
            notes.append(f"{_all(some)} {words}: this is what was found until then")
    lost = dict.fromkeys(
        [*(one for coverage in covered for one in coverage.lost), *(lost for one in read for lost in one.lost)]
    )
    return Coverage(
        ", ".join(dict.fromkeys(coverage.writes for coverage in covered)) or "nothing",
        bool(covered) and all(coverage.saves for coverage in covered),
        bool(covered) and all(coverage.contents for coverage in covered),
        tuple(lines),
        tuple(notes),
        tuple(lost),
    )


def _are_several(read: Sequence[_Read]) -> bool:
    """Return True if the files are of several runs. On several machines each rank or node may begin a run of its own:
    then no two of these have the same rank."""
    ranks: dict[str, set[object]] = {}
    for one in read:
        ranks.setdefault(one.first["run"], set()).add(one.who.get("rank"))
    seen = Counter(rank for of_run in ranks.values() for rank in (of_run - {None} or of_run))
    return any(times > 1 for times in seen.values())


def _named(process: Process) -> str:
    return f"`{process.typed()}`{f' (pid {process.pid})' if process.pid else ''}"


def _all(processes: Sequence[Process]) -> str:
    return together(processes).partition(" ")[2]


def _missing(processes: Iterable[Process]) -> list[str]:
    """Return which ranks have no file, if some have: they run on other machines, or were not watched."""
    ranked = [one for one in processes if one.rank is not None and one.world is not None]
    world = max((one.world or 0 for one in ranked), default=0)
    missing = set(range(world)) - {one.rank for one in ranked}
    return [f"{ranks_of(missing)} of {world}: no report of theirs is here"] if missing else []
