"""When the native part is used, and what is said where it is not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from noclobber.observe.native import load

SAID = """
import noclobber
from noclobber.observe.native import bridge
with noclobber.watch() as seen:
    pass
print(seen.report.coverage.writes, bridge.why_not(), sep="; ")
"""


BROKEN = """
from types import SimpleNamespace
from noclobber.observe.native import bridge, load
native = SimpleNamespace(**vars(load.load()))
{}
bridge.load = lambda: native
"""


def said(env: dict[str, str], folder: Path, program: str = SAID) -> str:
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, "-W", "ignore", str(path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_coverage_names_what_takes_the_writes(either: dict[str, str], tmp_path: Path) -> None:
    pure = either["NOCLOBBER_PURE"] == "1"
    assert said(either, tmp_path) == ("dispatch key; turned off by NOCLOBBER_PURE" if pure else "dispatch key, native;")


def test_nothing_is_built(native: dict[str, str], tmp_path: Path) -> None:
    env = {**native, "XDG_CACHE_HOME": str(tmp_path)}
    why = "not built for this torch and this Python (`noclobber doctor --build-native` builds it)"
    assert said(env, tmp_path) == f"dispatch key; {why}"


def test_a_file_that_cannot_be_loaded(native: dict[str, str], tmp_path: Path) -> None:
    file = load.library()
    broken = tmp_path / "noclobber" / "native" / file.parent.name / file.name
    broken.parent.mkdir(parents=True)
    broken.write_text("no library")
    assert said({**native, "XDG_CACHE_HOME": str(tmp_path)}, tmp_path).startswith("dispatch key; cannot be loaded: ")


def installed(native: dict[str, str], folder: Path) -> tuple[dict[str, str], Path]:
    """A package as a wheel installs it, with an empty cache: the environment, and the file that the wheel brings."""
    package = folder / "site" / "noclobber"
    shutil.copytree(load.SOURCES.parents[1], package, ignore=shutil.ignore_patterns("__pycache__", "built"))
    home = load.brought(torch.__version__.partition("+")[0], str(sys.implementation.cache_tag))
    brought = package / home.relative_to(load.SOURCES.parents[1]) / load.library().name
    brought.parent.mkdir(parents=True)
    env = {**native, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(package.parent)}
    return env, brought


def test_what_the_wheel_brings_is_tried_once_and_used(native: dict[str, str], tmp_path: Path) -> None:
    env, brought = installed(native, tmp_path)
    shutil.copy(load.library(), brought)
    assert said(env, tmp_path) == "dispatch key, native;"
    (told,) = (tmp_path / "cache").rglob("trial")
    before = told.stat().st_mtime_ns
    assert said(env, tmp_path) == "dispatch key, native;"
    assert told.stat().st_mtime_ns == before


def test_what_the_wheel_brings_would_end_this_process(native: dict[str, str], tmp_path: Path) -> None:
    env, brought = installed(native, tmp_path)
    source = tmp_path / "crash.c"
    source.write_text("#include <stdlib.h>\nvoid *PyInit_noclobber_hot_path(void) { abort(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(brought)], check=True)
    assert said(env, tmp_path) == (
        "dispatch key; what the wheel brings does not work here: the new Python ended with status -6"
    )


def test_another_release_of_torch_has_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = load.library()
    monkeypatch.setattr("torch.__version__", "2.99.0")
    assert load.library() != mine


def test_other_sources_have_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = load.library()
    copied = shutil.copytree(load.SOURCES, tmp_path / "native")
    monkeypatch.setattr(load, "SOURCES", copied)
    assert load.library() == mine
    (copied / "saves.h").write_text("// another")
    assert load.library() != mine


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ("native.fingerprint = lambda tensor: 7", "fingerprints are equal"),
        ("native.take_records = lambda: []", "ValueError"),
        ("native.place_here = lambda: None", "lines are found"),
        ("here = native.place_here\nnative.place_here = lambda: (here()[0], 0, None)", "lines are found"),
        ("native.alive = lambda: 0", "a save is noted"),
    ],
)
def test_the_self_test_notices(native: dict[str, str], broken: str, what: str, tmp_path: Path) -> None:
    writes, why = said(native, tmp_path, BROKEN.format(broken) + SAID).split("; ", 1)
    assert writes == "dispatch key"
    assert why.startswith("its self-test has failed: ")
    assert what in why


@pytest.mark.parametrize("broken", ["native.fingerprint = lambda tensor: 7", "native.enter = None"])
def test_errors_are_found_though_the_self_test_fails(native: dict[str, str], broken: str, tmp_path: Path) -> None:
    program = """
import noclobber, torch
try:
    with noclobber.watch() as seen:
        y = torch.ones(3, requires_grad=True).exp()
        y.mul_(2)
        y.sum().backward()
except noclobber.ClobberError:
    print(seen.findings[0].code, [write.op for write in seen.findings[0].writes])
"""
    assert said(native, tmp_path, BROKEN.format(broken) + program) == "NC101 ['aten::mul_']"
