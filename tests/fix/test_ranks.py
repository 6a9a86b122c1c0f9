"""`fix` on programs of several processes: torchrun's are proven as rank 0 of one, of others it says where to look."""

from __future__ import annotations

import re
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


BEGUN = """
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    """
SHARDED = """
    from torch.distributed.fsdp import fully_shard
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        def forward(self, x):
            h = self.up(x).tanh()
            h += 1
            return self.down(h)
    net = torch.nn.Sequential(Block(), Block())
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.randn(2, 4)).sum().backward()
        opt.step()
    """
DISTRIBUTED = """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    w = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]).requires_grad_()
    for _ in range(2):
        h = (distribute_tensor(torch.randn(3, 4), mesh, [Replicate()]) @ w).sigmoid()
        h += 1
        (h * h).sum().backward()
    """


@pytest.mark.parametrize("program", [SHARDED, DISTRIBUTED])
def test_tensors_that_are_sharded_are_compared(tmp_path: Path, program: str) -> None:
    """A DTensor is compared by the numbers that this rank holds of it. A parameter that FSDP2 has taken the memory of
    when backward begins has none."""
    write(tmp_path, {"train.py": BEGUN + program + "dist.destroy_process_group()\n"})
    ended = noclobber(["fix", "train.py"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert re.search("^- +h \\+= 1\n\\+ +h = h \\+ 1\n", ended.stdout, re.MULTILINE)
    assert "  proven: 2 backward calls compared, all gradients correct to the last bit" in ended.stderr


def test_an_update_of_a_sharded_leaf_is_checked_by_central_differences(tmp_path: Path) -> None:
    """PyTorch has no forward mode for a DTensor (torch 2.13)."""
    text = DISTRIBUTED.replace("        h += 1\n", "").replace(
        ".sum().backward()", ".sum().backward()\n        w -= 0.1 * w.grad"
    )
    write(tmp_path, {"train.py": BEGUN + text})
    ended = noclobber(["fix", "train.py"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert "gradient agrees with central differences of its own loss along 3 random directions" in ended.stderr


def test_what_only_another_rank_does_is_proven_on_that_rank(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": TRAIN.replace("h += 1", "if dist.get_rank() == 1: h += 1")})
    ended = noclobber(["fix", *TORCHRUN, "train.py", "--epochs", "1"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert "-if dist.get_rank() == 1: h += 1\n+if dist.get_rank() == 1: h = h + 1\n" in ended.stdout
    assert ended.stderr.startswith("noclobber: searched and proven in rank 1\n")
    assert "  proven: 1 backward call compared" in ended.stderr


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


CHILD = """
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
MORE = """
        z = torch.ones(2, requires_grad=True).sigmoid()
        w = z.exp()
        w *= 2
        w.sum().backward()
    """
FIXED = "-    y.add_(1)\n+    y = y + 1\n"
PROVEN = "  proven: 1 backward call compared, all gradients correct to the last bit"


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_write_in_a_child_is_proven_in_that_child(tmp_path: Path, method: str) -> None:
    """A child that is spawned reads the script again, and gets the patched one."""
    write(tmp_path, {"train.py": CHILD})
    ended = noclobber(["fix", "train.py", method], tmp_path)
    assert ended.status == 0, ended.stderr
    assert FIXED in ended.stdout
    assert PROVEN in ended.stderr
    assert ended.stderr.startswith(f"noclobber: searched and proven in `{method.title()}Process-1`\n")


def test_a_write_in_a_script_that_a_script_starts_is_proven_there(tmp_path: Path) -> None:
    child = "import torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()\n"
    write(
        tmp_path,
        {"train.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'])\n", "child.py": child},
    )
    ended = noclobber(["fix", "train.py"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert "--- a/child.py\n" in ended.stdout
    assert PROVEN in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_a_write_in_a_worker_of_a_data_loader_is_proven_there(tmp_path: Path) -> None:
    """The main process ends its workers when one fails, before they can say what became of them."""
    text = """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Moved(Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, index):
                x = torch.ones(3, requires_grad=True)
                y = x.exp()
                y += 1
                y.sum().backward()
                return x.grad
        list(DataLoader(Moved(), num_workers=1, multiprocessing_context="fork"))
        """
    write(tmp_path, {"train.py": text})
    ended = noclobber(["fix", "train.py"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert ended.stderr.startswith("noclobber: searched and proven in data loader worker 0\n")
    assert "  proven: 2 backward calls compared" in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_findings_of_several_processes_are_one_patch(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": CHILD + MORE})
    ended = noclobber(["fix", "train.py", "fork"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert FIXED in ended.stdout
    assert "+    w = w * 2\n" in ended.stdout
    assert "noclobber: 2 fixes, proven; nothing left to fix" in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_what_a_child_has_checked_counts(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": CHILD.replace("y.add_(1)", "y.add(1)")})
    ended = noclobber(["fix", "train.py", "fork"], tmp_path)
    assert (ended.status, ended.stderr) == (
        0,
        "noclobber: nothing to fix: no write broke a gradient (1 backward call)\n",
    )


def test_a_child_that_was_not_watched_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import torch, subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', ''])\n"})
    ended = noclobber(["fix", "train.py"], tmp_path)
    assert ended.stderr == (
        f"noclobber: nothing to fix: no backward ran: nothing was checked (not watched: `{sys.executable} -S -c`)\n"
    )
