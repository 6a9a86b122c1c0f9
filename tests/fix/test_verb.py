"""`noclobber fix` from outside: what it prints, what it writes, how it ends."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.repairs import Level, Repair, Repairs
from noclobber.fix.proof.trials.launcher import launching
from noclobber.fix.verb import CannotFix, told
from noclobber.model.reports.finding import Finding, Label
from noclobber.model.source import Span
from noclobber.settings.selection import Selection
from tests.cli.running import noclobber
from tests.fix import programs


@pytest.mark.smoke
def test_a_patch_is_shown_and_nothing_changes(tmp_path):
    (tmp_path / "program.py").write_text(programs.STALE)
    done = noclobber(["fix", "program.py"], tmp_path)
    assert done.status == 0
    assert done.stdout.startswith("--- a/program.py\n+++ b/program.py\n")
    assert "NC101 program.py:7" in done.stderr
    assert "proven: 3 backward calls compared, " in done.stderr
    assert (tmp_path / "program.py").read_text() == programs.STALE
    (tmp_path / "program.diff").write_text(done.stdout)
    subprocess.run(["git", "apply", "program.diff"], cwd=tmp_path, check=True)
    # what is right: the same mathematics with nothing written
    (tmp_path / "right.py").write_text(programs.STALE.replace("h += 1", "h = h + 1"))
    assert programs.printed(tmp_path / "program.py") == programs.printed(tmp_path / "right.py")


def test_write_keeps_mode_and_line_ends_and_mends(tmp_path):
    path = tmp_path / "program.py"
    path.write_bytes(programs.LEAF.replace("\n", "\r\n").encode())
    path.chmod(0o700)
    done = noclobber(["fix", "--write", "program.py"], tmp_path)
    assert (done.status, done.stderr.splitlines()[-1]) == (0, "noclobber: written: program.py")
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert os.listdir(tmp_path) == ["program.py"]
    assert json.loads(programs.printed(path)) == pytest.approx([0.8**3] * 3)  # by hand: each step takes 0.1 * 2 w


def test_what_is_checked_is_written_and_what_was_compared_is_said(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import torch\n"
        "w, out = torch.ones(2, 3, requires_grad=True), torch.empty(2, 3)\n"
        "torch.sigmoid(w, out=out)\n"
        "out.sum().backward()\n"
        "print(w.grad.tolist())\n"
    )
    done = noclobber(["fix", "--write", "program.py"], tmp_path)
    assert (done.status, done.stderr.splitlines()[-1]) == (0, "noclobber: written: program.py")
    assert (
        "  checked: first loss equal to the last bit to what it is with gradients off; gradient agrees with "
        in done.stderr
    )
    assert "noclobber: 1 fix, checked; nothing left to fix" in done.stderr
    assert json.loads(programs.printed(path))[0] == pytest.approx([0.19661193] * 3)  # by hand: s(1) * (1 - s(1))


def test_what_could_not_be_compared_is_written_where_that_is_asked_for(tmp_path):
    path = tmp_path / "program.py"
    text = (
        "import torch\n"
        "w, out = torch.ones(2, 3, requires_grad=True), torch.empty(2, 3)\n"
        "torch.sigmoid(w, out=out)\n"
        "print(out.sum().item())\n"
    )
    path.write_text(text)
    shown = noclobber(["fix", "program.py"], tmp_path)
    assert (shown.status, shown.stdout) == (1, "")
    assert "the patch, unproven:\n      --- a/program.py\n      +++ b/program.py\n      @@ " in shown.stderr
    assert "      +out = torch.sigmoid(w)\n" in shown.stderr
    assert shown.stderr.splitlines()[-1] == "next: noclobber fix --write --unproven program.py"
    refused = noclobber(["fix", "--write", "program.py"], tmp_path)
    assert (refused.status, refused.stdout) == (1, "")
    assert "no backward call runs with the patch" in refused.stderr
    assert "nothing written: not every fix is proven or checked; `--write --unproven` writes them all" in refused.stderr
    assert path.read_text() == text
    written = noclobber(["fix", "--write", "--unproven", "program.py"], tmp_path)
    assert (written.status, written.stderr.splitlines()[-1]) == (0, "noclobber: written: program.py")
    assert "out = torch.sigmoid(w)" in path.read_text()


def test_unproven_is_about_writing(tmp_path):
    done = noclobber(["fix", "--unproven", "program.py"], tmp_path)
    assert done.status == 2
    assert "`--unproven` needs `--write`: give both" in done.stderr


def test_nothing_found_is_nothing_to_fix(tmp_path):
    (tmp_path / "program.py").write_text(programs.STALE.replace("h += 1", "h = h + 1"))
    done = noclobber(["fix", "program.py"], tmp_path)
    assert (done.status, done.stdout) == (0, "")
    assert done.stderr == "noclobber: nothing to fix: no write broke a gradient (4 backward calls)\n"


TWO = """\
import torch
for step in range(9):
    w = torch.ones(3, requires_grad=True)
    a = (w * 2).exp()
    a.data.mul_(2)  # noclobber: ignore[NC201] as meant
    a.sum().backward()
    if step > 5:
        b = (w * 2).sigmoid()
        b += 1
        b.sum().backward()
