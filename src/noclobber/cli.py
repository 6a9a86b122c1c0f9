"""The command line: `run`, `fix`, `explain`, `report` and `doctor`. All that noclobber prints, it prints here."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, NoReturn

from noclobber.render.text import filled, visible

if TYPE_CHECKING:
    from noclobber.model.report import Report
    from noclobber.run import Run
    from noclobber.selection import Selection

FORMATS = ("full", "concise", "github", "sarif", "junit", "json", "html")
REFUSED = 2
"""The exit status for a command that cannot be carried out; argparse uses the same."""
INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells count it."""
MOST_SHOWN = 400
"""Characters of an error. Of a longer one, as where an option has a value of many kilobytes, both ends are shown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line, `sys.argv[1:]` by default; return the exit status.

    Raises SystemExit like argparse, and the KeyboardInterrupt that ended the program of `run`.
    """
    with contextlib.ExitStack() as at_end:
        try:
            return _carry_out(arguments, at_end)
        except _NoTorch as reason:
            return _refuse(str(reason))
        except _StdoutFailed as reason:
            return _refuse(f"cannot write to stdout: {reason}") if reason.args else 1
        except KeyboardInterrupt:
            _say("noclobber: interrupted")
            return INTERRUPTED


def _carry_out(arguments: Sequence[str] | None, at_end: contextlib.ExitStack) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    program: list[str] = []
    if words[:1] in (["run"], ["fix"]):
        words, program = _split(words)
    parser = _parser()
    options, unknown = parser.parse_known_args(words)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.version:
        return _version()
    if options.verb is None:
        _put(parser.format_help(), sys.stderr)
        return REFUSED
    if options.verb in ("run", "fix") and (not program or (program[0] in ("-m", "-c") and len(program) == 1)):
        options.parser.error("what to run is missing: SCRIPT, -m MODULE or -c CODE")
    if options.verb in ("run", "fix") and not _here():
        return _refuse("the current folder was removed")
    if options.verb == "run":
        return _run(options, program, at_end)
    options.program = program
    _keep_closed()
    status: int = options.carry_out(options)
    if getattr(options, "format", "full") == "full":
        from noclobber.processes.leftover import runs

        for line in _killed(runs()):
            _say(line)
    return status


class _StdoutFailed(Exception):
    """Stdout takes no text. Its text says why; it has none if the reader, such as `head`, has seen enough."""


def _out(text: str, *, raw: bool = False) -> None:
    """Print on stdout, at once. `raw`: as bytes, those too that are no text. Raises _StdoutFailed."""
    try:
        if raw and isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        else:
            if isinstance(sys.stdout, TextIOWrapper):
                sys.stdout.reconfigure(errors="backslashreplace")  # a line may hold what this terminal cannot show
            sys.stdout.write(text)
        sys.stdout.flush()
    except (AttributeError, ValueError):
        raise _StdoutFailed("it is closed") from None
    except OSError as error:
        # The interpreter flushes once more at its end: give it a place.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _StdoutFailed(*([] if isinstance(error, BrokenPipeError) else [error.strerror])) from None


def _say(line: str) -> None:
    """Print a line on stderr. Nothing in it acts on a terminal, whatever a file name or an option holds."""
    _put(f"{visible(line)}\n", sys.stderr)


def _put(text: str, stream: IO[str] | None) -> None:
    """Print on stderr, or on what was stderr before the program ran."""
    # The stream may be closed, or its reader may be gone: then nobody can read this.
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            stream.write(text)
            stream.flush()


def _keep_closed() -> None:
    """Keep the numbers of streams that are closed from the files that noclobber opens."""
    with contextlib.suppress(OSError):
        while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(file, True)
        os.close(file)


