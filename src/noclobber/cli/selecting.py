"""Which findings count, by the options of a command and by [tool.noclobber]."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from noclobber.cli.output import unwritable, unwritten
from noclobber.model.reports.report import Report
from noclobber.render.text import current_folder, real, shown_path
from noclobber.rules import pages
from noclobber.settings.selection import (
    FAIL_ON,
    Selection,
    SelectionError,
    baseline_of,
    codes,
    from_project,
    read_baseline,
    selected,
)


def add_selection(parser: argparse.ArgumentParser, *, updating: bool = True) -> None:
    """Add the options that choose what counts, and if `updating` the one that writes a baseline."""
    parser.add_argument(
        "--select", metavar="CODES", help="show only these codes: NC101,NC2 is NC101 and all that begin with NC2"
    )
    parser.add_argument("--ignore", metavar="CODES", help="leave these codes out")
    parser.add_argument(
        "--baseline", metavar="FILE", help="leave out the findings that FILE holds; only new findings count"
    )
    parser.set_defaults(update_baseline=False)
    if updating:
        parser.add_argument(
            "--update-baseline", action="store_true", help="write the findings of this run to the FILE of --baseline"
        )
    parser.add_argument(
        "--fail-on", choices=FAIL_ON, metavar="SEVERITY",
        help="end with status 1 if a finding counts that is an error (default: error), or a warning too (warning); or "
        "never",
    )  # fmt: skip


def selection_of(options: argparse.Namespace) -> Selection:
    """Return which findings count, by the options and [tool.noclobber]. Raises SelectionError."""
    folder = current_folder()
    chosen = from_project(folder) if folder else Selection()
    if options.select is not None:
        chosen = replace(chosen, select=codes(options.select, "--select"))
    if options.ignore is not None:
        chosen = replace(chosen, ignore=codes(options.ignore, "--ignore"))
    if options.baseline is not None:
        chosen = replace(chosen, baseline=real(options.baseline))
    if options.fail_on is not None:
        chosen = replace(chosen, fail_on=options.fail_on)
    if options.update_baseline and not chosen.baseline:
        options.parser.error("`--update-baseline` needs `--baseline FILE`, or `baseline` in [tool.noclobber]")
    return chosen


def given_of(options: argparse.Namespace) -> list[str]:
    """Return the options that chose what counts, as words of a command."""
    found = {"--select": options.select, "--ignore": options.ignore, "--baseline": options.baseline}
    found["--fail-on"] = options.fail_on
    return [word for option, value in found.items() if value is not None for word in (option, value)]


def require_baseline(selection: Selection, *, updating: bool) -> None:
    """Raise SelectionError where a baseline cannot be read, or cannot be written if it is to be updated."""
    path = selection.baseline
    if path and updating and (why := unwritable(path)):
        raise SelectionError(f"cannot write the baseline `{path}`: {why}")
    if path:
        read_baseline(path, must_exist=not updating)


def selected_of(
    report: Report, options: argparse.Namespace, selection: Selection, tell: Callable[[str], None]
) -> Report:
    """Return the report with what counts and its rules' pages; update the baseline and say so if that is asked for.

    Raises SelectionError.
    """
    left = selected(report, selection, must_exist=not options.update_baseline)
    if options.update_baseline:
        text, words = baseline_of(left, selection)
        if why := unwritten(selection.baseline, text):
            raise SelectionError(f"cannot write the baseline `{selection.baseline}`: {why}")
        tell(f"noclobber: the baseline {shown_path(selection.baseline)} has {words}")
        left = selected(report, selection)
    return replace(left, pages=pages(left.findings))
