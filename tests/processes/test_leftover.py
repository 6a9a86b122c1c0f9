"""A run that is killed leaves its journals, and the next command says once where their report is."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from noclobber.processes import leftover
from noclobber.processes.alive import birth, state_of

from ..cli.running import ENVIRONMENT, RUN, Ended, noclobber, write
from .test_merging import Written

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is known of processes by /proc")

KILLED = """
    import ctypes, os, signal, sys, torch
    x = torch.ones(3, requires_grad=True)
    for _ in range(5):
        y = x.exp()
        y.data.mul_(2)
        y.sum().backward()
    print("ready", flush=True)
    {}
    """
NEVER = 2**22 + 1
"""A process id that no Linux gives."""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def of(env: dict[str, str]) -> Path:
    return Path(env["XDG_STATE_HOME"]) / "noclobber" / "runs"


def told(ended: Ended) -> list[str]:
    return [line for line in ended.stderr.splitlines() if "an earlier run" in line]


@pytest.mark.parametrize(
    ("end", "status"),
    [("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL), ("ctypes.string_at(0)", -signal.SIGSEGV)],
    ids=["killed", "segmentation fault"],
)
def test_the_next_command_says_where_the_report_is(tmp_path: Path, env: dict[str, str], end: str, status: int) -> None:
    write(tmp_path, {"train.py": KILLED.format(end), "other.py": "print(1)"})
    assert noclobber(["run", "train.py"], tmp_path, env=env).status == status
    (folder,) = of(env).iterdir()
    for words in (["run", "-f", "json", "other.py"], ["run", "-f", "github", "other.py"]):
        assert told(noclobber(words, tmp_path, env=env)) == [], "what a machine reads is not disturbed"
    (line,) = told(noclobber(["run", "other.py"], tmp_path, env=env))
    assert line.startswith("noclobber: an earlier run ended by a signal (`")
    assert line.endswith(f"run train.py`); its report: noclobber report {folder}")
    assert told(noclobber(["explain", "NC101"], tmp_path, env=env)) == [], "it is said once"

    shown = noclobber(["report", str(folder)], tmp_path, env=env)
    assert "error[NC201]" in shown.stdout
    assert "the main process ended by a signal: this is what was found until then" in shown.stdout
    assert list(of(env).iterdir()) == [], "it is removed when it was read"


def test_nothing_found_until_the_program_was_killed(tmp_path: Path, env: dict[str, str]) -> None:
    killed = KILLED.replace("y.data.mul_(2)", "pass").format("os.kill(os.getpid(), signal.SIGKILL)")
    write(tmp_path, {"train.py": killed})
    noclobber(["run", "train.py"], tmp_path, env=env)
    (folder,) = of(env).iterdir()
    shown = noclobber(["report", str(folder)], tmp_path, env=env).stdout
    assert shown.startswith("noclobber: nothing found in at least 4 backward calls, until the program was killed\n")


def test_a_run_that_is_alive_is_not_called_dead(tmp_path: Path, env: dict[str, str]) -> None:
    write(tmp_path, {"train.py": KILLED.format("sys.stdin.read()")})
    with subprocess.Popen(
        [*RUN, "train.py"],
        cwd=tmp_path,
        env={**ENVIRONMENT, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()
        assert leftover.killed(str(of(env))) == []
        (folder,) = of(env).iterdir()
        assert "error[NC201]" in noclobber(["report", str(folder)], tmp_path, env=env).stdout
        assert list(of(env).iterdir()) == [folder], "a run that goes on writes there"
        _, stderr = alive.communicate(b"")
    assert b"error[NC201]" in stderr
    assert list(of(env).iterdir()) == []


@pytest.mark.parametrize("home", ["/proc/none", "file/below", "relative"])
def test_without_a_place_a_run_runs(tmp_path: Path, home: str) -> None:
    write(tmp_path, {"train.py": "import torch", "file": "", "home/x": ""})
    where = home if home.startswith("/proc") else str(tmp_path / home) if "/" in home else home
    home_of_user = str(tmp_path / "file")
    ended = noclobber(["run", "train.py"], tmp_path, env={"XDG_STATE_HOME": where, "HOME": home_of_user})
    assert (ended.stderr, ended.status) == ("noclobber: no backward ran: nothing was checked\n", 0)
    assert not (tmp_path / "relative").exists()


def test_another_process_with_the_same_number_is_not_the_run() -> None:
    me, here = os.getpid(), platform.node()
    born = birth(me)
    numbering, _, when = born.rpartition(" ")
    assert state_of(me, here, born) == state_of(me, here) == "running"
    assert state_of(me, here, f"{numbering} {int(when) + 1}") == "lost"
    assert state_of(NEVER, here) == state_of(NEVER, here, born) == "lost"
    assert state_of(NEVER, "elsewhere", born) == state_of(NEVER, here, "pid:[1] 5") == "running", "nobody here knows"


def test_a_process_that_nobody_has_waited_for_is_dead() -> None:
    middle = "import subprocess, time; print(subprocess.Popen(['true']).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        while state_of(pid, platform.node()) == "running":
            time.sleep(0.05)
        assert state_of(pid, platform.node()) == "lost"
        parent.kill()


def begun(folder: Path, pid: int, *, host: str = platform.node(), days: int = 0, watched: bool = True) -> Path:
    """A run's folder that was last written some days ago."""
    folder.mkdir(parents=True)
    journal = Written(folder, pid, host, how="first")
    if watched:
        journal.watched()
    then = time.time() - days * 24 * 60 * 60
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))
    return folder


def test_folders_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    late = leftover.DAYS + 1
    dead = begun(tmp_path / "dead", NEVER)
    alive = begun(tmp_path / "alive", os.getpid(), days=late)
    begun(tmp_path / "without torch", NEVER, watched=False)
    elsewhere = begun(tmp_path / "elsewhere", NEVER, host="elsewhere")
    begun(tmp_path / "elsewhere, long ago", NEVER, host="elsewhere", days=late)
    (tmp_path / "just begun").mkdir()
    assert [folder for folder, _ in leftover.killed(str(tmp_path))] == [str(dead)]
    assert leftover.killed(str(tmp_path)) == []
    assert {*tmp_path.iterdir()} == {dead, alive, elsewhere, tmp_path / "just begun"}
    for path in (*dead.iterdir(), dead):
        os.utime(path, (0, 0))
    assert leftover.killed(str(tmp_path)) == []
    assert not dead.exists()


def test_a_folder_that_cannot_be_marked_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "dead", NEVER)

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(leftover.os, "open", refuse)
    assert leftover.killed(str(tmp_path)) == []


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    kept = begun(tmp_path / "kept", NEVER)
    ended = noclobber(["report", "-f", "json", str(kept)], tmp_path)
    assert json.loads(ended.stdout)["program"]["status"] is None
    assert kept.exists()
