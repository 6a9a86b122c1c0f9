"""Programs of several processes under the command line: each child is watched, or told of. These tests run PyTorch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import noclobber as noclobber_package

from .. import served
from ..cli.running import ENVIRONMENT, RUN, call, fresh, noclobber, write

pytestmark = pytest.mark.skipif(os.name != "posix", reason="fork and signals")

STARTS = """
    import os, subprocess, sys, torch, multiprocessing
    from torch.utils.data import DataLoader, Dataset

    def wrong(scale):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.data.mul_(scale)
        y.sum().backward()

    class Data(Dataset):
        def __len__(self):
            return 2
        def __getitem__(self, number):
            wrong(number + 2)
            return torch.ones(1)

    if __name__ == "__main__":
        for method in ("fork", "spawn", "forkserver"):
            child = multiprocessing.get_context(method).Process(target=wrong, args=(2,), name=method)
            child.start()
            child.join()
            print(method, child.exitcode)
        list(DataLoader(Data(), num_workers=1))
        child = os.fork()
        if child == 0:
            wrong(5)
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        code = "from main import wrong; wrong(6)"
        print(subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "."}).returncode)
        print(os.system(f"{sys.executable} -c '{code}'; exit 3") >> 8)
        print(subprocess.run([sys.executable, "-S", "-c", "print('bare')"]).returncode)
        print(subprocess.run([sys.executable, "-c", "print('no torch')"]).returncode, flush=True)
    """


def test_children_are_watched_however_they_start(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": STARTS})
    bare = call([sys.executable, "main.py"], tmp_path)
    ended = fresh(["run", "--format", "json", "-o", "report.json", "main.py"], tmp_path)
    assert (ended.stdout, ended.status, bare.status) == (bare.stdout, 1, 0)
    report = json.loads((tmp_path / "report.json").read_text())
    (finding,) = report["findings"]
    by_id = {process["id"]: process for process in report["processes"]}
    seen_by = [by_id[one] for one in finding["processes"]]
    assert sorted(one["name"] for one in seen_by if one["worker"] is None) == [
        "",
        "",
        "",
        "fork",
        "forkserver",
        "spawn",
    ]
    assert [one["worker"] for one in seen_by if one["worker"] is not None] == [0]
    assert finding["count"] == 8
    first = next(one for one in report["processes"] if one["parent"] is None)
    assert first["findings"] == 0
    assert 7 in [one["status"] for one in seen_by]
    untold = [one for one in report["processes"] if one["why"]]
    assert [one["command"][1:] for one in untold] == [["-S", "-c", "print('bare')"]]
    assert report["coverage"]["unseen"][-1].startswith(f"`{sys.executable} -S -c print('bare')` (pid ")
    shown = noclobber(["report", "report.json"], tmp_path).stdout
    assert re.search(r"note: seen in .*`fork` \(pid \d+\).* and 4 more", shown)


def test_nothing_is_called_clean_that_was_not_watched(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "import torch, subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', ''])"})
    ended = noclobber(["run", "main.py"], tmp_path)
    first, second = ended.stderr.splitlines()
    assert first == "noclobber: in what was watched, no backward ran: nothing was checked"
    assert second.startswith(f"not watched: `{sys.executable} -S -c` (pid ")
    assert ended.status == 0


@pytest.mark.parametrize("more", [["-f", "concise"], ["-f", "github"], ["-f", "sarif", "-o", "out"]])
def test_every_format_says_what_was_not_watched(tmp_path: Path, more: list[str]) -> None:
    write(tmp_path, {"main.py": "import torch, subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', ''])"})
    done = noclobber(["run", *more, "main.py"], tmp_path)
    assert f"not watched: `{sys.executable} -S -c` (pid " in done.stderr.splitlines()[-1]


RANKS = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    out = model(torch.ones(2, 4)).tanh()
    log = out.detach()
    if "all" in sys.argv:
        log.data.mul_(2)
    if rank == 1:
        out.mul_(2)
    out.sum().backward()
    dist.all_reduce(torch.ones(1))
    """
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]


def test_a_rank_that_fails_is_told_within_seconds(tmp_path: Path) -> None:
    """The other rank waits in a collective, until the launcher ends it."""
    write(tmp_path, {"train.py": RANKS})
    ended = noclobber(["run", *TORCHRUN, "train.py", "all"], tmp_path)
    assert ended.status == 1
    assert "ChildFailedError" in ended.stderr
    errors = re.findall(r"^error\[(\w+)\][\s\S]*?^note: (seen on .*)", ended.stderr, re.MULTILINE)
    assert ("NC101", "seen on rank 1") in errors
    assert set(errors) <= {("NC101", "seen on rank 1"), ("NC201", "seen on rank 0")}, "rank 0 may be ended before"


def test_each_rank_under_its_own_noclobber_into_one_folder(tmp_path: Path) -> None:
    """As on several machines: the folder is shared, and one report is made of it."""
    write(tmp_path, {"train.py": RANKS.replace("if rank == 1", "if rank == 5")})
    own = ["--no-python", sys.executable, "-m", "noclobber", "run", "-o", "found/", "train.py", "all"]
    ended = call([sys.executable, *TORCHRUN, *own], tmp_path)
    assert ended.stderr.count("noclobber: 1 error; each process wrote to found/ (noclobber report found/)") == 2
    shown = noclobber(["report", "found"], tmp_path)
    assert "note: seen on ranks 0 and 1\n" in shown.stdout
    assert "several runs" not in shown.stdout
    assert shown.stdout.count("error[") == 1
    missing = next((tmp_path / "found").glob("*.noclobber"))
    missing.unlink()
    assert re.search(r"^not watched: rank [01] of 2: no report", noclobber(["report", "found"], tmp_path).stdout, re.M)


