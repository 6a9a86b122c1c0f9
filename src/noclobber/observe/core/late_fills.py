"""What an operator makes only once it has been saved: it was saved as the operator leaves it, for that is what is read.

So it is with the noise of `rrelu`: the node keeps an empty tensor, and the operator then draws into that (torch 2.13;
tests/observe/core/test_filled.py).
"""

from __future__ import annotations

import torch

from noclobber.observe.core.context import Context
from noclobber.observe.core.fingerprints import Digest, fingerprint
from noclobber.observe.torch_api import private

COPIED = "what `rrelu` draws once the program's saved-tensor hooks have copied it (backward reads the copy)"


def filled(context: Context, tensor: torch.Tensor, node: int, last: bool) -> None:
    """The operator of a node has filled what the node had saved; `last` where the node saves nothing afterwards, as one
    in place does of its result."""
    key = private.storage_key(tensor)
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
    with private.no_modes():
        return fingerprint(tensor)
