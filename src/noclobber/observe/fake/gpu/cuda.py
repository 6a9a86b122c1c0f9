"""What `torch.cuda` answers in a fake run: that of a machine with the GPUs that are asked for."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from noclobber.model.fake import Gpu
from noclobber.observe.fake.gpu.devices import Devices
from noclobber.observe.fake.memory import Memory
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches


class Stream:
    """A stream, or an event, on which everything has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.stream_id = self.cuda_stream = self.device_index = self.device_type = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, _: object) -> float:
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        return event if event is not None else Stream()

    def record(self, *_: Any) -> None:
        """Do nothing, as nothing is under way."""

    synchronize = wait = wait_stream = wait_event = record


_NOTHING = """
    init _lazy_init _record_memory_history _dump_snapshot reset_peak_memory_stats reset_max_memory_allocated
    empty_cache ipc_collect synchronize manual_seed manual_seed_all seed seed_all set_rng_state set_rng_state_all
    set_per_process_memory_fraction set_stream
""".split()  # noqa: SIM905
"""Functions that have nothing to do."""


def patch(patches: Patches, gpu: Gpu, devices: Devices, memory: Memory) -> None:
    """Put answers in the place of the functions of `torch.cuda`."""
    module = torch.cuda if gpu.kind == "cuda" else torch.xpu

    def index_of(device: Any) -> int:
        if device is None:
            return devices.current
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return devices.current if index is None else index

    def place_of(index: int) -> Any:
        return torch.device("cpu") if index < 0 else devices.lies_on(index)

    def set_device(device: Any) -> None:
        devices.current = index_of(device)

    def exchange(index: int) -> int:
        before, devices.current = devices.current, devices.current if index < 0 else index
        return before

    class Using(contextlib.ContextDecorator):
        """`with torch.cuda.device(1):`."""

        def __init__(self, device: Any) -> None:
            self.idx, self.prev_idx = index_of(device), -1

        def __enter__(self) -> None:
            self.prev_idx, devices.current = devices.current, self.idx

        def __exit__(self, *_: object) -> None:
            devices.current = self.prev_idx

    def in_turn(self: Any, replicas: Any, inputs: Any, options: Any) -> list[Any]:
        made = []  # threads of its own would have no modes, and those of fake tensors are for one thread (torch 2.13)
        for replica, given, named, index in zip(replicas, inputs, options, self.device_ids, strict=False):
            with Using(index):
                made.append(replica(*given, **named))
        return made

    def properties(device: Any = None) -> Any:
        major, minor = gpu.capability
        return SimpleNamespace(
            name=f"NVIDIA {gpu.name}", total_memory=gpu.bytes, major=major, minor=minor, is_integrated=0,
            multi_processor_count=gpu.multiprocessors, warp_size=32, regs_per_multiprocessor=65536,
            max_threads_per_multi_processor=2048, L2_cache_size=50 * 2**20, gcnArchName="", is_multi_gpu_board=0,
            shared_memory_per_block=49152, shared_memory_per_multiprocessor=228 * 1024, uuid="",
        )  # fmt: skip

    def now(device: Any = None) -> int:
        return memory.now(torch.device("cpu", index_of(device) + 1))

    def most(device: Any = None) -> int:
        return memory.most(torch.device("cpu", index_of(device) + 1))

    answers: dict[str, Any] = {
        **dict.fromkeys(_NOTHING, _none),
        **dict.fromkeys(("memory_allocated", "memory_reserved"), now),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), most),
        **dict.fromkeys(("current_stream", "default_stream", "Stream", "Event"), Stream),
        **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
        "device_count": lambda: gpu.count,
        "current_device": lambda: devices.current,
        "set_device": set_device,
        "device": Using,
        "get_device_name": lambda device=None: f"NVIDIA {gpu.name}",
        "get_device_properties": properties,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "is_bf16_supported": lambda including_emulation=True: gpu.capability >= (8, 0) or including_emulation,
        "mem_get_info": lambda device=None: (max(gpu.bytes - now(device), 0), gpu.bytes),
        "memory_stats": lambda device=None: defaultdict(
            int,
            {
                f"{kind}_bytes.all.{when}": bytes(device)
                for kind in ("allocated", "reserved", "active")
                for when, bytes in (("current", now), ("peak", most))
            },
        ),
        "memory_summary": lambda *_, **__: "",
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device=None: _state(),
        "get_rng_state_all": lambda: [_state() for _ in range(gpu.count)],
        "can_device_access_peer": lambda device, peer: True,
        "is_current_stream_capturing": lambda: False,
        "stream": lambda stream: stream if stream is not None else Stream(),
    }
    accelerator = torch.device(gpu.kind)
    generic = answers | {
        "current_accelerator": lambda check_available=False: accelerator,
        "current_device_index": lambda: devices.current,
        "set_device_index": set_device,
    }
    del generic["get_device_capability"]  # `torch.accelerator` has one that says what dtypes there are
    in_cuda = dict.fromkeys((module, module.random, getattr(module, "memory", module)), answers)
    for place, answered in {**in_cuda, torch.accelerator: generic}.items():
        for name in answered.keys() & vars(place).keys():
            patches.put(place, name, _own(answered[name]))
    # A module of weights for cuDNN's kernels asks this, and a build without cuDNN warns (torch 2.13, nn.RNNBase).
    patches.put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    # FSDP2 asks for its default mesh here (torch 2.13; tests/observe/fake/test_ranks.py).
    patches.put(torch._C, "_get_accelerator", lambda check=None: accelerator)
    between: dict[str, Any] = {
        "_scatter": lambda tensor, indices, sizes, dim, streams: tuple(
            part.to(place_of(at))
            for part, at in zip(
                tensor.chunk(len(indices), dim) if sizes is None else tensor.split(sizes, dim), indices, strict=False
            )
        ),
        "_gather": lambda tensors, dim, index: torch.cat([one.to(place_of(index)) for one in tensors], dim),
        "_broadcast_coalesced": lambda tensors, indices, _: [
            [one.to(place_of(at)) for one in tensors] for at in indices
        ],
    }
    for name in ("_accelerator_exchangeDevice", "_accelerator_maybeExchangeDevice"):  # `torch.accelerator.device_index`
        between[name] = exchange
    for name, answer in between.items():  # of DataParallel; a build without CUDA has none of them
        patches.put(torch._C, name, answer)
    patches.put(torch.nn.DataParallel, "parallel_apply", in_turn)
    # A build for CUDA adds the gradients of several devices up there (torch 2.15; tests/observe/fake/test_devices.py).
    patches.put(torch.cuda.nccl, "is_available", lambda tensors: False)
    patches.put(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    patches.put(private.lookup("nn.parallel._functions"), "_get_stream", Stream)
    if hasattr(module, "nvtx"):
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            patches.put(module.nvtx, name, _none)


def _state() -> torch.Tensor:
    """Return the state of a generator of random numbers: a seed and an offset, of 8 bytes each."""
    return torch.zeros(16, dtype=torch.uint8)


def _own(answer: Any) -> Any:
    """Return a copy of a function: PyTorch's compiler refuses one function under two names (torch 2.13)."""
    if not isinstance(answer, FunctionType):
        return answer
    return FunctionType(answer.__code__, answer.__globals__, answer.__name__, answer.__defaults__, answer.__closure__)


def _none(*_: Any, **__: Any) -> None:
    return None