_WITH_VALUE = ("-o", "-f", "--format", "--backwards", "--seconds", "--select", "--ignore", "--baseline")
"""Options whose value is the next word."""


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into our options and the program. The program begins at the first word that is no option."""
    index = 1
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[:index], words[index + 1 :]
        if word.startswith(("-m", "-c")):
            joined = [word[:2], word[2:]] if len(word) > 2 else [word]
            return words[:index], joined + words[index + 1 :]
        if word == "-" or not word.startswith("-"):
            break
        index += 2 if word in _WITH_VALUE else 1
    return words[:index], words[index:]


class _Parser(argparse.ArgumentParser):
    """argparse's own, whose help and errors go where all else goes."""

    def print_help(self, file: object = None) -> None:
        _out(self.format_help())

    def error(self, message: str) -> NoReturn:
        if sys.stderr is not None:
            self.print_usage(sys.stderr)
        _say(f"{self.prog}: error: {_cut(message)}")
        raise SystemExit(REFUSED)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="noclobber",
        description="Find the in-place writes that break PyTorch gradients: where a tensor was saved, where it was "
        "overwritten, where backward needed it.",
        epilog="example: noclobber run train.py --epochs 1",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.set_defaults(parser=parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")

    run = verbs.add_parser(
        "run",
        usage="noclobber run [-f FORMAT] [-o FILE | -o DIR/] [--no-contents] [--raise] [--ledger] [--hints] "
        "[--select CODES] [--ignore CODES] [--baseline FILE [--update-baseline]] SCRIPT [ARGS...] | -m MODULE | "
        "-c CODE",
        help="run a program and explain its in-place writes",
        description="Run a program as `python` would, then report on stderr. The exit status is that of the program, "
        "or 1 if the program ended well but noclobber found an error. If the program is killed, what was found stays, "
        "and the next command of noclobber says once how to show it.",
        epilog="example: noclobber run --format json -o report.json train.py --epochs 1",
        allow_abbrev=False,
    )
    _add_format(run)
    run.add_argument(
        "-o", dest="output", type=_path, metavar="FILE | DIR/",
        help="write the report to FILE instead; or a file for each process to DIR, for `noclobber report DIR`",
    )  # fmt: skip
    run.add_argument(
        "--no-contents", dest="contents", action="store_false",
        help="compare only versions, not saved bytes: cheaper, but misses writes by numpy and kernels",
    )  # fmt: skip
    run.add_argument(
        "--raise", dest="on_write", action="store_const", const="raise", default="record",
        help="stop at the first write that breaks a gradient, before it happens",
    )  # fmt: skip
    run.add_argument(
        "--ledger", action="store_true", help="also say which lines, modules and operators keep bytes for backward"
    )
    run.add_argument(
        "--hints", action="store_true",
        help="also say where an in-place write would lower the peak of memory, and where one lowers nothing",
    )  # fmt: skip
    _add_selection(run)
    run.set_defaults(parser=run)

    fix = verbs.add_parser(
        "fix",
        usage="noclobber fix [--hints] [--diff | --write [--unproven]] [--backwards N] [--seconds S] "
        "SCRIPT [ARGS...] | -m MODULE",
        help="fix a program's in-place writes, with proof",
        description="Run a program, fix each in-place write that breaks a gradient, and show the patch as a diff. "
        "noclobber runs the program several times: a fix is proven if the program gives the right gradients with it, "
        "and checked if the write is refused and the gradient is the derivative of what the program computes. "
        "The exit status is 0 if every finding is fixed, or if there is none.",
        epilog="example: noclobber fix --write train.py --epochs 1",
        allow_abbrev=False,
    )
    how = fix.add_mutually_exclusive_group()
    how.add_argument("--diff", action="store_true", help="show the patch and change nothing (default)")
    how.add_argument(
        "--write", action="store_true", help="write proven and checked fixes, only to files under the current folder"
    )
    fix.add_argument(
        "--unproven", action="store_true",
        help="also write fixes whose gradients could not be compared, as where the program differs from run to run",
    )  # fmt: skip
    fix.add_argument(
        "--backwards", type=_positive, metavar="N",
        help="compare the gradients of N backward calls, starting at the first finding (default 3)",
    )  # fmt: skip
    fix.add_argument(
        "--seconds", type=_positive, default=60, metavar="S", help="end each run after S seconds (default 60)"
    )
    fix.add_argument(
        "--hints", action="store_true",
        help="instead write in place where that lowers the peak of memory: proven to change no result, and measured",
    )  # fmt: skip
    fix.set_defaults(carry_out=_fix, parser=fix)

    explain = verbs.add_parser(
        "explain",
        help="explain a code, an operator, or an error of PyTorch",
        description="Print the page of a rule; say what an operator, a module or a custom operator keeps for backward, "
        "and what may be overwritten; or say what an error text means. Without an argument, list the rules.",
        epilog="examples: noclobber explain NC101; noclobber explain relu; noclobber explain nn.BatchNorm2d; "
        "python train.py 2>&1 | noclobber explain -",
        allow_abbrev=False,
    )
    explain.add_argument(
        "what", nargs="*", metavar="CODE... | OPERATOR | ERROR TEXT | -", help="`-` reads a traceback from stdin"
    )
    explain.add_argument(
        "--operators", action="store_true", help="print what every function of torch and torch.nn.functional keeps"
    )
    explain.add_argument("--markdown", action="store_true", help="with --operators: print a table of Markdown")
    explain.set_defaults(carry_out=_explain, parser=explain)

    doctor = verbs.add_parser(
        "doctor",
        help="say what works here",
        description="Say which versions are installed, which ways of seeing work with them, and whether a small silent "
        "error is found: what a bug report needs. The exit status is 0 if it is found.",
        allow_abbrev=False,
    )
    doctor.add_argument(
        "--build-native",
        action="store_true",
        help="first build the native part, which makes watching cheaper; it takes a C++ compiler and about a minute, "
        "once for each torch and each Python",
    )
    doctor.set_defaults(carry_out=_doctor, parser=doctor)

    report = verbs.add_parser(
        "report",
        help="show a saved report",
        description="Show a report that `noclobber run --format json -o FILE` has saved, or make one of all that the "
        "processes of `noclobber run -o DIR/` have written into a folder, also while they run. The files of a run that "
        "was killed are removed once they are shown. The exit status is 0 if the report can be shown, whatever it "
        "holds.",
        epilog="example: noclobber report -f html -o report.html report.json",
        allow_abbrev=False,
    )
    report.add_argument("file", metavar="FILE | DIR", help="`-` reads stdin")
    _add_format(report)
    report.add_argument("-o", dest="output", type=_path, metavar="FILE", help="write to FILE instead of stdout")
    _add_selection(report)
    report.set_defaults(carry_out=_report, parser=report)
    return parser


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--select", metavar="CODES", help="show only these codes: NC101,NC2 is NC101 and all that begin with NC2"
    )
    parser.add_argument("--ignore", metavar="CODES", help="leave these codes out")
    parser.add_argument(
        "--baseline", metavar="FILE", help="leave out the findings that FILE holds; only new findings count"
    )
    parser.add_argument(
        "--update-baseline", action="store_true", help="write the findings of this run to the FILE of --baseline"
    )