"""


def test_a_comment_keeps_a_finding_out(tmp_path):
    """The second write comes so late that the search would have stopped if the first one counted."""
    (tmp_path / "program.py").write_text(TWO)
    done = noclobber(["fix", "program.py"], tmp_path)
    assert "NC101 program.py:9" in done.stderr
    assert "NC201" not in done.stderr
    (tmp_path / "program.py").write_text(TWO.replace("b += 1", "b = b + 1"))
    done = noclobber(["fix", "program.py"], tmp_path)
    assert (done.status, done.stdout) == (0, "")
    assert (
        done.stderr
        == "noclobber: nothing to fix: no write broke a gradient (12 backward calls; left out: 1 by comment)\n"
    )


def test_the_settings_of_the_project_say_what_counts(tmp_path):
    (tmp_path / "program.py").write_text(programs.STALE)
    for settings in ('ignore = ["NC101"]', 'select = ["NC2"]'):
        (tmp_path / "pyproject.toml").write_text(f"[tool.noclobber]\n{settings}\n")
        (tmp_path / "program.py").write_text(TWO.replace("ignore[NC201]", "ignore[NC202]"))
        done = noclobber(["fix", "program.py"], tmp_path)
        assert "NC201 program.py:5" in done.stderr
        assert "NC101" not in done.stderr
    (tmp_path / "pyproject.toml").write_text('[tool.noclobber]\nbaseline = "known.json"\n')
    missing = noclobber(["fix", "program.py"], tmp_path)
    assert (missing.status, missing.stdout) == (2, "")
    assert missing.stderr.startswith("noclobber: error: there is no baseline `known.json`")
    noclobber(["run", "--update-baseline", "program.py"], tmp_path)
    done = noclobber(["fix", "program.py"], tmp_path)
    assert (done.status, done.stdout) == (2, "")
    left = "left out: 2 in the baseline"
    assert done.stderr.startswith(f"noclobber: error: the program failed ({left}): ClobberError: ")
    (tmp_path / "pyproject.toml").write_text("[tool.noclobber]\nignored = []\n")
    for options in ([], ["--hints"]):
        refused = noclobber(["fix", *options, "program.py"], tmp_path)
        assert (refused.status, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert "`ignored` is unknown" in refused.stderr


def test_the_options_say_what_counts_and_what_fails(tmp_path):
    (tmp_path / "program.py").write_text(TWO.replace("ignore[NC201]", "ignore[NC202]"))
    for options in (["--ignore", "NC101"], ["--select", "NC2"]):
        done = noclobber(["fix", *options, "program.py"], tmp_path)
        assert "NC201 program.py:5" in done.stderr
        assert "NC101" not in done.stderr
    (tmp_path / "stale.py").write_text(programs.STALE)
    done = noclobber(["fix", "--select", "NC1", "stale.py"], tmp_path)
    assert done.stderr.splitlines()[-1] == "next: noclobber fix --write --select NC1 stale.py"
    missing = noclobber(["fix", "--baseline", "known.json", "program.py"], tmp_path)
    assert (missing.status, missing.stdout) == (2, "")
    assert missing.stderr.startswith("noclobber: error: there is no baseline `known.json`")
    noclobber(["run", "--baseline", "known.json", "--update-baseline", "--select", "NC201", "program.py"], tmp_path)
    done = noclobber(["fix", "--baseline", "known.json", "program.py"], tmp_path)
    assert "NC101 program.py:9" in done.stderr
    assert "NC201" not in done.stderr
    finding = Finding("NC101", "stale-save", "error", "it is left", ())
    for policy, status in (("error", 1), ("never", 0)):
        left = Repairs(left=[(finding, [])])
        assert told(left, ["a.py"], writing=False, unproven=False, selection=Selection(fail_on=policy)).status == status


@pytest.mark.parametrize(
    ("words", "text", "told"),
    [
        (["-c", "x = 1"], "", "`-c` has none"),
        (["-"], "", "stdin is not a file"),
        (["missing.py"], "", "cannot open `missing.py`"),
        (["program.py"], "import torch\nraise ValueError('no data')\n", "ValueError: no data"),
        (["program.py"], "import torch\ninput()\n", "it gets no input here"),
        (["program.py"], "import torch, os\nos.kill(os.getpid(), 9)\n", "SIGKILL"),
    ],
)
def test_what_cannot_be_run_is_refused_in_words(words, text, told, tmp_path):
    (tmp_path / "program.py").write_text(text)
    done = noclobber(["fix", *words], tmp_path)
    assert done.status == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reason_without_words_is_told_by_its_name(tmp_path):
    (tmp_path / "program.py").write_text("-" * 200_000 + "1")  # a MemoryError, which has no text in Python 3.11
    done = noclobber(["fix", "program.py"], tmp_path)
    assert done.status == 2
    assert re.search(r"`program.py` cannot be compiled: \w", done.stderr)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_process_and_leaves_nothing(tmp_path, how):
    text = textwrap.dedent(  # torchrun's ranks too are in sessions of their own
        """
        import pathlib, subprocess, sys, time
        if sys.argv[1:]:
            pathlib.Path("begun").touch()
        else:
            subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
        time.sleep(60)
        """
    )
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "noclobber", "fix", "--write", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    _, stderr = process.communicate()
    # The same to a shell. Python 3.11 ends by the signal itself where that met an `exec` of a string, as while torch is
    # imported, although the exception was handled (`unhandled_keyboard_interrupt` in pythonrun.c).
    assert process.returncode in (130, -how)
    assert stderr == "noclobber: interrupted; nothing was changed\n" * (how == signal.SIGINT)
    while how == signal.SIGTERM and (os.listdir(tmp_path / "temporary") or running(tmp_path)):
        time.sleep(0.1)  # the server ends itself
    assert os.listdir(tmp_path / "temporary") == []
    assert running(tmp_path) == []
    assert (tmp_path / "program.py").read_text() == text


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
def test_a_terminal_shows_what_is_being_done_and_for_how_long(tmp_path):
    (tmp_path / "program.py").write_text("import time\ntime.sleep(2.5)\n" + programs.STALE)
    terminal, stderr = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "noclobber", "fix", "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr
    )
    os.close(stderr)
    shown = b""
    with suppress(OSError):  # what an end that is closed gives after the last byte
        while read := os.read(terminal, 4096):
            shown += read
    os.close(terminal)
    assert done.returncode == 0
    *steps, report = shown.decode().partition("NC101 ")[0].split("\r\n")
    looking, first, *_ = (one.strip("\r").split("\r") for one in steps)
    assert report == ""
    assert looking[0].startswith("noclobber: looking for in-place writes that break a gradient ... ")
    assert len({one.rpartition("...")[2] for one in looking}) > 1  # the seconds of one step go on
    assert first[0].startswith("noclobber: trying 1 of ")


def running(folder: Path) -> list[str]:
    """What other processes run in a folder or with a file of it."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit() and one.name != str(os.getpid()):
            with suppress(OSError):
                found.append(os.readlink(one / "cwd") + (one / "cmdline").read_text())
    return [words for words in found if str(folder) in words]


