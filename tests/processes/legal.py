"""Legal training of two ranks: DDP, static graph, a communication hook, FSDP2 and tensor parallel. Prints bits."""

import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP


def batches():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 8))


def layers():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def averaged(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0].div_(dist.get_world_size()))


def with_hook():
    model = DDP(batches(), gradient_as_bucket_view=True)
    model.register_comm_hook(None, averaged)
    return model


def sharded(mesh):
    model = layers()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def parallel(mesh):
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def bits(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        digest.update(local.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    made = {
        "ddp": lambda: DDP(batches()),
        "static graph": lambda: DDP(batches(), static_graph=True),
        "communication hook": with_hook,
        "fully_shard": lambda: sharded(mesh),
        "tensor parallel": lambda: parallel(mesh),
    }
    for name, make in made.items():
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        numbers = torch.Generator().manual_seed(0 if name == "tensor parallel" else dist.get_rank())
        for _ in range(3):
            loss = model(torch.randn(6, 8, generator=numbers)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            shown = loss.detach().clone()
            dist.all_reduce(shown)
        line = f"{name}, rank {dist.get_rank()}: {bits(model)} {shown.item()}\n"
        os.write(1, line.encode())  # in one piece: the other rank writes there too
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
