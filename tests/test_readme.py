"""What the README shows is what the commands print: each console block is run, each Python block too."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(console|python|text)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
CONSOLE = [text for kind, text in BLOCKS if kind == "console"]


def matches(shown: str, printed: str) -> bool:
    """Whether `printed` is what is shown, where `...` on a line or at its end stands for anything."""
    pattern = "".join(
        r"(?:.*\n)*?"
        if line == "..."
        else re.escape(line.removesuffix("...")) + (r".*\n" if line.endswith("...") else r"\n")
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern + r"\n*", printed + "\n") is not None


def run(command: str, folder: Path) -> str:
    program, *rest = shlex.split(command)
    assert program in ("noclobber", "pytest")
    environ = os.environ | {"NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", program, *rest],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


@pytest.mark.parametrize("block", CONSOLE, ids=[text.splitlines()[0] for text in CONSOLE])
def test_a_console_block_shows_what_is_printed(block, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for kind, text in BLOCKS:
        if kind == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (tmp_path / name[1]).write_text(text)
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        printed = run(command, tmp_path)
        assert matches(shown, printed), printed


PYTHON = [
    (text, BLOCKS[number + 1][1])
    for number, (kind, text) in enumerate(BLOCKS[:-1])
    if kind == "python" and BLOCKS[number + 1][0] == "text"
]


@pytest.mark.parametrize(("program", "shown"), PYTHON, ids=[shown.splitlines()[0][:20] for _, shown in PYTHON])
def test_a_python_block_prints_what_stands_below_it(program, shown, tmp_path):
    (tmp_path / "program.py").write_text(program)
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "program.py"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.stdout.rstrip() == shown.rstrip()


def test_each_python_block_is_run():
    """It has its output below it, or the name of a file that a console block runs."""
    named = [name[1] for kind, text in BLOCKS if kind == "python" and (name := re.match(r"# (\w+\.py)\n", text))]
    assert len(PYTHON) + len(named) == sum(kind == "python" for kind, _ in BLOCKS)
    assert [name for name in named if not any(f"{name}\n" in block for block in CONSOLE)] == []


def test_matches_can_fail():
    assert matches("a\n...\nb c...\n", "a\nx\ny\nb cde\n")
    assert not matches("a\n...\nb\n", "a\nx\n")
    assert not matches("a\n", "a\nb\n")
