"""The ledger of a fake run is that of a real one, to the byte."""

import pytest
import torch
from torch import nn

import noclobber


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.GRU(8, 16, 2), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0].relu())


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    def forward(self, x):
        return self.layer(x).masked_fill(x > 0, 0.5)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)), (16, 8)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(392, 5),
        ),
        (4, 3, 16, 16),
    ),
    "recurrent": (Recurrent, (5, 3, 8)),
    "attention": (Attending, (2, 6, 16)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(50, 8), nn.Dropout(0.3), nn.Softmax(-1)), None),
}


def ledger(make, shape):
    model = make()
    x = torch.randint(0, 50, (4, 6)) if shape is None else torch.randn(shape)
    optimizer = torch.optim.AdamW(model.parameters())
    with noclobber.watch(ledger=True) as seen:
        for _ in range(2):
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [
        (one.line, one.module, one.node, one.bytes, one.storages, one.lives_anyway) for one in seen.ledger().entries
    ]


@pytest.mark.parametrize("name", MODELS)
def test_fake_and_real_ledgers_are_equal(name):
    make, shape = MODELS[name]
    real = ledger(make, shape)
    with noclobber.fake(device="cpu"):
        assert ledger(make, shape) == real


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [torch.float32, None])
def test_what_norms_keep_has_the_dtype_of_the_kernels(weight, half):
    def kept():
        dtype = weight or half
        batch, group = nn.BatchNorm2d(8, dtype=dtype), nn.GroupNorm(4, 8, dtype=dtype)
        layer, plain = nn.LayerNorm(8, dtype=dtype), nn.GroupNorm(4, 8, affine=False)
        with noclobber.watch(ledger=True) as seen:
            x = batch(torch.randn(4, 8, 5, 5).to(half).requires_grad_())
            layer(plain(group(x)).transpose(1, -1)).sum().backward()
        return [(one.line, one.node, one.bytes) for one in seen.ledger().entries]

    real = kept()
    with noclobber.fake(device="cpu"):
        assert kept() == real


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.act = nn.ReLU()

    def forward(self, x):
        first = self.layers[0](x)
        a = self.act(first)
        second = self.layers[1](a)
        b = torch.sigmoid(second)
        third = self.layers[2](b)
        c = third + 1
        return c.sum()


def hints():
    model = Named()
    with noclobber.watch(hints=True) as seen:
        model(torch.randn(8, 4, 16, 16)).backward()
    return [(one.code, one.message) for one in seen.report.findings]


def test_what_could_be_written_in_place_is_the_same_too():
    real = hints()
    assert len(real) == 2
    with noclobber.fake(device="cpu"):
        assert hints() == real
