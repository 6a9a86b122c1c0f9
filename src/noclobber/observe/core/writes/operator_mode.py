"""A mode that sees every operator of a thread, below autograd, and leaves the versions as they are without a mode."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.written import tensors, what_is_written
from noclobber.observe.torch_api.frames import frame_above
from noclobber.observe.torch_api.tensors import storages, tensor_state

Before = Callable[[Any, tuple[Any, ...], dict[str, Any], FrameType], Callable[[object], object] | None]
"""Called with an operator, its arguments and the innermost frame of Python, before the operator runs. Returns what to
call with its result, None for nothing."""


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `before` before each operator that runs while the mode is on this thread's stack."""

    def __init__(self, way: Way, before: Before) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._way, self._before = way, before

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch wraps what follows in a function that imports its compiler (1.3 s, torch 2.13)."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ran = self._way.guarded(self._begins, func, args, kwargs)
        result = func(*args, **kwargs)
        if ran is not None:
            self._way.guarded(ran, result)
        return result

    def _begins(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[object], None]:
        """Return what to call with the result of an operator that is about to run."""
        versions = versions_of_lists(func, args, kwargs)
        after = self._before(func, args, kwargs, frame_above(3))

        def ran(result: object) -> None:
            move_versions(versions)
            if after is not None:
                after(result)

        return ran


def versions_of_lists(
    func: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[tuple[torch.Tensor, int | None]]:
    """Return the versions of what an operator on lists of tensors is about to write, for `move_versions`."""
    written = what_is_written(func) if func._schema.name.startswith("aten::_foreach_") else None
    if written is None:
        return []
    plain = (tensor for tensor in tensors(written, args, kwargs) if type(tensor) in storages.PLAIN)
    return [(tensor, tensor_state.version_of(tensor)) for tensor in plain]


def move_versions(before: list[tuple[torch.Tensor, int | None]]) -> None:
    """Move the versions that PyTorch has left as they were: it does so under a mode, and its check then stays silent
    (torch 2.13; tests/observe/test_allocations.py)."""
    unmoved = [
        tensor for tensor, version in before if version is not None and tensor_state.version_of(tensor) == version
    ]
    if unmoved:
        torch.autograd.graph.increment_version(unmoved)
