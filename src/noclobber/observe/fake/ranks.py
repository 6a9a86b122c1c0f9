"""One rank of many: the process group is PyTorch's fake one, which sends nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch.distributed as dist


def begin(world_size: int, rank: int, kind: str) -> Callable[[], None]:
    """Make this process one rank of so many, with the environment that torchrun gives; return what undoes it."""
    if not world_size:
        return lambda: None
    from torch.testing._internal.distributed.fake_pg import FakeStore

    given = {
        "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    native = dist.init_process_group

    def init_process_group(*_: object, **options: object) -> None:
        native(backend="fake", store=FakeStore(), rank=rank, world_size=world_size)

    dist.init_process_group = init_process_group

    def end() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group = native
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return end
