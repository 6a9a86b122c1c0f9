"""A network that learns a picture by heart: it gets the coordinates of a point and gives its brightness.

Each layer has a name for what it computes, so all of it is in memory until `forward` returns. Only the results of ReLU
are needed for backward.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CoordinateNetwork(nn.Module):
    """Three hidden layers between two coordinates and one number."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, points: Tensor) -> Tensor:
        first = self.first(points * 3)
        bent = F.relu(first)
        second = self.second(bent)
        bent_again = F.relu(second)
        third = self.third(bent_again)
        last = F.relu(third)
        return self.head(last).squeeze(1)


torch.manual_seed(0)
axis = torch.linspace(-1, 1, 64)
points = torch.cartesian_prod(axis, axis)
picture = ((points * 4).sin().prod(dim=1) > 0).float()  # a chequerboard
net = CoordinateNetwork()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(101):
    optimizer.zero_grad()
    loss = F.mse_loss(net(points), picture)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
