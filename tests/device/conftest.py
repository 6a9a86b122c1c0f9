"""The devices that the tests of this folder run on, each as a parameter of theirs.

The sham device has to be there before the first backward of a process, and changes what PyTorch does in it. So its
tests run in a process of their own, which lives as long as this session; what they report is reported here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from typing import Any

import pytest
import torch

from tests.device import sham

_KEPT: dict[str, Any] = {}
"""The connection to that process, while there is one."""


OTHERS = [sham.NAME, pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("mps", marks=pytest.mark.gpu)]


@pytest.fixture(params=["cpu", *OTHERS])
def device(request: pytest.FixtureRequest) -> str:
    """Where the tensors of a test are."""
    return str(request.param)


@pytest.fixture(params=OTHERS)
def other_device(request: pytest.FixtureRequest) -> str:
    """The same in a test that compares with the CPU."""
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs an accelerator that is not here."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    for item in items:
        if not here.get(_device_of(item), True):
            item.add_marker(pytest.mark.skip(reason=f"no {_device_of(item)} device is here"))


def _device_of(item: pytest.Item) -> str:
    given = getattr(item, "callspec", None)
    return "" if given is None else str(given.params.get("device", given.params.get("other_device", "")))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have a test with the sham device run in its process."""
    if _device_of(item) != sham.NAME or sham.has_arrived():
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for data in _asked(item):
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)  # of the test before this one, in this process
    return True


def _asked(item: pytest.Item) -> list[dict[str, Any]]:
    if "pipe" not in _KEPT:
        context = multiprocessing.get_context("spawn")
        _KEPT["pipe"], theirs = context.Pipe()
        _KEPT["process"] = context.Process(target=_serve, args=(theirs, str(item.config.rootpath)), daemon=True)
        _KEPT["process"].start()
        theirs.close()
    try:
        _KEPT["pipe"].send(item.nodeid)
        reports: list[dict[str, Any]] = _KEPT["pipe"].recv()
    except (EOFError, OSError):
        _KEPT["process"].join(10)
        died = f"the process with the sham device died: {_KEPT['process'].exitcode}"
        _KEPT.clear()
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", died, "call")
        reports = [item.config.hook.pytest_report_to_serializable(config=item.config, report=report)]
    return reports


def pytest_sessionfinish() -> None:
    """Let that process go."""
    if "pipe" in _KEPT:
        with contextlib.suppress(OSError):
            _KEPT["pipe"].send(None)
        _KEPT["process"].join(10)


def _serve(pipe: Any, folder: str) -> None:
    """In that process: run the tests of this folder that are asked for, with the sham device."""
    sham.arrive()
    torch.set_num_threads(1)
    options = ["-p", "no:cacheprovider", "-p", "no:terminal", "-o", "addopts=--import-mode=importlib"]
    sys.exit(pytest.main([*options, "--rootdir", folder, f"{folder}/tests/device"], plugins=[_Server(pipe)]))


class _Server:
    """Runs what is asked for, in place of everything in its order."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from _pytest.runner import runtestprotocol

        items = {item.nodeid: item for item in session.items}
        hook = session.config.hook
        while (asked := self._pipe.recv()) is not None:
            reports = runtestprotocol(items[asked], log=False)
            self._pipe.send([hook.pytest_report_to_serializable(config=session.config, report=one) for one in reports])
        return True