def _selection(options: argparse.Namespace) -> Selection:
    """Return which findings count, by the options and [tool.noclobber]. Raises SelectionError."""
    from noclobber.selection import Selection, codes, from_project

    here = _here()
    chosen = from_project(here) if here else Selection()
    if options.select is not None:
        chosen = replace(chosen, select=codes(options.select, "--select"))
    if options.ignore is not None:
        chosen = replace(chosen, ignore=codes(options.ignore, "--ignore"))
    if options.baseline is not None:
        chosen = replace(chosen, baseline=_real(options.baseline))
    if options.update_baseline and not chosen.baseline:
        options.parser.error("`--update-baseline` needs `--baseline FILE`, or `baseline` in [tool.noclobber]")
    return chosen


def _require_baseline(selection: Selection, *, updating: bool) -> None:
    """Raise SelectionError where a baseline cannot be read, or cannot be written if it is to be updated."""
    from noclobber.selection import SelectionError, require

    path = selection.baseline
    if path and updating and (why := _unwritable(path)):
        raise SelectionError(f"cannot write the baseline `{path}`: {why}")
    if path:
        require(path, must_exist=not updating)


def _selected(report: Report, options: argparse.Namespace, selection: Selection) -> Report:
    """Return the report with what counts and its rules' pages; update the baseline if that is asked for.

    Raises SelectionError.
    """
    from noclobber.rules import pages
    from noclobber.selection import SelectionError, selected, write_baseline

    left = selected(report, selection, must_exist=not options.update_baseline)
    if not options.update_baseline:
        return replace(left, pages=pages(left.findings))
    try:
        _write(selection.baseline, write_baseline(left, selection.baseline, selection))
    except OSError as error:
        raise SelectionError(f"cannot write the baseline `{selection.baseline}`: {error.strerror}") from None
    return selected(report, selection)


