"""A process that imports torch once and forks a trial for each folder: the import takes most of the time."""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from noclobber.fix.proof.job import DYNAMO, ERRORS, OUTPUT, Order
from noclobber.fix.proof.trial import TrialProcess

TICK = 0.02
"""Seconds between two looks at what has ended."""


def serve(words: list[str]) -> NoReturn:
    """Fork a trial of the program for each line on stdin, a folder, until it closes; write `status` when it ends."""
    import noclobber.observe.gradient_trace.comparison
    import noclobber.observe.gradient_trace.evidence
    import noclobber.session  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that asks is interrupted, and then ends this
    running: dict[int, str] = {}
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    pending = b""
    while True:
        if waiting.select(TICK):
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in map(os.fsdecode, lines):
                if line == DYNAMO:
                    importlib.import_module(line)
                else:
                    running[_fork(line, words)] = line
        _reap(running)
    for process in running:
        with suppress(ProcessLookupError):  # a group only once it has made itself one
            os.killpg(process, signal.SIGKILL)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    os._exit(0)


def _fork(folder: str, words: list[str]) -> int:
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
        with open(os.path.join(folder, "order.json"), encoding="utf-8") as file:
            order = Order.from_json(file.read())
        TrialProcess(folder, order).carry_out(words)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _reap(running: dict[int, str]) -> None:
    """Write the exit status of each trial that has ended."""
    for process, folder in list(running.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            del running[process]
            unfinished = os.path.join(folder, "status.unfinished")
            with open(unfinished, "w", encoding="utf-8") as file:
                file.write(str(os.waitstatus_to_exitcode(status)))
            os.replace(unfinished, os.path.join(folder, "status"))
