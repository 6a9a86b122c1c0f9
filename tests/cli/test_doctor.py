"""`noclobber doctor`: what it says of this environment, and of worse ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from noclobber import doctor
from noclobber.observe.recorder import SEEN
from noclobber.observe.torch_api import private

from .running import noclobber, write


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
    done = noclobber(["doctor"], tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.status == 1
    assert "torch      cannot be imported: OSError: libtorch.so is missing\n" in done.stdout


def test_a_release_that_lacks_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    look = private.lookup

    def lookup(name: str) -> object:
        if name == "autograd.grad_mode._unsafe_preserve_version_counter":
            raise private.UnsupportedTorch(f"torch has no `torch.{name}`")
        return look(name)

    monkeypatch.setattr(private, "lookup", lookup)
    text = doctor.examine().text()
    assert f"ways of seeing  {len(SEEN) - 1} of {len(SEEN)} work\n" in text
    assert "has no `torch.autograd.grad_mode._unsafe_preserve_version_counter`\n" in text
