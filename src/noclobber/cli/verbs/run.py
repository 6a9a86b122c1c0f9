"""`noclobber run`: a program as `python` runs it, then its report on stderr or in a file."""

from __future__ import annotations

import argparse
import contextlib
import os
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from noclobber.cli.beside import below, counts, crashed, killed, notes
from noclobber.cli.faking import add_fake, order_of
from noclobber.cli.output import SEPARATORS, add_format, asked, file_name, unusable, unwritable, unwritten
from noclobber.cli.parser import Verbs, whole
from noclobber.cli.printing import cut, put, refuse
from noclobber.cli.selecting import add_selection, given_of, require_baseline, selected_of, selection_of
from noclobber.model.reports.report import Report
from noclobber.model.seen.hints import Opportunity
from noclobber.render import render
from noclobber.render.text import real, visible
from noclobber.render.window.color import wanted, width_of
from noclobber.settings.meant import file_like
from noclobber.settings.selection import Selection, SelectionError, unused

if TYPE_CHECKING:
    from noclobber.processes.run import Run


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "run",
        usage="noclobber run [-f FORMAT | --statistics] [-o FILE | -o DIR/] [--no-contents] [--raise] "
        "[--fake [--steps N] [--device DEVICE] [--shapes SHAPES] [--world-size N --rank N]] "
        "[--ledger] [--hints] [--every N] [--select CODES] [--ignore CODES] "
        "[--baseline FILE [--update-baseline]] [--fail-on SEVERITY] SCRIPT [ARGS...] | -m MODULE | -c CODE",
        help="run a program and explain its in-place writes",
        description="Run a program as `python` would, then report on stderr. The exit status is that of the program, "
        "or 1 if the program ended well but noclobber found an error (`--fail-on`). If the program is killed, what "
        "was found stays, and the next command of noclobber says once how to show it.",
        epilog="example: noclobber run -o report.json train.py --epochs 1",
    )
    add_format(parser)
    parser.add_argument(
        "-o", dest="output", type=file_name, metavar="FILE | DIR/",
        help="write the report to FILE instead; or a file for each process to DIR, for `noclobber report DIR`",
    )  # fmt: skip
    parser.add_argument(
        "--no-contents", dest="contents", action="store_false",
        help="compare only versions, not saved bytes: cheaper, but misses writes by numpy and kernels",
    )  # fmt: skip
    parser.add_argument(
        "--raise", dest="on_write", action="store_const", const="raise", default="record",
        help="stop at the first write that breaks a gradient, before it happens",
    )  # fmt: skip
    parser.add_argument(
        "--ledger", action="store_true", help="also say which lines, modules and operators keep bytes for backward"
    )
    parser.add_argument(
        "--hints", action="store_true",
        help="also say where an in-place write would lower the peak of memory, and where one lowers nothing",
    )  # fmt: skip
    parser.add_argument(
        "--every", type=whole, default=0, metavar="N",
        help="watch only the first four backward calls, and then four in a row of each N: in between only writes are "
        "noted",
    )  # fmt: skip
    add_fake(parser)
    add_selection(parser)


def carry_out(options: argparse.Namespace, words: list[str], at_end: contextlib.ExitStack) -> int:
    """`noclobber run`: the program, then its report on stderr or in a file, and its own KeyboardInterrupt `at_end`."""
    from noclobber.processes.run import Run
    from noclobber.session.program import NotAProgram, end_as_python
    from noclobber.session.session import Session

    output = real(options.output) if options.output else None
    folder = output if output and (os.path.isdir(output) or options.output.endswith(SEPARATORS)) else None
    if folder is not None and options.format != "full":
        kept = f"`-o {options.output}` is a folder and keeps what each process finds"
        options.parser.error(f"{kept}; name a file, or use `noclobber report {asked(options.format)} {options.output}`")
    if output is not None and (why := unusable(folder) if folder else unwritable(output)):
        return refuse(f"cannot write `{options.output}`: {why}")
    options.parser.refuse_together(options, "every", "ledger", "hints")
    fake = order_of(options)
    selection = selection_of(options)
    require_baseline(selection, updating=options.update_baseline)
    session = Session(
        on_write=options.on_write,
        contents=options.contents and fake is None,
        counting=options.ledger,
        hints=options.hints,
        everywhere=True,
        every=options.every,
        fake=fake,
    )
    run = Run(session, folder)
    end = _End(run, options, words, output, selection)
    try:
        run.carry_out(words, end.reported)
        status = run.status if run.in_child else end.reported()
    except NotAProgram as reason:
        status = end_as_python(words, reason)
        if status == 0:  # Python has made a program of it
            put(f"noclobber: nothing was watched: {reason}\n", run.stderr)
        if close := file_like(words[0]):
            put(f"noclobber: {close.removeprefix('; ')}\n", run.stderr)
        return status
    except KeyboardInterrupt:
        run.close()
        raise
    at_end.callback(run.leave)
    return status


