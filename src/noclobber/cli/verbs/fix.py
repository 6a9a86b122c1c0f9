"""`noclobber fix`: the patch on stdout, what it fixes and how it was proven on stderr."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from noclobber.cli.output import file_name, unwritable, unwritten
from noclobber.cli.parser import Verbs, whole
from noclobber.cli.printing import INTERRUPTED, out, put, refuse, say
from noclobber.cli.selecting import add_selection, given_of, require_baseline, selection_of
from noclobber.render.formats.terminal import patch_line, summary_line
from noclobber.render.text import real, visible
from noclobber.render.window.color import wanted, width_of
from noclobber.rules import rule_of
from noclobber.settings.meant import file_like


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "fix",
        usage="noclobber fix [--hints] [--diff | --write [--unproven]] [-o PATCH] [--backwards N] [--seconds S] "
        "[--select CODES] [--ignore CODES] [--baseline FILE] [--fail-on SEVERITY] SCRIPT [ARGS...] | -m MODULE",
        help="fix a program's in-place writes, with proof",
        description="Run a program, fix each in-place write that breaks a gradient, and show the patch as a diff. "
        "noclobber runs the program several times: a fix is proven if the program gives the right gradients with it, "
        "and checked if the write is refused and the gradient is the derivative of what the program computes. "
        "The exit status is 0 if every finding is fixed, or if there is none.",
        epilog="example: noclobber fix --write train.py --epochs 1",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--diff", action="store_true", help="show the patch and change nothing (default)")
    how.add_argument(
        "--write", action="store_true", help="write proven and checked fixes, only to files under the current folder"
    )
    parser.add_argument(
        "--unproven", action="store_true",
        help="also write fixes whose gradients could not be compared, as where the program differs from run to run",
    )  # fmt: skip
    parser.add_argument(
        "-o", dest="output", type=file_name, metavar="PATCH",
        help="write what is proven and checked as a patch to this file, instead of stdout",
    )  # fmt: skip
    parser.add_argument(
        "--backwards", type=whole, metavar="N",
        help="compare the gradients of N backward calls, starting at the first finding (default 3)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=whole, default=60, metavar="S", help="end each run after S seconds (default 60)"
    )
    parser.add_argument(
        "--hints", action="store_true",
        help="instead write in place where that lowers the peak of memory: proven to change no result, and measured",
    )  # fmt: skip
    add_selection(parser, updating=False)
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> int:
    from noclobber.fix.verb import CannotFix, fix, fix_hints

    if options.unproven and options.hints:
        options.parser.error("`--hints` writes only what is proven: leave out `--unproven`")
    if options.backwards and options.hints:
        options.parser.error("`--hints` runs the whole program: leave out `--backwards`")
    if options.unproven and not options.write:
        options.parser.error("`--unproven` needs `--write`: give both")
    output = real(options.output) if options.output else ""
    if output and (why := unwritable(output)):
        return refuse(f"cannot write `{options.output}`: {why}")
    selection = selection_of(options)
    require_baseline(selection, updating=False)
    try:
        what = fix_hints if options.hints else partial(fix, unproven=options.unproven, backwards=options.backwards or 3)
        with _progress() as tell:
            fixed = what(
                options.program,
                selection,
                writing=options.write,
                seconds=options.seconds,
                tell=tell,
                given=given_of(options),
            )
    except CannotFix as reason:
        return refuse(f"{reason}{file_like(options.program[0])}")
    except KeyboardInterrupt:
        say("noclobber: interrupted; nothing was changed")
        return INTERRUPTED
    if output and fixed.diff:
        if why := unwritten(output, fixed.diff, errors="surrogateescape"):
            say(f"noclobber: cannot write `{options.output}`: {why}; the patch follows")
            output = ""
        else:
            fixed.kept_in(options.output)
    try:
        if not output:
            _show_patch(fixed.diff)
    finally:
        color = wanted(sys.stderr)
        for line in fixed.lines(width_of(sys.stderr)):
            put(f"{_line(visible(line), color=color)}\n", sys.stderr)
    return fixed.status


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Give what shows on a terminal what is being done: a line for each text, in which the seconds go on."""
    begun, shown = time.monotonic(), ""

    def tell(text: str) -> None:
        nonlocal shown
        if sys.stderr is None or not sys.stderr.isatty():
            return
        if shown not in ("", text):
            put("\n", sys.stderr)
        shown = text
        said = visible(f"noclobber: {text}")[: (width_of(sys.stderr) or 80) - 12]
        put(f"\r{said} ... {time.monotonic() - begun:.0f} s", sys.stderr)

    try:
        yield tell
    finally:
        if shown:
            put("\n", sys.stderr)


def _show_patch(diff: str) -> None:
    """Print a patch on stdout: with colours and without what acts on a terminal there, and else byte for byte."""
    if sys.stdout is not None and sys.stdout.isatty():
        color = wanted(sys.stdout)
        out("".join(f"{patch_line(visible(line), color=color)}\n" for line in diff.split("\n")[:-1]))
    elif diff:
        out(diff, raw=True)


def _line(line: str, *, color: bool) -> str:
    """Return a line of the summary, in the colours of a report."""
    from noclobber.fix.verb import CHANGED

    if line.startswith(CHANGED):
        return CHANGED + patch_line(line.removeprefix(CHANGED), color=color)
    rule = rule_of(line.partition(" ")[0])
    return summary_line(line, rule.severity if rule is not None else "", color=color)
