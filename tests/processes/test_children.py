"""What is taken for a start of Python, and how children are led to the run; nothing here imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noclobber.observe.torch_api.patches import Patches
from noclobber.processes.children import RUN, notice_children, starts_python

PYTHON = [
    ["python", "x.py"],
    ["/usr/bin/python3.12", "-m", "x"],
    ["C:\\Python\\python.exe", "x.py"],
    ["pypy3", "x.py"],
    ["sh", "-c", "cd x && python3 train.py"],
    ["env", "-i", "python", "x.py"],
]
OTHERS = [["git", "status"], ["ls", "python_code"], ["sh", "-c", "cat x.python"], ["nonesuch"], ["cc", "pythonic.c"]]


@pytest.mark.parametrize("command", PYTHON, ids=" ".join)
def test_a_command_that_starts_python(command: list[str]) -> None:
    assert starts_python(command)


@pytest.mark.parametrize("command", OTHERS, ids=" ".join)
def test_a_command_that_does_not(command: list[str]) -> None:
    assert not starts_python(command)


def test_a_compiler_that_is_given_folders_of_python_starts_none(tmp_path: Path) -> None:
    headers = tmp_path / "python3.11"
    headers.mkdir()
    compiler = ["cc", "x.cpp", f"-I{headers}", "-I", str(headers)]
    assert not starts_python(compiler)
    assert not starts_python(["sh", "-c", " ".join(compiler)])


def test_a_script_says_by_its_first_line_that_it_is_python(tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text("#!/opt/venv/bin/python3\n")
    assert starts_python([str(script), "train.py"])


@pytest.mark.skipif(os.name != "posix", reason="the functions of POSIX")
def test_each_way_to_start_a_program_is_told_and_led(tmp_path: Path) -> None:
    told: list[tuple[int | None, list[str]]] = []
    before = os.system, os.posix_spawn, os.execv, subprocess._fork_exec  # type: ignore[attr-defined]
    patches = Patches()
    notice_children(lambda pid, command: told.append((pid, command)), patches, lambda: "there")
    shown = [sys.executable, "-S", "-c", f"import os; print(os.environ.get({RUN!r}))"]
    try:
        # The environment of this process leads a child by `putenv`, which only a member calls.
        for environ, found in ((None, "None"), ({}, "there"), ({RUN: "here"}, "here"), ({"A": "b"}, "there")):
            child = subprocess.Popen(shown, env=environ, stdout=subprocess.PIPE, text=True)
            assert child.communicate()[0] == f"{found}\n"
            assert told[-1] == (child.pid, shown)
        for environment, found in (({}, "there"), ({RUN: "here"}, "here")):
            (tmp_path / "out").touch()
            to_file = (os.POSIX_SPAWN_OPEN, 1, str(tmp_path / "out"), os.O_WRONLY | os.O_TRUNC, 0)
            pid = os.posix_spawn(sys.executable, shown, environment, file_actions=[to_file])
            assert os.waitpid(pid, 0)[1] == 0
            assert told[-1] == (pid, shown)
            assert (tmp_path / "out").read_text() == f"{found}\n"
        assert os.system("exit 3") >> 8 == 3
        assert told[-1] == (None, ["sh", "-c", "exit 3"])
        with pytest.raises(TypeError):
            os.system()  # type: ignore[call-arg]
        with pytest.raises(FileNotFoundError):
            subprocess.run(["nonesuch"])
    finally:
        patches.undo()
    assert before == (os.system, os.posix_spawn, os.execv, subprocess._fork_exec)  # type: ignore[attr-defined]
