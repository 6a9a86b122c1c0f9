"""What cannot be done is said in one line on stderr, with exit status 2, before anything of the program has run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .running import noclobber, write

NOT_PROGRAMS = {
    "missing": (["run", "none.py"], "cannot open `none.py`: No such file or directory"),
    "binary": (["run", "model.pt"], "`model.pt` is not a Python program: it holds null bytes"),
    "undecodable": (["run", "latin.py"], "`latin.py` is not a Python program: invalid or missing encoding"),
    "undecodable further down": (
        ["run", "below.py"],
        "`below.py` is not a Python program: byte 9 is not text in UTF-8",
    ),
    "unknown encoding": (["run", "cookie.py"], "`cookie.py` is not a Python program: unknown encoding"),
    "syntax error": (["run", "wrong.py"], "wrong.py:3:9: expected ':'"),
    "wide characters": (["run", "wide.py"], "wide.py:1:10: "),
    "indentation": (["run", "indented.py"], "indented.py:2:1: expected an indented block"),
    "code": (["run", "-c", "x = ("], "<string>:1:5: '(' was never closed"),
    "stdin": (["run", "-"], "<stdin>:1:3: "),
    "empty folder": (["run", "empty"], "can't find '__main__' module in "),
    "missing module": (["run", "-m", "nothing_of_that_name"], "No module named nothing_of_that_name"),
    "package": (["run", "-m", "package"], "No module named package.__main__; 'package' is a package"),
    "no folder": (["run", "-o", "none/report.json", "ran.py"], "cannot write `none/report.json`: there is no folder `"),
    "file as folder": (["run", "-o", "ran.py/", "ran.py"], "cannot write `ran.py/`: File exists"),
    "no such report": (["report", "none.json"], "cannot read `none.json`: No such file or directory"),
    "report of a folder": (["report", "empty"], "cannot read `empty`: no process has written there"),
    "not JSON": (["report", "wrong.py"], "cannot read `wrong.py`: not JSON: "),
    "not text": (["report", "model.pt"], "cannot read `model.pt`: it is not text in UTF-8"),
    "negative line": (["report", "negative.json"], "cannot read `negative.json`: damaged report: `line` is -4"),
    "other form": (
        ["report", "form.json"],
        "cannot read `form.json`: damaged report: a part of it is not as noclobber builds it",
    ),
    "endless": (["report", "/dev/zero"], "cannot read `/dev/zero`: it has 200 MB or more, which no report has"),
    "another format": (
        ["report", "other.json"],
        "cannot read `other.json`: expected a document of format `noclobber-report/1`, but this is of format `x`",
    ),
    "damaged": (["report", "damaged.json"], "cannot read `damaged.json`: damaged report: `code` is missing somewhere"),
    "report on stdin": (["report", "-"], "cannot read `-`: not JSON: "),
    "nested": (["report", "nested.json"], "cannot read `nested.json`: not a report: lists or objects in it are nested"),
    "wrong type": (["report", "typed.json"], "cannot read `typed.json`: damaged report: `message` is int"),
    "unknown code": (["explain", "NC110"], "no rule `NC110`, and no operator of this name that can be tried; close to"),
    "unknown word": (
        ["explain", "zzzz"],
        "no rule `zzzz`, and no operator of this name that can be tried; `noclobber explain` lists the rules",
    ),
}


WRONG_TYPE = """{"format": "noclobber-report/1", "program": {}, "coverage": {"writes": "", "saves": true, "unseen": [],
    "contents": true, "backwards": 1, "raised": 0}, "findings": [{"code": "NC101", "rule": "", "severity": "error",
    "message": 7, "labels": [], "tensor": null, "save": null, "writes": [], "count": 1, "notes": [],
    "event": null, "cause": null, "fields": [], "names": [], "suggestions": []}]}"""


NEGATIVE = WRONG_TYPE.replace(
    '"message": 7, "labels": []',
    """"message": "", "labels": [{"role": "write", "primary": true,
    "path": "x.py", "line": -4, "column": 1, "end_line": -4, "end_column": 2, "text": "", "source": []}]""",
)


@pytest.mark.parametrize(("words", "line"), NOT_PROGRAMS.values(), ids=NOT_PROGRAMS.keys())
def test_one_clear_line(tmp_path: Path, words: list[str], line: str) -> None:
    write(tmp_path, {"wrong.py": "print('ran')\n\ndef f() x\n", "wide.py": "é = '日本' x\n", "ran.py": "print('ran')"})
    write(tmp_path, {"indented.py": "def f():\npass\n", "package/__init__.py": "", "other.json": '{"format": "x"}'})
    write(tmp_path, {"damaged.json": '{"format": "noclobber-report/1", "findings": [{}]}'})
    write(tmp_path, {"nested.json": "[" * 100_000 + "]" * 100_000, "typed.json": WRONG_TYPE})
    write(tmp_path, {"negative.json": NEGATIVE, "form.json": WRONG_TYPE.replace('"labels": []', '"labels": ["x"]')})
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\x80\x02\x00\x00")
    (tmp_path / "latin.py").write_bytes("x = 'é'".encode("latin-1"))
    (tmp_path / "below.py").write_bytes(b'\n\n\nx = "a\xe9"\n')
    (tmp_path / "cookie.py").write_bytes(b"# coding: nonesuch\n")
    ended = noclobber(words, tmp_path, stdin="x y\n")
    assert ended.stderr.startswith(f"noclobber: error: {line}")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.endswith("\n")
    assert (ended.stdout, ended.status) == ("", 2)


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "-m"],
        ["run", "-c"],
        ["run", "--"],
        ["run", "--format", "xml", "ran.py"],
        ["run", "--form", "json", "ran.py"],
        ["run", "--unknown", "ran.py"],
        ["run", "-o"],
        ["report"],
        ["report", "a", "b"],
        ["nonesuch"],
        ["--unknown"],
    ],
    ids=" ".join,
)
def test_bad_options(tmp_path: Path, words: list[str]) -> None:
    write(tmp_path, {"ran.py": "print('ran')"})
    ended = noclobber(words, tmp_path)
    assert ended.stderr.startswith("usage: noclobber")
    assert ": error: " in ended.stderr
    assert (ended.stdout, ended.status) == ("", 2)


def test_nothing_asked_for_prints_the_help(tmp_path: Path) -> None:
    ended = noclobber([], tmp_path)
    assert ended.stderr.startswith("usage: noclobber")
    assert "example: noclobber run train.py" in ended.stderr
    assert ended.status == 2


def test_the_usage_of_run_names_what_selects(tmp_path: Path) -> None:
    usage = noclobber(["run", "--help"], tmp_path).stdout.partition("\n\n")[0]
    options = ("-f", "-o", "--select", "--ignore", "--baseline", "--update-baseline")
    assert [one for one in options if f"[{one}" not in usage and f"{one}]" not in usage] == []


@pytest.mark.parametrize("verb", ["run", "explain", "report"])
def test_help_of_a_verb_has_an_example(tmp_path: Path, verb: str) -> None:
    ended = noclobber([verb, "--help"], tmp_path)
    assert f"noclobber {verb} " in ended.stdout.partition("example")[2]
    assert (ended.stderr, ended.status) == ("", 0)


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    write(tmp_path, {"ran.py": "print('ran')"})
    tmp_path.chmod(0o500)
    ended = noclobber(["run", "-o", "report.json", "ran.py"], tmp_path)
    tmp_path.chmod(0o700)
    assert ended.stderr == "noclobber: error: cannot write `report.json`: permission denied\n"
    assert (ended.stdout, ended.status) == ("", 2)


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """What explains and refuses must answer at once."""
    look = "import sys; print(sorted({'torch', 'rich', 'numpy', 'xxhash'} & set(sys.modules)))"
    for words in ([], ["explain", "NC101"], ["explain", "modified by an inplace operation"], ["run", "none.py"]):
        code = f"import noclobber.cli, sys\ntry: noclobber.cli.main({words!r})\nfinally: {look}"
        ended = noclobber(["run", "-c", code], tmp_path)
        assert ended.stdout.splitlines()[-1] == "[]"
