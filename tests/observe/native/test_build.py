"""Building the native part: what is said where it cannot be built, and that nothing is lost then."""

import sysconfig
from pathlib import Path

import pytest

from noclobber.observe.native import build
from noclobber.observe.native.load import library


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused() -> tuple[str, list[str]]:
    """Return why nothing was built, and the steps before that."""
    said: list[str] = []
    with pytest.raises(build.NotBuilt) as reason:
        build.build(said.append)
    return str(reason.value), said


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    why, said = refused()
    assert why.startswith("there is no C++ compiler")
    assert said == []


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    assert refused()[0] == "there is no compiler `no-such-compiler`, which CXX names"


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho frames.c:1: nonsense\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    before = library()
    before.parent.mkdir(parents=True)
    before.write_text("what was built before")
    why, said = refused()
    assert why == f"`{compiler}` has failed with status 3:\nframes.c:1: nonsense"
    assert said == ["compiling frames.c"]
    assert [path.name for path in before.parent.iterdir()] == [before.name]
    assert before.read_text() == "what was built before"


def test_no_headers_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert refused()[0].startswith("the headers of Python are not installed")


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert refused()[0].startswith("it can be built on Linux only so far")


def test_a_later_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "NEWEST_PYTHON", (3, 10))
    assert refused()[0].startswith("it can be built for Python 3.11 to 3.10, and this is ")


def test_a_library_that_does_not_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor file; do :; done; echo no > "$file"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    before = library()
    before.parent.mkdir(parents=True)
    before.write_text("what was built before")
    why, said = refused()
    assert why.startswith("it was compiled, but does not work here: cannot be loaded: ")
    assert said[-1] == "trying it in a new Python"
    assert before.read_text() == "what was built before"


def test_no_place_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert refused()[0].startswith("there is no place for it: ")


def test_what_the_command_line_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from noclobber.cli import main

    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["doctor", "--build-native"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "noclobber: error: the native part is not built: there is no compiler `no-such-compiler`, which CXX names\n"
    )
