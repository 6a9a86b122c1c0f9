"""`noclobber report`: a saved report in any format, on stdout or in a file."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from noclobber.cli.beside import below, counts, notes
from noclobber.cli.output import add_format, file_name, unwritable, unwritten
from noclobber.cli.parser import Verbs
from noclobber.cli.printing import out, refuse, say
from noclobber.cli.selecting import add_selection, selected_of, selection_of
from noclobber.model.reports.checkout import in_checkout
from noclobber.model.reports.report import Report, ReportError
from noclobber.render import render
from noclobber.render.text import current_folder, real
from noclobber.render.window.color import wanted, width_of
from noclobber.settings.meant import file_like
from noclobber.settings.reading import Unreadable, text_of


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "report",
        help="show a saved report",
        description="Show a report that `noclobber run -o FILE.json` has saved, or make one of all that the "
        "processes of `noclobber run -o DIR/` have written into one folder or several, also while they run. The files "
        "of a run that was killed are removed once they are shown. The exit status is 1 if an error counts "
        "(`--fail-on`).",
        epilog="example: noclobber report -o report.html report.json",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE | DIR", help="several folders make one report; `-` reads stdin"
    )
    add_format(parser)
    parser.add_argument("-o", dest="output", type=file_name, metavar="FILE", help="write to FILE instead of stdout")
    add_selection(parser)
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> int:
    from noclobber.processes import leftover

    if options.output and (why := unwritable(real(options.output))):
        return refuse(f"cannot write `{options.output}`: {why}")
    file, folders = options.files[0], [one for one in options.files if one != "-" and os.path.isdir(one)]
    if 1 < len(options.files) != len(folders):
        odd = next(one for one in options.files if one not in folders)
        return refuse(
            f"`{odd}` is no folder: of several runs one report is made if each has written into a folder "
            "(`noclobber run -o DIR/`)"
        )
    try:
        if folders:
            from noclobber.processes.merging import report_of
            from noclobber.session.session import Session

            report = report_of(*folders, checkout=current_folder())
            report = replace(report, findings=Session().advised(report.findings))
        else:
            report = in_checkout(Report.from_json(text_of(file, "report")), current_folder())
    except (OSError, ReportError, Unreadable) as error:
        why = str(getattr(error, "strerror", None) or error)
        return refuse(f"cannot read `{'`, `'.join(options.files)}`: {why}{file_like(file)}")
    selection = selection_of(options)
    report = selected_of(report, options, selection, say)
    if options.output:
        if why := unwritten(real(options.output), render(report, options.format)):
            return refuse(f"cannot write `{options.output}`: {why}")
        say(f"noclobber: {counts(report)}; the report is in {options.output}", *notes(report))
    else:
        color, width = wanted(sys.stdout), width_of(sys.stdout)
        out(render(report, options.format, color=color, width=width))
        say(*below(report, options.format))
    for folder in folders:
        leftover.forget(folder, report, leftover.runs())
    return int(selection.fails(report))
