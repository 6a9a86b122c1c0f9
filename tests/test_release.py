"""Environments of other releases (requirements/release.py): when one is ready, and when it is made anew."""

import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


class Interrupted(Exception):
    """What ends an installation before its end."""


@pytest.fixture
def release(tmp_path, monkeypatch):
    """The script in a small checkout, where pip only notes what it is asked for: `asked`, and fails at `fails`."""
    for name in ("pyproject.toml", "requirements/release.py", "requirements/dev.lock"):
        tmp_path.joinpath("checkout", name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    spec = importlib.util.spec_from_file_location("release", tmp_path / "checkout" / "requirements" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.asked, module.fails = [], ""

    def pip(command, **_):
        what = " ".join(map(str, command[command.index("install") :])) if "install" in command else "ensurepip"
        if module.fails and module.fails in what:
            raise Interrupted
        module.asked.append(what)

    monkeypatch.setattr(module.subprocess, "run", pip)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return module


def make(release, monkeypatch, capsys, version="2.99.0"):
    """What is printed, and what pip was asked for."""
    release.asked.clear()
    monkeypatch.setattr(sys, "argv", ["release.py", version])
    release.main()
    return capsys.readouterr().out, [" ".join(one.split()[3:]) for one in release.asked if one != "ensurepip"]


def test_the_lock_without_its_torch_and_then_the_release(release, monkeypatch, capsys):
    said, asked = make(release, monkeypatch, capsys)
    assert said == "2.99.0\n"
    others, torch, package = asked
    listed = Path(others.removeprefix("-r ")).read_text().splitlines()
    locked = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    assert [line for line in locked if line not in listed] == [line for line in locked if line.startswith("torch==")]
    assert torch == "--no-cache-dir torch==2.99.0"
    assert package.endswith(f"--editable {release.ROOT}")


def test_what_is_ready_is_kept(release, monkeypatch, capsys):
    make(release, monkeypatch, capsys)
    assert make(release, monkeypatch, capsys) == ("2.99.0\n", [])


@pytest.mark.parametrize("at", ["-r ", "torch==", "--editable"])
def test_an_interrupted_installation_does_not_count(at, release, monkeypatch, capsys):
    release.fails = at
    with pytest.raises(Interrupted):
        make(release, monkeypatch, capsys)
    release.fails = ""
    assert make(release, monkeypatch, capsys)[1][-1].startswith("--no-deps")


def test_a_new_lock_makes_it_anew(release, monkeypatch, capsys):
    make(release, monkeypatch, capsys)
    with (release.ROOT / "requirements" / "dev.lock").open("a") as lock:
        lock.write("another==1.0\n")
    assert len(make(release, monkeypatch, capsys)[1]) == 3


def test_an_interrupted_renewal_does_not_count(release, monkeypatch, capsys):
    make(release, monkeypatch, capsys)
    lock = release.ROOT / "requirements" / "dev.lock"
    before = lock.read_text()
    lock.write_text(before + "another==1.0\n")
    release.fails = "torch=="
    with pytest.raises(Interrupted):
        make(release, monkeypatch, capsys)
    release.fails = ""
    lock.write_text(before)
    assert make(release, monkeypatch, capsys)[1][-1].endswith("torch==2.99.0")


def test_another_checkout_shares_it_and_has_its_own_package(release, monkeypatch, capsys, tmp_path):
    make(release, monkeypatch, capsys)
    shutil.copytree(release.ROOT, tmp_path / "another", ignore=shutil.ignore_patterns(".venv*"))
    monkeypatch.setattr(release, "ROOT", tmp_path / "another")
    (package,) = make(release, monkeypatch, capsys)[1]
    assert package.endswith(f"--editable {tmp_path / 'another'}")


def test_the_oldest_is_what_pyproject_says(release):
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"torch>={release.oldest().removesuffix('.0')}" in dependencies