def mending(path: Path, left=()) -> Repairs:
    patch = programs.replaced(path, ("x = 1", "x = 2"))
    span = Span(str(path), 1, 1, 1, 6)
    finding = Finding("NC101", "stale-save", "error", "in-place write", (Label("write", span, "here", primary=True),))
    return Repairs(patch, [Repair(finding, "write out of place", 64, "it was run")], [(one, []) for one in left or ()])


@pytest.mark.parametrize("place", ["../other/library.py", "env/lib/site-packages/library.py"])
def test_files_of_others_are_never_written(place, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = (folder / place).resolve()
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    fixed = told(mending(path), ["train.py"], writing=True, unproven=False)
    assert fixed.status == 1
    assert "+x = 2" in fixed.diff
    assert "nothing written" in fixed.words[-1]
    assert path.read_text() == "x = 1\n"


def test_a_patch_that_cannot_be_written_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")

    def refuse(source):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), source.path)

    monkeypatch.setattr("noclobber.fix.verb.replace_file", refuse)
    fixed = told(mending(tmp_path / "a.py"), ["a.py"], writing=True, unproven=False)
    assert fixed.status == 1
    assert "+x = 2" in fixed.diff
    why = "read-only file system; `-o PATCH` keeps the diff"
    assert fixed.words[-1] == f"noclobber: nothing written: {why}"


