"""Tensors that an operator fills after saving them. Backward reads the filled tensor, so that is what counts as saved.

The noise of `rrelu` is one: the node saves an empty tensor, and the operator then draws into it (torch 2.13;
tests/observe/core/test_filled.py).
"""

from __future__ import annotations

import torch

from noclobber.observe.core.context import Context
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.digests import Digest, fingerprint

COPIED = "what `rrelu` draws once the program's saved-tensor hooks have copied it (backward reads the copy)"


def filled(context: Context, tensor: torch.Tensor, node: int, *, last: bool) -> None:
    """Take the fingerprints again of what a node has saved, as its operator has just filled that tensor.

    `last` is True if the node saves nothing afterwards. An in-place operator still saves its result.
    """
    key = storages.storage_key(tensor)
    if key is None:
        return
    for reference in context.thread.packed:
        packed = reference()
        if packed is not None and packed.key == key and packed.node == node:
            packed.filled_last = last
            if packed.is_copy:
                context.bus.not_seen(COPIED)
            packed.digest = _anew(packed.digest, tensor)
    for handle in context.live.at(key):
        if handle.node == node:
            handle.digest = _anew(handle.digest, tensor)


def _anew(digest: Digest, tensor: torch.Tensor) -> Digest:
    if digest is None:
        return None
    with modes.no_modes():
        return fingerprint(tensor)
