"""What a release is made of: the files that are uploaded, and the action that GitHub runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

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


@pytest.mark.parametrize(
    ("options", "status", "found"), [("", 1, ["NC201"]), ("--ignore NC201 --no-contents", 0, []), ("--bogus", 2, None)]
)
def test_the_action_runs_a_program(tmp_path: Path, options: str, status: int, found: list[str] | None) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    inputs = {"OPTIONS": options, "PROGRAM": "'my train.py' --lr 0.1; touch owned", "REPORT": "found.sarif"}
    assert set(step["env"]) == set(inputs)
    assert all(value == f"${{{{ inputs.{name.lower()} }}}}" for name, value in step["env"].items())
    (tmp_path / "my train.py").write_text(WRONG + "assert sys.argv[1:] == ['--lr', '0.1;', 'touch', 'owned']\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={**os.environ, **inputs, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    assert not (tmp_path / "owned").exists()
    if found is not None:
        results = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
        assert [one["ruleId"] for one in results] == found
