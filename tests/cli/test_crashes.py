"""A crash inside noclobber never hides how the program ended; what `run` asks of a session, and when."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .running import Ended, call, write

DRIVER = """
import sys
from noclobber import cli
from noclobber.session import session
from noclobber.model.reports.report import Coverage, Report

crash = sys.argv[1]

class Session:
    started = False
    journal = fake = account = allocations = None
    every = 0
    def __init__(self, on_write, **more):
        self.pass_through("init", on_write)
    def handed_on(self):
        return {}
    def start(self):
        self.pass_through("start")
    def escaped(self, error):
        self.pass_through("escaped", repr(error))
    def stop(self):
        self.pass_through("stop")
    def report(self, program):
        self.pass_through("report", program["argv"], program["status"], program["torch"])
        return Report(program=program)
    def coverage(self):
        return Coverage()
    def pass_through(self, name, *given):
        print("session", name, *given, flush=True)
        if name == crash:
            raise ValueError(f"{name} went wrong\\nin two lines")

session.Session = Session
sys.exit(cli.main(sys.argv[2:]))
"""
PROGRAM = {
    "main.py": """
        import sys
        print("before")
        import torch
        print("after", torch.x)
        sys.exit(f"the program's own end {len(sys.argv)}")
        """,
    "torch.py": "autograd = None\n__version__ = '0.0'\nx = 1\n",
}
OWN_END = "the program's own end 2\n"


def drive(folder: Path, crash: str, *words: str, env: dict[str, str] | None = None) -> Ended:
    """Run the program with a session that tells what it is asked, and crashes at one point."""
    write(folder, PROGRAM)
    return call([sys.executable, "-c", DRIVER, crash, "run", *words, "main.py", "x"], folder, env=env)


def test_what_a_session_is_asked(tmp_path: Path) -> None:
    ended = drive(tmp_path, "nowhere")
    assert ended.stdout.splitlines() == [
        "session init record",
        "before",
        "session start",
        "after 1",
        'session escaped SystemExit("the program\'s own end 2")',
        "session stop",
        "session report ['main.py', 'x'] 1 0.0",
    ]
    assert ended.stderr.startswith(OWN_END + "noclobber: no backward ran: nothing was checked")
    assert drive(tmp_path, "nowhere", "--raise").stdout.startswith("session init raise\n")


@pytest.mark.parametrize("crash", ["start", "escaped", "stop", "report"])
def test_a_crash_is_one_line_after_the_program(tmp_path: Path, crash: str) -> None:
    ended = drive(tmp_path, crash)
    assert [line for line in ended.stdout.splitlines() if not line.startswith("session")] == ["before", "after 1"]
    assert ended.stderr.startswith(OWN_END)
    assert ended.status == 1
    told = ended.stderr.splitlines()[-1]
    assert told.startswith(f"noclobber: internal error: ValueError: {crash} went wrong (")
    assert "NOCLOBBER_DEBUG" in told
    assert "Traceback" not in ended.stderr
    if crash == "start":
        assert "noclobber: nothing was watched\n" in ended.stderr


def test_the_traceback_of_a_crash_is_for_those_who_ask(tmp_path: Path) -> None:
    stderr = drive(tmp_path, "start", env={"NOCLOBBER_DEBUG": "1"}).stderr
    assert "Traceback (most recent call last)" in stderr
    assert stderr.endswith("ValueError: start went wrong\nin two lines\n")


def test_a_report_that_cannot_be_written_is_printed(tmp_path: Path) -> None:
    write(tmp_path, {"torch.py": "import shutil; shutil.rmtree('reports'); autograd = None; __version__ = '0.0'"})
    (tmp_path / "reports").mkdir()
    write(tmp_path, {"main.py": "import torch"})
    words = ["run", "--format", "json", "-o", "reports/a.json", "main.py"]
    ended = call([sys.executable, "-c", DRIVER, "nowhere", *words], tmp_path)
    first, rest = ended.stderr.split("\n", 1)
    assert first == "noclobber: cannot write `reports/a.json`: No such file or directory; the report follows"
    assert rest.startswith('{\n  "format": "noclobber-report/1"')
    assert ended.status == 0
