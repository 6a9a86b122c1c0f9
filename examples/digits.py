"""Pictures of digits, as a clock radio shows them: seven bars, some brighter than others, shifted, with noise."""

import torch
from torch import Tensor

BARS = {  # (row, column) of the pixels, in a picture of 8 x 8
    "top": [(1, 3), (1, 4)],
    "left above": [(2, 2), (3, 2)],
    "right above": [(2, 5), (3, 5)],
    "middle": [(4, 3), (4, 4)],
    "left below": [(5, 2), (6, 2)],
    "right below": [(5, 5), (6, 5)],
    "bottom": [(7, 3), (7, 4)],
}
LIT = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")
"""Which bars a digit from 0 to 9 has, in the order of BARS."""


def digits(count: int = 1797, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pictures of shape (count, 1, 8, 8) with values from 0 to 1, and which digit each of them shows."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=draw)
    pictures = torch.zeros(count, 8, 8)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        for lit, pixels in zip(LIT[label], BARS.values(), strict=True):
            brightness = 0.5 + 0.5 * torch.rand((), generator=draw)
            for row, column in pixels:
                picture[row, column] = int(lit) * brightness
        shift = torch.randint(-1, 2, (2,), generator=draw).tolist()
        picture.copy_(picture.roll(shift, dims=(0, 1)))
    noise = 0.15 * torch.rand(pictures.shape, generator=draw)
    return (pictures + noise).clamp(max=1).unsqueeze(1), labels
