"""What the README and the pages show is what the commands print: each console block is run, each Python block too."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .served import Run, served

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERWISE = ("when-is-in-place-allowed.md", "recipes.md")
"""Pages whose blocks are of another form."""


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(console|python|text)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = [block for page in PAGES if page.name not in OTHERWISE for block in blocks_of(page)]
CONSOLE = list(dict.fromkeys(text for kind, text in BLOCKS if kind == "console"))


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


PYTHON = list(
    dict.fromkeys(
        (text, BLOCKS[number + 1][1])
        for number, (kind, text) in enumerate(BLOCKS[:-1])
        if kind == "python" and BLOCKS[number + 1][0] == "text"
    )
)


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
    assert len(PYTHON) + len(named) == len({text for kind, text in BLOCKS if kind == "python"})
    assert [name for name in named if not any(f"{name}\n" in block for block in CONSOLE)] == []


def test_matches_can_fail():
    assert matches("a\n...\nb c...\n", "a\nx\ny\nb cde\n")
    assert not matches("a\n...\nb\n", "a\nx\n")
    assert not matches("a\n", "a\nb\n")


@pytest.fixture(scope="module")
def served_run() -> Iterator[Run]:
    with served() as carry_out:
        yield carry_out


RECIPES = [text for kind, text in blocks_of(ROOT / "docs" / "recipes.md") if kind == "python"]


@pytest.mark.parametrize("recipe", RECIPES, ids=range(1, len(RECIPES) + 1))
def test_a_recipe_is_wrong_or_right_as_it_says(recipe: str, served_run: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(recipe)
    printed = served_run(["run", "recipe.py"], tmp_path)
    wrong = re.match(r"# wrong: (NC\d+)\n", recipe)
    codes = re.findall(r"^(?:error|warning)\[(NC\d+)\]", printed, re.MULTILINE)
    assert set(codes) == ({wrong[1]} if wrong else set()), printed
    assert wrong or "noclobber: nothing found: " in printed
    assert wrong or recipe.startswith("# right\n")


def test_the_pages_become_a_site(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "backward" in (tmp_path / "site" / "rules" / "NC101" / "index.html").read_text()
    assert "batch_norm" in (tmp_path / "site" / "operators" / "index.html").read_text()


def test_the_costs_in_the_readme_are_measured() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text()
    medians = dict(re.findall(r"^\| (.*?) \| .*? \| contents \| python \| ([\d.]+) \|", table, re.MULTILINE))
    real = medians["GPT 6 x 384, 2 x 128 letters"], medians["ResNet-50, 2 pictures of 96 pixels"]
    costs = re.search(r"^## What it costs\n(.*?)^## ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert costs is not None
    assert tuple(re.findall(r"\b\d\.\d\d\b", costs[1])) == (*real, max(medians.values(), key=float))


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
