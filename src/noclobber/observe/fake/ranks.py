"""One rank of many: the process group is PyTorch's fake one, which sends nothing. It also stands for the processes that
a program starts with `torch.multiprocessing.spawn`."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import multiprocessing

from noclobber.observe.fake.gpu.devices import Devices, say_played
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors.fake_tensors import IN_C, fake_store


class Ranks:
    """Makes this process one rank of `world_size`; of none, until the program begins a process group, or starts
    processes: then it is one of these."""

    def __init__(self, world_size: int, rank: int, devices: Devices) -> None:
        self._world_size, self._rank, self._devices = world_size, rank, devices
        self._at_end = contextlib.ExitStack()
        self._spawned = 0
        """Processes that the program would have started. One of them ran here."""
        self._is_one = False

    def begin(self) -> None:
        patches = Patches()
        self._at_end.callback(patches.undo)
        for name in ("start_processes", "spawn"):
            patches.put(multiprocessing, name, self._start_processes)
        if self._world_size:
            self._at_end.enter_context(self._one_of(self._world_size, self._rank))
        elif dist.is_available():
            patches.put(dist, "init_process_group", self._first_group)

    def end(self) -> None:
        self._at_end.close()

    def notes(self) -> list[str]:
        """Return in words which processes did not run."""
        if self._spawned < 2:
            return []
        ran = f"only the one of rank {self._rank % self._spawned} ran, in this one"
        return [f"the program starts {self._spawned} processes: {ran}"]

    def _first_group(self, *args: Any, **options: Any) -> None:
        """Begin the process group of a program that nobody told to be one rank of many."""
        if not self._is_one:
            given = inspect.signature(dist.distributed_c10d.init_process_group).bind_partial(*args, **options).arguments
            size, rank = (
                given.get(name, -1) if given.get(name, -1) >= 0 else int(os.environ.get(name.upper(), default))
                for name, default in (("world_size", 1), ("rank", 0))
            )
            self._at_end.enter_context(self._one_of(size, rank))
        dist.init_process_group(*args, **options)

    def _start_processes(
        self,
        fn: Callable[..., object],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *_: Any,
        **__: Any,
    ) -> _Ended | None:
        """Run what one of the processes would run, in this one: another would have values."""
        self._spawned = max(self._spawned, nprocs)
        with contextlib.nullcontext() if self._is_one else self._one_of(nprocs, self._rank % nprocs):
            fn(self._rank % nprocs, *args)
        return None if join else _Ended()

    @contextlib.contextmanager
    def _one_of(self, world_size: int, rank: int) -> Iterator[None]:
        """Be one rank of so many in a block, with the environment that torchrun gives."""
        from torch.distributed.tensor import DTensor

        store, devices = fake_store(), self._devices
        local = min(devices.count, world_size) or 1
        given = {
            "RANK": str(rank), "LOCAL_RANK": str(rank % local),
            "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local),
            "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
        }  # fmt: skip
        patches = Patches()
        for name in IN_C:
            patches.put(dist, name, lambda *_, **__: [])
        _patch_ddp(patches)
        lies_on = torch.Tensor.device.__get__  # of a DTensor, which is a tensor of its own beside the part of this rank
        say_played(patches, DTensor, property(lambda tensor: devices.shown(lies_on(tensor))))
        propagator = private.lookup("distributed.tensor._sharding_prop.ShardingPropagator")
        propagate = propagator._propagate_tensor_meta_non_cached

        def _propagate_tensor_meta_non_cached(*args: Any, **options: Any) -> Any:
            devices.inside += 1  # PyTorch works out whole shapes in the mode of the run: no rank holds them
            try:
                return propagate(*args, **options)
            finally:
                devices.inside -= 1

        patches.put(propagator, "_propagate_tensor_meta_non_cached", _propagate_tensor_meta_non_cached)
        native = dist.distributed_c10d.init_process_group

        def init_process_group(*_: object, **options: object) -> None:
            native(backend="fake", store=store, rank=rank, world_size=world_size)
            # A DeviceMesh chooses the device of the rank, but not in a fake group (torch 2.13).
            devices.current = devices.current or rank % local
            patch_pipelines(patches)

        for name, function in {"init_process_group": init_process_group, **_objects()}.items():
            native_one = getattr(dist.distributed_c10d, name)
            for path, module in list(sys.modules.items()):  # `device_mesh` has its own reference to it
                if path.startswith("torch.distributed") and vars(module).get(name) is native_one:
                    patches.put(module, name, function)
        patches.put(dist, "init_process_group", init_process_group)
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        self._is_one = True
        try:
            yield
        finally:
            self._is_one = False
            if dist.is_initialized():
                dist.destroy_process_group()
            patches.undo()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class _Ended:
    """Processes that have ended, for who waits for them."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True


def _objects() -> dict[str, Callable[..., None]]:
    """Return functions that exchange objects with ranks that have the same ones. PyTorch reads them from tensors."""

    def all_gather_object(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter_object_list(
        scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *_: Any, **__: Any
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[0]

    def broadcast_object_list(object_list: list[Any], *_: Any, **__: Any) -> None: ...

    functions = (
        all_gather_object,
        gather_object,
        scatter_object_list,
        broadcast_object_list,
        recv_object_list,
    )
    return {one.__name__: one for one in functions}


class _Reducer:
    """A reducer that leaves its buckets as they are: for others it reads numbers that another rank sends."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def _rebuild_buckets(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def _patch_ddp(patches: Patches) -> None:
    """Let DistributedDataParallel take each bucket of gradients as the mean of all ranks. The fake group gives it none
    (torch 2.13, c10d/comm.cpp)."""
    from torch.nn.parallel import DistributedDataParallel

    make, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook

    def as_it_is(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    as_it_is.__annotations__.clear()  # PyTorch refuses all that are not its own classes

    def __init__(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        register(self, None, as_it_is)
        self.reducer = cast(Any, _Reducer(self.reducer))

    patches.put(DistributedDataParallel, "__init__", __init__)
    patches.put(DistributedDataParallel, "register_comm_hook", lambda *_: None)


_NOBODY = (
    "noclobber: in a run without values no other rank sends an object. A stage of a pipeline learns its shapes from "
    "`PipelineStage(..., input_args=..., output_args=...)`"
)


def recv_object_list(*_: object, **__: object) -> NoReturn:
    """Stands for what waits for an object of another rank: its bytes would be of memory that nobody has written."""
    raise RuntimeError(_NOBODY)


def patch_pipelines(patches: Patches) -> None:
    """Let the stages of a program know what their neighbours would tell them, if it has imported pipelines.

    The gradient of a result has the shape of the result; what comes in is what the program has said of it. A release
    without these names asks nobody for that (torch 2.10; tests/observe/fake/test_ranks.py).
    """
    stages: Any = sys.modules.get("torch.distributed.pipelining.stage")
    names = ("_StageForwardMeta", "_StageBackwardMeta", "_derive_grad_metas")
    if not hasattr(getattr(stages, "PipelineStage", None), "_recv_meta") or not all(map(vars(stages).get, names)):
        return

    def _recv_meta(stage: Any, of: int) -> object:
        if of > stage.stage_index:
            gradients = stages._derive_grad_metas(stage._stage_meta.outputs)
            return stages._StageBackwardMeta(backward_metas=gradients)
        if stage._user_meta.inputs is None:
            raise RuntimeError(_NOBODY)
        return stages._StageForwardMeta(forward_metas=stage._user_meta.inputs)

    patches.put(stages.PipelineStage, "_recv_meta", _recv_meta)