def test_a_launcher_that_does_not_import_torch(tmp_path: Path) -> None:
    """Its one child is the only process that counts."""
    text = STARTS.partition("    if __name__")[0] + "    wrong(2)\n"
    launcher = "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'])\n"
    write(tmp_path, {"train.py": text, "main.py": launcher})
    ended = noclobber(["run", "main.py"], tmp_path)
    assert "error[NC201]" in ended.stderr
    assert ended.status == 1
    assert ended.stderr.endswith("to fix this: noclobber fix main.py\n")


def test_a_killed_child_leaves_what_it_found(tmp_path: Path) -> None:
    text = STARTS.partition("    if __name__")[0] + (
        """
    if __name__ == "__main__":
        def found_and_killed():
            wrong(2)
            os.kill(os.getpid(), 9)
        child = multiprocessing.get_context("fork").Process(target=found_and_killed)
        child.start()
        child.join()
        print(child.exitcode)
    """
    )
    write(tmp_path, {"main.py": text})
    ended = noclobber(["run", "main.py"], tmp_path)
    assert (ended.stdout, ended.status) == ("-9\n", 1)
    assert "error[NC201]" in ended.stderr
    assert re.search(
        r"^note: `ForkProcess-1` \(pid \d+\) ended by a signal: this is what was found", ended.stderr, re.M
    )


def test_a_folder_is_read_while_the_program_runs(tmp_path: Path) -> None:
    text = (
        STARTS.partition("    if __name__")[0] + "    wrong(2)\n    print('found', flush=True)\n    sys.stdin.read()\n"
    )
    write(tmp_path, {"main.py": text})
    command = [*RUN, "-o", "found/", "main.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline() == b"found\n"
    shown = noclobber(["report", "found"], tmp_path).stdout
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "error[NC201]" in shown
    assert "note: the main process had not ended yet: this is what was found until then" in shown
    time.sleep(0.1)
    assert "the main process ended by a signal" in noclobber(["report", "found/"], tmp_path).stdout


def test_a_refusal_that_ends_a_child_is_found(tmp_path: Path) -> None:
    text = """
        import sys, torch, torch.multiprocessing as mp
        def leaf(rank=0):
            torch.ones(3, requires_grad=True).add_(1)
        def caught():
            try:
                leaf()
            except RuntimeError:
                pass
        if __name__ == "__main__":
            for method, target in (("fork", leaf), ("fork", caught)):
                child = mp.get_context(method).Process(target=target)
                child.start()
                child.join()
            try:
                mp.spawn(leaf, nprocs=1)
            except mp.ProcessRaisedException:
                print("raised")
        """
    write(tmp_path, {"main.py": text})
    bare = call([sys.executable, "main.py"], tmp_path)
    ended = fresh(["run", "main.py"], tmp_path)
    numbers = re.compile(r"\(pid \d+\)")
    told, footer = ended.stderr.split("error[", 1)
    assert numbers.sub("", told) == numbers.sub("", bare.stderr)
    assert footer.startswith("NC301]")
    assert "note: seen 2 times at these lines, shown once" in footer
    assert ended.stdout == bare.stdout


API = """
    import os, subprocess, sys, warnings, noclobber, torch
    from main import wrong
    before = dict(os.environ), os._exit, os.system, subprocess._fork_exec
    started = [sys.executable, "-c", "from main import wrong; wrong(2)"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with noclobber.watch() as alone:
            subprocess.run(started)
        with noclobber.watch(children=True) as seen:
            subprocess.run(started)
            wrong(3)
        with noclobber.install(children=True):
            failed = subprocess.run(
                [sys.executable, "-c", "import torch; torch.ones(1, requires_grad=True).add_(1)"],
                stderr=subprocess.PIPE, text=True,
            )
        subprocess.run(started)
    assert before == (dict(os.environ), os._exit, os.system, subprocess._fork_exec)
    print(len(alone.findings), [(one.code, one.count) for one in seen.findings], len(seen.report.processes))
    print([str(one.message).split("\\n")[0][:12] for one in told], [os.path.basename(one.filename) for one in told])
    print("error[NC301]" in failed.stderr)
    """


def test_blocks_hand_on_to_children(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": STARTS, "api.py": API})
    assert served.run(["api.py"], tmp_path).stdout.splitlines() == [
        "0 [('NC201', 2)] 2",
        "['error[NC201]', 'error[NC301]'] ['api.py', 'api.py']",
        "True",
    ]


def test_a_block_tells_of_children_that_it_does_not_watch() -> None:
    with noclobber_package.watch() as seen:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    with noclobber_package.watch() as later:
        pass
    told = "processes that the block forked (1; `children=True` watches them)"
    assert told in seen.report.coverage.unseen
    assert told not in later.report.coverage.unseen


def processes_of(folder: Path) -> list[dict[str, Any]]:
    """The processes of a report in JSON."""
    found: list[dict[str, Any]] = json.loads((folder / "report.json").read_text())["processes"]
    return found


def test_sixteen_processes(tmp_path: Path) -> None:
    text = STARTS.partition("    if __name__")[0] + (
        """
    if __name__ == "__main__":
        with multiprocessing.get_context("fork").Pool(16) as pool:
            pool.map(wrong, range(2, 66), chunksize=1)
    """
    )
    write(tmp_path, {"main.py": text})
    noclobber(["run", "--format", "json", "-o", "report.json", "main.py"], tmp_path)
    assert len(processes_of(tmp_path)) == 17
    (finding,) = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert finding["count"] >= 32, "a pool kills its workers: counts are written at 1, 2, 4, 8 ..."
