"""DistributedDataParallel under `preserve`: on both ranks the gradients are those of saves that nothing overwrites."""

import json
import os
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import noclobber
from tests import served
from tests.observe import ranks

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="PyTorch without gloo")


class Checkpointed(nn.Module):
    """Reads its buffer again when it is run anew."""

    def __init__(self, reentrant):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(3))
        self.reentrant = reentrant

    def forward(self, x, direct):
        if direct:
            return self.region(x)
        return checkpoint(self.region, x, use_reentrant=self.reentrant)

    def region(self, x):
        return (x * self.weight * self.scale).sin().sum()


def overwritten_in_place(rank, direct):
    net = DDP(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    hidden = net(torch.randn(5, 4)).sigmoid()
    scaled = hidden * rank
    hidden += 1
    net(torch.randn(5, 4) * 10)
    (hidden + scaled).square().sum().backward()
    return [p.grad for p in net.parameters()]


def regions(rank, direct, reentrant):
    net = Checkpointed(reentrant)
    spread, x = DDP(net), torch.linspace(0.5, 1.5, 3).requires_grad_()
    first = spread(x, direct)
    if rank == 0:
        net.scale.data = torch.full((3,), 50.0)
    spread(x, direct)
    first.backward()
    return [x.grad, net.weight.grad]


def buckets(rank):
    """With views of its buckets as gradients, DDP writes into them in backward, also once the program took them off."""
    net, v = DDP(nn.Linear(4, 3), gradient_as_bucket_view=True), torch.ones(3, 4).requires_grad_()
    for _ in range(3):  # it makes the buckets anew after the first
        net.zero_grad(set_to_none=True)
        net(torch.randn(5, 4)).sum().backward()
    penalty = (net.module.weight.grad * v).sum()
    net.zero_grad(set_to_none=True)
    net(torch.randn(5, 4)).sum().backward()
    penalty.backward()
    return [v.grad]


def without_mode(program, rank, direct):
    return program(rank)


PROGRAMS = {
    "overwritten_in_place": overwritten_in_place,
    "regions": partial(regions, reentrant=False),
    "reentrant_regions": partial(regions, reentrant=True),
    "training": partial(without_mode, ranks.training_step),
    "buckets": partial(without_mode, buckets),
    "batch_norm": partial(without_mode, ranks.two_forwards_of_batch_norm),
    "buffers": partial(without_mode, partial(ranks.two_forwards, buffers=2)),
    "all_reduce": partial(without_mode, partial(ranks.collective, write=ranks.all_reduce)),
    "all_gather": partial(without_mode, partial(ranks.collective, write=ranks.all_gather)),
}
KEPT = {"overwritten_in_place", "regions", "reentrant_regions", "buckets", "buffers", "all_reduce", "all_gather"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks computed, by rank: one pair of processes runs every program."""
    folder = tmp_path_factory.mktemp("ranks")
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    if sys.platform == "linux":
        surroundings["GLOO_SOCKET_IFNAME"] = "lo"
    outs = [folder / f"{rank}.json" for rank in (0, 1)]
    served.run_together(
        [["-m", __name__, str(rank), str(folder / "store"), str(outs[rank])] for rank in (0, 1)],
        Path(__file__).parents[3],
        surroundings,
    )
    return [json.loads(out.read_text()) for out in outs]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradients_are_right_on_both_ranks(results, name):
    for rank in results:
        torch.testing.assert_close(rank[name]["ours"], rank[name]["right"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_are_kept_where_a_rank_overwrites_some(results, name):
    assert any(rank[name]["bytes"] > 0 for rank in results) == (name in KEPT)


def main(rank, store, out):
    torch.set_num_threads(1)
    where = f"file://{store}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    results = {}
    for name, program in PROGRAMS.items():
        torch.manual_seed(rank)
        with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
            right = program(rank, direct=True)
        torch.manual_seed(rank)
        with noclobber.preserve() as kept:
            ours = program(rank, direct=False)
        results[name] = {
            "right": [value.tolist() for value in right],
            "ours": [value.tolist() for value in ours],
            "bytes": sum(row.bytes for row in kept.kept),
        }
    Path(out).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
