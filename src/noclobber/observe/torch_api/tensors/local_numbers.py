"""The numbers of a tensor that this process holds."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor as a plain one without a graph: of a sparse tensor all of them, of a tensor that
    wraps others (DTensor, a jagged tensor) those that it holds here, in a row."""
    plain = tensor.detach()
    if is_traceable_wrapper_subclass(plain):
        return torch.cat([dense(one).reshape(-1) for one in parts(plain)])
    return plain if plain.layout is torch.strided else plain.to_dense()


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that a tensor wraps; none if it wraps none."""
    if not is_traceable_wrapper_subclass(tensor):
        return []
    held = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [one for one in held if isinstance(one, torch.Tensor)]
