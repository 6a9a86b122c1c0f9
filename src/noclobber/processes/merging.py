"""Makes one report of the files that the processes of a run have written, also while they still write."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from noclobber.model.reports.checkout import in_checkout
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.process import Process, State, ranks_of, together
from noclobber.model.reports.report import Coverage, Lost, Report, ReportError, checked, json_in, unseen_in_words
from noclobber.processes.alive import state_of
from noclobber.processes.children import starts_program_in_python
from noclobber.processes.journal import FINDING, FORMAT, SUFFIX

if TYPE_CHECKING:
    from noclobber.session.session import Session

_NOT_THERE = "noclobber did not start there (not installed for that Python, another environment, `-S`, or `os.exec`)"
_TIMES = re.compile(r"(.*) \(([0-9]{1,15}) (?:times|compiled frames)\)")
_KEYS = re.compile(rb'\{"finding": "(\w+)", "same": "(\w+)", "count": (\d{1,15}),')
MOST_PIDS = 2**31
MOST_RANKS = 10**6
"""Process ids and ranks above these are none: a file that says so is damaged."""
MOST_COUNTED = 10**15
MOST_BYTES = 50_000_000
"""A line of a process's file that is longer is none of ours."""


def with_own(files: Report, session: Session, program: dict[str, Any]) -> Report:
    """Return the report of a session and of the files that its process and others have written."""
    if not any(one.why or (one.counts and one.parent is not None) or _may_import_torch(one) for one in files.processes):
        return replace(session.report(program), processes=files.processes)
    # What could not be written, as the folder is full, is known of this process at least.
    written = {finding.identity() for finding in files.findings}
    own = tuple(finding for finding in session.findings if finding.identity() not in written)
    findings = (*session.advised(files.findings + own), *session.hints())
    return replace(files, findings=findings, program=program, ledger=session.ledger())


@dataclass(frozen=True, slots=True)
class First:
    """The first line of a file: which process wrote it."""

    id: str
    run: str
    parent: str | None
    how: str
    pid: int
    born: str
    above: tuple[int, ...]
    host: str
    command: tuple[str, ...]
    python: str
    date: str

    def __post_init__(self) -> None:
        _require_pid(self.pid)

    @property
    def state(self) -> State:
        """Whether it still runs, if it has not told its end."""
        return state_of(self.pid, self.host, self.born)


def _require_pid(pid: int) -> None:
    if not 0 < pid < MOST_PIDS:
        raise ValueError("no such process")


@dataclass(frozen=True, slots=True)
class _Who:
    """What a process is known by."""

    name: str = ""
    rank: int | None = None
    world: int | None = None
    worker: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= (self.rank or 0) < max(self.world or 0, 1) <= MOST_RANKS:
            raise ValueError("no such rank")


@dataclass(frozen=True, slots=True)
class _Child:
    """A program that a process has started, with its pid if that is known; `python` if it may be a Python."""

    child: int | None
    command: tuple[str, ...]
    python: bool

    def __post_init__(self) -> None:
        if self.child is not None:
            _require_pid(self.child)


@dataclass(frozen=True, slots=True)
class _End:
    """The last line of a file: the exit status, if it is known, and what is known only at the end."""

    end: int | None
    coverage: Coverage | None
    crashes: tuple[str, ...]


@dataclass(slots=True)
class _Read:
    """What one file says."""

    first: First
    who: _Who = field(default_factory=_Who)
    torch: str | None = None
    unsupported: str = ""
    coverage: Coverage | None = None
    lost: dict[Lost, None] = field(default_factory=dict)
    children: list[_Child] = field(default_factory=list)
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
        """Add the line of a finding. Raises ReportError if it is damaged."""
        keys = _KEYS.match(line)
        if keys is None:
            raise ReportError("a finding without keys")
        same = keys[2].decode()
        if keys[1] not in self._parsed:
            finding = checked(Finding, json_in(line).get("shown"))
            self._parsed.add(keys[1])
            known = self.found.get(same)
            self.found[same] = finding if known is None else known.with_facts_of(finding)
        if same not in counts:
            self.places.setdefault(same, []).append(file)
        counts[same] = max(int(keys[3]), counts.get(same, 0))

    def merged(self, checkout: str) -> Iterable[tuple[Finding, list[tuple[int, str]]]]:
        """Return each finding, with the files and keys that tell it. At the files of a checkout, equal ones are one."""
        here = in_checkout(tuple(self.found.values()), checkout)
        made: dict[object, tuple[Finding, list[tuple[int, str]]]] = {}
        for same, finding in zip(self.found, here, strict=True):
            known, places = made.get(finding.identity(), (finding, []))
            whole = known if known is finding else known.with_facts_of(finding)
            made[finding.identity()] = whole, [*places, *((number, same) for number in self.places[same])]
        return made.values()


