"""The training steps that are timed: an MLP, an unrolled LSTMCell, a GPT and a ResNet-50, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]


Reach = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Workload:
    """`build` makes a model and its data, and gives a training step.

    The pairs are the ratios to reach: with Python alone, and with the native part.
    """

    name: str
    says: str
    build: Callable[[], Step]
    install: Reach
    versions: Reach
    contents: Reach


def training_step(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    """Gradients to None, forward, loss, backward, AdamW as it is by default."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def mlp() -> Step:
    """Three layers of width 32, 16 rows."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    x, y = torch.randn(16, 32), torch.randint(10, (16,))
    return training_step(model, lambda: F.cross_entropy(model(x), y))


def mlp_of_array() -> Step:
    """The MLP on one numpy array that the program fills anew for each step: foreign code may write to what is saved."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    rows, y = torch.randn(16, 32).numpy(force=True), torch.randint(10, (16,))
    array = rows.copy()

    def loss() -> Tensor:
        array[:] = rows
        return F.cross_entropy(model(torch.from_numpy(array).to(y.device)), y)

    return training_step(model, loss)


def lstm_cell() -> Step:
    """An LSTMCell of width 32, called 200 times on 8 rows."""
    cell = nn.LSTMCell(16, 32)
    x = torch.randn(200, 8, 16)

    def loss() -> Tensor:
        state = (x.new_zeros(8, 32), x.new_zeros(8, 32))
        for row in x:
            state = cell(row, state)
        return state[0].square().mean()

    return training_step(cell, loss)


class Block(nn.Module):
    """A transformer block: causal attention and a feed-forward, each after a layer norm and with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """Embeddings, blocks, a final norm and a head that shares the embedding's weight."""

    def __init__(self, width: int, layers: int, heads: int, letters: int, window: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(window, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.letters(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return F.linear(self.norm(self.blocks(x)), self.letters.weight)


def gpt(width: int, heads: int, letters: int, window: int, batch: int) -> Step:
    """Six layers."""
    model = GPT(width, 6, heads, letters, window)
    x, y = torch.randint(letters, (2, batch, window))
    return training_step(model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()))


def generating(width: int, heads: int, letters: int, window: int) -> Step:
    """Six layers that write one letter after another under `no_grad`, with keys and values cached in place."""
    model = GPT(width, 6, heads, letters, window)
    cache = torch.zeros(6, 2, 1, heads, window, width // heads)

    def attended(layer: int, block: Block, x: Tensor, place: int) -> Tensor:
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in block.qkv(block.norm1(x)).chunk(3, -1))
        keys, values = cache[layer]
        keys[:, :, place : place + 1] = k
        values[:, :, place : place + 1].copy_(v)
        out = F.scaled_dot_product_attention(q, keys[:, :, : place + 1], values[:, :, : place + 1])
        return out.transpose(1, 2).flatten(2)

    @torch.no_grad()
    def step() -> None:
        written = cache.new_zeros(1, window + 1, dtype=torch.long)
        for place in range(window):
            x = model.letters(written[:, place : place + 1]) + model.places.weight[place]
            for layer, block in enumerate(model.blocks):
                assert isinstance(block, Block)
                x = x + block.out(attended(layer, block, x, place))
                x = x + block.feed_forward(block.norm2(x))
            scores = F.linear(model.norm(x), model.letters.weight)[:, -1]
            scores.masked_fill_(scores < scores.topk(4).values[:, -1:], -torch.inf)
            written[:, place + 1] = scores.softmax(-1).argmax(-1)

    return step


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut, with the in-place ReLU and sum that everyone writes."""

    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        outward = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inward, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outward, 1, bias=False), nn.BatchNorm2d(outward)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.shortcut = nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        return self.relu(out)


class Adapted(nn.Module):
    """A frozen linear layer with an adapter of rank 4 beside it, as LoRA has them."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inward, outward).requires_grad_(False)
        self.down, self.up = nn.Linear(inward, 4, bias=False), nn.Linear(4, outward, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 2 * self.up(self.down(x))


def lora_checkpoint() -> Step:
    """Six blocks whose linear layers are adapted, each checkpointed without a re-entrant backward."""
    blocks = [Block(16, 2) for _ in range(6)]
    for block in blocks:
        for name, layer in list(block.named_modules()):
            if isinstance(layer, nn.Linear):
                parent, _, last = name.rpartition(".")
                setattr(block.get_submodule(parent), last, Adapted(layer.in_features, layer.out_features))
    model = nn.ModuleList(blocks)
    x = torch.randn(2, 8, 16)

    def loss() -> Tensor:
        h = x.clone().requires_grad_()
        for block in blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return h.square().mean()

    return training_step(model, loss)


def resnet50(width: int, pixels: int, batch: int, classes: int) -> Step:
    """3, 4, 6 and 3 bottlenecks of once, twice, four and eight times `width`."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inward = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inward, width << stage, 2 if block == 0 and stage > 0 else 1))
            inward = 4 * width << stage
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, classes))
    x, y = torch.randn(batch, 3, pixels, pixels), torch.randint(classes, (batch,))
    return training_step(model, lambda: F.cross_entropy(model(x), y))


WORKLOADS = (
    Workload("mlp", "MLP, 3 layers of width 32", mlp, (1.15, 1.05), (1.33, 1.15), (1.35, 1.2)),
    Workload("mlp-array", "the same MLP, on a numpy array", mlp_of_array, (1.15, 1.05), (1.4, 1.15), (2.1, 2.0)),
    Workload("lstm", "LSTMCell x 200, width 32", lstm_cell, (1.35, 1.05), (1.95, 1.15), (2.6, 1.25)),
    Workload(
        "gpt-tiny",
        "GPT of 6 layers, tiny tensors",
        lambda: gpt(16, 2, 32, 8, 1),
        (1.12, 1.05),
        (1.35, 1.1),
        (1.45, 1.17),
    ),
    Workload(
        "lora-checkpoint",
        "LoRA on 6 checkpointed blocks, tiny tensors",
        lora_checkpoint,
        (1.1, 1.05),
        (1.6, 1.25),
        (1.9, 1.25),
    ),
    Workload(
        "generate",
        "the same GPT, generating with a cache",
        lambda: generating(16, 2, 32, 16),
        (1.55, 1.05),
        (1.5, 1.1),
        (1.5, 1.1),
    ),
    Workload(
        "resnet-tiny", "ResNet-50, tiny tensors", lambda: resnet50(2, 32, 2, 10), (1.3, 1.05), (1.55, 1.12), (1.6, 1.15)
    ),
    Workload(
        "gpt", "GPT 6 x 384, 2 x 128 letters", lambda: gpt(384, 6, 256, 128, 2), (1.05, 1.02), (1.05, 1.05), (1.2, 1.1)
    ),
    Workload(
        "resnet",
        "ResNet-50, 2 pictures of 96 pixels",
        lambda: resnet50(64, 96, 2, 1000),
        (1.05, 1.02),
        (1.05, 1.05),
        (1.2, 1.1),
    ),
)
