"""What `run` suggests: edits that an editor can apply, the command that proves them, and what that costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import served

from .running import noclobber, write

BROKEN = """
    import sys
    import torch

    def keep(w):
        h = torch.sigmoid(w)
        h[0] = 0.0
        h[1] = 0.0
        return h

    w = torch.ones(3, requires_grad=True)
    (keep(w) * float(sys.argv[1])).sum().backward()
    print(w.grad.tolist())
    """
QUIET = """
    import torch
    w = torch.ones(3, requires_grad=True)
    w.exp().sum().backward()
    """


def test_the_edits_mend_the_program(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/train.py": BROKEN})
    ended = noclobber(["run", "--format", "json", "-o", "report.json", "-m", "pkg.train", "2", "it's"], tmp_path)
    assert ended.status == 1
    document = json.loads((tmp_path / "report.json").read_text())
    suggestion = document["findings"][0]["suggestions"][0]
    assert suggestion["applicability"] == "sound"
    path = tmp_path / "pkg" / "train.py"
    lines = path.read_text().splitlines(keepends=True)
    for edit in reversed(suggestion["edits"]):
        assert edit["path"] == str(path)
        begin, end = (
            lines[edit["line"] - 1][: edit["column"] - 1],
            lines[edit["end_line"] - 1][edit["end_column"] - 1 :],
        )
        lines[edit["line"] - 1 : edit["end_line"]] = [begin + edit["replacement"] + end]
    path.write_text("".join(lines))
    after = served.run(["-m", "pkg.train", "2"], tmp_path)
    # by hand: 2 s (1 - s) of s = 1 / (1 + 1 / e) for the element that is not overwritten
    assert json.loads(after.stdout) == pytest.approx([0, 0, 2 * 0.19661193])
    assert document["program"]["fix"]["command"] == ["noclobber", "fix", "-m", "pkg.train", "2", "it's"]


def test_the_ending_names_the_command_and_so_do_annotations(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": BROKEN})
    chosen = noclobber(["run", "--select", "NC1", "train.py", "2"], tmp_path).stderr
    assert chosen.endswith("to fix this: noclobber fix --select NC1 train.py 2\n")
    noclobber(["run", "--format", "json", "-o", "report.json", "train.py", "2", "a b"], tmp_path)
    full = noclobber(["report", "report.json"], tmp_path).stdout
    assert full.endswith("next: noclobber explain NC101\nto fix this: noclobber fix train.py 2 'a b'\n")
    assert "write into a clone of `h`\n   |\n 6 +     h = h.clone()\n" in full
    annotation = noclobber(["report", "--format", "github", "report.json"], tmp_path).stdout
    assert annotation.endswith("`h`%0A6 +     h = h.clone()%0Ato fix this: noclobber fix train.py 2 'a b'\n")


def test_a_failure_while_suggesting_leaves_the_report(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import sys\nsys.modules['noclobber.fix.edits.patch'] = None\n"})
    with (tmp_path / "train.py").open("a") as file:
        write(tmp_path, {"rest.py": BROKEN})
        file.write((tmp_path / "rest.py").read_text())
    ended = noclobber(["run", "train.py", "2"], tmp_path)
    assert ended.status == 1
    assert "error[NC101]: in-place write to a tensor that backward still needs\n" in ended.stderr
    assert "help: write into a clone of `h`\n" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("noclobber: internal error: ")


def test_the_command_runs_as_it_stands(tmp_path: Path) -> None:
    write(tmp_path, {"my train.py": BROKEN})
    ended = noclobber(["run", "my train.py", "2"], tmp_path)
    command = ended.stderr.splitlines()[-1].removeprefix("to fix this: noclobber ")
    typed = f'"{sys.executable}" -m noclobber {command}'
    done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "+    h = h.clone()" in done.stdout) == (0, True), done.stderr


def test_a_warning_about_the_syntax_is_shown_once(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": BROKEN.replace("h[1] = 0.0", 'h[1] = 0.0 if sys is "\\d" else 1.0')})
    bare = served.run(["train.py", "2"], tmp_path)
    assert bare.stderr.count("SyntaxWarning: ") > 0
    for verb in ("run", "fix"):
        watched = noclobber([verb, "train.py", "2"], tmp_path)
        assert ".clone()" in watched.stdout + watched.stderr
        assert watched.stderr.count("SyntaxWarning: ") <= bare.stderr.count("SyntaxWarning: ")
