"""`torch.autocast("cuda")` in a fake run: the CPU's autocast works too, as that is where the played device lies."""

from __future__ import annotations

from typing import Any

import torch

from noclobber.observe.torch_api.patches import Patches


def patch(patches: Patches, played: str) -> None:
    """Set for the CPU what the program sets for the played device."""

    def as_well(name: str) -> Any:
        native = getattr(torch, name)

        def set_autocast(*args: Any) -> None:
            native(*args)
            if len(args) == 2 and args[0] == played:
                native("cpu", args[1])

        set_autocast.__name__ = name
        return set_autocast

    for name in ("set_autocast_enabled", "set_autocast_dtype"):
        patches.put(torch, name, as_well(name))
