"""What stays real in a fake run: data loaders and data sets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors.fake_tensors import LOADING


@contextlib.contextmanager
def _unpinned(loader: Any) -> Iterator[None]:
    """Let a data loader pin nothing while it makes an iterator: no device is here."""
    if getattr(loader, "pin_memory", False) is not True:
        yield
        return
    loader.pin_memory = False
    try:
        yield
    finally:
        loader.pin_memory = True


@contextlib.contextmanager
def away() -> Iterator[None]:
    """Run a block of the program on real tensors, without the modes of the fake run."""
    with modes.no_modes(), modes.plain():
        yield


def patch(patches: Patches) -> None:
    """Let data loaders work on real tensors."""

    def real(native: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any, **options: Any) -> Any:
            with away(), _unpinned(args[-1]):
                return native(*args, **options)

        return work

    for kind in LOADING:
        for name in ("__init__", "__next__", "_next_data", "_reset"):
            if name in vars(kind):
                patches.put(kind, name, real(getattr(kind, name)))
