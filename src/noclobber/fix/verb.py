"""`noclobber fix`: finds in-place writes, fixes them, and reports the result in words and as a diff."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from noclobber.fix.edits.patch import Patch
from noclobber.fix.edits.source import Misfit, Source, diff, replace_file
from noclobber.fix.one_rank import ENVIRONMENT, of_one_rank
from noclobber.fix.proof.repairs import AppliedHints, Level, Repair, Repairs
from noclobber.fix.proof.trials.job import Ended, Order, Result
from noclobber.fix.proof.trials.launcher import Launcher, Tell, Trial, launching
from noclobber.model.reports.finding import Finding
from noclobber.model.source import Owner, owner_of
from noclobber.model.units import counted, size
from noclobber.render.judged import calls_in_words
from noclobber.render.text import filled, one_line, typed, visible
from noclobber.session.imports import torch_needed
from noclobber.settings.selection import Selection

PATCH = "fix.patch"
"""The file that the summary proposes where a patch is not for `--write`."""
_ALL = Selection()
NEXT, CHANGED = "next:", " " * 6
"""How a command and a line of a patch begin in the summary."""


class CannotFix(Exception):
    """What was asked for cannot be done. Its text is one line."""


@dataclass(slots=True)
class Fixed:
    """`diff` is the patch for stdout, if it is proven or checked. `words` are the lines of the summary, and `next` the
    command that does what they say; `applying` does it with a file that has the patch. `status` is the exit status.
    """

    status: int
    diff: str = ""
    words: list[str] = field(default_factory=list)
    next: str = ""
    applying: str = ""

    def shows(self, patch: Patch) -> None:
        """Take a patch for stdout. Raises CannotFix."""
        folder = _folder(patch)
        self.diff = "".join(_diffs(patch))
        there = f" -d {typed([_from_here(folder)])}" if folder != os.path.realpath(os.getcwd()) else ""
        self.applying = f"patch{there} -p1"

    def kept_in(self, path: str) -> None:
        """Say that the patch is in a file."""
        self.words.append(f"noclobber: the patch is in {path}")
        if self.next:
            self.next = f"{self.applying} < {typed([path])}"

    def lines(self, width: int | None) -> Iterator[str]:
        """Yield the lines of the summary. With a width, words are broken there; commands and patches never are."""
        for text in [*self.words, *([f"{NEXT} {self.next}"] if self.next else [])]:
            if width is None or "\n" in text or text.startswith((NEXT, CHANGED)) or not text:
                yield from text.split("\n")
            else:
                indent = " " * (len(text) - len(text.lstrip()))
                yield from filled(text.strip(), width, first=indent, below=f"{indent}  ")


def fix(
    words: Sequence[str],
    selection: Selection,
    *,
    writing: bool,
    unproven: bool,
    backwards: int,
    seconds: float,
    tell: Tell,
    given: Sequence[str] = (),
) -> Fixed:
    """Fix the program that `python WORDS...` would run. Raises CannotFix; files change only where `writing`.

    `selection` says which findings count, and which make the exit status 1 if they are left. `unproven`: also write
    patches whose gradients could not be compared with the right ones. `given`: the options that chose `selection`.
    """
    _require(words)

    def repaired(
        program: Sequence[str], environment: Mapping[str, str] | None = None, done: Repairs | None = None
    ) -> Repairs | Fixed:
        looking = f"looking for in-place writes that break a gradient{', in other processes' if done else ''}"
        with launching(program, environment, selection) as launcher:
            return launcher.call(partial(_repaired, unproven, backwards, seconds, done), tell, looking)

    done, about = None, list[str]()
    if (rank := of_one_rank(words)) is not None:
        with suppress(CannotFix):  # the program needs more ranks
            of_rank = repaired(rank, ENVIRONMENT)
            done = None if isinstance(of_rank, Fixed) else of_rank
    if done is not None:
        about.append("noclobber: run as rank 0 of one process, for the search and for the proof")
    if done is None or not done.left:
        try:
            found = repaired(words, done=done)
        except CannotFix as reason:
            if done is None:
                raise
            found = done
            about.append(f"noclobber: the other ranks could not be looked at: {reason}")
    else:
        found = done
    fixed = found if isinstance(found, Fixed) else told(found, [*given, *words], writing, unproven, selection)
    fixed.words[:0] = about
    return fixed


def fix_hints(
    words: Sequence[str], selection: Selection, *, writing: bool, seconds: float, tell: Tell, given: Sequence[str] = ()
) -> Fixed:
    """Write in place where that lowers the peak of memory. Raises CannotFix; files change only where `writing`.

    Each run goes to the program's own end: any later line may read what would be overwritten.
    """
    _require(words)
    with launching(words, selection=selection) as launcher:
        work = partial(_applied, words, seconds)
        done = launcher.call(work, tell, "looking for in-place writes that lower the peak of memory")
    return done if isinstance(done, Fixed) else told_of_hints(done, [*given, *words], writing)


def _repaired(
    unproven: bool, backwards: int, seconds: float, done: Repairs | None, launcher: Launcher, tell: Tell
) -> Repairs | Fixed:
    """Find and try fixes in one process after the other, beside those that are `done`; return the report instead if
    there is nothing to fix."""
    looked: set[str] = set()
    while True:
        before = done.patch if done is not None else Patch()
        order = Order("search", backwards, seconds, served=before.served)
        searching = launcher.start(order, everywhere=True)
        with torch_needed():  # where nothing is forked, this takes as long as the search
            from noclobber.fix.proof.search import RepairSearch
            from noclobber.fix.proof.verdicts import Prover

        search = _found(launcher, order, searching, looked)
        nothing = None if looked else _nothing(search, seconds)
        if done is not None and (nothing is not None or not search.findings or search.process in looked):
            return replace(done, elsewhere=search.elsewhere)
        if nothing is not None:
            return nothing
        more = RepairSearch(Prover(launcher, search, backwards, seconds), tell, before, unproven=unproven).search()
        more.processes = [search.process] if search.process else []
        done = more if done is None else done.and_more(more)
        looked.add(search.process)
        if not search.elsewhere:
            return done
        tell("looking for in-place writes that break a gradient, in other processes")


def _applied(words: Sequence[str], seconds: float, launcher: Launcher, tell: Tell) -> AppliedHints | Fixed:
    """Find and apply hints; return the report instead if there is none."""
    order = Order("hints", sys.maxsize, seconds)
    searching = launcher.start(order, everywhere=True)
    with torch_needed():
        from noclobber.fix.proof.hints import HintTrials

    search = _found(launcher, order, searching)
    if search.findings:
        raise CannotFix(f"an in-place write breaks a gradient; first run: noclobber fix {typed(words)}")
    if search.ended in (Ended.LIMIT, Ended.TIMEOUT):
        still = f"the program still runs after {seconds:g} s, and what it reads later is not known"
        raise CannotFix(f"{still}: give it less to do, or more time with `--seconds`")
    if search.ended is not Ended.WELL or not search.torch:
        return _nothing(search, seconds) or Fixed(0)
    return HintTrials(launcher, search, seconds).carry_out(tell)


def _found(launcher: Launcher, order: Order, searching: Trial, looked: Collection[str] = ()) -> Result:
    """Return what a search found in the first process that has something, and is none of those `looked` at. A program
    that comes to no backward call in a warm process is run in fresh ones, now and from then on: it may mind that torch
    has been imported, or never import it."""
    search = launcher.searched(searching, looked)
    if not launcher.warm or search.findings or search.hints or search.checked:
        return search
    launcher.warm = False
    return launcher.searched(launcher.start(order, everywhere=True), looked)


def told_of_hints(done: AppliedHints, words: Sequence[str], writing: bool) -> Fixed:
    """Return the report on hints. Write the patch if `writing`."""
    fixed = Fixed(0, words=[f"not watched: {one}" for one in done.unseen])
    for one in done.applied:
        fixed.words += [_line(one.finding), f"  change: {one.title}"]
        fell = f"the peak falls from {size(one.before)} to {size(one.after)}"
        fixed.words.append(f"  proven: {one.proof}; measured: {fell}")
    for hint, why in done.withdrawn:
        fixed.words += [_line(hint), f"  withdrawn: {why}"]
    peak = f" (measured: {size(done.peak)})" if done.peak is not None else ""
    fixed.shows(done.patch)
    if not done.applied:
        fixed.words.append(f"noclobber: no in-place write lowers the peak of memory{peak}")
        return fixed
    fell = size(done.applied[0].before - done.applied[-1].after)
    changes = counted(len(done.applied), "change")
    fixed.words += ["", f"noclobber: {changes}, proven and measured: the peak falls by {fell}"]
    if writing:
        _write_patch(done.patch, fixed)
    else:
        how = f"-o {PATCH}" if _outside(done.patch) else "--write"
        fixed.next = f"noclobber fix --hints {how} {typed(words)}"
    return fixed


def _require(words: Sequence[str]) -> None:
    if why := {"-c": "`-c` has none", "-": "stdin is not a file"}.get(words[0]):
        raise CannotFix(f"`noclobber fix` changes files, and {why}: put the code into a script")


def _nothing(search: Result, seconds: float) -> Fixed | None:
    """Return the report if there is nothing to fix, else None. Raises CannotFix if the program cannot be watched."""
    if search.crash:
        raise CannotFix(f"internal error: {search.crash}")
    if search.ended is Ended.REFUSED:
        raise CannotFix(search.error)
    if search.findings:
        return None
    if search.elsewhere:
        what = f"a child process has a write that breaks a gradient ({search.elsewhere})"
        raise CannotFix(f"{what}, and was ended before it could be looked at: call that code in the first process")
    if search.ended in (Ended.TIMEOUT, Ended.DIED):
        raise CannotFix(f"noclobber could not watch this program: {search.error}")
    if not search.torch:
        return Fixed(0, words=["noclobber: nothing to fix: torch was never imported"])
    if search.ended in (Ended.RAISED, Ended.EXIT):
        reads = " (it gets no input here)" if search.error.startswith("EOFError") else ""
        left = f" (left out: {search.left_out})" if search.left_out else ", but not because of an in-place write"
        raise CannotFix(f"the program failed{left}: {search.error}{reads}")
    about = [calls_in_words(search.checked)] if search.checked else []
    if search.ended is Ended.LIMIT:
        about = [f"{' '.join([*about, 'in the first'])} {seconds:g} s", "`--seconds` runs it for longer"]
    if search.unwatched:
        about.append(f"not watched: {', '.join(search.unwatched)}")
    if search.left_out:
        about.append(f"left out: {search.left_out}")
    what = "no write broke a gradient" if search.checked else "no backward ran: nothing was checked"
    told = f" ({'; '.join(about)})" if about else ""
    return Fixed(0, words=[f"noclobber: nothing to fix: {what}{told}"])


def told(done: Repairs, words: Sequence[str], writing: bool, unproven: bool, selection: Selection = _ALL) -> Fixed:
    """Return the report of a search for fixes. Write the patch if `writing`."""
    fixed = Fixed(int(any(selection.is_severe(finding) for finding, _ in done.left)))
    fixed.words += [f"noclobber: searched and proven in {one}" for one in done.processes]
    for one in _together(done.repairs):
        extra = f" ({'-' if one.extra < 0 else '+'}{size(abs(one.extra))} kept for backward)" if one.extra else ""
        fixed.words += [_line(one.finding), f"  fix: {one.title}{extra}", f"  {one.level}: {one.proof}"]
    for one, patch in done.unproven:
        fixed.words += [_line(one.finding), f"  fix, unproven: {one.title}", f"  {one.proof}"]
        fixed.words += _indented(_diffs(patch))
    for finding, meant in done.asked:
        asked = "only the author can say what is meant, so nothing is written; norms of the first gradients:"
        fixed.words += [_line(finding), f"  {asked}"]
        for reading in meant:
            fixed.words.append(f"    {reading.title}: {reading.gradients}")
            fixed.words += _changed(reading.patch) if reading.patch is not None else []
        fixed.words += [f"  help: {one.message}" for one in finding.suggestions]
    shown = {one.finding.identity() for one, _ in done.unproven} | {one.identity() for one, _ in done.asked}
    for finding, tried in [one for one in done.left if one[0].identity() not in shown]:
        fixed.words += [_line(finding), "  no proven fix" + (":" if tried else "")]
        fixed.words += [f"    {title}: {why}" for title, why in tried]
        fixed.words += [f"  help: {one.message}" for one in finding.suggestions]
    if done.elsewhere:
        fixed.status = int(selection.fail_on != "never")
        fixed.words.append(f"another process has one more write that breaks a gradient: {done.elsewhere}")
    sure = all(one.level is not Level.UNPROVEN for one in done.repairs)
    if sure:
        fixed.shows(done.patch)
    else:
        severe = any(selection.is_severe(one.finding) for one in done.repairs)
        fixed.status = int(bool(fixed.status) or (severe and not unproven))
        fixed.words += ["the patch, unproven:", *_indented(_diffs(done.patch))]
    fixed.words += ["", _summary(done)]
    if writing and done.patch.after:
        _write(done, fixed, sure or unproven)
    elif options := _next(done, sure):
        fixed.next = f"noclobber fix {options} {typed(words)}"
    return fixed


def _next(done: Repairs, sure: bool) -> str:
    """Return the options that write what is shown; empty if they would not fix everything."""
    offered = {one.finding.identity() for one, _ in done.unproven}
    patches = [done.patch, *(patch for _, patch in done.unproven)]
    left = any(finding.identity() not in offered for finding, _ in done.left)
    if left or not any(one.after for one in patches):
        return ""
    if any(map(_outside, patches)):
        return f"-o {PATCH}" if sure and not offered else ""
    return "--write" if done.patch.after and sure and not offered else "--write --unproven"


def _together(repairs: Sequence[Repair]) -> list[Repair]:
    """Those of one write that change the same thing, such as one clone for each save, as one."""
    found: dict[tuple[str, str, str], Repair] = {}
    for one in repairs:
        key = (_line(one.finding), one.title, one.proof)
        before = found[key].extra if key in found else 0
        found[key] = replace(one, extra=None if before is None or one.extra is None else before + one.extra)
    return list(found.values())


def _changed(patch: Patch) -> list[str]:
    """Return the lines that a patch takes out and puts in."""
    lines = _indented(_diffs(patch))
    return [line for line in lines if line[len(CHANGED) :][:1] in "+-" and line.split()[0] not in ("---", "+++")]


def _indented(diffs: Sequence[str]) -> list[str]:
    """Return the lines of diffs that are unproven: for a reader, and for no program that applies patches."""
    return [f"{CHANGED}{line}" for one in diffs for line in one.split("\n")[:-1]]


def _summary(done: Repairs) -> str:
    repairs = _together(done.repairs)
    counts = Counter(one.level for one in repairs)
    words = [f"{counts[level]} fix{'es' * (counts[level] != 1)}, {level}" for level in Level if counts[level]]
    nothing = f"nothing {'else' if counts[Level.UNPROVEN] else 'left'} to fix"
    left = f"{counted(len(done.left), 'finding')} left" if done.left else nothing
    return f"noclobber: {'; '.join([*(words or ['no proven fix']), left])}"


def _line(finding: Finding) -> str:
    primary = finding.primary
    place = f"{_shown(primary.span.path)}:{primary.span.line}: " if primary is not None else ""
    return f"{finding.code} {place}{one_line(finding.message)}"


def _write(done: Repairs, fixed: Fixed, may_be_written: bool) -> None:
    if done.left and not _outside(done.patch):
        left = counted(len(done.left), "finding")
        fixed.words.append(f"noclobber: nothing written: {left} would be left; the diff is above")
    elif not may_be_written and not _outside(done.patch):
        fixed.status = 1
        why = "not every fix is proven or checked; `--write --unproven` writes them all"
        fixed.words.append(f"noclobber: nothing written: {why}")
    else:
        _write_patch(done.patch, fixed)


def _outside(patch: Patch) -> list[str]:
    """Return the files that are not the user's own, or not under the current folder."""
    folder = os.path.realpath(os.getcwd()) + os.sep
    return [path for path in patch.after if not path.startswith(folder) or owner_of(path) is not Owner.USER]


