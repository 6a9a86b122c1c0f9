"""FSDP2 gathers stepped shards into the memory that backward reads: the step is to blame, on each rank, each time."""

import json
import os
from pathlib import Path

import pytest
import torch

from tests import served

PROGRAM = """
import json, sys, warnings
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import noclobber

store, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))


class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-0.1)


class ByHand(Own):
    def __init__(self, parameters):
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            parameter.add_(parameter.grad, alpha=-0.1)


def train(optimize, early, shard=fully_shard):
    torch.default_generator.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    if shard is not None:
        shard(net[2], mesh=mesh)
        shard(net, mesh=mesh)
    optimizer, losses = optimize(net.parameters()), []
    for _ in range(2):
        x = torch.ones(5, 4)
        first, second = net(x).square().mean(), net(x + 1).square().mean()
        first.backward()
        if early:
            optimizer.step()  # written
        second.backward()
        optimizer.step()
        net.zero_grad()
        losses.append(second.item())
    return losses


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


found = {}
for name, optimize, early in [
    ("sgd", sgd, True), ("adam", adam, True), ("own", Own, True), ("by hand", ByHand, True), ("legal", sgd, False)
]:
    with warnings.catch_warnings(), noclobber.watch(contents=True) as seen:
        warnings.simplefilter("ignore")
        train(optimize, early)
    found[name] = [
        (one.code, one.primary.source[0].strip(), one.primary.role, *(help.message for help in one.suggestions))
        for one in seen.findings
    ]
found["as without shards"] = torch.allclose(*map(torch.tensor, (train(sgd, False), train(sgd, False, None))))
print(json.dumps(found))
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs process groups")
@pytest.mark.parametrize("world", [1, 2])
def test_the_step_of_shards_is_to_blame(tmp_path: Path, world: int):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [[str(program), str(tmp_path / "store"), str(rank), str(world)] for rank in range(world)]
    for printed in served.run_together(words, tmp_path, os.environ):
        found = json.loads(printed.splitlines()[-1])
        assert found.pop("as without shards")
        assert found.pop("legal") == []
        ((code, line, *_),) = found.pop("by hand")
        assert code == "NC103"
        for of_one in found.values():
            ((code, line, role, *helps),) = of_one
            assert (code, line, role) == ("NC103", "optimizer.step()  # written", "write")
            assert "numpy" not in " ".join(helps)