def files_in(folder: str) -> list[str]:
    """Return the files of processes in a folder, the oldest first. Raises OSError if it cannot be read."""
    with os.scandir(folder) as entries:
        files = [one for one in entries if one.name.endswith(SUFFIX) and one.is_file()]
    paths = [(one.name.rpartition("-")[2], one.path) for one in files]
    return [path for _, _, path in sorted((len(time), time, path) for time, path in paths)]


def first_of(folder: str) -> First | None:
    """Return the process that began the run of a folder; None if it has not written there.

    Raises OSError and ReportError if the folder or its file cannot be read.
    """
    for path in files_in(folder)[:1]:
        with open(path, "rb") as file:
            read = _begun(json_in(file.readline(MOST_BYTES)), "")
            return read.first if read is not None else None
    return None


def report_of(*folders: str, run: str = "", checkout: str = "") -> Report:
    """Return the report of all processes whose files are in folders; with `run`, only those of one run.

    With `checkout`, places in other checkouts of the same files are places in this one. Findings show all that the
    rules propose.

    Raises OSError if a folder cannot be read, and ReportError if a file cannot, or if a folder has none of a process.
    """
    findings, read, mixed = _Findings(), list[_Read](), False
    for folder in folders:
        before = len(read)
        for path in files_in(folder):
            one = _read(path, len(read), findings, run)
            if one is not None:
                read.append(one)
        if len(read) == before:
            raise ReportError("no process has written there; `noclobber run -o DIR/` makes such a folder")
        mixed = mixed or _are_several(read[before:])
    processes = [_process(one) for one in read]
    gone = _replaced(read, processes)
    unwatched = list(_unwatched(read, gone))
    shown = tuple(one for number, one in enumerate(processes) if number not in gone) + tuple(unwatched)
    several = sum(one.counts for one in shown) > 1
    merged = []
    for finding, places in findings.merged(checkout):
        seen_by = [processes[number] for number, _ in places]
        count = sum(read[number].counts[same] for number, same in places)
        notes = (*finding.notes, f"seen {together(seen_by)}") if several else finding.notes
        merged.append(replace(finding, count=count, notes=notes, processes=tuple(one.id for one in seen_by)))
    first = read[0]
    program = {
        "argv": list(processes[0].command),
        "status": next((one.status for one in processes if one.status), None if processes[0].state == "lost" else 0),
        "torch": next((one.torch for one in read if one.torch), None),
        "python": first.first.python,
        "date": first.first.date,
    }
    return Report(tuple(merged), _coverage(read, shown, mixed), program, shown)


def _read(path: str, number: int, findings: _Findings, run: str) -> _Read | None:
    """Return what a file says; None if it is not of a process of the run. A damaged line is passed over."""
    read: _Read | None = None
    try:
        with open(path, "rb") as file:
            # Without its end, a line is the last one, which is still written.
            while (line := file.readline(MOST_BYTES)).endswith(b"\n"):
                with suppress(ReportError):
                    if read is None:
                        read = _begun(json_in(line), run)
                    elif line.startswith(FINDING):
                        findings.add(line, number, read.counts)
                    else:
                        _note(read, json_in(line))
                if read is None:
                    return None
    except OSError as error:
        raise ReportError(f"`{os.path.basename(path)}` in it: {error.strerror}") from None
    return read


def _begun(line: Any, run: str) -> _Read | None:
    """Return what the first line of a file says; None if another run has written it, or another program."""
    if not isinstance(line, dict) or line.get("format") != FORMAT or run not in ("", line.get("run")):
        return None
    return _Read(checked(First, line))


def _note(read: _Read, line: Any) -> None:
    """Take in what a line says. Raises ReportError if it is damaged."""
    match line:
        case {"again": str(same), "count": int(count)} if same in read.counts and count <= MOST_COUNTED:
            read.counts[same] = max(count, read.counts[same])
        case {"who": who}:
            read.who = checked(_Who, who)
        case {"torch": str(torch), "coverage": coverage}:
            read.torch, read.coverage = torch, checked(Coverage, coverage)
        case {"backwards": int(backwards), "raised": int(raised)} if read.coverage is not None:
            if min(backwards, raised) >= 0 and backwards + raised <= MOST_COUNTED:
                read.coverage = replace(read.coverage, backwards=backwards, raised=raised)
        case {"unsupported": str(why)}:
            read.unsupported = why
        case {"lost": lost}:
            read.lost[checked(Lost, lost)] = None
        case {"child": _}:
            read.children.append(checked(_Child, line))
        case {"end": _}:
            end = checked(_End, line)
            read.ended = True
            read.status = end.end if end.end is not None else read.status
            read.coverage = end.coverage or read.coverage
            if read.first.how != "first":  # the first process tells its own
                read.lost |= {Lost("a child process", crash, True): None for crash in end.crashes}


