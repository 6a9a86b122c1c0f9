"""The kernels of a GPU, in a fake run: dropout and attention keep less for backward than the CPU's do, and an optimizer
steps over all parameters at once, which takes more memory than one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

from noclobber.observe.fake.gpu.devices import HALVES, is_played
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors.fake_tensors import AT_ONCE, FakeTensor

aten = torch.ops.aten
_LARGEST_HEAD = 256
"""The largest dimension of a head that flash attention takes."""


def patch(patches: Patches, kind: str) -> Callable[[], None]:
    """Put functions that choose a GPU's kernels for the played device in the place of PyTorch's; the function that is
    returned undoes what `patches` does not.

    The CPU's autocast works too where that of the played device does, as the device lies on the CPU.
    """
    drop, attend = torch.dropout, functional.scaled_dot_product_attention
    rules = private.lookup("_meta_registrations")
    hint = rules.device_hint

    def device_hint(tensor: Any) -> str:
        """Return the kind of device for which PyTorch's rules of shapes answer."""
        return kind if isinstance(tensor, FakeTensor) and is_played(tensor.fake_device) else hint(tensor)

    def as_well(name: str) -> Any:
        native = getattr(torch, name)

        def set_autocast(*args: Any) -> None:
            native(*args)
            if len(args) == 2 and args[0] == kind:
                native("cpu", args[1])

        set_autocast.__name__ = name
        return set_autocast

    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if is_on(kind, input) and train and 0 < p < 1 and input.numel():
            return torch.native_dropout(input, p, True)[0]  # keeps a mask of one byte for each element
        return drop(input, p, train)

    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if not (is_on(kind, query, key, value) and _fits(query, key, value, enable_gqa)):  # also parts of a DTensor
            return attend(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        masks = (torch.bool, torch.float32, query.dtype)  # what else is given as a mask, PyTorch refuses
        if not query.dtype == key.dtype == value.dtype or (attn_mask is not None and attn_mask.dtype not in masks):
            return attend(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        heads = query.shape[1]
        if attn_mask is None and query.dtype in HALVES and query.shape[-1] <= _LARGEST_HEAD:
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if key.shape[1] != heads:
            times = heads // key.shape[1]
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        if attn_mask is not None:
            if attn_mask.dtype is torch.bool:
                added = torch.zeros_like(attn_mask, dtype=query.dtype)
                attn_mask = added.masked_fill_(attn_mask.logical_not(), float("-inf"))
            attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
        keeps = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
        efficient = aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]

    patches.put(private.lookup("_VF"), "dropout", dropout)
    patches.put(torch, "dropout", dropout)
    patches.put(functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    patches.put(rules, "device_hint", device_hint)
    for name in ("set_autocast_enabled", "set_autocast_dtype"):
        patches.put(torch, name, as_well(name))
    AT_ONCE.append(FakeTensor)  # `torch.distributed.tensor` adds to the list too, so it is not replaced
    return lambda: AT_ONCE.remove(FakeTensor)


def is_on(kind: str, *given: object) -> bool:
    """Return True for tensors that are on the played device: what else a program gives, PyTorch refuses."""
    return all(isinstance(one, torch.Tensor) and one.device.type == kind for one in given)


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, are_shared: bool) -> bool:
    """Return True if a GPU has a kernel for these heads that keeps no matrix of all pairs. Heads of the query share one
    of the keys only where the program asks for that; PyTorch itself broadcasts or refuses what differs otherwise."""
    if query.dim() != 4 or key.shape != value.shape or key.dim() != 4 or query.shape[-1] != key.shape[-1]:
        return False
    heads, others = query.shape[1], key.shape[1]
    is_matched = heads == others or (are_shared and others > 0 and heads % others == 0)
    return is_matched and query.shape[0] == key.shape[0] and query.shape[-1] % 8 == 0
