"""Do two strided views of one storage share a byte? Decided exactly, not by comparing spans."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

MOST_STEPS = 20_000
"""Search steps before the answer is the cautious one. Real views of up to four dimensions need far fewer."""


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of a strided view. `offset` and `strides` are in bytes from the start of the storage."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, an expanded (stride 0) dimension counted each time."""
        return prod(self.shape, start=self.itemsize)

    def dims(self) -> list[tuple[int, int]]:
        """(stride, steps) of each dimension that moves, the bytes of an element included, strides made positive."""
        dims = [
            (abs(stride), size - 1)
            for size, stride in zip(self.shape, self.strides, strict=True)
            if size > 1 and stride
        ]
        dims.append((1, self.itemsize - 1))
        return _merged(dims)

    def first(self) -> int:
        """The lowest byte address."""
        return self.offset + sum(
            stride * (size - 1)
            for size, stride in zip(self.shape, self.strides, strict=True)
            if stride < 0 and size > 1
        )

    def end(self) -> int:
        """One past the highest byte address."""
        return (
            self.offset
            + sum(
                stride * (size - 1)
                for size, stride in zip(self.shape, self.strides, strict=True)
                if stride > 0 and size > 1
            )
            + self.itemsize
        )


def overlap(one: Region, other: Region) -> bool:
    """True where a byte belongs to both, and where deciding would take more than `MOST_STEPS` steps.

    The question is whether `first1 + sum(i*s) == first2 + sum(j*t)` has a solution inside the bounds: a bounded linear
    Diophantine equation. Mirroring `other` makes all coefficients positive.
    """
    if 0 in one.shape or 0 in other.shape or one.end() <= other.first() or other.end() <= one.first():
        return False
    dims_one, dims_other = one.dims(), other.dims()
    target = other.end() - 1 - one.first()
    dims = sorted(_merged(dims_one + dims_other), reverse=True)
    suffix_reach = [0] * (len(dims) + 1)
    suffix_gcd = [0] * (len(dims) + 1)
    for index in range(len(dims) - 1, -1, -1):
        stride, steps = dims[index]
        suffix_reach[index] = suffix_reach[index + 1] + stride * steps
        suffix_gcd[index] = gcd(suffix_gcd[index + 1], stride)
    budget = MOST_STEPS
    stack = [(0, target)]
    while stack:
        index, rest = stack.pop()
        if rest < 0 or rest > suffix_reach[index]:
            continue
        if index == len(dims):
            return True
        if rest % suffix_gcd[index]:
            continue
        budget -= 1
        if budget < 0:
            return True
        stride, steps = dims[index]
        lowest = max(0, -(-(rest - suffix_reach[index + 1]) // stride))
        highest = min(steps, rest // stride)
        stack.extend((index + 1, rest - stride * count) for count in range(lowest, min(highest, lowest + budget) + 1))
        if highest - lowest > budget:
            return True
    return False


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join dimensions that together step like one: equal strides, or an outer stride that the inner one fills up."""
    merged: list[tuple[int, int]] = []
    for stride, steps in sorted(dim for dim in dims if dim[1] > 0):
        if merged:
            inner_stride, inner_steps = merged[-1]
            if stride % inner_stride == 0 and stride <= inner_stride * (inner_steps + 1):
                merged[-1] = (inner_stride, inner_steps + stride // inner_stride * steps)
                continue
        merged.append((stride, steps))
    return merged
