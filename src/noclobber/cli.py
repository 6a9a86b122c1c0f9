"""The command line: the verbs `run`, `explain` and `report`. All that noclobber prints, it prints here."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noclobber.model.report import Report
    from noclobber.session import Session

FORMATS = ("full", "concise", "github", "json")
REFUSED = 2
"""Exit status where what was asked for cannot be done; argparse has the same."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line, `sys.argv[1:]` by default; the exit status. Raises SystemExit where argparse does."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    program: list[str] = []
    if words[:1] == ["run"]:
        words, program = _split(words)
    parser = _parser()
    options = parser.parse_args(words)
    if options.version:
        return _version()
    if options.verb is None:
        parser.print_help(sys.stderr)
        return REFUSED
    if options.verb == "run":
        if not program or (program[0] in ("-m", "-c") and len(program) == 1):
            options.parser.error("what to run is missing: SCRIPT, -m MODULE or -c CODE")
        return _Run(options, program).carry_out()
    try:
        status: int = options.carry_out(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. The interpreter flushes once more at its end: give it a place.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those of the program: as for `python`, the first that is no option of ours begins it."""
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
        index += 2 if word in ("-o", "--format") else 1
    return words[:index], words[index:]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="noclobber",
        description="Find the in-place writes that break PyTorch gradients: where a tensor was saved, where it was "
        "overwritten, where backward needed it.",
        epilog="example: noclobber run train.py --epochs 1",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")

    run = verbs.add_parser(
        "run",
        usage="noclobber run [--format FORMAT] [-o FILE] [--raise] SCRIPT [ARGS...] | -m MODULE | -c CODE",
        help="run a program and explain its in-place writes",
        description="Run a program as `python` would, then report on stderr. The exit status is the program's own; 1 where "
        "it ended well but an error was found.",
        epilog="example: noclobber run --format json -o report.json train.py --epochs 1",
        allow_abbrev=False,
    )
    _add_format(run)
    run.add_argument("-o", dest="output", metavar="FILE", help="write the report to FILE instead")
    run.add_argument(
        "--raise", dest="on_write", action="store_const", const="raise", default="record",
        help="stop at the first write that breaks a gradient, before it happens",
    )  # fmt: skip
    run.set_defaults(parser=run)

    explain = verbs.add_parser(
        "explain",
        help="explain a code, or an error of PyTorch",
        description="Print the page of a rule, or say what an error text means. Without an argument, list the rules.",
        epilog="examples: noclobber explain NC101; python train.py 2>&1 | noclobber explain -",
        allow_abbrev=False,
    )
    explain.add_argument("what", nargs="?", metavar="CODE | ERROR TEXT | -", help="`-` reads a traceback from stdin")
    explain.set_defaults(carry_out=_explain)

    report = verbs.add_parser(
        "report",
        help="show a saved report",
        description="Show a report that `noclobber run --format json -o FILE` has saved.",
        epilog="example: noclobber report report.json --format github",
        allow_abbrev=False,
    )
    report.add_argument("file", metavar="FILE", help="`-` reads stdin")
    _add_format(report)
    report.set_defaults(carry_out=_report)
    return parser


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="full", help="full (default), concise, github or json")


def _version() -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"noclobber {version('noclobber')}")
    except PackageNotFoundError:
        print("noclobber, run from its source")
    return 0


def _refuse(why: str) -> int:
    print(f"noclobber: error: {why}", file=sys.stderr)
    return REFUSED


class _Run:
    """`noclobber run`: one program, from before its first line to after its last.

    What the program may change and the report needs (stderr, the folder, the module path, the process) is kept from
    before it ran. Order at the end: traceback, threads, exit functions, flushed streams, report. Objects that live until
    the interpreter itself goes come after the report.
    """

    def __init__(self, options: argparse.Namespace, program: list[str]) -> None:
        self.options = options
        self.program = program
        self.output = os.path.realpath(options.output) if options.output else None
        self.stderr = sys.stderr
        self.process = os.getpid()
        self.modules = list(sys.path) if sys.flags.safe_path else sys.path[1:]
        self.folder = os.getcwd()
        self.session: Session | None = None
        self.watched = False
        self.crashes: list[Exception] = []

    def carry_out(self) -> int:
        """Run, report; the exit status. Raises KeyboardInterrupt, silently, where one ended the program."""
        from noclobber import program
        from noclobber.imports import after_import

        if self.output is not None and (why := _unwritable(self.output)):
            return _refuse(f"cannot write `{self.options.output}`: {why}")
        try:
            loaded = program.load(self.program)
            with self._kept_apart():
                from noclobber.session import Session

                self.session = Session(on_write=self.options.on_write)
            after_import("torch", self._torch_is_there)
            error = program.execute(loaded)
        except program.NotAProgram as reason:
            return _refuse(str(reason))
        if error is not None and self.watched and self.session is not None:
            with self._kept_apart():
                self.session.escaped(error)
        status = program.show(error)
        program.wind_down()
        # A child that the program forked gets here as well. It is the program's own affair.
        if os.getpid() == self.process:
            found = self._tell(loaded.argv, status)
            status = status or found
        if type(error) is KeyboardInterrupt:
            # The interpreter dies of SIGINT when this leaves, so that a shell sees it; the traceback has been shown.
            sys.excepthook = lambda *_: None
            raise error
        return status

    @contextlib.contextmanager
    def _kept_apart(self) -> Iterator[None]:
        """A crash inside noclobber is told at the end; it does not change what the program does."""
        try:
            yield
        except Exception as crash:
            self.crashes.append(crash)

    def _torch_is_there(self) -> None:
        # A file of the user's own may be called torch.py, and a forked child runs unwatched.
        if self.session is None or not hasattr(sys.modules["torch"], "autograd") or os.getpid() != self.process:
            return
        with self._kept_apart():
            self.session.start()
            self.watched = True

    def _tell(self, argv: list[str], status: int) -> int:
        """Report on stderr, or in the file that was asked for. 1 where an error was found, else 0."""
        report: Report | None = None
        # The program's own folder may hold a `rich.py`, and paths are told from where the person stands.
        sys.path[:] = self.modules
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # the folder may be gone
                stack.enter_context(contextlib.chdir(self.folder))
            with self._kept_apart():
                report = self._report(argv, status)
                self._deliver(report)
        for crash in self.crashes:
            self._print(_crash(crash))
        return int(report is not None and report.count("error") > 0)

    def _report(self, argv: list[str], status: int) -> Report:
        from noclobber.model.report import Report

        torch = sys.modules.get("torch") if self.watched else None
        program: dict[str, Any] = {
            "argv": argv,
            "status": status & 0xFF,
            "torch": str(getattr(torch, "__version__", "")) or None,
            "python": "{}.{}.{}".format(*sys.version_info),
        }
        if self.session is None:
            return Report(program=program)
        self.session.stop()
        return self.session.report(program)

    def _deliver(self, report: Report) -> None:
        from noclobber.render import WIDTH, render
        from noclobber.render.color import wanted, width_of

        form, file = self.options.format, self.options.output
        nothing = self._nothing_to_watch()
        if self.output is not None:
            try:
                _write(self.output, render(report, form))
            except OSError as error:
                self._print(f"noclobber: cannot write `{file}`: {error.strerror}; the report follows")
            else:
                self._print(f"noclobber: {nothing or _counts(report)}; the report is in {file}")
                return
        if nothing and form != "json":
            self._print(f"noclobber: {nothing}")
            return
        color = wanted(self.stderr, os.environ)
        self._print(render(report, form, color=color, width=width_of(self.stderr, WIDTH)), end="")

    def _nothing_to_watch(self) -> str:
        """Why nothing was watched, empty where something was."""
        if self.watched:
            return ""
        if "torch" not in sys.modules:
            return "nothing to watch: torch was never imported"
        if not hasattr(sys.modules["torch"], "autograd"):
            return f"nothing to watch: `torch` is {getattr(sys.modules['torch'], '__file__', 'a stand-in')}, not PyTorch"
        return "nothing was watched"

    def _print(self, text: str, end: str = "\n") -> None:
        # The program may have closed stderr, or its reader may be gone: then nobody is left to be told.
        with contextlib.suppress(OSError, ValueError):
            print(text, end=end, file=self.stderr, flush=True)


def _crash(crash: Exception) -> str:
    what = "".join(f"{type(crash).__name__}: {crash}".splitlines()[:1])
    told = f"noclobber: internal error: {what} (please open an issue with what this prints under NOCLOBBER_DEBUG=1)"
    if os.environ.get("NOCLOBBER_DEBUG"):
        import traceback

        told += "\n" + "".join(traceback.format_exception(crash)).rstrip()
    return told


def _counts(report: Report) -> str:
    counts = [(report.count(severity), severity) for severity in ("error", "warning", "hint")]
    return ", ".join(f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count) or "nothing found"


def _unwritable(path: str) -> str:
    """Why a file cannot be written, before it is tried; empty where it can."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"there is no folder `{folder}`"
    if os.path.isdir(path):
        return "it is a folder"
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        return "permission denied"
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


def _explain(options: argparse.Namespace) -> int:
    """`noclobber explain`: the page of a rule, what an error text means, or the list of rules."""
    from noclobber.rules import catalogue, rule_of

    if options.what is None:
        for rule in catalogue():
            print(f"{rule.CODE}  {rule.NAME:<22} {_headline(rule.__doc__)}")
        return 0
    if options.what == "-":
        return _explain_text(_read(sys.stdin))
    rule = rule_of(options.what)
    if rule is not None:
        print((rule.__doc__ or "").strip())
        return 0
    if " " in options.what.strip():
        return _explain_text(options.what)
    from difflib import get_close_matches

    known = [name for rule in catalogue() for name in (rule.CODE, rule.NAME)]
    close = get_close_matches(options.what.upper(), known, cutoff=0.7) + get_close_matches(options.what.lower(), known)
    hint = f"; close to it: {', '.join(close[:3])}" if close else "; `noclobber explain` lists the rules"
    return _refuse(f"no rule `{options.what}`{hint}")


def _headline(page: str | None) -> str:
    return (page or "").strip().partition("\n")[0]


def _explain_text(text: str) -> int:
    from noclobber.rules.message import explanation

    print(explanation(text).rstrip("\n"))
    return 0


def _read(stream: IO[str] | None) -> str:
    return stream.read() if stream is not None else ""


def _report(options: argparse.Namespace) -> int:
    """`noclobber report`: a saved report in any format, on stdout."""
    from noclobber.model.report import Report, ReportError
    from noclobber.render import WIDTH, render
    from noclobber.render.color import wanted, width_of

    try:
        if options.file == "-":
            text = _read(sys.stdin)
        else:
            with open(options.file, encoding="utf-8") as file:
                text = file.read()
        report = Report.from_json(text)
        color = wanted(sys.stdout, os.environ)
        print(render(report, options.format, color=color, width=width_of(sys.stdout, WIDTH)), end="")
    except (OSError, UnicodeDecodeError, ReportError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return _refuse(f"cannot read `{options.file}`: {why}")
    return 0