def test_a_file_elsewhere_has_a_next_step_and_a_short_name(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "a.py").write_text("x = 1\n")
    fixed = told(mending(tmp_path / "a.py"), ["../a.py"], writing=False, unproven=False)
    assert fixed.words[0].startswith("NC101 ../a.py:1: ")
    assert fixed.next == "noclobber fix -o fix.patch ../a.py"
    fixed.kept_in("fix.patch")
    assert fixed.next == "patch -d .. -p1 < fix.patch"
    (tmp_path / "here" / "fix.patch").write_text(fixed.diff)
    subprocess.run(["git", "apply", "here/fix.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "a.py").read_text() == "x = 2\n"


def test_the_patch_goes_to_a_file(tmp_path):
    (tmp_path / "program.py").write_bytes(programs.STALE.encode() + b"# \xe9\n")
    (tmp_path / "program.py").write_bytes(b"# -*- coding: latin-1 -*-\n" + (tmp_path / "program.py").read_bytes())
    done = noclobber(["fix", "-o", "fix.patch", "program.py"], tmp_path)
    assert (done.status, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-2:] == ["noclobber: the patch is in fix.patch", "next: patch -p1 < fix.patch"]
    subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
    assert b"h = h + 1" in (tmp_path / "program.py").read_bytes()
    nowhere = noclobber(["fix", "-o", "no/fix.patch", "program.py"], tmp_path)
    assert (nowhere.status, nowhere.stderr) == (
        2,
        "noclobber: error: cannot write `no/fix.patch`: there is no folder `no`\n".replace("`no`", f"`{tmp_path}/no`"),
    )


def test_a_link_out_of_the_folder_is_not_followed(tmp_path, monkeypatch):
    folder, outside = tmp_path / "project", tmp_path / "captured_tensors.py"
    folder.mkdir()
    outside.write_text("x = 1\n")
    (folder / "inside.py").symlink_to(outside)
    monkeypatch.chdir(folder)
    assert told(mending(folder / "inside.py"), ["inside.py"], writing=True, unproven=False).status == 1
    assert outside.read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("level", "options"),
    [(Level.PROVEN, "--write"), (Level.CHECKED, "--write"), (Level.UNPROVEN, "--write --unproven")],
)
def test_what_to_do_next_is_what_writes_it(tmp_path, monkeypatch, level, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    done = mending(tmp_path / "a.py")
    done.repairs = [replace(one, level=level) for one in done.repairs]
    assert told(done, ["a.py"], writing=False, unproven=False).next == f"noclobber fix {options} a.py"


def test_a_patch_that_could_not_be_compared_is_shown_for_reading_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    done = mending(tmp_path / "a.py")
    (one,) = done.repairs
    left = Repairs(replace(done.patch, after={}), [], [(one.finding, [])], [(one, done.patch)])
    fixed = told(left, ["a.py"], writing=False, unproven=False)
    assert (fixed.status, fixed.diff) == (1, "")
    assert [line for line in fixed.lines(None) if "x = " in line] == ["      -x = 1", "      +x = 2"]
    assert len([line for line in fixed.words if line.startswith(one.finding.code)]) == 1
    assert fixed.next == "noclobber fix --write --unproven a.py"


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    done = mending(path)
    path.write_text("x = 1  # more\n")
    with pytest.raises(CannotFix, match="changed in the meantime"):
        told(done, ["a.py"], writing=True, unproven=False)
    assert path.read_text() == "x = 1  # more\n"


def test_a_patch_that_leaves_findings_is_shown_and_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    done = mending(path)
    left = mending(path, [done.repairs[0].finding])
    fixed = told(left, ["a.py"], writing=True, unproven=False)
    assert fixed.status == 1
    assert "noclobber: 1 fix, proven; 1 finding left" in fixed.words
    assert fixed.words[-1] == "noclobber: nothing written: 1 finding would be left; the diff is above"
    assert path.read_text() == "x = 1\n"


def test_equal_changes_of_one_line_are_shown_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    done = mending(path)
    first = replace(done.repairs[0], extra=8)
    done.repairs = [first, first, replace(first, title="another change")]
    words = told(done, ["a.py"], writing=False, unproven=False).words
    assert [one.partition(": ")[2] for one in words if one.startswith("  fix: ")] == [
        f"{first.title} (+16 B kept for backward)",
        "another change (+8 B kept for backward)",
    ]
    assert "noclobber: 2 fixes, proven; nothing left to fix" in words


def test_leaving_the_launcher_ends_what_it_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n")
    from noclobber.fix.proof.trials.job import Order

    with launching(["program.py"]) as launcher:
        launcher.start(Order("bare", 1, 3600))
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
    assert running(tmp_path) == []


def test_a_patch_on_nothing_is_empty():
    assert Patch().served == {}


def test_a_view_that_pytorch_refuses_may_be_there_at_the_end(tmp_path):
    (tmp_path / "program.py").write_text(
        "import torch\nh = torch.ones(4, requires_grad=True) * 1\nleft, _ = h.chunk(2)\nh += 1\nh.sum().backward()\n"
    )
    done = noclobber(["fix", "program.py"], tmp_path)
    assert (done.status, done.stderr) == (0, "noclobber: nothing to fix: no write broke a gradient (1 backward call)\n")
