"""Batch norm's running statistics: in training it saves them, then overwrites them, and its backward reads others."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from contextlib import suppress
from threading import get_ident
from typing import Protocol

import torch

from noclobber.observe.torch_api import private
from noclobber.observe.witness.digests import Shown, shown

STATISTIC: Shown = ((ctypes.c_char * 0)(), -1, None)
"""What is `shown` of a save that the node's own backward does not read (unread_saves.py), though its bytes change."""


class Save(Protocol):
    """The part of a handle that is needed here."""

    alias: torch.Tensor
    shown: Shown | None
    node: int


under_way: dict[int, dict[int, Save | None]] = {}
"""The statistics that an operator under way saves and overwrites, by thread: by address, the save of each once it is
made, None before that."""


def unsaved(written: Iterable[torch.Tensor]) -> dict[int, Save | None]:
    """Return the statistics that an operator is about to save and overwrite, by address, without a save yet."""
    return {address: None for one in written if (address := _address(one)) is not None}


def mark(save: Save) -> None:
    """Mark a save of a statistic that an operator under way overwrites. Memory that it saves twice may be its weight
    too, which it reads."""
    mine = under_way.get(get_ident())
    address = _address(save.alias) if mine else None
    if mine and address is not None and address in mine:
        first, mine[address] = mine[address], save
        if first is None:
            save.shown = STATISTIC
        else:
            first.shown = shown(first.alias)


def is_read_by_its_node(save: Save) -> bool:
    """Return True in the backward of the node that made a save."""
    node = private.current_node()
    return node is not None and bool(node._sequence_nr() == save.node)


def _address(tensor: torch.Tensor) -> int | None:
    if type(tensor) in private.PLAIN:
        with suppress(RuntimeError):  # of mkldnn's layout, and under torch.func
            return private.address(tensor)
    return None
