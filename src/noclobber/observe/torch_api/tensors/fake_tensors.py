"""PyTorch's fake tensors: shapes, dtypes, devices, storages and versions, but no values. Imported only by a fake run.

`self_test` says whether this release still makes them as noclobber needs it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils.data import dataloader

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.observe.torch_api import before_2_12, private
from noclobber.observe.torch_api.tensors import storages

try:
    from torch._higher_order_ops.utils import registered_hop_fake_fns as TAKING_FUNCTIONS
    from torch._subclasses import fake_tensor
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.optim.optimizer import _foreach_supported_types as AT_ONCE

    # `TAKING_FUNCTIONS` are operators that take functions, such as `flex_attention`, and that the mode itself runs.
    # `AT_ONCE` are the classes of parameters over which an optimizer on a GPU steps at once (torch 2.13).
    DEVICE = vars(FakeTensor)["device"]
    """The property that tells the device of a fake tensor."""
    WITHOUT_VALUES: tuple[type[RuntimeError], ...] = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedOperatorException,
        fake_tensor.UnsupportedFakeTensorException,
    )
    """What an operator raises that needs values."""
    WITHOUT_RULE = fake_tensor.UnsupportedOperatorException
    """What an operator raises that has no rule for shapes."""
    on_zeros = fake_tensor.run_fallback_kernel
    """Runs the kernel of an operator without a rule on tensors of zeros, on the CPU."""
    _Converter = fake_tensor.FakeTensorConverter
    LOADING: tuple[type, ...] = (
        dataloader._BaseDataLoaderIter,
        dataloader._SingleProcessDataLoaderIter,
        dataloader._MultiProcessingDataLoaderIter,
    )
    """The iterators of data loaders: `__init__`, `_reset`, `__next__` and `_next_data` run the program's data set."""
except (ImportError, AttributeError, KeyError) as missing:
    raise UnsupportedTorch(
        f"torch {torch.__version__} has no fake tensors as noclobber knows them: {missing}"
    ) from None

__all__ = [
    "AT_ONCE",
    "DEVICE",
    "LOADING",
    "TAKING_FUNCTIONS",
    "WITHOUT_RULE",
    "WITHOUT_VALUES",
    "Converter",
    "FakeTensor",
    "FakeTensorMode",
    "fake_store",
    "on_zeros",
    "self_test",
]

storages.STORED.add(FakeTensor)


class Converter(_Converter):
    """PyTorch's converter, which refers to no new tensor weakly here: `Module.to` swaps parameters, and refuses to swap
    what has weak references (torch 2.13; tests/observe/fake/test_devices.py)."""

    def from_meta_and_device(
        self, fake_mode: FakeTensorMode, t: torch.Tensor, device: torch.device, *args: Any, **options: Any
    ) -> FakeTensor:
        """Return a fake tensor on the memory of a meta tensor."""
        if isinstance(t, FakeTensor):
            return t
        given = {**dict(zip(("pytype", "dispatch_keys"), args, strict=False)), **options}
        return FakeTensor(fake_mode, t, device, **given)


def fake_store() -> Any:
    """Return the store of PyTorch's fake process group. Raises UnsupportedTorch where the group, or a function that
    reads values in C++ (`IN_C`), is missing."""
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as missing:
        raise UnsupportedTorch(f"torch {torch.__version__} has no fake process group: {missing}") from None
    before_2_12.know_collectives()
    for name in IN_C:
        private.lookup(f"distributed.{name}")
    return FakeStore()


IN_C = ("_verify_params_across_processes", "_broadcast_coalesced")
"""Functions of `torch.distributed` by which DistributedDataParallel reads values in C++."""


@cache
def self_test() -> None:
    """Raise UnsupportedTorch if fake tensors cannot lie on another CPU than the first, count no versions, or have no
    storage of their own; or if no data loader would be seen."""
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            one = torch.empty(3, device="cpu:1")
            other = one.view(3)
            other.add_(1)
        moved = one.device == torch.device("cpu", 1) and one.device != torch.device("cpu")
        holds = moved and one._version == 1 and one.untyped_storage()._cdata == other.untyped_storage()._cdata
        holds = holds and one.untyped_storage().nbytes() == 12
        loads = all({"__next__", "_reset"} <= set(dir(one)) for one in LOADING) and "_next_data" in vars(LOADING[1])
    except Exception as failure:
        raise UnsupportedTorch(f"torch {torch.__version__} makes no fake tensors: {failure}") from failure
    if not (holds and loads):
        raise UnsupportedTorch(f"torch {torch.__version__} has changed its fake tensors or data loaders")
