"""The rules of the house that no linter knows: what may stand where, and that the import contracts catch a breach."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from noclobber.observe.native.build import NEWEST_PYTHON

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "noclobber"
MODULES = sorted(PACKAGE.rglob("*.py"))


def place(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


def imported(module: Path) -> set[str]:
    """The top-level names that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_addresses_are_read_only_where_torch_is_observed() -> None:
    # addresses are used again for other tensors within one small program: nothing may be known by one
    others = [module for module in MODULES if not place(module).startswith("observe/")]
    assert [place(module) for module in others if "data_ptr" in module.read_text()] == []


def test_one_file_imports_rich() -> None:
    assert [place(module) for module in MODULES if "rich" in imported(module)] == ["render/text.py"]


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"]
    used = set[str]().union(*(imported(module) for module in MODULES)) - set(sys.stdlib_module_names) - {"noclobber"}
    theirs = {"IPython", "lightning", "numpy", "pytest", "safetensors", "transformers"}  # of the program or the tests
    assert used - theirs == {re.split(r"\W", wanted)[0] for wanted in declared}


def test_the_newest_python_is_the_same_everywhere() -> None:
    newest = "{}.{}".format(*NEWEST_PYTHON)
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [line.rpartition(" ")[2] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert versions == [f"3.{minor}" for minor in range(11, NEWEST_PYTHON[1] + 1)]
    assert f"| Python | 3.11 to {newest} | 3.11 |" in (ROOT / "docs" / "compatibility.md").read_text()
    assert f"built on Linux for Python 3.11 to {newest}." in (ROOT / "docs" / "limits.md").read_text()
    assert f"It needs Python 3.11 to {newest}, and" in (ROOT / "README.md").read_text()
    assert f'known for CPython 3.11 to {newest}"' in (PACKAGE / "observe" / "native" / "frames.c").read_text()


def test_every_file_says_what_it_holds() -> None:
    for module in MODULES:
        assert ast.get_docstring(ast.parse(module.read_text())), place(module)


def test_every_test_that_the_source_names_is_there() -> None:
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    names = {*files, *re.findall(r"def (test_\w+)", "".join(files.values()))}
    for module in MODULES:
        for named in re.findall(r"tests/[\w/]+\.py|\btest_\w+(?:\.py)?", module.read_text()):
            there = (ROOT / named).exists() if "/" in named else named in names
            assert there, f"{place(module)}: {named}"


def test_model_rules_and_render_work_where_torch_is_not_imported() -> None:
    code = (
        "import sys, noclobber.model.reports.report, noclobber.rules, noclobber.render\n"
        "noclobber.rules.catalogue()\n"
        "print(*sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_lock_holds_exact_versions_that_every_registry_has() -> None:
    lines = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    assert lines[0].startswith("# Written by `make lock`")
    for line in lines[1:]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.]+", line), line  # no address, no local version
        assert not line.lower().startswith(("nvidia", "cuda", "triton")), line


def test_the_citation_names_the_newest_release() -> None:
    changelog, citation = ROOT / "CHANGELOG.md", yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.findall(r"^## (\S+) \((.*?)\)$", changelog.read_text(), re.MULTILINE)
    named = (citation.get("version"), str(citation.get("date-released")))
    assert named == (released[0] if released else (None, "None"))


BREACHES = {  # what is added to a file, and the line of the report that tells
    ("stray.py", '"""A module without a place."""\n'): "- noclobber.stray\n",
    ("render/__init__.py", "from noclobber.rules import catalogue\n"): "noclobber.render -> noclobber.rules (",
    ("model/seen/events.py", "import torch\n"): "noclobber.model.seen.events -> torch (",
    ("rules/__init__.py", "import subprocess\n"): "noclobber.rules -> subprocess (",
    (
        "rules/clobbers/nc101_stale_save.py",
        "from . import nc104_freed_graph\n",
    ): "noclobber.rules.clobbers.nc101_stale_save is",
    ("observe/detectors/stale_casts.py", "from . import lost_hooks\n"): "noclobber.observe.detectors.lost_hooks (l.",
    ("fix/proof/verdicts.py", "import torch\n"): "noclobber.fix.proof.verdicts -> torch (",
    ("model/source.py", "from noclobber.model.reports import report\n"): "- .source -> .reports (",
}


def test_import_contracts_catch_each_breach(tmp_path: Path) -> None:
    """That they are kept without these, `make check` says."""
    shutil.copytree(PACKAGE, tmp_path / "noclobber", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, text in BREACHES:
        with (tmp_path / "noclobber" / path).open("a") as module:
            module.write(f"\n{text}")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"]
    done = subprocess.run([*command, "--no-cache", "--no-logo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert [one for one in BREACHES.values() if one not in done.stdout] == [], done.stdout


def test_the_benchmark_runs() -> None:
    script = ROOT / "benchmarks" / "overhead.py"
    command = [sys.executable, str(script), "--part", "python", "--workloads", "mlp", "--pairs", "1"]
    done = subprocess.run([*command, "--modes", "install", "contents"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| MLP")]
    assert [row.split("|")[3].strip() for row in rows] == ["install", "contents"]
