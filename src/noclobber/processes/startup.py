"""What a new Python does that a watched process has started: it becomes a process of the run."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import TracebackType

from noclobber.processes.children import RUN
from noclobber.processes.member import Member, Order, is_member


def begin() -> None:
    """Join the run that the environment names. Called by noclobber-processes.pth, before the program's first line."""
    try:
        order = Order.of(os.environ.pop(RUN))
        if not os.path.isdir(order.folder) or is_member():
            return  # `site` may come to the same folder twice, and read its .pth files again
        member = import_module(order.joining).join(order)
        member.begin("started")
        _before_excepthook(member)
    except Exception:  # a program of its own must start as it would; its parent tells that it was not watched
        return


def join(order: Order) -> Member:
    """Return the member of a plain run that this process is to be."""
    from noclobber.session.session import Session

    return Member(order, Session(**order.options, everywhere=True), [])


def _before_excepthook(member: Member) -> None:
    """Explain an exception that ends this process before it is shown, without noclobber's frames."""
    native = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        member.escaped(error)
        member.status = 1
        native(kind, error, error.__traceback__)

    sys.excepthook = excepthook