def _write_patch(patch: Patch, fixed: Fixed) -> None:
    """Write the patch, all of it or nothing; say what happened. Raises CannotFix where a file is not as it was."""
    if outside := _outside(patch):
        fixed.status = 1
        names = ", ".join(f"`{_shown(path)}`" for path in outside)
        fixed.words.append(f"noclobber: nothing written: {names} is not in the current folder; the diff is above")
        return
    try:
        for path, source in patch.before.items():
            if Source.read(path).text != source.text:
                raise CannotFix(f"nothing written: `{_shown(path)}` has changed in the meantime")
        for source in patch.after.values():
            replace_file(source)
    except (OSError, Misfit) as error:
        fixed.status = 1
        why = getattr(error, "strerror", None) or error
        fixed.words.append(f"noclobber: nothing written: {str(why).lower()}; `-o PATCH` keeps the diff")
        return
    names = ", ".join(_shown(path) for path in patch.after)
    fixed.words.append(f"noclobber: written: {names}")


def _folder(patch: Patch) -> str:
    """Return where a patch is applied, and where its paths begin: here, or above where all files are."""
    here = os.path.realpath(os.getcwd())
    try:
        return os.path.commonpath([here, *map(os.path.dirname, patch.after)])
    except ValueError:  # on another drive
        return here


def _diffs(patch: Patch) -> list[str]:
    folder = _folder(patch)
    try:
        return [diff(patch.before[path], patch.after[path], _from(path, folder)) for path in patch.after]
    except Misfit as error:
        raise CannotFix(f"cannot show the patch: {error}") from None


def _shown(path: str) -> str:
    return visible(_from_here(path))


def _from_here(path: str) -> str:
    """Return a path from the current folder, unless that is longer."""
    near = _from(os.path.realpath(path), os.path.realpath(os.getcwd()))
    return near if len(near) < len(path) or not near.startswith(os.pardir) else path


def _from(path: str, folder: str) -> str:
    """Return a path from a folder; as it is if it is on another drive."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return path
