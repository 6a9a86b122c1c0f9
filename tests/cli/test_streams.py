"""Streams that are closed, full or read no further: one line on stderr, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noclobber.model.reports.report import Report

from .running import ENVIRONMENT, call, write

OURS = f"{sys.executable} -m noclobber"
READERS = ["report out.json", "explain NC101", "--help"]
STALE = """
    import torch
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y += 1
    y.sum().backward()
    """

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out.json").write_text(Report().to_json())
    write(tmp_path, {"train.py": STALE})
    return tmp_path


@pytest.mark.parametrize("words", READERS)
@pytest.mark.parametrize(("to", "why"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")])
def test_a_stdout_that_takes_nothing(folder: Path, words: str, to: str, why: str) -> None:
    ended = call(["sh", "-c", f"{OURS} {words} {to}"], folder)
    assert (ended.status, ended.stderr) == (2, f"noclobber: error: cannot write to stdout: {why}\n")


@pytest.mark.parametrize("words", READERS)
def test_a_reader_that_has_seen_enough(folder: Path, words: str) -> None:
    ended = call(["bash", "-c", f"{OURS} {words} | true; exit ${{PIPESTATUS[0]}}"], folder)
    assert ended.stderr == ""
    assert ended.status in (0, 1)  # 0 where all was written before the reader went


def test_fix_says_in_words_what_stdout_did_not_take(folder: Path) -> None:
    ended = call(["sh", "-c", f"{OURS} fix train.py >&-"], folder)
    assert ended.stderr.splitlines()[-1] == "noclobber: error: cannot write to stdout: it is closed"
    assert "noclobber: 1 fix, proven; nothing left to fix\n" in ended.stderr
    assert ended.status == 2


def test_fix_gives_the_patch_to_stdout_where_stderr_is_closed(folder: Path) -> None:
    ended = call(["sh", "-c", f"{OURS} fix train.py 2>&-"], folder)
    assert (ended.status, ended.stderr) == (0, "")
    assert ended.stdout.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert ended.stdout.endswith("+y = y + 1\n y.sum().backward()\n")


@pytest.mark.parametrize("words", ["report none.json", "nonesuch", "fix none.py"])
def test_an_error_does_not_go_to_stdout_instead(folder: Path, words: str) -> None:
    ended = call(["sh", "-c", f"{OURS} {words} 2>&-"], folder)
    assert (ended.status, ended.stdout, ended.stderr) == (2, "", "")


def test_a_current_folder_that_was_removed(folder: Path) -> None:
    command = f"mkdir gone; cd gone; rmdir ../gone; for f in full sarif; do {OURS} report -f $f ../out.json; done"
    ended = call(["sh", "-c", command.replace("../out.json", str(folder / "out.json"))], folder)
    assert ended.stderr == ""
    assert "nothing was checked" in ended.stdout
    assert '"version": "2.1.0"' in ended.stdout


@pytest.mark.parametrize("verb", ["run", "fix"])
def test_nothing_runs_in_a_folder_that_was_removed(folder: Path, verb: str) -> None:
    command = f"mkdir gone; cd gone; rmdir ../gone; {OURS} {verb} {folder / 'train.py'}"
    ended = call(["sh", "-c", command], folder)
    assert (ended.status, ended.stdout, ended.stderr) == (
        2,
        "",
        "noclobber: error: the current folder was removed\n",
    )


@pytest.mark.parametrize("words", [["report", "-"], ["explain", "-"], ["doctor"]], ids=" ".join)
def test_an_interrupt_is_one_line(tmp_path: Path, words: list[str]) -> None:
    # `doctor` is met while it imports torch, the others while they read.
    write(tmp_path, {"torch.py": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"})
    interrupt = """if True:
        import os, signal, sys
        from noclobber import cli
        def called(frame, event, function):
            of = getattr(function, "__self__", None)
            if event == "c_call" and (of is sys.stdin or of is sys.stdin.buffer):
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGINT)
        sys.setprofile(called)
        sys.exit(cli.main(sys.argv[1:]))
        """
    process = subprocess.Popen(
        [sys.executable, "-c", interrupt, *words],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.read() == "noclobber: interrupted\n"
    assert process.wait() in (130, -signal.SIGINT)
