"""Without PyTorch, or with something else of that name, every verb ends with words."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from noclobber.cli.verbs import examination

from .running import fresh, noclobber, write

ODD = {
    "raises": ("raise ImportError('no library')", "cannot be imported: ImportError: no library"),
    "exits": ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
    "has no cuda": ("autograd = None; __version__ = '0'", "does not work: AttributeError: module 'torch' has no attr"),
    "is not PyTorch": ("", "/torch.py is not PyTorch"),
}


@pytest.mark.parametrize(("text", "said"), ODD.values(), ids=ODD)
def test_an_odd_torch(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, {"torch.py": text, "a.py": "import torch\n"})
    screen = fresh(["doctor"], tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert (screen.status, screen.stderr) == (1, "")
    assert said in screen.stdout
    names = [line.split()[0] for line in screen.stdout.splitlines() if not line.startswith(" ")]
    assert names[-2:] == ["children", "optional"]
    for words in (["explain", "relu"], ["explain", "--operators"], ["fix", "a.py"], ["fix", "--hints", "a.py"]):
        ended = fresh(words, tmp_path, env={"PYTHONPATH": str(tmp_path)})
        assert (ended.status, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert ended.stderr.startswith("noclobber: error: torch cannot be imported: ")


def test_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ModuleType("torch")
    folder.__path__ = ["/x/torch"]
    folder.__file__ = None
    monkeypatch.setitem(sys.modules, "torch", folder)
    assert "  `torch` at /x/torch is not PyTorch\n" in examination.examine().text()


@pytest.mark.parametrize("text", ["raise RuntimeError('x')", "import sys; sys.exit(3)"])
def test_an_operator_whose_module_fails(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"mine.py": text})
    ended = noclobber(["explain", "mine::op"], tmp_path)
    assert (ended.status, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("noclobber: error: no rule `mine::op`")
