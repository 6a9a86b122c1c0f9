"""`--select`, `--ignore`, comments and baselines, from outside: what is shown, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

from .running import noclobber, write

PROGRAM = """
    import torch
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.data.mul_(2)
    y.sum().backward()
    """


def test_what_is_ignored_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    ignored = noclobber(["run", "--ignore", "NC201", "train.py"], tmp_path)
    assert ignored.status == 0
    assert ignored.stderr.endswith(" (1 suppressed)\n")
    write(tmp_path, {"pyproject.toml": '[tool.noclobber]\nignore = ["NC2"]\n'})
    assert noclobber(["run", "train.py"], tmp_path).status == 0
    shown = noclobber(["run", "--ignore", "NC1", "--format", "concise", "train.py"], tmp_path)
    assert (shown.status, shown.stderr[:20]) == (1, "train.py:4:1: NC201 ")
    refused = noclobber(["run", "--select", "x", "train.py"], tmp_path)
    assert (refused.status, refused.stdout) == (2, "")
    assert refused.stderr.startswith("noclobber: error: --select: 'x' is neither a code")


def test_a_comment_is_used_or_told(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM.replace("mul_(2)", "mul_(2)  # noclobber: ignore[NC201, NC104] as meant")})
    ended = noclobber(["run", "train.py"], tmp_path)
    assert ended.status == 0
    first, second = ended.stderr.splitlines()
    assert first == "noclobber: nothing found that counts in 1 backward call (1 suppressed)"
    assert second == "note: `noclobber: ignore[NC104]` at train.py:4 kept nothing out in this run"


def test_an_old_code_base_begins_green_and_stays_so(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    missing = noclobber(["run", "--baseline", "known.json", "train.py"], tmp_path)
    assert (missing.status, missing.stderr) == (
        2,
        "noclobber: error: there is no baseline `known.json`; `noclobber run --update-baseline` makes it\n",
    )
    nowhere = noclobber(["run", "--baseline", "no/known.json", "--update-baseline", "train.py"], tmp_path)
    assert (nowhere.status, nowhere.stdout) == (2, "")
    assert "error: cannot write the baseline `" in nowhere.stderr
    assert noclobber(["run", "--baseline", "known.json", "--update-baseline", "train.py"], tmp_path).status == 0
    assert noclobber(["run", "--baseline", "known.json", "train.py"], tmp_path).status == 0
    write(
        tmp_path,
        {
            "train.py": "import sys\n"
            + PROGRAM.replace("    ", "")
            + "z = x.exp()\nz.data.add_(1)\nz.sum().backward()\n"
        },
    )
    ended = noclobber(["run", "--baseline", "known.json", "--format", "sarif", "-o", "out.sarif", "train.py"], tmp_path)
    assert ended.status == 1
    results = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    assert [one["ruleId"] for one in results] == ["NC201"]


def test_a_baseline_is_not_updated_without_a_file(tmp_path: Path) -> None:
    ended = noclobber(["run", "--update-baseline", "train.py"], tmp_path)
    assert ended.status == 2
    assert "`--update-baseline` needs `--baseline FILE`" in ended.stderr


def test_notes_are_told_in_every_format(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM.replace("mul_(2)", "mul_(2)  # noclobber: ignore[NC104]")})
    note = "`noclobber: ignore[NC104]` at train.py:4 kept nothing out in this run"
    concise = noclobber(["run", "--format", "concise", "train.py"], tmp_path).stderr.splitlines()
    assert [concise[0][:20], concise[1:]] == ["train.py:4:1: NC201 ", [f"noclobber: note: {note}"]]
    github = noclobber(["run", "--format", "github", "train.py"], tmp_path).stderr.splitlines()
    assert github[1:] == [f"::notice title=noclobber::{note}"]
    for format in ("full", "sarif", "json"):
        written = noclobber(["run", "--format", format, "-o", "out", "train.py"], tmp_path).stderr.splitlines()
        assert written == ["noclobber: 1 error; the report is in out", f"noclobber: note: {note}"]
        if format == "sarif":
            (run,) = json.loads((tmp_path / "out").read_text())["runs"]
            assert run["tool"]["driver"]["rules"][0]["help"]["text"].startswith("NC201 silent-write: ")
            (told,) = run["invocations"]
            assert [one["message"]["text"] for one in told["toolExecutionNotifications"]] == [note]
    shown = noclobber(["report", "--format", "concise", "out"], tmp_path)
    assert (shown.stdout.count("\n"), shown.stderr) == (1, f"noclobber: note: {note}\n")


def test_a_program_that_failed_does_not_look_right(tmp_path: Path) -> None:
    write(tmp_path, {"fails.py": "import torch\nraise SystemExit(3)\n", "other.py": "print(1)\n", "wrong.py": PROGRAM})
    for script, status, good, code in (
        ("fails.py", 3, False, 3),
        ("other.py", 0, True, None),
        ("wrong.py", 1, True, None),
    ):
        ended = noclobber(["run", "--format", "sarif", "-o", "out", script], tmp_path)
        (told,) = json.loads((tmp_path / "out").read_text())["runs"][0]["invocations"]
        assert (ended.status, told["executionSuccessful"], told.get("exitCode")) == (status, good, code)
        if script == "other.py":
            assert told["toolExecutionNotifications"][0]["message"]["text"].startswith("nothing was watched: ")
