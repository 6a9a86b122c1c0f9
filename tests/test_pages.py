"""What the README and the pages show is what the commands print: each console block is run, each Python block too."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import noclobber

from . import served

ROOT = Path(__file__).parents[1]
WRONG = "import torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\ny.data.mul_(2)\ny.sum().backward()\n"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WHOLE = re.compile(r"# (?:wrong: (NC\d+)|right)\n")
"""How a recipe begins that `noclobber run` is asked about."""


def blocks_of(page: Path) -> list[tuple[str, str]]:
    kinds = "console|ipython|python|sh|text"
    return re.findall(rf"^```({kinds})\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


IN_RECIPES = blocks_of(ROOT / "docs" / "recipes.md")
RECIPES = [text for kind, text in IN_RECIPES if kind == "python" and WHOLE.match(text)]
BLOCKS = [
    block
    for page in PAGES
    if page.name != "when-is-in-place-allowed.md"  # its blocks have a test of their own
    for block in blocks_of(page)
    if block[1] not in RECIPES
]
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
    words = shlex.split(command)
    given = dict[str, str]()
    while "=" in words[0]:
        name, _, given[name] = words.pop(0).partition("=")
    environ = os.environ | {"NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")} | given
    program, *rest = words
    assert program in ("noclobber", "pytest", "python")
    words = [*([] if program == "python" else ["-m", program]), *rest]
    # pytest warns where its plugins are imported already, and torch reads some variables where it is imported.
    if program == "pytest" or any(name.startswith("TORCH_") for name in given):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout
    return served.run(words, folder, env=environ, merged=True).stdout


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
    assert served.run(["program.py"], tmp_path).stdout.rstrip() == shown.rstrip()


def test_each_python_block_is_run():
    """It has its output below it, or the name of a file that a console block runs."""
    named = [name[1] for kind, text in BLOCKS if kind == "python" and (name := re.match(r"# (\w+\.py)\n", text))]
    assert len(PYTHON) + len(named) == len({text for kind, text in BLOCKS if kind == "python"})
    assert [name for name in named if not any(f"{name}\n" in block for block in CONSOLE)] == []


def test_matches_can_fail():
    assert matches("a\n...\nb c...\n", "a\nx\ny\nb cde\n")
    assert not matches("a\n...\nb\n", "a\nx\n")
    assert not matches("a\n", "a\nb\n")


@pytest.mark.parametrize("recipe", RECIPES, ids=range(1, len(RECIPES) + 1))
def test_a_recipe_is_wrong_or_right_as_it_says(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(recipe)
    printed = served.said(["run", "recipe.py"], tmp_path)
    begins = WHOLE.match(recipe)
    assert begins
    codes = re.findall(r"^(?:error|warning)\[(NC\d+)\]", printed, re.MULTILINE)
    assert codes == [begins[1]] if begins[1] else "noclobber: nothing found in " in printed, printed


def test_the_cells_of_the_recipes_show_what_stands_below_them() -> None:
    cells = [text for kind, text in IN_RECIPES if kind == "ipython"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(notebook, kernel_name="python3").execute()
    assert cells
    for text, cell in zip(cells, notebook.cells, strict=True):
        kind, shown = IN_RECIPES[IN_RECIPES.index(("ipython", text)) + 1]
        printed = "".join(one.data["text/plain"] for one in cell.outputs)
        assert matches(shown if kind == "text" else "", printed), printed


def test_the_shell_of_the_recipes_works_in_a_pipeline(tmp_path: Path) -> None:
    check, update = (text for kind, text in IN_RECIPES if kind == "sh")
    (tmp_path / "train.py").write_text(WRONG)
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def status(script: str) -> int:
        return subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, env=environ, capture_output=True).returncode

    assert status(update) == status(check) == 0
    assert "<testsuite" in (tmp_path / "noclobber.xml").read_text()
    (tmp_path / "train.py").write_text(WRONG + "z = x.exp()\nz.data.add_(1)\nz.sum().backward()\n")
    assert status(check) == 1


def test_the_pages_become_a_site(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    site = {name: (tmp_path / "site" / name / "index.html").read_text() for name in PLACES}
    assert "backward" in site["rules/NC101"]
    assert "batch_norm" in site["operators"]
    assert '<a href="../NC203/">NC203</a>' in site["rules/NC103"], "codes lead to their pages"
    assert "explain NC101" in site[""], "but not in code"
    for words in ("--every N", "--update-baseline", "--build-native", "--operators"):
        assert words in site["command-line"]
    for name in noclobber.__all__:
        assert f'id="{name.lower()}"' in site["api"]
    assert "tuple[Finding, ...]" in site["api"]
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=.https?:", "".join(site.values())), (
        "nothing comes from elsewhere"
    )
    linked = {
        path: re.findall(r'href="([^":#]+)[#"]', path.read_text()) for path in (tmp_path / "site").glob("**/index.html")
    }
    lost = [(path.parent.name, link) for path in linked for link in linked[path] if not (path.parent / link).exists()]
    assert not lost, "each link leads somewhere"
    assert json.loads((tmp_path / "site" / "report.schema.json").read_text())["$schema"]


PLACES = ("", "rules/NC101", "rules/NC103", "operators", "command-line", "api")


def test_the_costs_in_the_readme_are_measured() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text()
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(
        r"^\| (a small GPT|a ResNet-50|tiny tensors, .*?) \| ([\d.]+) \| ([\d.]+) \|$", readme, re.MULTILINE
    )
    for column, by in enumerate(("python", "native"), 1):
        medians = dict(re.findall(rf"^\| (.*?) \| .*? \| contents \| {by} \| ([\d.]+) \|", table, re.MULTILINE))
        real = medians["GPT 6 x 384, 2 x 128 letters"], medians["ResNet-50, 2 pictures of 96 pixels"]
        assert [row[column] for row in shown] == [*real, max(medians.values(), key=float)]


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
