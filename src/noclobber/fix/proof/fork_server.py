"""A process that imports torch once, for all: the import takes most of the time. It forks a process for each folder.

In a folder with an order the process is a trial. In a folder with work it calls a function, which may start trials.
"""

from __future__ import annotations

import importlib
import os
import pickle
import selectors
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from io import FileIO
from typing import NoReturn

from noclobber import rules
from noclobber.fix.proof.trials.job import DYNAMO, ERRORS, OUTPUT, Order, put
from noclobber.fix.proof.trials.launcher import DONE, TICK, TOLD, WORK, Launcher, command, end_started
from noclobber.fix.proof.trials.trial import TrialProcess
from noclobber.session.program import own_files

_NEEDED = (
    "noclobber.fix.proof.hints",
    "noclobber.fix.proof.search",
    "noclobber.mend.shown",
    "noclobber.observe.arming.recorder",
    "noclobber.observe.gradient_trace.forward_mode",
    "noclobber.observe.memory.allocations",
    "noclobber.observe.memory.measured_peak",
)


def serve(folder: str, words: list[str]) -> NoReturn:
    """Fork a process for each line, a folder, on stdin or from what was forked, and write its `status` when it ends.

    When stdin closes, whatever became of the one that asks, end all of them and remove the `folder` of all.
    """
    prepare()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that asks is interrupted, and then ends this
    running: dict[int, str] = {}
    asked, asking = os.pipe()
    waiting = selectors.DefaultSelector()
    for source in (0, asked):
        waiting.register(source, selectors.EVENT_READ, FileIO(source, "rb"))
    while True:
        for key, _ in waiting.select(TICK):
            line = os.fsdecode(key.data.readline()).rstrip("\n")
            if not line:
                _end(running)
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
            elif line == DYNAMO:
                with suppress(Exception):
                    importlib.import_module(line)
            else:
                running[_fork(line, words, asking)] = line
        _reap(running)


def prepare() -> None:
    """Import what each process will need. What fails here fails again where it is needed, and is reported there."""
    with suppress(Exception, SystemExit):
        for name in _NEEDED:
            importlib.import_module(name)
        rules.catalogue()
        own_files("")  # whose each module is, is known from then on


def _fork(folder: str, words: list[str], asking: int) -> int:
    process = os.fork()
    if process:
        return process
    os.setsid()
    with open(os.path.join(folder, "pid"), "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, OUTPUT), (2, ERRORS)):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o600), stream)
    try:
        if os.path.exists(os.path.join(folder, WORK)):
            _work(folder, words, asking)
        else:
            _try(folder, words, asking)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _try(folder: str, words: list[str], asking: int) -> None:
    """Carry out the order in a folder."""
    order = Order.read(folder)
    if order.fresh:
        os.execv(sys.executable, command(folder, words))
    TrialProcess(folder, order, ask_for_dynamo=lambda: os.write(asking, f"{DYNAMO}\n".encode())).carry_out(words)


def _work(folder: str, words: list[str], asking: int) -> NoReturn:
    """Call what a folder holds, and write down what it returns or raises."""
    with open(os.path.join(folder, WORK), "rb") as file:
        work, selection = pickle.load(file)
    with open(os.path.join(folder, TOLD), "a", encoding="utf-8", errors="replace") as told:
        try:
            launcher = Launcher(words, selection, folder, os.environ, os.fdopen(asking, "wb"))
            done = work(launcher, partial(print, file=told, flush=True))
        except Exception as failure:
            failure.add_note(traceback.format_exc())
            done = failure
    text = pickle.dumps(done)
    with open(os.path.join(folder, DONE), "wb") as file:
        file.write(text)
    os._exit(0)


def _end(running: dict[int, str]) -> None:
    for process, folder in running.items():
        with suppress(ProcessLookupError):  # a group only once it has made itself one
            os.killpg(process, signal.SIGKILL)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        end_started(folder)


def _reap(running: dict[int, str]) -> None:
    """Write the exit status of each process that has ended."""
    for process, folder in list(running.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            del running[process]
            put(os.path.join(folder, "status"), str(os.waitstatus_to_exitcode(status)))
