"""What a release is made of: the files that are uploaded, and the action that GitHub runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WRONG = "import sys, torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\ny.data.mul_(2)\ny.sum().backward()\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_what_is_built_can_be_uploaded(built: Path) -> None:
    files = sorted(str(path) for path in built.iterdir())
    assert len(files) == 2
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_wheel_has_the_package_alone(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {one for one in tops if not one.endswith(".dist-info")} == {"noclobber", "noclobber-processes.pth"}
    assert "noclobber/py.typed" in names


def test_the_wheel_works_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(packages), str(wheel)], check=True)
    (tmp_path / "wrong.py").write_text(WRONG)
    environ = os.environ | {"PYTHONPATH": str(packages), "NO_COLOR": "1"}
    for words, status, text in (
        (["run", "wrong.py"], 1, "error[NC201]"),
        (["explain", "NC101"], 0, "NC101 stale-save"),
        (["doctor"], 0, wheel.name.split("-")[1]),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "noclobber", *words], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        assert text in done.stdout + done.stderr


def acted(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The last step of the action, with some inputs."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    environ = {"OPTIONS": "", "REPORT": "found.sarif"} | {name.upper(): text for name, text in inputs.items()}
    assert set(step["env"]) == set(environ)
    assert all(value == f"${{{{ inputs.{name.lower()} }}}}" for name, value in step["env"].items())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={**os.environ, **environ, "PATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("options", "status", "found"), [("", 1, ["NC201"]), ("--ignore NC201 --no-contents", 0, []), ("--bogus", 2, None)]
)
def test_the_action_runs_a_program(tmp_path: Path, options: str, status: int, found: list[str] | None) -> None:
    (tmp_path / "my train.py").write_text(WRONG + "assert sys.argv[1:] == ['--lr', '0.1;', 'touch', 'owned']\n")
    done = acted(tmp_path, options=options, program="'my train.py' --lr 0.1; touch owned")
    assert done.returncode == status, done.stderr
    assert not (tmp_path / "owned").exists()
    if found is not None:
        results = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
        assert [one["ruleId"] for one in results] == found


def test_the_action_passes_every_word_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = acted(tmp_path, program="train.py -n -e \n -E '' \"a b\" 'c\\d' \"it's\" é")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['-n', '-e', '-E', '', 'a b', 'c\\\\d', \"it's\", 'é']\n"


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"program": ""}, "`program` is empty"),
        ({"program": " \n"}, "`program` is empty"),
        ({"program": "train.py 'a"}, "cannot split `program` into words: no closing quotation"),
        ({"program": "train.py", "options": 'a"'}, "cannot split `options` into words: no closing quotation"),
        ({"program": "train.py", "options": "--format json"}, "leave `--format` and `-o` out of `options`"),
        ({"program": "train.py", "options": "--format=json"}, "leave `--format` and `-o` out of `options`"),
        ({"program": "train.py", "options": "-f json"}, "leave `--format` and `-o` out of `options`"),
        ({"program": "train.py", "options": "--raise -o x"}, "leave `--format` and `-o` out of `options`"),
        ({"program": "train.py", "options": "-ox"}, "leave `--format` and `-o` out of `options`"),
    ],
)
def test_the_action_refuses_what_it_cannot_do(inputs: dict[str, str], why: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    (tmp_path / "shlex.py").write_text("raise SystemExit('the program shadows a module')\n")
    done = acted(tmp_path, **inputs)
    assert done.returncode == 1
    assert done.stderr.startswith("::error::noclobber: ")
    assert why in done.stderr
    assert not (tmp_path / "ran").exists()


def workflows(page: str) -> list[Any]:
    text = (ROOT / "docs" / page).read_text()
    return [yaml.safe_load(one) for one in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def test_the_workflow_of_the_documentation_gives_the_action_what_it_takes() -> None:
    github, gitlab = workflows("tests-and-ci.md")
    assert workflows("recipes.md") == [github]
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = github["jobs"]["gradients"]["steps"]
    (ours,) = (one for one in steps if "/noclobber@" in one.get("uses", ""))
    assert set(ours["with"]) <= set(action["inputs"])
    (upload,) = (one for one in steps if "upload-sarif" in one.get("uses", ""))
    assert (upload["if"], upload["with"]["sarif_file"]) == ("always()", action["inputs"]["report"]["default"])
    assert gitlab["gradients"]["artifacts"]["reports"]["junit"] in gitlab["gradients"]["script"][-1]
