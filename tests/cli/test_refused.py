"""What cannot be done is said in one line on stderr, with exit status 2, before anything of the program has run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from noclobber.cli.output import unusable, unwritable

from .running import assert_same, fresh, noclobber, write

NOT_PROGRAMS = {
    "no folder": (["run", "-o", "none/report.json", "ran.py"], "cannot write `none/report.json`: there is no folder `"),
    "file as folder": (["run", "-o", "ran.py/", "ran.py"], "cannot write `ran.py/`: File exists"),
    "no such report": (["report", "none.json"], "cannot read `none.json`: No such file or directory"),
    "report of a folder": (
        ["report", "empty"],
        "cannot read `empty`: no process has written there; `noclobber run -o DIR/` makes",
    ),
    "not JSON": (["report", "wrong.py"], "cannot read `wrong.py`: not JSON: "),
    "not text": (["report", "model.pt"], "cannot read `model.pt`: it is not text in UTF-8"),
    "negative line": (["report", "negative.json"], "cannot read `negative.json`: damaged report: `line` is -4"),
    "other form": (
        ["report", "form.json"],
        "cannot read `form.json`: damaged report: `labels` is str, which it cannot be",
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
    "unknown code": (
        ["explain", "NC110"],
        "no rule `NC110`, and no operator of this name that can be tried; did you mean `NC101`",
    ),
    "unknown word": (
        ["explain", "zzzz"],
        "no rule `zzzz`, and no operator of this name that can be tried; `noclobber explain` lists the rules",
    ),
}


@pytest.mark.parametrize(
    "words",
    [
        ["none.py"],
        ["model.pt"],
        ["latin.py"],
        ["below.py"],
        ["cookie.py"],
        ["wrong.py"],
        ["wide.py"],
        ["indented.py"],
        ["-c", "x = ("],
        ["-"],
        ["empty"],
        ["-m", "nothing_of_that_name"],
        ["-m", "package"],
    ],
    ids=" ".join,
)
def test_what_is_no_program_ends_as_under_python(tmp_path: Path, words: list[str]) -> None:
    write_no_programs(tmp_path)
    bare = assert_same(tmp_path, words, footer="", stdin="x y\n")
    assert bare.status == (2 if words == ["none.py"] else 1)


MEANT = {
    "a file": (["run", "ran"], "noclobber: did you mean `ran.py`?"),
    "a program to fix": (["fix", "rna.py"], "No such file or directory; did you mean `ran.py`?"),
    "a report": (["report", "repotr.json"], "No such file or directory; did you mean `report.json`?"),
    "an option": (["run", "--formt", "json", "ran.py"], "unrecognized arguments: --formt; did you mean `--format`?"),
    "a verb": (["rnu", "ran.py"], "; did you mean `run`?"),
    "a format": (["run", "-f", "ful", "ran.py"], "; did you mean `full`?"),
    "a code": (["explain", "NC110"], "; did you mean `NC101`"),
    "a rule that counts": (["run", "--select", "silnt-write", "ran.py"], "; did you mean `silent-write`"),
    "a rule": (["explain", "stale-safe"], "; did you mean `stale-save`"),
    "an operator": (["explain", "sigmoidd"], "; did you mean `torch.sigmoid`"),
}


@pytest.mark.parametrize(("words", "said"), MEANT.values(), ids=MEANT.keys())
def test_a_slip_of_the_pen_is_named(tmp_path: Path, words: list[str], said: str) -> None:
    write(tmp_path, {"ran.py": "print('ran')", "report.json": "{}"})
    ended = noclobber(words, tmp_path)
    assert said in ended.stderr.splitlines()[-1]
    assert (ended.stdout, ended.status) == ("", 2)


def test_a_report_is_not_meant_where_a_program_is(tmp_path: Path) -> None:
    write(tmp_path, {"ran.py": "print('ran')", "report.json": "{}"})
    assert "did you mean" not in noclobber(["run", "repotr.py"], tmp_path).stderr


def write_no_programs(folder: Path) -> None:
    """Write files that are no programs of Python."""
    write(folder, {"wrong.py": "print('ran')\n\ndef f() x\n", "wide.py": "é = '日本' x\n", "ran.py": "print('ran')"})
    write(folder, {"indented.py": "def f():\npass\n", "package/__init__.py": "print('once')"})
    (folder / "empty").mkdir()
    (folder / "model.pt").write_bytes(b"PK\x03\x04\x80\x02\x00\x00")
    (folder / "latin.py").write_bytes("x = 'é'".encode("latin-1"))
    (folder / "below.py").write_bytes(b'\n\n\nx = "a\xe9"\n')
    (folder / "cookie.py").write_bytes(b"# coding: nonesuch\n")


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
    write_no_programs(tmp_path)
    write(
        tmp_path,
        {"other.json": '{"format": "x"}', "damaged.json": '{"format": "noclobber-report/1", "findings": [{}]}'},
    )
    write(tmp_path, {"nested.json": "[" * 100_000 + "]" * 100_000, "typed.json": WRONG_TYPE})
    write(
        tmp_path, {"negative.json": NEGATIVE, "form.json": WRONG_TYPE.replace('7, "labels": []', '"", "labels": ["x"]')}
    )
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
        ["run", "-o", "ran.py", "ran.py"],
        ["fix", "-o", "ran.py", "ran.py"],
        ["report"],
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
    assert (tmp_path / "ran.py").read_text() == "print('ran')"


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


def test_a_file_system_that_is_read_only_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert unwritable(str(tmp_path / "a")) == "permission denied"
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert unwritable(str(tmp_path / "a")) == unusable(str(tmp_path)) == "the file system is read-only"


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """What explains and refuses must answer at once."""
    look = "import sys; print(sorted({'torch', 'rich', 'numpy', 'xxhash'} & set(sys.modules)))"
    for words in ([], ["explain", "NC101"], ["explain", "modified by an inplace operation"], ["run", "none.py"]):
        code = f"import noclobber.cli, sys\ntry: noclobber.cli.main({words!r})\nfinally: {look}"
        ended = fresh(["run", "-c", code], tmp_path)
        assert ended.stdout.splitlines()[-1] == "[]"