def _process(read: _Read) -> Process:
    first = read.first
    return Process(
        id=first.id,
        parent=first.parent,
        pid=first.pid,
        host=first.host,
        command=first.command,
        **asdict(read.who),
        torch=read.torch,
        python=first.python,
        why=read.unsupported if read.torch is None else "",
        state="ended" if read.ended else first.state,
        status=read.status,
        findings=len(read.counts),
    )


def _replaced(read: Sequence[_Read], processes: Sequence[Process]) -> set[int]:
    """Return the numbers of the processes that became another program (`exec`) without having found anything."""
    # One that came to its own end has only tried: `os.execvp` tries one folder after the other.
    became = {
        (one.first.host, child.child)
        for one in read
        for child in one.children
        if not (one.ended and child.child == one.first.pid)
    }
    return {
        number
        for number, (one, process) in enumerate(zip(read, processes, strict=True))
        if (process.host, process.pid) in became and one.first.how != "started" and not one.counts
    }


def _unwatched(read: Sequence[_Read], gone: set[int]) -> Iterator[Process]:
    """Yield the Pythons that were started and have written nothing."""
    started = [one.first for one in read if one.first.how == "started"]
    for number, one in enumerate(read):
        of_this = [first for first in started if first.parent == one.first.id]
        known = {child.child for child in one.children}
        unknown = sum(not known & {first.pid, *first.above} for first in of_this)
        for order, child in enumerate(one.children):
            pid = child.child
            if pid == one.first.pid and one.ended:
                continue
            if not child.python or any(pid in (first.pid, *first.above) for first in of_this):
                continue
            if pid is None and unknown:
                continue  # `os.system` does not tell the pid
            parent = one.first.parent if number in gone else one.first.id
            yield Process(
                f"{one.first.id}-{order}",
                parent,
                pid or 0,
                one.first.host,
                child.command,
                why=_NOT_THERE,
                state="lost" if pid is None else state_of(pid, one.first.host),
            )


def _coverage(read: Sequence[_Read], processes: Sequence[Process], mixed: bool) -> Coverage:
    """Return what all of them covered together: only what every watched process did is said of all.

    `mixed` is True if one folder holds several runs.
    """
    covered = [one.coverage for one in read if one.coverage is not None]
    unseen: Counter[str] = Counter()
    for coverage in covered:
        for what in coverage.unseen:
            many = _TIMES.fullmatch(what)
            unseen[many[1] if many else what] += int(many[2]) if many else 1
    lines = [unseen_in_words(what, times) for what, times in unseen.items()]
    lines += [f"{_named(one)}: {one.why}" for one in processes if one.why]
    lines += _missing(processes)
    notes = list(dict.fromkeys(note for coverage in covered for note in coverage.notes))
    if mixed:
        notes.append("the folder holds several runs; give each run a folder of its own")
    for state, words in (("running", "had not ended yet"), ("lost", "ended by a signal")):
        some = [one for one in processes if one.watched and one.state == state]
        if state == "running":
            some = [one for one in some if not _forks_for_others(one)]
        if some:
            notes.append(f"{_all(some)} {words}: this is what was found until then")
    if waiting := [one for one in processes if _may_import_torch(one)]:
        notes.append(f"{_all(waiting)} had not ended yet: what torch does there later is in no report")
    has_fakes = any(coverage.fake for coverage in covered)
    if real := has_fakes * sum(not one.fake and one.backwards + one.raised > 0 for one in covered):
        ran = f"{real} process{'es' * (real != 1)} of the program ran with {'their' if real != 1 else 'its'} values"
        notes.append(f"{ran}: `--fake` is for the first one alone; `--world-size` makes it one rank of many")
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
        sum(coverage.backwards for coverage in covered),
        sum(coverage.raised for coverage in covered),
        has_fakes and not real,
    )


def _forks_for_others(process: Process) -> bool:
    """Return True for the server that multiprocessing forks processes from. It ends after the program, and does nothing
    by itself once it has imported the main module (since Python 3.14). The processes that it forks have names."""
    return not process.name and any("multiprocessing.forkserver" in word for word in process.command)


def _may_import_torch(process: Process) -> bool:
    """Return True for a Python that goes on after the report and has not imported torch until then."""
    goes_on = process.parent is not None and not process.counts and process.state == "running"
    return goes_on and not _forks_for_others(process) and starts_program_in_python(process.command)


def _are_several(read: Sequence[_Read]) -> bool:
    """Return True if the files are of several runs. On several machines each rank or node may begin a run of its own:
    then no two of these have the same rank or, without ranks, the same host."""
    ranks: dict[str, set[int | str]] = {}
    for one in read:
        ranks.setdefault(one.first.run, set()).add(one.first.host if one.who.rank is None else one.who.rank)
    seen = Counter(
        one for of_run in ranks.values() for one in ({one for one in of_run if isinstance(one, int)} or of_run)
    )
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
