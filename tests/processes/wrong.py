"""What wrappers and collectives overwrite, on two ranks. Findings blame the marked lines."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("scale", torch.full((4,), 1.0 + dist.get_rank()))

    def forward(self, x):
        return (self.weight * self.scale * x).sum()


def broadcast_buffer(x):
    model = DDP(Scaled())
    first = model(x)
    if dist.get_rank() == 0:
        model.module.scale = torch.full((4,), 9.0)
    second = model(x)  # broadcast
    with contextlib.suppress(RuntimeError):
        (first + second).backward()


def logged_gate(x):
    gate = torch.sigmoid(DDP(nn.Linear(4, 4))(x))
    shown = gate.detach()
    dist.all_reduce(shown)  # logging
    (gate * x).sum().backward()


def one_rank(x):
    last = nn.Linear(4, 4)
    loss = DDP(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), last))(x).square().sum()
    if dist.get_rank() == 1:
        last.weight.data.mul_(0.5)  # one rank
    loss.backward()


def kept_bucket(x):
    kept, linear = [], nn.Linear(4, 4, bias=False)
    model = DDP(linear)
    scale = torch.ones(4, 4, requires_grad=True)

    def hook(state, bucket):
        reduced = bucket.buffer()
        if kept:
            kept[0].data.copy_(reduced.view(4, 4))  # hook
        future = torch.futures.Future()
        future.set_result(reduced)
        return future

    model.register_comm_hook(None, hook)
    model(x).sum().backward()
    kept.append(linear.weight.grad.clone())
    loss = (scale * kept[0]).sum()
    model(2 * x).sum().backward()
    loss.backward()


if __name__ == "__main__":
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    for program in (broadcast_buffer, logged_gate, one_rank, kept_bucket):
        program(torch.randn(6, 4))
    dist.destroy_process_group()
