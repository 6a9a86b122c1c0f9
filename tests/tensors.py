"""Whether tensors are the same, one by one, and as many."""

from collections.abc import Iterable

import torch
from torch import Tensor


def all_equal(ones: Iterable[Tensor | None], others: Iterable[Tensor | None], alike=torch.equal) -> bool:
    """Return True if both have the same tensors, None where the others have None; `alike` compares two."""
    ones, others = list(ones), list(others)
    if len(ones) != len(others):
        return False
    pairs = zip(ones, others, strict=True)
    return all(one is other if one is None or other is None else alike(one, other) for one, other in pairs)
