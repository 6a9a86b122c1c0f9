"""Runs Python in forks of one process that has imported torch: it begins at once, and not after seconds of imports.

A fork does as a new Python does that is started with the same words, folder, variables and files; but torch is there,
and has read its own variables.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NoReturn

from noclobber.fix.proof.trials.job import ENTRY, ERRORS, OUTPUT
from noclobber.session import program

Files = tuple[int, int, int]
"""Descriptors that stand for stdin, stdout and stderr."""
ROOT = Path(__file__).parents[1]
_address = ""


class Served:
    """A Python under way; it has of `subprocess.Popen` what is asked of it here."""

    def __init__(self, words: Sequence[str], folder: str | Path, env: Mapping[str, str], files: Files, group: bool):
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(_address or _server()[0])
        wanted = json.dumps([list(words), str(folder), dict(env), group]).encode()
        socket.send_fds(self._line, [wanted[:1]], files)
        self._line.sendall(wanted[1:])
        self._line.shutdown(socket.SHUT_WR)
        self._answers = self._line.makefile()
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        self._line.settimeout(0)
        try:
            self._line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return self.returncode
        return self.wait()

    def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        if self.returncode is None:
            self._line.settimeout(None)
            self.returncode = int(self._answers.readline())
        return self.returncode

    def communicate(self) -> None:
        """Close its stdin, and wait for the end."""
        if self.stdin:
            self.stdin.close()
        self.wait()

    def kill(self) -> None:
        """End it by force."""
        os.kill(self.pid, signal.SIGKILL)


def run(
    words: Sequence[str],
    folder: str | Path = ".",
    stdin: str | None = "",
    env: Mapping[str, str] | None = None,
    merged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS...` to its end. `merged` sends stderr where stdout goes, so that their order shows."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((stdin or "").encode())
        given.seek(0)
        files = given.fileno(), out.fileno(), (out if merged else err).fileno()
        status = Served(words, folder, os.environ if env is None else env, files, group=False).wait()
        return subprocess.CompletedProcess(words, status, _text(out), _text(err))


def run_together(several: Sequence[Sequence[str]], folder: str | Path, env: Mapping[str, str]) -> list[str]:
    """Run `python WORDS...` for each at the same time, as ranks are. All must end well; return what each printed."""
    with ExitStack() as opened:
        outs = [opened.enter_context(tempfile.TemporaryFile()) for _ in several]
        nothing = opened.enter_context(open(os.devnull, "rb")).fileno()
        files = [(nothing, out.fileno(), out.fileno()) for out in outs]
        running = [Served(words, folder, env, each, False) for words, each in zip(several, files, strict=True)]
        ended = [one.wait() for one in running]
        said = [_text(out) for out in outs]
    assert not any(ended), "\n".join(said)
    return said


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape")


def said(words: Sequence[str], folder: str | Path) -> str:
    """Run `noclobber WORDS...`, and return all that it printed."""
    return run(["-m", "noclobber", *words], folder, env={**os.environ, "NO_COLOR": "1"}, merged=True).stdout


def spawned(folder: str, words: Sequence[str], environment: Mapping[str, str], stdin: int) -> Any:
    """Do as `launcher._spawned` does, for the process that `noclobber fix` forks its trials from."""
    read, write = os.pipe()
    with open(os.path.join(folder, OUTPUT), "wb") as output, open(os.path.join(folder, ERRORS), "wb") as errors:
        files = read, output.fileno(), errors.fileno()
        process = Served([ENTRY, folder, *words], os.getcwd(), environment, files, group=True)
    os.close(read)
    process.stdin = os.fdopen(write, "wb")
    return process


@functools.cache
def _server() -> tuple[str, subprocess.Popen[bytes]]:
    """Start the process that forks; return its address, and what ends it when this process goes."""
    address = os.path.join(tempfile.mkdtemp(prefix="served-"), "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        number = listening.fileno()
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", "from tests.served import _serve\n_serve()", str(number)]
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT, env=environ, pass_fds=[number]
        )
    return address, server


def _serve() -> None:
    """Fork a Python for each connection, until stdin closes."""
    global _address
    leave = _prepared()
    listening = socket.socket(fileno=int(sys.argv[1]))
    _address = os.fsdecode(listening.getsockname())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if 0 in select.select([0, listening], [], [])[0]:
            shutil.rmtree(os.path.dirname(_address))
            os._exit(0)
        line, _ = listening.accept()
        if os.fork() == 0:
            break
        line.close()
    listening.close()
    first, files, *_ = socket.recv_fds(line, 1, 3)
    words, folder, environ, group = json.loads(first + line.makefile("rb").read())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        line.sendall(b"%d\n" % child)
        for file in files:
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        line.sendall(b"%d\n" % status)
        os._exit(0)
    line.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if group:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    status = _status(words)
    program.wind_down()
    leave(status & 255)


def _prepared() -> Callable[[int], NoReturn]:
    """Do once what would take each fork most of its time; return the interpreter's own `os._exit`."""
    import numpy.random  # noqa: F401
    import sympy  # noqa: F401
    import torch._dynamo  # noqa: F401 - the first optimizer and the first seed of a program import it

    import noclobber.cli
    import noclobber.cli.verbs.run
    import noclobber.observe.fake.run
    import noclobber.processes.run
    import noclobber.render.formats.terminal
    from noclobber.fix.proof import fork_server
    from noclobber.fix.proof.trials import launcher
    from noclobber.model import source
    from noclobber.observe.describe import holders

    fork_server.prepare()
    with noclobber.watch(contents=True):  # every operator is looked at once
        pass
    launcher._spawned = spawned
    source._owners[__file__] = source.Owner.LIBRARY  # its frames are none of the program's
    tempfile.tempdir = None  # a program may have another `TMPDIR`
    gc.collect()
    gc.freeze()
    # None of these holds a tensor of a program, and to count them takes as long as the rest of a look for holders.
    gc.get_freeze_count = lambda: 1
    holders.frozen = 1
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        one.atexit = False  # torch takes its libraries of operators apart at each exit: a 25th of a second
    return os._exit  # `noclobber run` reports in the one that a program finds


def _status(words: list[str]) -> int:
    """Do as a Python that was started with these words; return the exit status."""
    try:
        _go_on(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _go_on(words: list[str]) -> None:
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    sys.orig_argv[1:] = words
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    first, *rest = words
    if first == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[1:]], os.getcwd()
        runpy._run_module_as_main(rest[0])
    elif first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), main)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(first))
        main["__file__"] = first
        exec(compile(Path(first).read_bytes(), first, "exec"), main)
