"""The spare dispatch key: kernels on it see the operators that write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from torch._C import DispatchKey, DispatchKeySet

KEY_NAME = "TESTING_ONLY_GenericMode"
"""A dispatch key that PyTorch keeps for its tests. It sits above functorch and autograd, and nothing else uses it."""
LOWER_KEY_NAME = "TESTING_ONLY_GenericWrapper"
"""The next key of that kind below it. Only the native part passes calls on to it."""
include: Callable[[DispatchKey, bool], None] = private.lookup("_C._dispatch_tls_set_dispatch_key_included")
exclude: Callable[[DispatchKey, bool], None] = private.lookup("_C._dispatch_tls_set_dispatch_key_excluded")
"""Skips a key in this thread, even if it is included."""
_is_included: Callable[[DispatchKey], bool] = private.lookup("_C._dispatch_tls_is_dispatch_key_included")
_is_excluded: Callable[[DispatchKey], bool] = private.lookup("_C._dispatch_tls_is_dispatch_key_excluded")
_key_of: Callable[[str], DispatchKey | None] = private.lookup("_C._parse_dispatch_key")
_keys_below: Callable[[DispatchKey], DispatchKeySet] = private.lookup("_C._dispatch_keyset_full_after")


def key_of(name: str) -> DispatchKey:
    """Return a dispatch key. Raises UnsupportedTorch where PyTorch has none of this name."""
    key = _key_of(name)
    if key is None:
        raise UnsupportedTorch(f"torch {torch.__version__} has no dispatch key {name}")
    return key


KEY = key_of(KEY_NAME)
"""The spare key. `write_kernels.test` tries it."""
KEYS_BELOW = _keys_below(KEY)
"""The keys below the spare key: a kernel on the spare key passes a call on to them."""
below_versions: Callable[[], bool] = partial(_is_excluded, key_of("ADInplaceOrView"))
"""Returns True inside the kernel of an operator, below the key that counts versions: writes there move none."""


def set_key(on: bool) -> None:
    """Send this thread's operators through the spare key, or stop doing so."""
    include(KEY, on)


def key_is_set() -> bool:
    """Return True if this thread's operators go through the spare key."""
    return _is_included(KEY)


def key_works() -> bool:
    """Return True if kernels see this thread's operators: the key is included and not excluded."""
    return key_is_set() and not _is_excluded(KEY)


@contextmanager
def logged() -> Iterator[None]:
    """Let kernels see the operators of a block, even inside an operator that runs without kernels."""
    was_set, was_excluded = key_is_set(), _is_excluded(KEY)
    try:
        include(KEY, True)
        exclude(KEY, False)
        yield
    finally:
        include(KEY, was_set)
        exclude(KEY, was_excluded)


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep noclobber's own operators out of the write log."""
    on = key_is_set()
    try:  # a signal may interrupt right after the key is off
        if on:
            set_key(False)
        yield
    finally:
        if on:
            set_key(True)


def let_through() -> None:
    """Make the operators that take functions (`cond`, Functions under torch.func) skip the spare key.

    They look up their kernels in Python and would find none for it (torch 2.13). Operators that are defined later copy
    the list that is changed here.
    """
    ops = private.lookup("_ops")
    passed_over = ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if KEY not in passed_over:
        passed_over.append(KEY)
        for op in ops._higher_order_ops.values():
            op.fallthrough(KEY)
