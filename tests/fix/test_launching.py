"""Processes that run the program: one imports torch for all of them, or each one where nothing can be forked."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from noclobber.fix.proof.trials import launcher
from noclobber.fix.proof.trials.job import Order
from noclobber.fix.proof.trials.launcher import Launcher, Tell, launching
from noclobber.fix.verb import fix
from noclobber.settings.selection import Selection
from tests.cli.running import fresh
from tests.fix import programs

forks = pytest.mark.skipif(not launcher.FORKS, reason="processes are forked on Linux only")

STARTED = """
import os, sys
with open({path!r}, "a") as file:
    print(*sys.orig_argv, file=file)
"""


@forks
def test_one_interpreter_is_started_for_all_runs(tmp_path: Path) -> None:
    """Each would import torch, which takes most of the time."""
    (tmp_path / "program.py").write_text(programs.STALE)
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "sitecustomize.py").write_text(STARTED.format(path=str(tmp_path / "started")))
    done = fresh(["fix", "program.py"], tmp_path, env={"PYTHONPATH": str(sites)})
    assert done.status == 0, done.stderr
    verb, server = (tmp_path / "started").read_text().splitlines()
    assert " -m noclobber fix program.py" in verb
    assert server.endswith(" program.py")
    assert "fix/__main__.py /" in server


IMPORTED = """
import os, sys
from noclobber.fix.proof import fork_server
from noclobber.fix.proof.trials.job import Order
from noclobber.fix.proof.trials.trial import TrialProcess
fork_server.prepare()
before, leave = set(sys.modules), os._exit
def left(status):
    print(*(one for one in sys.modules if one not in before and one.startswith("noclobber")), file=sys.__stdout__)
    leave(status)
for mode in sys.argv[1:]:
    os.mkdir(mode)
    if os.fork():
        os.wait()
    else:
        os._exit = left
        TrialProcess(mode, Order(mode, 3, 3600)).carry_out(["program.py"])
"""


@forks
def test_a_trial_imports_nothing_of_noclobber(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(programs.STALE.replace("print", "id"))
    modes = ["search", "reference", "derivative", "hints", "memory"]
    done = subprocess.run([sys.executable, "-c", IMPORTED, *modes], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "\n" * len(modes), done.stderr
    assert all((tmp_path / mode / "result.json").exists() for mode in modes)


COMPILER = "import sys\nprint('torch._dynamo' in sys.modules)\nimport torch\ntorch.optim.SGD([torch.ones(1)], 0.1)\n"


@forks
def test_what_a_trial_spends_its_time_to_import_is_there_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(COMPILER)
    with launching(["program.py"]) as launched:
        assert [launched.run(Order("bare", 1, 3600)).printed for _ in range(2)] == ["False\n", "True\n"]
        fresh = launched.run(Order("bare", 1, 3600, fresh=True))
    assert fresh.printed == "False\n"


def test_a_program_that_minds_that_torch_is_imported_is_run_where_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nassert 'torch' not in sys.modules\n" + programs.STALE)
    done = fresh(["fix", "program.py"], tmp_path)
    assert done.status == 0, done.stderr
    assert "  proven: 3 backward calls compared, all gradients correct to the last bit" in done.stderr


def counted(number: int, launched: Launcher, tell: Tell) -> int:
    tell("counting")
    return 1 // number


UNWRITTEN = """
import time
import torch
given_back = [torch.full((number,), time.time()) for number in (3, 500, 10 ** 5)]
del given_back
print([torch.empty(number).double().sum().item() for number in (3, 500, 10 ** 5)])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can say what is in new memory")
def test_memory_that_a_program_has_not_written_is_the_same_in_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(UNWRITTEN)
    monkeypatch.chdir(tmp_path)
    with launching(["program.py"]) as runs:
        printed = [runs.run(Order("bare", 3, 3600)).printed for _ in range(2)]
    assert printed[0] == printed[1] == "[0.0, 0.0, 0.0]\n"


def test_work_returns_or_raises_what_it_did_there(tmp_path: Path) -> None:
    with launching(["program.py"], {"PYTHONPATH": os.pathsep.join(sys.path)}) as launched:
        told: list[str] = []
        assert launched.call(partial(counted, 1), told.append, "first") == 1
        assert list(dict.fromkeys(told)) == ["first", "counting"]
        with pytest.raises(ZeroDivisionError) as raised:
            launched.call(partial(counted, 0), told.append, "first")
    assert launched.warm == launcher.FORKS
    assert not launcher.FORKS or "in counted\n    return 1 // number\n" in raised.value.__notes__[0]


def test_without_a_server_each_trial_is_spawned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "FORKS", False)
    (tmp_path / "program.py").write_text(programs.STALE)
    fixed = fix(
        ["program.py"], Selection(), writing=False, unproven=False, backwards=3, seconds=3600, tell=lambda _: None
    )
    assert fixed.status == 0, fixed.words
    assert "-    h += 1  # the write\n+    h = h + 1  # the write\n" in fixed.diff
    assert "  proven: 3 backward calls compared, all gradients correct to the last bit" in fixed.words
