"""This process as one of a run: its session, its file, and how it hands the run on to its children."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from noclobber.model.forks import at_fork
from noclobber.model.reports.error import UnsupportedTorch
from noclobber.model.reports.report import Lost, coverage_out, lost_out
from noclobber.observe.torch_api.patches import Patches
from noclobber.processes.alive import birth, stat
from noclobber.processes.children import RUN, notice_children, starts_python
from noclobber.processes.journal import FORMAT, Journal
from noclobber.session.imports import after_import

if TYPE_CHECKING:
    from noclobber.model.reports.finding import Finding
    from noclobber.session.session import Session

How = Literal["first", "forked", "started"]


@dataclass(frozen=True, slots=True)
class Order:
    """What a run asks of its processes. `options` are those of their sessions.

    `run` is the id of the first process, and `parent` of the one that hands the order on; both are empty in the first.
    `joining` is the module whose `join(order)` makes a new Python the Member that it is to be.
    """

    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    parent: str = ""
    joining: str = "noclobber.processes.startup"

    def to_text(self) -> str:
        """Return the order as the value of a variable."""
        return json.dumps(astuple(self))

    @staticmethod
    def of(text: str) -> Order:
        """Read an order. Raises ValueError and TypeError if it is none."""
        return Order(*json.loads(text))


class Member:
    """One process of a run. After a fork the same object goes on in the child, as another process."""

    def __init__(self, order: Order, session: Session, crashes: list[Exception]) -> None:
        self.order = order
        self.session = session
        self.crashes = crashes
        """Errors inside noclobber. The report names them at the end."""
        self.watched = False
        self.unsupported = ""
        """Why this release of torch can't be watched."""
        self.at_exit: Callable[[int], int] | None = None
        """Called in the first process when it leaves by `os._exit` or becomes another program; returns the status."""
        self.status: int | None = None
        """The exit status, if it is known."""
        self._pid = 0
        self._who: dict[str, Any] = {}
        self._patches = Patches()

    def begin(self, how: How = "first") -> None:
        """Open this process's file, hand the run on to children, and watch torch once it is imported.

        After `leave` it goes on in the same file.
        """
        if self._pid:
            os.putenv(RUN, self.order.to_text())
        else:
            self._open(how, self.order.parent or None)
        session = self.session
        session.journal = self
        _members.append(self)
        at_fork(after_in_child=_in_child)
        notice_children(self._started, self._patches, lambda: self.order.to_text())
        after_import("multiprocessing.util", self._at_end_of_multiprocessing)
        atexit.register(self.end)
        self._patches.put(os, "_exit", self._ending(os._exit))
        if session.started:
            self.watched = True
            self._watching()
        else:
            after_import("torch", self._torch_is_there)

    def leave(self) -> None:
        """Leave the run: what starts from now on is not of it."""
        _members.remove(self)
        self.session.journal = None
        atexit.unregister(self.end)
        self._patches.undo()
        if _members:
            os.putenv(RUN, _members[-1].order.to_text())
        else:
            os.unsetenv(RUN)

    @property
    def is_first(self) -> bool:
        """Return True in the process that the run began in."""
        return self.order.run == self.id and not self.in_child

    def _open(self, how: How, parent: str | None) -> None:
        self._pid, self._who = os.getpid(), {}
        self.id = f"{platform.node()}-{self._pid}-{time.time_ns():x}"
        self.journal = Journal(self.order.folder, self.id)
        self.order = replace(self.order, run=self.order.run or self.id, parent=self.id)
        self.journal.write(
            format=FORMAT,
            id=self.id,
            run=self.order.run,
            parent=parent,
            how=how,
            pid=self._pid,
            born=birth(self._pid),
            above=_above() if how == "started" else [],
            host=platform.node(),
            command=[os.path.basename(word) for word in sys.orig_argv[:1]] + sys.orig_argv[1:],
            python="{}.{}.{}".format(*sys.version_info),
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
        os.putenv(RUN, self.order.to_text())
        if self.watched:
            self._watching()

    @property
    def in_child(self) -> bool:
        """Return True in a forked child that could not become a process of the run."""
        return os.getpid() != self._pid

    def _torch_is_there(self) -> None:
        if self.in_child or not is_pytorch():
            return
        with kept_apart(self.crashes):
            try:
                self.session.start()
                self.watched = True
                self._watching()
            except UnsupportedTorch as unsupported:
                self.unsupported = str(unsupported)
                self.journal.write(unsupported=self.unsupported)

    def _watching(self) -> None:
        coverage = coverage_out(self.session.coverage())
        self.journal.write(torch=str(sys.modules["torch"].__version__), coverage=coverage)

    def found(self, finding: Finding, count: int) -> None:
        self._say_who()
        self.journal.found(finding, count)

    def failed(self, lost: Lost) -> None:
        self.journal.write(lost=lost_out(lost))

    def checked(self, backwards: int, raised: int) -> None:
        self.journal.checked(backwards, raised)

    def escaped(self, error: BaseException) -> None:
        """Explain an exception that ends this process, if it is about writing in place."""
        if isinstance(error, SystemExit) and error.__context__ is not None:
            error = error.__context__  # torch.multiprocessing.spawn catches it, and exits
        if self.watched:
            with kept_apart(self.crashes):
                self.session.escaped(error)

    def end(self, status: int | None = None) -> None:
        """Write what is known only at the end. The last call counts."""
        if self.in_child:
            return
        with kept_apart(self.crashes):
            self._say_who()
            self.journal.counted()
            coverage = coverage_out(self.session.coverage()) if self.watched else None
            self.journal.write(
                end=self.status if status is None else status,
                coverage=coverage,
                crashes=[repr(crash) for crash in self.crashes],
            )

    def _say_who(self) -> None:
        who = {**self._who, **_who()}  # at the end torch may have forgotten the worker and the rank
        if who != self._who:
            self._who = who
            self.journal.write(who=who)

    def _started(self, pid: int | None, command: list[str]) -> None:
        with kept_apart(self.crashes):
            self.journal.write(child=pid, command=command, python=starts_python(command))
            if pid == self._pid and shutil.which(command[0]):
                self._leaving(0)

    def forked(self) -> None:
        """Go on in a forked child, as another process that has found nothing yet."""
        with kept_apart(self.crashes):
            parent = self.id
            self.crashes.clear()
            self.session.begin_again()
            self._open("forked", parent)

    def _ending(self, native: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        """Return an `os._exit` that ends this process too: no exit functions run then."""

        @functools.wraps(native)
        def _exit(status: int) -> NoReturn:
            self.end(status)
            native(self._leaving(status))

        return _exit

    def _leaving(self, status: int) -> int:
        if self.at_exit is not None and self.is_first:
            last, self.at_exit = self.at_exit, None
            with kept_apart(self.crashes):
                return last(status)
        return status

    def _at_end_of_multiprocessing(self) -> None:
        """Explain what ends a process of multiprocessing: it calls this function while the exception passes by."""
        util = sys.modules["multiprocessing.util"]
        native = util._exit_function

        @functools.wraps(native)
        def _exit_function(*args: Any, **options: Any) -> Any:
            error = sys.exc_info()[1]
            if error is not None:
                self.escaped(error)
            del error  # and with it the frames
            return native(*args, **options)

        self._patches.put(util, "_exit_function", _exit_function)
        if "_exit_function" not in _bootstrap().co_names:
            self._patches.put(traceback, "print_exc", self._explaining(traceback.print_exc))
            self._patches.put(traceback, "format_exc", self._explaining(traceback.format_exc))

    def _explaining(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of `traceback` that explains an exception which ends a process of multiprocessing. Python
        3.14 calls `_exit_function` only when that exception is over, and nothing but this before."""

        @functools.wraps(native)
        def show(*args: Any, **options: Any) -> Any:
            caller, error = sys._getframe(1), sys.exc_info()[1]
            if error is not None and (caller.f_code is _bootstrap() or caller.f_globals.get("__name__") == _SPAWN):
                self.escaped(error)
            del caller, error  # and with it the frames
            return native(*args, **options)

        return show


_SPAWN = "torch.multiprocessing.spawn"
"""The module whose processes keep the text of the exception for their parent, and end by SystemExit."""


def _bootstrap() -> CodeType:
    code: CodeType = sys.modules["multiprocessing.process"].BaseProcess._bootstrap.__code__
    return code


_members: list[Member] = []


def is_member() -> bool:
    """Return True if this process belongs to a run."""
    return bool(_members)


def _in_child() -> None:
    for member in _members:
        member.forked()


@contextlib.contextmanager
def kept_apart(crashes: list[Exception]) -> Iterator[None]:
    """Keep a crash inside noclobber for the end, so that it does not change what the program does."""
    try:
        yield
    except Exception as crash:
        crashes.append(crash)


def is_pytorch() -> bool:
    """Return True if `torch` is PyTorch: a file of the user's own may be called torch.py."""
    return hasattr(sys.modules.get("torch"), "autograd")


def _who() -> dict[str, Any]:
    """Return what this process is known by at present: ranks come with the environment or with the process group."""
    who: dict[str, Any] = {}
    multiprocessing, data = sys.modules.get("multiprocessing.process"), sys.modules.get("torch.utils.data")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        who["name"] = multiprocessing.current_process().name
    if data is not None and (info := data.get_worker_info()) is not None:
        who["worker"] = info.id
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world.isdecimal():
        return {**who, "rank": int(rank), "world": int(world)}
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return {**who, "rank": distributed.get_rank(), "world": distributed.get_world_size()}
    return who


def _above() -> list[int]:
    """Return the processes above this one, the nearest first: a shell may stand between a process and its child."""
    found = [os.getppid()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        while found[-1] > 1 and len(found) < 8:
            found.append(int(stat(found[-1])[1]))
    return found
