"""`fix` on programs of several processes: torchrun's are proven as rank 0 of one, of others it says where to look."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from noclobber.fix.one_rank import of_one_rank

from ..cli.running import noclobber, write

TRAIN = """
    import sys, torch, torch.distributed as dist
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    h = model(torch.randn(2, 4)).tanh()
    h += 1
    h.sum().backward()
    assert sys.argv[1:] == ["--epochs", "1"]
    """
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]


def test_ranks_are_proven_as_one(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": TRAIN})
    ended = noclobber(["fix", *TORCHRUN, "train.py", "--epochs", "1"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert "-h += 1\n+h = h + 1\n" in ended.stdout
    first, *_, last = ended.stderr.splitlines()
    assert first == "noclobber: run as rank 0 of one process, for the search and for the proof"
    assert "  proven: " in ended.stderr
    assert last == f"next: noclobber fix --write {' '.join(TORCHRUN)} train.py --epochs 1"


SHARDED = """
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        h = net(torch.randn(2, 4))
        h += 1
        h.sum().backward()
        opt.step()
    dist.destroy_process_group()
    """


def test_parameters_that_are_sharded_are_compared(tmp_path: Path) -> None:
    """A DTensor is compared by the numbers that this rank holds of it."""
    write(tmp_path, {"train.py": SHARDED})
    ended = noclobber(["fix", "train.py"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert "-    h += 1\n+    h = h + 1\n" in ended.stdout
    assert "  proven: 2 backward calls compared, all gradients correct to the last bit" in ended.stderr


def test_what_only_another_rank_does_is_not_called_clean(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": TRAIN.replace("h += 1", "if dist.get_rank() == 1: h += 1")})
    ended = noclobber(["fix", *TORCHRUN, "train.py", "--epochs", "1"], tmp_path)
    assert (ended.stdout, ended.status) == ("", 2)
    assert "a child process has a write that breaks a gradient (NC101 at train.py:6:26); `noclobber" in ended.stderr


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ([*TORCHRUN, "train.py", "--nnodes", "3"], ["train.py", "--nnodes", "3"]),
        (["/opt/bin/torchrun", "--standalone", "-m", "pkg.train", "x"], ["-m", "pkg.train", "x"]),
        ([*TORCHRUN, "--no-python", "train.sh"], None),
        ([*TORCHRUN], None),
        (["train.py", "torchrun"], None),
    ],
)
def test_what_torchrun_starts(words: list[str], program: list[str] | None) -> None:
    assert of_one_rank(words) == program


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_write_in_a_child_is_told_and_not_called_clean(tmp_path: Path, method: str) -> None:
    text = """
        import sys, torch, torch.multiprocessing as mp
        def work():
            x = torch.ones(3, requires_grad=True)
            y = x.exp()
            y.add_(1)
            y.sum().backward()
        if __name__ == "__main__":
            child = mp.get_context(sys.argv[1]).Process(target=work)
            child.start()
            child.join()
        """
    write(tmp_path, {"train.py": text})
    ended = noclobber(["fix", "train.py", method], tmp_path)
    assert (ended.stdout, ended.status) == ("", 2)
    assert ended.stderr == (
        "noclobber: error: a child process has a write that breaks a gradient (NC101 at train.py:5:5); "
        "`noclobber fix` only fixes the first process: call that code there, without a child\n"
    )


def test_a_child_that_was_not_watched_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import torch, subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', ''])\n"})
    ended = noclobber(["fix", "train.py"], tmp_path)
    assert ended.stderr == (
        f"noclobber: nothing to fix: no backward ran: nothing was checked (not watched: `{sys.executable} -S -c`)\n"
    )
