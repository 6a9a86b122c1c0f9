"""With the native part noclobber holds the same saves and writes, event by event, and finds the same."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.observe.native.events import PROGRAMS


@cache
def events(pure: bool) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.observe.native.events"],
        env={**os.environ, "NOCLOBBER_PURE": str(int(pure))},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("contents", [False, True], ids=["versions", "contents"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_both_hold_the_same(program: object, contents: bool) -> None:
    name = f"{program.__name__} {contents}"  # type: ignore[attr-defined]
    native = events(False)[name]
    assert native == events(True)[name]
    assert any(event[0] == "save" for event in native)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("built")
def test_one_was_native_and_one_was_not() -> None:
    assert (events(False)["why not native"], events(True)["why not native"]) == ("", "turned off by NOCLOBBER_PURE")
