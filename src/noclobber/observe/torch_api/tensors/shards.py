"""Parameters of FSDP2: the memory that it gathers them into, and the shards that an optimizer steps."""

from __future__ import annotations

import gc
import sys
from typing import Any

from noclobber.observe.torch_api.tensors import storages

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param"


def shard_of(key: int | None) -> int | None:
    """Return the storage key of the sharded parameter that FSDP2 gathers into a storage; None for other memory.

    This searches all objects, so it is for reports only (torch 2.10 to 2.15; tests/observe/core/test_shards.py).
    """
    kind: Any = getattr(sys.modules.get(_MODULE), "FSDPParam", None)
    for one in gc.get_referrers(kind) if kind is not None else ():
        if type(one) is kind and any(storages.storage_key(there) == key for there in one.all_gather_outputs):
            return storages.storage_key(one.sharded_param)
    return None
