"""A residual network that reads digits. Broken: the shortcut is added in place to what ReLU keeps.

ReLU's backward needs its own result, to know which elements were cut off. `out += x` overwrites that result. The right
version is residual_network_right.py.
"""

import sys

import torch
from digits import digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)  # in place, to save memory

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out += x
        return out


class ResidualNetwork(nn.Module):
    """A stem, three residual blocks with a pooling between, and a linear head."""

    def __init__(self, channels: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(
            ResidualBlock(channels), nn.MaxPool2d(2), ResidualBlock(channels), ResidualBlock(channels)
        )
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


torch.manual_seed(0)
pictures, labels = digits()
(train_x, test_x), (train_y, test_y) = pictures.split([1347, 450]), labels.split([1347, 450])
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=64, shuffle=True, drop_last=True)

model = ResidualNetwork()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
for epoch in range(1, epochs + 1):
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean()
    print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.3f}")
