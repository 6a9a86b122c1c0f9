"""One rank of many: sharded and replicated training in one process."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

import noclobber


def test_a_rank_of_a_thousand_shards():
    from torch.distributed.fsdp import fully_shard

    with noclobber.fake(world_size=1000, rank=7):
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size(), os.environ["RANK"]) == (7, 1000, "7")
        model = nn.Sequential(nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 64)).cuda()
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        with noclobber.watch() as seen:
            model(torch.randn(4, 64, device="cuda")).square().mean().backward()
            optimizer.step()
        assert model[0].weight.to_local().shape == (4, 64)
    assert not dist.is_initialized()
    assert "RANK" not in os.environ
    assert not seen.findings


def test_a_rank_holds_no_whole_parameters_between_steps():
    from torch.distributed.fsdp import fully_shard

    with noclobber.fake(world_size=16):
        dist.init_process_group("nccl")
        model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8))).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        shards = sum(one.to_local().nbytes for one in model.parameters())
        assert shards == 8 * 2**22 / 16
        begin = torch.cuda.memory_allocated()
        output = model(torch.randn(4, 1024, device="cuda")).sum()
        assert torch.cuda.memory_allocated() - begin < 3 * 2**22 + 2**25  # the last two, and what cuBLAS takes
        output.backward()
        del output
        gathers = 2**22 + 2**26  # one whole parameter or gradient, and what cuBLAS takes forward and backward
        assert torch.cuda.memory_allocated() - begin < shards + gathers
        assert torch.cuda.max_memory_allocated() < begin + 2 * shards + 5 * 2**22 + gathers
        most = torch.cuda.max_memory_allocated()
        torch.optim.AdamW(model.parameters(), fused=True).step()
        assert torch.cuda.max_memory_allocated() == most  # PyTorch works out the shapes of whole states


def test_replicas_have_gradients():
    with noclobber.fake(world_size=16):
        dist.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda(), device_ids=[0])
        for _ in range(2):
            model(torch.randn(4, 8, device="cuda")).sum().backward()
        assert model.module.weight.grad.shape == (8, 8)


def test_a_rank_has_the_devices_of_its_machine(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for given, count, local in (("cuda", 8, 5), ("cuda:4xA100", 4, 1), ("cpu", 0, 0)):
        with noclobber.fake(world_size=64, rank=13, device=given):
            assert torch.cuda.device_count() == count or not count
            assert os.environ["LOCAL_RANK"] == str(local)
            assert os.environ["LOCAL_WORLD_SIZE"] == str(count or 1)
    with noclobber.fake(world_size=2):
        assert torch.cuda.device_count() == 2


def test_a_mesh_chooses_the_device_of_the_rank():
    from torch.distributed.fsdp import fully_shard

    with noclobber.fake(world_size=16, rank=11) as run:
        dist.init_process_group("nccl")
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.Linear(32, 8))
        fully_shard(model)
        assert torch.cuda.current_device() == 3
        model.to_empty(device="cuda")
        for layer in (model[0], model[2]):
            layer.reset_parameters()  # random numbers of a DTensor come by an operator that takes one
        model(torch.randn(4, 8, device="cuda:3")).sum().backward()
        assert model[0].weight.grad.to_local().device == torch.device("cuda", 3)
        torch.optim.SGD(model.parameters())
    parameters = {one.device: one.parameters for one in run.peaks}
    assert "meta" not in parameters
    assert parameters["cuda:3"] == (2 * 8 + 2 + 32 + 1) * 4  # FSDP pads the 8 rows of the second layer to 16


def test_a_mesh_begins_the_process_group():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with noclobber.fake(world_size=4, rank=1) as run:
        mesh = init_device_mesh("cuda", (4,))
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        with noclobber.watch() as seen:
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            torch.optim.AdamW(model.parameters()).step()
        assert model[0].weight.to_local().shape == (8, 8)
    assert not dist.is_initialized()
    assert (seen.findings, run.notes) == ((), ())


def test_objects_come_from_ranks_that_have_the_same(tmp_path):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    with noclobber.fake(world_size=4, rank=2):
        dist.init_process_group("nccl")
        found = [None] * 4
        dist.all_gather_object(found, {"a": 1})
        assert found == [{"a": 1}] * 4
        sent = ["x"]
        dist.broadcast_object_list(sent, src=0)
        assert sent == ["x"]
        model = nn.Linear(8, 8).cuda()
        fully_shard(model)
        checkpoint.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "kept")


def test_a_sharded_parameter_can_be_sharded_again():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with noclobber.fake(world_size=16, rank=5), noclobber.watch() as seen:
        mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("data", "model"))
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
        parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        assert model[0].weight.device == torch.device("cuda", 5)
        assert model[0].weight.is_cuda
        fully_shard(model, mesh=mesh["data"])
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
        assert model[0].weight.to_local().shape == (2, 8)
    assert seen.findings == ()


def train(rank, world_size, seen):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).to(rank), device_ids=[rank])
    model(torch.randn(4, 8)).sum().backward()
    seen.append((dist.get_rank(), dist.get_world_size(), tuple(model.module.weight.grad.shape)))
    dist.destroy_process_group()


def test_a_program_that_starts_its_ranks_is_one_of_them():
    seen = []
    with noclobber.fake(device="cuda:4") as run:
        torch.multiprocessing.spawn(train, args=(4, seen), nprocs=4)
        torch.multiprocessing.start_processes(train, args=(4, seen), nprocs=4, join=False).join()
    assert seen == [(0, 4, (8, 8))] * 2
    assert "the program starts 4 processes: only the one of rank 0 ran, in this one" in run.notes
    with noclobber.fake(world_size=16, rank=9) as run:
        torch.multiprocessing.spawn(train, args=(16, seen), nprocs=8)
    assert seen[-1] == (9, 16, (8, 8))
    assert "RANK" not in os.environ


def test_a_group_needs_nobody_where_no_rank_is_asked_for():
    seen = []
    with noclobber.fake():
        train(0, 2, seen)
        train(0, 2, seen)
    assert seen == [(0, 2, (8, 8))] * 2
    assert not dist.is_initialized()


def test_the_ledger_counts_what_the_rank_holds():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with noclobber.fake(world_size=16):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (16,))
        rows = distribute_tensor(torch.randn(160, 8, device="cuda"), mesh, [Shard(0)]).requires_grad_()
        with noclobber.watch(ledger=True) as seen:
            (rows * 2).sin().sum().backward()
    assert seen.ledger().bytes == 10 * 8 * 4


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_one_stage_of_a_pipeline_takes_its_steps(rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    with noclobber.fake(world_size=4, rank=rank):
        dist.init_process_group("nccl")
        layer = nn.Linear(64, 64, bias=False).cuda()
        comes_in = torch.empty(2, 64, device="cuda", requires_grad=rank > 0)
        goes_out = torch.empty(2, 64, device="cuda", requires_grad=True)
        stage = PipelineStage(layer, rank, 4, torch.device("cuda", rank), input_args=comes_in, output_args=goes_out)
        schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
        x = torch.randn(8, 64, device="cuda")
        schedule.step(*[x] * (rank == 0), **({"target": x, "losses": []} if rank == 3 else {}))
        assert layer.weight.grad.shape == (64, 64)


def test_a_stage_that_must_be_told_its_shapes_says_so():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    with noclobber.fake(world_size=4, rank=1):
        dist.init_process_group("nccl")
        stage = PipelineStage(nn.Linear(4, 4).cuda(), 1, 4, torch.device("cuda", 1))
        with pytest.raises(RuntimeError, match=r"input_args|complete static metadata"):  # torch 2.15 says it itself
            Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss).step()