def _add_format(parser: argparse.ArgumentParser) -> None:
    known = f"full (default), {', '.join(FORMATS[1:-1])} or {FORMATS[-1]}"
    parser.add_argument("-f", "--format", choices=FORMATS, default="full", metavar="FORMAT", help=known)


def _path(text: str) -> str:
    if text == "-":
        raise argparse.ArgumentTypeError("`-` is not a file: leave `-o` out, or write `./-`")
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _version() -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        _out(f"noclobber {version('noclobber')}\n")
    except PackageNotFoundError:
        _out("noclobber, run from its source\n")
    return 0


def _refuse(why: str) -> int:
    _say(f"noclobber: error: {_cut(why)}")
    return REFUSED


def _cut(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[: MOST_SHOWN // 2]} ... {text[-MOST_SHOWN // 2 :]}"


def _run(options: argparse.Namespace, words: list[str], at_end: contextlib.ExitStack) -> int:
    """`noclobber run`: the program, then its report on stderr or in a file, and its own KeyboardInterrupt `at_end`."""
    from noclobber.program import NotAProgram
    from noclobber.run import Run
    from noclobber.selection import SelectionError

    output = _real(options.output) if options.output else None
    folder = output if output and (os.path.isdir(output) or options.output.endswith(_SEPARATORS)) else None
    if folder is not None and options.format != "full":
        kept = f"`-o {options.output}` is a folder and keeps what each process finds"
        options.parser.error(f"{kept}; name a file, or use `noclobber report -f {options.format} {options.output}`")
    if output is not None and (why := _unusable(folder) if folder else _unwritable(output)):
        return _refuse(f"cannot write `{options.output}`: {why}")
    try:
        selection = _selection(options)
        _require_baseline(selection, updating=options.update_baseline)
    except SelectionError as reason:
        return _refuse(str(reason))
    run = Run(options.on_write, options.contents, folder, ledger=options.ledger, hints=options.hints)
    try:
        run.carry_out(words, lambda: _reported(run, options, words, output, selection))
        status = run.status if run.in_child else _reported(run, options, words, output, selection)
    except NotAProgram as reason:
        return _refuse(str(reason))
    except KeyboardInterrupt:
        run.close()
        raise
    at_end.callback(run.leave)
    return status


def _reported(run: Run, options: argparse.Namespace, words: list[str], output: str | None, selection: Selection) -> int:
    """Report on a program that is over; return the exit status."""
    from noclobber.selection import SelectionError, unused

    status = run.status
    with run.surroundings(), run.kept_apart():
        report = run.report()
        try:
            report = _selected(report, options, selection)
        except SelectionError as reason:
            _tell(run, f"noclobber: {_cut(str(reason))}; all findings follow")
        if notes := unused(report, selection, run.files()):
            report = replace(report, coverage=replace(report.coverage, notes=(*report.coverage.notes, *notes)))
        if report.findings and options.format != "concise":
            with run.kept_apart():
                from noclobber.fix.advice import advised

                report = advised(report, words, run.kept_apart)
        if status % 256 == 0 and report.count("error"):  # a program that exits with 256 ends with 0
            status = 1
        _deliver(report, run, options, output)
        if options.format == "full":
            _tell(run, *_killed(run.runs))
        for lost in report.coverage.lost:
            if lost.internal:
                _tell(run, *_crash(f"{lost.way}: {lost.why}", lost.trace))
    run.close()
    for crash in run.crashes:
        _tell(run, *_crash("".join(f"{type(crash).__name__}: {crash}".splitlines()[:1]), _trace(crash)))
    return status


def _deliver(report: Report, run: Run, options: argparse.Namespace, output: str | None) -> None:
    nothing = run.nothing_to_watch(report)
    if nothing and options.format != "json" and output is None:
        _tell(run, f"noclobber: {nothing}")
        return
    from noclobber.render import render
    from noclobber.render.color import wanted, width_of

    if output is not None:
        where = f"the report is in {options.output}"
        if os.path.isdir(output):
            where, why = f"each process wrote to {options.output} (noclobber report {options.output})", run.unwritten
        else:
            why = _unwritten(output, render(report, options.format))
        if not why:
            _tell(run, f"noclobber: {nothing or _counts(report)}; {where}")
            _tell_notes(run, report)
            return
        _tell(run, f"noclobber: cannot write `{options.output}`: {why}; the report follows")
    color, width = wanted(run.stderr, os.environ), width_of(run.stderr, os.environ)
    _put(render(report, options.format, color=color, width=width), run.stderr)
    if options.format == "concise":
        _tell(run, *_checked(report))
        _tell_notes(run, report)


def _tell_notes(run: Run, report: Report) -> None:
    """Tell what a reader must know beside the findings, where the report itself does not show it here."""
    _tell(run, *_notes(report))


def _notes(report: Report) -> list[str]:
    """Return what was not watched, and the notes, as lines of their own."""
    missed = [f"noclobber: not watched: {one}" for one in report.coverage.not_watched]
    return missed + [f"noclobber: note: {note}" for note in report.coverage.notes]


def _checked(report: Report) -> list[str]:
    """Return the line that says what was checked, where the findings do not."""
    from noclobber.render.judged import nothing_found, unchecked

    said = unchecked(report) if report.findings else nothing_found(report)
    return [f"noclobber: {said}"] if said else []


def _killed(runs: str) -> list[str]:
    """Return a line for each run that was killed and that no command has named yet."""
    from noclobber.processes.leftover import killed
    from noclobber.render.text import typed

    lines = []
    for folder, command in killed(runs):
        how = f"an earlier run ended by a signal (`{command}`)"
        lines.append(f"noclobber: {how}; its report: {typed(['noclobber', 'report', folder])}")
    return lines


def _tell(run: Run, *lines: str) -> None:
    for line in lines:
        _put(f"{visible(line)}\n", run.stderr)


def _crash(what: str, trace: str) -> list[str]:
    text = f"noclobber: internal error: {what} (please open an issue with what this prints under NOCLOBBER_DEBUG=1)"
    return [text, *trace.rstrip().split("\n")] if os.environ.get("NOCLOBBER_DEBUG") else [text]


def _trace(crash: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(crash))


def _counts(report: Report) -> str:
    from noclobber.render.judged import nothing_found

    counts = [(report.count(severity), severity) for severity in ("error", "warning", "hint")]
    return ", ".join(f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count) or nothing_found(report)


def _here() -> str:
    """Return the current folder; empty if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _real(path: str) -> str:
    """Return where a file lies; what was typed if nobody knows, as the current folder was removed."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def _unwritable(path: str) -> str:
    """Return why a file cannot be written, without trying; empty if it can."""
    folder = os.path.dirname(path) or os.curdir
    if "\0" in path:
        return "no file can have this name"
    if not os.path.isdir(folder):
        return f"there is no folder `{folder}`"
    if os.path.isdir(path):
        return "it is a folder"
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        return "permission denied"
    return ""


_SEPARATORS = tuple({"/", os.sep})


def _unusable(folder: str) -> str:
    """Return why no file can be written into a folder, which is made if it is missing; empty if one can."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"


def _unwritten(path: str, text: str) -> str:
    """Write a file whole or not at all; return why it could not be written, empty if it could."""
    try:
        _write(path, text)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _write(path: str, text: str) -> None:
    """Write a file whole or not at all. Devices and pipes, which nothing can take the place of, are written to."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        return
    unfinished = f"{path}.{os.getpid()}.unfinished"
    try:
        with open(unfinished, "x", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _fix(options: argparse.Namespace) -> int:
    """`noclobber fix`: the patch on stdout, what it fixes and how it was proven on stderr."""
    from noclobber.fix.verb import CannotFix, fix, fix_hints
    from noclobber.render.color import width_of

    if options.unproven and options.hints:
        options.parser.error("`--hints` writes only what is proven: leave out `--unproven`")
    if options.backwards and options.hints:
        options.parser.error("`--hints` runs the whole program: leave out `--backwards`")
    if options.unproven and not options.write:
        options.parser.error("`--unproven` needs `--write`: give both")

    begun = time.monotonic()

    def tell(text: str) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            _say(f"noclobber: {text} ... ({time.monotonic() - begun:.0f} s so far)")

    try:
        what = fix_hints if options.hints else partial(fix, unproven=options.unproven, backwards=options.backwards or 3)
        fixed = what(
            options.program,
            writing=options.write,
            seconds=options.seconds,
            tell=tell,
        )
    except CannotFix as reason:
        return _refuse(str(reason))
    except KeyboardInterrupt:
        _say("noclobber: interrupted; nothing was changed")
        return INTERRUPTED
    try:
        if sys.stdout is not None and sys.stdout.isatty():
            _out("".join(f"{visible(line)}\n" for line in fixed.diff.split("\n")[:-1]))
        elif fixed.diff:
            _out(fixed.diff, raw=True)
    finally:
        for line in fixed.lines(width_of(sys.stderr, os.environ)):
            _say(line)
    return fixed.status


def _doctor(options: argparse.Namespace) -> int:
    """`noclobber doctor`: one screen on stdout; before it, the progress of building the native part on stderr."""
    from noclobber.doctor import NotBuilt, build_native, examine
    from noclobber.render.color import width_of

    if options.build_native:
        try:
            file = build_native(lambda step: _say(f"native part: {step} ..."))
        except NotBuilt as reason:
            return _refuse(f"the native part is not built: {reason}")
        _say(f"native part: built as {file}")
    done = examine()
    _out(done.text(width_of(sys.stdout, os.environ)))
    return 0 if done.works else 1


def _explain(options: argparse.Namespace) -> int:
    """`noclobber explain`: the page of a rule or of an operator, what an error text means, or the list of rules."""
    from noclobber.render.color import width_of
    from noclobber.render.page import page
    from noclobber.rules import catalogue, rule_of

    what = " ".join(options.what)
    if options.operators:
        if what:
            options.parser.error("`--operators` prints all operators, and takes no name")
        return _operators(options)
    if options.markdown:
        options.parser.error("`--markdown` needs `--operators`: give both")
    width = width_of(sys.stdout, os.environ)
    if not what:
        for one in catalogue():
            headline = (one.__doc__ or "").strip().partition("\n")[0].removeprefix(f"{one.CODE} {one.NAME}: ")
            line = f"{one.CODE}  {one.NAME:<22} {headline}"
            _out("".join(f"{part}\n" for part in ([line] if width is None else filled(line, width, below=" " * 8))))
        return 0
    rules = [rule for one in options.what if (rule := rule_of(one)) is not None]
    if len(rules) == len(options.what):
        _out("\n".join(page(rule.__doc__ or "", width) for rule in rules))
        return 0
    if what == "-" or " " in what:
        from noclobber.reading import Unreadable, text_of
        from noclobber.rules.shared.message import explanation

        try:
            words = explanation(text_of("-", "error of PyTorch", errors="replace") if what == "-" else what)
        except Unreadable as reason:
            return _refuse(f"cannot read `-`: {reason}")
        if words is None:
            for line in _NO_ERROR_OF_PYTORCH:
                _say(line)
            return 1
        _out(page(words, width))
        return 0
    return _operator(what)


def _operators(options: argparse.Namespace) -> int:
    """`noclobber explain --operators`: the table of all. Raises _NoTorch."""
    with _torch_needed():
        from noclobber.ops.explaining import names, page_of
    from noclobber.render.operator import operators

    pages = [page for name in names() if (page := page_of(name)) is not None]
    _out(operators(pages, markdown=options.markdown))
    return 0


class _NoTorch(Exception):
    """What was asked for needs PyTorch, which cannot be imported. Its text says why."""


@contextlib.contextmanager
def _torch_needed() -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as failure:
        raise _NoTorch(f"torch cannot be imported: {type(failure).__name__}: {failure}") from None


def _operator(what: str) -> int:
    """The page of an operator, or what is close to a word that means nothing. Raises _NoTorch."""
    with _torch_needed():
        from noclobber.ops.explaining import names as operator_names
        from noclobber.ops.explaining import page_of
    from noclobber.render.color import width_of
    from noclobber.render.operator import page
    from noclobber.rules import catalogue

    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -c` has it: a custom operator may be defined in a file here
    found = page_of(what)
    if found is not None:
        _out(page(found, width_of(sys.stdout, os.environ)))
        return 0
    from difflib import get_close_matches

    names = [name for one in catalogue() for name in (one.CODE, one.NAME)]
    close = get_close_matches(what.upper(), names, cutoff=0.7) + get_close_matches(what.lower(), names)
    operators = {one.rpartition(".")[2]: one for one in operator_names()}
    close += [operators[one] for one in get_close_matches(what.rpartition(".")[2], operators, cutoff=0.7)]
    hint = f"; close to it: {', '.join(close[:3])}" if close else "; `noclobber explain` lists the rules"
    return _refuse(f"no rule `{what}`, and no operator of this name that can be tried{hint}")


_NO_ERROR_OF_PYTORCH = (
    "noclobber: this is not one of PyTorch's in-place errors",
    "Paste the error from `RuntimeError:` to its end, or run the program for the exact lines: noclobber run train.py",
)


def _report(options: argparse.Namespace) -> int:
    """`noclobber report`: a saved report in any format, on stdout or in a file."""
    from noclobber.model.report import Report, ReportError
    from noclobber.processes import leftover
    from noclobber.reading import Unreadable, text_of
    from noclobber.render import render
    from noclobber.render.color import wanted, width_of
    from noclobber.selection import SelectionError

    if options.output and (why := _unwritable(_real(options.output))):
        return _refuse(f"cannot write `{options.output}`: {why}")
    is_folder = options.file != "-" and os.path.isdir(options.file)
    try:
        if is_folder:
            from noclobber.processes.merging import report_of
            from noclobber.session import Session

            report = report_of(options.file)
            report = replace(report, findings=Session().advised(report.findings))
        else:
            report = Report.from_json(text_of(options.file, "report"))
    except (OSError, ReportError, Unreadable) as error:
        return _refuse(f"cannot read `{options.file}`: {getattr(error, 'strerror', None) or error}")
    try:
        report = _selected(report, options, _selection(options))
    except SelectionError as reason:
        return _refuse(str(reason))
    if options.output:
        if why := _unwritten(_real(options.output), render(report, options.format)):
            return _refuse(f"cannot write `{options.output}`: {why}")
    else:
        color, width = wanted(sys.stdout, os.environ), width_of(sys.stdout, os.environ)
        _out(render(report, options.format, color=color, width=width))
        for line in [*_checked(report), *_notes(report)] if options.format == "concise" else ():
            _say(line)
    if is_folder:
        leftover.forget(options.file, report, leftover.runs())
    return 0
