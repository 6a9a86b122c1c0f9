"""`--select`, `--ignore`, comments and baselines, from outside: what is shown, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

from .running import fresh, noclobber, write

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
    assert ignored.stderr.endswith(" (left out: 1 ignored)\n")
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
    assert first == "noclobber: nothing found that counts in 1 backward call (left out: 1 by comment)"
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
    first = noclobber(["run", "--baseline", "known.json", "--update-baseline", "train.py"], tmp_path)
    wrote = "noclobber: the baseline known.json has 1 finding: 1 new, 0 taken out"
    nothing = "noclobber: nothing found that counts in 1 backward call (left out: 1 in the baseline)"
    assert (first.status, first.stderr.splitlines()) == (0, [wrote, nothing])
    assert noclobber(["run", "--baseline", "known.json", "train.py"], tmp_path).stderr.splitlines() == [nothing]
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
        ended = fresh(["run", "--format", "sarif", "-o", "out", script], tmp_path)
        (told,) = json.loads((tmp_path / "out").read_text())["runs"][0]["invocations"]
        assert (ended.status, told["executionSuccessful"], told.get("exitCode")) == (status, good, code)
        if script == "other.py":
            assert told["toolExecutionNotifications"][0]["message"]["text"].startswith("nothing was watched: ")


WARNED = """
    import torch
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    with torch.no_grad():
        h.mul_(3)
    h.sum().backward()
    """


def test_a_report_gates_as_a_run_does(tmp_path: Path) -> None:
    write(tmp_path, {"wrong.py": PROGRAM, "warned.py": WARNED})
    for script, options, status in (
        ("wrong.py", [], 1),
        ("wrong.py", ["--fail-on", "never"], 0),
        ("wrong.py", ["--ignore", "NC2"], 0),
        ("warned.py", [], 0),
        ("warned.py", ["--fail-on", "warning"], 1),
    ):
        ran = noclobber(["run", *options, "-o", "out.json", script], tmp_path)
        assert ran.status == status, (script, options)
        noclobber(["run", "--fail-on", "never", "-o", "out.json", script], tmp_path)
        shown = noclobber(["report", *options, "-o", "out.txt", "out.json"], tmp_path)
        assert shown.status == status, (script, options)
        assert shown.stderr.startswith("noclobber: ")
    write(
        tmp_path, {"pyproject.toml": '[tool.noclobber]\nfail-on = "warning"\nper-file-ignores = {"wrong.py" = ["NC2"]}'}
    )
    assert [noclobber(["run", script], tmp_path).status for script in ("warned.py", "wrong.py")] == [1, 0]
    assert noclobber(["run", "--fail-on", "error", "warned.py"], tmp_path).status == 0


def test_two_nodes_fail_on_what_is_new_only(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    for node in "01":
        assert noclobber(["run", "--fail-on", "never", "-o", "found/", "train.py"], tmp_path).status == 0, node
    assert noclobber(["report", "found/"], tmp_path).status == 1
    updated = noclobber(["report", "--baseline", "known.json", "--update-baseline", "found/"], tmp_path)
    assert (updated.status, updated.stderr) == (
        0,
        "noclobber: the baseline known.json has 1 finding: 1 new, 0 taken out\n",
    )
    assert noclobber(["report", "--baseline", "known.json", "found/"], tmp_path).status == 0
    write(tmp_path, {"train.py": PROGRAM + "z = x.exp()\n    z.data.add_(1)\n    z.sum().backward()\n"})
    assert noclobber(["run", "--fail-on", "never", "-o", "new/", "train.py"], tmp_path).status == 0
    assert noclobber(["report", "--baseline", "known.json", "new/"], tmp_path).status == 1
    both = noclobber(["report", "--baseline", "known.json", "-f", "concise", "found/", "new/"], tmp_path)
    assert (both.status, len(both.stdout.splitlines())) == (1, 1)
    assert "left out: 1 in the baseline" in both.stderr
    refused = noclobber(["report", "found/", "known.json"], tmp_path)
    assert (refused.status, "`known.json` is no folder" in refused.stderr) == (2, True)


def test_nodes_may_have_their_files_in_folders_of_their_own(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("node", "other", "gate")]
    for place in places:
        write(place, {"src/train.py": PROGRAM})
        noclobber(["run", "--fail-on", "never", "-o", f"{tmp_path}/found/", "src/train.py"], place)
    *nodes, gate = places
    updating = ["run", "--baseline", "known.json", "--update-baseline", "src/train.py"]
    assert noclobber(updating, gate).status == 0
    shown = noclobber(["report", "-f", "concise", "../found"], gate)
    assert (shown.status, shown.stdout.count("\n")) == (1, 1)
    assert shown.stdout.startswith("src/train.py:4:1: NC201 ")
    assert noclobber(["report", "--baseline", "known.json", "../found"], gate).status == 0
    for place in nodes:
        write(place, {"src/train.py": PROGRAM + "z = x.exp()\n    z.data.add_(1)\n    z.sum().backward()\n"})
        noclobber(["run", "--fail-on", "never", "-o", "new.json", "src/train.py"], place)
        assert noclobber(["report", "--baseline", "known.json", "../node/new.json"], gate).status == 1


def test_the_ending_of_a_file_chooses_the_format(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    begins = {
        "html": "<!doctype html>",
        "json": '{\n  "format"',
        "sarif": '{\n  "$schema"',
        "xml": "<?xml",
        "txt": "error[",
    }
    noclobber(["run", "-o", "report.json", "train.py"], tmp_path)
    for ending, text in begins.items():
        noclobber(["report", "-o", f"out.{ending}", "report.json"], tmp_path)
        assert (tmp_path / f"out.{ending}").read_text().startswith(text)
    refused = noclobber(["report", "-f", "json", "-o", "out.html", "report.json"], tmp_path)
    assert refused.status == 2
    assert refused.stderr.splitlines()[-1].endswith(
        "error: `-f json` and `-o out.html` contradict each other: leave one out, or rename the file"
    )
    assert noclobber(["report", "-f", "sarif", "-o", "out.json", "report.json"], tmp_path).status == 1
    assert noclobber(["report", "-f", "concise", "-o", "out.txt", "report.json"], tmp_path).status == 1
