"""The stand-in for the kernels: a mode that sees the same writes, for releases where the spare key does not work."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from noclobber.model.error import ClobberError
from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core.seen.written import Written, tensors, what_is_written
from noclobber.observe.core.writes import custom_op_kernels, kernel_functions, late_fills
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import spare_key
from noclobber.observe.torch_api.tensors import storages, tensor_state


class WriteMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the writes of this thread, at two to three times the cost of the kernels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        told, written = kernel_functions.told(), None
        if told is None:
            return func(*args, **kwargs)
        context, before = told
        try:
            written = what_is_written(func)
        except Exception as failure:
            context.core.fail(failure)
        if written is None:
            compared = (
                custom_op_kernels.before(func._schema.name, args, kwargs)
                if custom_op_kernels.is_foreign(func.namespace)
                else None
            )
            result = func(*args, **kwargs)
            if compared is not None:
                compared(result)
            return result
        if isinstance(written, str):
            context.core.guarded(kernel_functions.views_made, context, written)
            return func(*args, **kwargs)
        after, filled = None, None if written.fills is None else args[written.fills[0]]
        try:
            for tensor in tensors(written, args, kwargs):
                if tensor is not filled:  # it is saved by now, as autograd runs before a mode
                    after = before(written, tensor) or after
        except ClobberError as stopped:
            without_own_frames(stopped)
            raise
        except Exception as failure:
            context.core.fail(failure)
        unmoved = versions_of_lists(written, args, kwargs)
        try:
            with spare_key.counting() if written.is_collective else nullcontext():
                result = func(*args, **kwargs)
        except RuntimeError as error:
            context.core.guarded(context.parts.refused, context, written, args, kwargs, error)
            without_own_frames(error)
            raise
        move_versions(unmoved)
        if filled is not None and torch.is_grad_enabled():
            node, last = engine_state.next_node() - 1, len(written.arguments) == 1
            context.core.guarded(partial(late_fills.filled, context, filled, node, last=last))
        if after is not None:
            after()
        return result


def versions_of_lists(
    written: Written, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[tuple[torch.Tensor, int | None]]:
    """Return the versions of what an operator on lists of tensors is about to write, for `move_versions`."""
    if not written.op.startswith("aten::_foreach_"):
        return []
    plain = (tensor for tensor in tensors(written, args, kwargs) if type(tensor) in storages.PLAIN)
    return [(tensor, tensor_state.version_of(tensor)) for tensor in plain]


def move_versions(before: list[tuple[torch.Tensor, int | None]]) -> None:
    """Move the versions that PyTorch has left as they were: it does so under a mode, and its check then stays silent.

    (torch 2.13; test_the_stand_in_mode_sees_the_same)
    """
    unmoved = [
        tensor for tensor, version in before if version is not None and tensor_state.version_of(tensor) == version
    ]
    if unmoved:
        torch.autograd.graph.increment_version(unmoved)


def enter_mode() -> WriteMode:
    """Put a WriteMode on this thread's mode stack, and return it."""
    mode: Any = WriteMode
    return cast(WriteMode, mode().__enter__())
