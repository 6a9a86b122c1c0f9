"""The command line: `run`, `fix`, `explain`, `report` and `doctor`. All that noclobber prints, it prints here."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Sequence

from noclobber.cli.beside import killed
from noclobber.cli.output import settle_format
from noclobber.cli.parser import Parser, Verbs, split
from noclobber.cli.printing import INTERRUPTED, REFUSED, StdoutFailed, keep_closed, out, put, refuse, say
from noclobber.cli.verbs import doctor, explain, fix, report, run
from noclobber.model.version import FROM_SOURCE, version
from noclobber.render.text import current_folder
from noclobber.session.imports import NoTorch
from noclobber.settings.selection import SelectionError


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line, `sys.argv[1:]` by default; return the exit status.

    Raises SystemExit like argparse, and the KeyboardInterrupt that ended the program of `run`.
    """
    with contextlib.ExitStack() as at_end:
        try:
            return _carry_out(arguments, at_end)
        except (NoTorch, SelectionError) as reason:
            return refuse(str(reason))
        except StdoutFailed as reason:
            return refuse(f"cannot write to stdout: {reason}") if reason.args else 1
        except KeyboardInterrupt:
            say("noclobber: interrupted")
            return INTERRUPTED


def _carry_out(arguments: Sequence[str] | None, at_end: contextlib.ExitStack) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    program: list[str] = []
    parser, verbs = command_line()
    if words[:1] in (["run"], ["fix"]):
        words, program = split(words, verbs.choices[words[0]])
    options, unknown = parser.parse_known_args(words)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.version:
        out("noclobber, run from its source\n" if version() == FROM_SOURCE else f"noclobber {version()}\n")
        return 0
    if options.verb is None:
        put(parser.format_help(), sys.stderr)
        return REFUSED
    if options.verb in ("run", "fix") and (not program or (program[0] in ("-m", "-c") and len(program) == 1)):
        options.parser.error("what to run is missing: SCRIPT, -m MODULE or -c CODE")
    if options.verb in ("run", "fix") and not current_folder():
        return refuse("the current folder was removed")
    if "format" in options:
        settle_format(options)
    if options.verb == "run":
        return run.carry_out(options, program, at_end)
    options.program = program
    keep_closed()
    # A torch without numpy says so when it is imported. Of a program, that is the program's; here it is noise.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    status: int = options.carry_out(options)
    if getattr(options, "format", "full") == "full":
        from noclobber.processes.leftover import runs

        say(*killed(runs()))
    return status


def command_line() -> tuple[Parser, Verbs]:
    """Return the parser of all verbs, and the verbs."""
    parser = Parser(
        prog="noclobber",
        description="Find the in-place writes that break PyTorch gradients: where a tensor was saved, where it was "
        "overwritten, where backward needed it.",
        epilog="example: noclobber run train.py --epochs 1",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb in (run, fix, explain, doctor, report):
        verb.add(verbs)
    return parser, verbs
