"""What .ci/run does, with a `make` that only notes how it is called: its order, and that no failure is lost."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKE = """\
#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
    *"$FAILS"*) exit 3 ;;
    *release*) echo 2.99.0 ;;
    *) echo "made $*" ;;
esac
"""
TENTH = "conformance PART=0.1"
FUZZ = "fuzz TORCH=2.99.0 N=300"
NATIVE = ["fuzz NATIVE=1 N=300", "test NATIVE=1 TESTS=tests/observe tests/rules"]
OTHER = "test TORCH=2.99.0 TESTS=tests/observe tests/rules"


def run(folder: Path, *, fails: str = "nothing", began: int = 0, compiler: str = "sh") -> tuple[int, list[str], str]:
    """The exit status, the calls of make, and all that was printed; `began` is how many seconds ago it all began."""
    folder.joinpath("bin").mkdir()
    make = folder / "bin" / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    environ = {
        "PATH": f"{make.parent}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "FAILS": fails,
        "CXX": compiler,
    }
    done = subprocess.run(
        [folder / ".ci" / "run"],
        env=environ | {"SECONDS": str(began)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, folder.joinpath("calls").read_text().splitlines(), done.stdout


def test_everything_and_then_another_release(tmp_path: Path) -> None:
    status, calls, said = run(tmp_path)
    assert status == 0
    assert calls[0] in ("--silent release TORCH=oldest", "--silent release TORCH=newest")
    assert calls[1:] == [TENTH, "native", "test", *NATIVE, FUZZ, OTHER]
    assert said.splitlines()[-1] == f"made {OTHER}"
    assert "PASSED OVER" not in said


@pytest.mark.parametrize(
    ("fails", "last"),
    [
        ("conformance", TENTH),
        ("native", "native"),
        ("test", "test"),
        ("fuzz NATIVE", NATIVE[0]),
        ("test NATIVE", NATIVE[1]),
        ("fuzz TORCH", FUZZ),
        ("test TORCH", OTHER),
    ],
)
def test_a_failure_of_any_stage_fails_the_whole(fails: str, last: str, tmp_path: Path) -> None:
    status, calls, _ = run(tmp_path, fails=fails)
    assert status != 0
    assert calls[-1] == last


def test_a_release_that_cannot_be_installed_is_passed_over_aloud(tmp_path: Path) -> None:
    status, calls, said = run(tmp_path, fails="release")
    assert (status, calls[1:]) == (0, [TENTH, "native", "test", *NATIVE])
    assert "PASSED OVER" in said
    assert said.splitlines()[-1] == f"made {NATIVE[-1]}"


def test_the_native_part_is_passed_over_aloud_without_a_compiler(tmp_path: Path) -> None:
    status, calls, said = run(tmp_path, compiler="no-such-compiler")
    assert (status, calls[1:]) == (0, [TENTH, "test", FUZZ, OTHER])
    assert "PASSED OVER: the native part" in said


def test_the_other_release_is_passed_over_aloud_where_time_is_short(tmp_path: Path) -> None:
    status, calls, said = run(tmp_path, began=40 * 60)
    assert (status, calls[-1]) == (0, NATIVE[-1])
    assert "PASSED OVER: torch 2.99.0" in said
