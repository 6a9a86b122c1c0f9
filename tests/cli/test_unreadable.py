"""Files that hold anything at all, or have no end: refused in one line with exit status 2, or passed over."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from noclobber.model.reports.finding import Finding, Label
from noclobber.model.reports.report import Report
from noclobber.model.source import Span

from .running import call, noclobber, write

OURS = f"{sys.executable} -m noclobber"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="devices and pipes of POSIX")


def about(path: str) -> str:
    """A report about a line of a file, which did not keep the line."""
    labels = (Label("write", Span(path, 3, 1, 3, 9), "overwrites it here", primary=True),)
    return Report((Finding("NC101", "stale-save", "error", "in-place write", labels),)).to_json()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("9" * 5000, "not a report: a number in it is too large"),
        ("NaN", "not JSON: `NaN` is not a number"),
        ('{"format": "noclobber-report/1", "program": {"x": 1e999}}', "not a report: a number in it is too large"),
        ("3", "expected a document of format `noclobber-report/1`, but this is something else"),
    ],
    ids=["empty", "digits", "nan", "infinite", "number"],
)
def test_a_report(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, {"a.json": text})
    ended = noclobber(["report", "a.json"], tmp_path)
    assert (ended.status, ended.stdout, ended.stderr) == (2, "", f"noclobber: error: cannot read `a.json`: {said}\n")


def test_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(Report().to_json(), encoding="utf-8-sig")
    assert noclobber(["report", "a.json"], tmp_path).status == 0


@pytest.mark.parametrize("path", ["/x/\0.py", "/x/\ud800.py", "/x/é.py"], ids=ascii)
def test_names_that_no_file_has(tmp_path: Path, path: str) -> None:
    (tmp_path / "a.json").write_text(about("PLACE").replace("PLACE", json.dumps(path)[1:-1]))
    (tmp_path / "known.json").write_text('{"format": "noclobber-baseline/1", "findings": []}')
    for more in ([], ["--baseline", "known.json"]):
        ended = noclobber(["report", "a.json", *more], tmp_path, env={"LC_ALL": "C", "PYTHONUTF8": "0"})
        assert (ended.status, ended.stderr) == (1, "")
        assert "error[NC101]" in ended.stdout


@pytest.mark.parametrize("kind", ["/dev/zero", "pipe", "sparse"])
def test_source_is_read_from_files_only(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "/dev/zero" else tmp_path / "a.py"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(5 << 30)
    (tmp_path / "a.json").write_text(about(str(path)))
    ended = noclobber(["report", "a.json"], tmp_path)
    assert ended.status == 1
    assert "3 = overwrites it here" in ended.stdout


def test_pipes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(Report().to_json())
    os.mkfifo(tmp_path / "pipe")
    assert noclobber(["report", "pipe"], tmp_path).stderr == "noclobber: error: cannot read `pipe`: the file is empty\n"
    ended = call(["bash", "-c", f"{OURS} report <(sleep 1; cat a.json)"], tmp_path)
    assert (ended.status, ended.stderr) == (0, "")


def test_an_endless_stdin_and_an_endless_baseline(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(Report().to_json())
    ended = call(["sh", "-c", f"{OURS} explain - < /dev/zero"], tmp_path)
    said = "it has 200 MB or more, which no error of PyTorch has"
    assert (ended.status, ended.stderr) == (2, f"noclobber: error: cannot read `-`: {said}\n")
    ended = noclobber(["report", "a.json", "--baseline", "/dev/zero"], tmp_path)
    assert ended.stderr.endswith("`/dev/zero`: it has 200 MB or more, which no baseline has\n")
    assert ended.status == 2


@pytest.mark.parametrize("count", ["1e400", "0", "1.5", "true", '"1"', "9" * 5000], ids=len)
def test_a_damaged_baseline(tmp_path: Path, count: str) -> None:
    entry = f'{{"code": "NC101", "path": "a.py", "source": "", "count": {count}}}'
    (tmp_path / "known.json").write_text(f'{{"format": "noclobber-baseline/1", "findings": [{entry}]}}')
    (tmp_path / "a.json").write_text(Report().to_json())
    write(tmp_path, {"ran.py": "print('ran')"})
    verbs = [["report", "a.json"], ["run", "ran.py"], ["run", "--update-baseline", "ran.py"]]
    for words in verbs if count == "0" else verbs[:1]:
        ended = noclobber([words[0], "--baseline", "known.json", *words[1:]], tmp_path)
        said = "noclobber: error: `known.json` is not a baseline that `--update-baseline` has written\n"
        assert (ended.status, ended.stdout, ended.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "[" * 20_000, "lists or tables in it are nested too deeply"),
        ("x = " + "9" * 5000, "a number in it is too large"),
        ("tool = 3", "`tool` is not a table"),
        ("tool = ", "not TOML: Invalid value (at end of document)"),
    ],
    ids=["nested", "digits", "no table", "not TOML"],
)
def test_a_project(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, {"pyproject.toml": text, "ran.py": "print('ran')"})
    ended = noclobber(["run", "ran.py"], tmp_path)
    assert ended.stderr == f"noclobber: error: cannot read `pyproject.toml`: {said}\n"
    assert (ended.status, ended.stdout) == (2, "")


def test_a_report_goes_to_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(Report().to_json())
    words: list[Any] = ["report", "-f", "html", "-o", "a.html", "a.json"]
    ended = noclobber(words, tmp_path)
    said = "noclobber: no backward ran: nothing was checked; the report is in a.html\n"
    assert (ended.status, ended.stdout, ended.stderr) == (0, "", said)
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    full = "ulimit -f 0; exec "
    ended = call(["bash", "-c", f"{full} {OURS} report -f json -o b.json a.json"], tmp_path)
    assert ended.stderr == "noclobber: error: cannot write `b.json`: File too large\n"
    assert (ended.status, sorted(os.listdir(tmp_path))) == (2, ["a.html", "a.json"])
    assert noclobber([*words[:4], "no/a.html", "a.json"], tmp_path).status == 2


def test_a_folder_has_no_format(tmp_path: Path) -> None:
    write(tmp_path, {"ran.py": "print('ran')"})
    (tmp_path / "found").mkdir()
    for asked in (["-f", "sarif"], ["--statistics"]):
        ended = noclobber(["run", *asked, "-o", "found", "ran.py"], tmp_path)
        instead = f"name a file, or use `noclobber report {' '.join(asked)} found`"
        assert f"error: `-o found` is a folder and keeps what each process finds; {instead}" in ended.stderr
        assert (ended.status, ended.stdout) == (2, "")


def test_a_report_goes_to_no_file_named_like_stdout(tmp_path: Path) -> None:
    write(tmp_path, {"ran.py": "print('ran')"})
    (tmp_path / "a.json").write_text(Report().to_json())
    for words in (["run", "-o", "-", "ran.py"], ["report", "-o", "-", "a.json"]):
        ended = noclobber(words, tmp_path)
        assert ended.stderr.endswith("error: argument -o: `-` is not a file: leave `-o` out, or write `./-`\n")
        assert (ended.status, ended.stdout, sorted(os.listdir(tmp_path))) == (2, "", ["a.json", "ran.py"])


def test_commas_at_the_end(tmp_path: Path) -> None:
    write(tmp_path, {"ran.py": ""})
    assert noclobber(["run", "--ignore", "NC208,", "ran.py"], tmp_path).status == 0
    assert noclobber(["run", "--ignore", ",", "ran.py"], tmp_path).status == 2