@dataclass(frozen=True, slots=True)
class _End:
    """What is told of a run at its end, and where. `output` is the file or the folder of `-o`."""

    run: Run
    options: argparse.Namespace
    words: list[str]
    output: str | None
    selection: Selection

    def reported(self) -> int:
        """Report on a program that is over; return the exit status."""
        run, options, selection = self.run, self.options, self.selection
        status = run.status
        with run.surroundings(), run.kept_apart():
            report = run.report()
            try:
                report = selected_of(report, options, selection, self._tell)
            except SelectionError as reason:
                self._tell(f"noclobber: {cut(str(reason))}; all findings follow")
            if more := unused(report, selection, run.files()):
                report = replace(report, coverage=replace(report.coverage, notes=(*report.coverage.notes, *more)))
            if report.findings and options.format not in ("concise", "statistics"):
                with run.kept_apart():
                    report = with_command(report, self.words, given_of(options))
            if status % 256 == 0 and selection.fails(report):  # a program that exits with 256 ends with 0
                status = 1
            self._deliver(report)
            if options.format == "full":
                self._tell(*killed(run.runs), *([f"noclobber: {run.cost}"] if run.cost else []))
            for lost in report.coverage.lost:
                if lost.internal:
                    self._tell(*crashed(f"{lost.way}: {lost.why}", lost.trace))
        run.close()
        for crash in run.crashes:
            first = "".join(f"{type(crash).__name__}: {crash}".splitlines()[:1])
            self._tell(*crashed(first, "".join(traceback.format_exception(crash))))
        return status

    def _deliver(self, report: Report) -> None:
        run, options = self.run, self.options
        nothing = run.nothing_to_watch(report)
        if nothing and options.format != "json" and self.output is None:
            self._tell(f"noclobber: {nothing}")
            return
        if self.output is not None:
            where = f"the report is in {options.output}"
            if os.path.isdir(self.output):
                where = f"each process wrote to {options.output} (noclobber report {options.output})"
                why = run.unwritten
            else:
                why = unwritten(self.output, render(report, options.format))
            if not why:
                self._tell(f"noclobber: {nothing or counts(report)}; {where}", *notes(report))
                return
            self._tell(f"noclobber: cannot write `{options.output}`: {why}; the report follows")
        color, width = wanted(run.stderr), width_of(run.stderr)
        if run.showed_error and options.format == "full":
            put("\n", run.stderr)
        put(render(report, options.format, color=color, width=width), run.stderr)
        self._tell(*below(report, options.format))

    def _tell(self, *lines: str) -> None:
        for line in lines:
            put(f"{visible(line)}\n", self.run.stderr)


def with_command(report: Report, words: list[str], given: list[str]) -> Report:
    """Return the report with edits that fit the files as they are, and with the command that fixes the program.

    `given` are the options that chose what counts.
    """
    from noclobber.fix.edits.patch import fitted, is_fixable

    found = [one for one in report.findings if one.severity != "hint" and is_fixable(one)]
    lower = any(isinstance(one.event, Opportunity) and one.event.alone > 0 for one in report.findings)
    report = replace(report, findings=tuple(map(fitted, report.findings)))
    if words[0] in ("-", "-c") or not (found or lower):
        return report
    script = ["--", *words] if words[0].startswith("-") and words[0] != "-m" else words
    command = ["noclobber", "fix", *["--hints"] * (not found), *given, *script]
    return replace(report, program={**report.program, "fix": {"command": command}})
