"""What a framework's logger says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heard(name: str) -> Iterator[list[str]]:
    """The messages that the logger `name` and those below it write in the block, each once.

    pytest's `caplog` has each of them twice once its handler is on a logger that also hands its records on to the root.
    That of transformers 5.23 does so where the environment has `CI`, as in most builds.
    """

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    messages: list[str] = []
    logger, handler = logging.getLogger(name), Hearing()
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
