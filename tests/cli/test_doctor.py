"""`noclobber doctor`: what it says of this environment, and of worse ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from noclobber.cli.verbs import examination
from noclobber.observe.arming.recorder import SEEN
from noclobber.observe.torch_api import private

from .running import fresh, noclobber, write


def test_one_screen_that_says_what_works(tmp_path: Path) -> None:
    done = noclobber(["doctor"], tmp_path)
    assert done.status == 0, done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" "))
    assert rows["torch"].startswith(torch.__version__)
    assert "a silent error  is found\n" in done.stdout
    assert f"ways of seeing  {len(SEEN)} of {len(SEEN)} work\n" in done.stdout
    assert len(done.stdout.splitlines()) <= 24


def test_a_narrow_screen_breaks_lines_between_words(tmp_path: Path) -> None:
    wide = noclobber(["doctor"], tmp_path).stdout
    narrow = noclobber(["doctor"], tmp_path, env={"COLUMNS": "40"}).stdout
    assert wide.split() == narrow.split()
    assert [line for line in narrow.splitlines() if len(line) > 40 and len(line.split()) > 2] == []
    assert all(line.startswith(" " * 16) or line[:15].strip() for line in narrow.splitlines())


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    write(tmp_path, {"torch.py": "raise OSError('libtorch.so is missing')"})
    done = fresh(["doctor"], tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.status == 1
    assert "torch      cannot be imported: OSError: libtorch.so is missing\n" in done.stdout


def test_a_release_that_lacks_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    look = private.lookup

    def lookup(name: str) -> object:
        if name == "autograd.grad_mode._unsafe_preserve_version_counter":
            raise private.UnsupportedTorch(f"torch has no `torch.{name}`")
        return look(name)

    monkeypatch.setattr(private, "lookup", lookup)
    text = examination.examine().text()
    assert f"ways of seeing  {len(SEEN) - 1} of {len(SEEN)} work\n" in text
    assert "has no `torch.autograd.grad_mode._unsafe_preserve_version_counter`\n" in text


@pytest.mark.skipif(sys.platform != "linux", reason="where the folders lie")
def test_clean_removes_what_nobody_uses(tmp_path: Path) -> None:
    names = ("TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME")
    env = {name: str(tmp_path / name) for name in names}
    runs = tmp_path / "XDG_STATE_HOME" / "noclobber" / "runs"
    temporary = tmp_path / "TMPDIR"
    old, own, other = temporary / "noclobber-old", temporary / "noclobber-own", temporary / "other"
    for folder in (own, other, tmp_path / "XDG_CACHE_HOME" / "noclobber" / "native"):
        folder.mkdir(parents=True)
    (own / "setup.py").write_text("a clone that a user has made there")
    os.utime(own, (0, 0))
    killed = "import os, signal, torch; os.kill(os.getpid(), signal.SIGKILL)"
    assert noclobber(["run", "-c", killed], tmp_path, env=env).status == -9
    (of_killed,) = runs.iterdir()
    shutil.copytree(of_killed, old)
    code = "import torch, sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-m", "noclobber", "run", "-c", code]
    running = subprocess.Popen(command, env=os.environ | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with running:
        assert running.stdout is not None
        running.stdout.readline()
        (in_use,) = set(runs.iterdir()) - {of_killed}
        done = noclobber(["doctor", "--clean"], tmp_path, env=env)
        assert in_use.is_dir()
        running.communicate(b"")
    removed = [f"removed {folder}" for folder in (old, of_killed, tmp_path / "XDG_CACHE_HOME" / "noclobber")]
    assert done.stdout.splitlines()[:3] == removed
    assert {line.split("`")[1] for line in done.stderr.splitlines()} == {str(in_use)}
    assert (done.status, other.is_dir(), old.is_dir()) == (1, True, False)
    assert noclobber(["doctor", "--clean"], tmp_path, env=env).status == 0
    assert noclobber(["doctor", "--clean"], tmp_path, env=env).stdout == "nothing to remove\n"
    assert [one for one in tmp_path.rglob("*") if one.name.startswith("noclobber")] == [own]
    assert (own / "setup.py").is_file()
