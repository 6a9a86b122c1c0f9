"""A GAN that draws digits: like gan_digits.py, but it judges the fakes again after the step.

The discriminator learns from a detached fake, so its backward does not reach the generator's graph. The generator
learns from a new verdict of the changed discriminator.
"""

import sys

import torch
from digits import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LATENT = 16

torch.manual_seed(0)
real_digits = digits()[0].flatten(1) * 2 - 1  # 1797 pictures of 8 x 8 pixels in [-1, 1]
loader = DataLoader(TensorDataset(real_digits), batch_size=64, shuffle=True, drop_last=True)

generator = nn.Sequential(
    nn.Linear(LATENT, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.Tanh()
)
discriminator = nn.Sequential(
    nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)
)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)


@torch.no_grad()
def distance_to_real(samples: int = 200) -> float:
    """Mean distance of a generated digit to the nearest real one."""
    fake = generator(torch.randn(samples, LATENT))
    return torch.cdist(fake, real_digits).min(dim=1).values.mean().item()


epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
print(f"before training: distance to the nearest real digit {distance_to_real():.2f}")
for epoch in range(1, epochs + 1):
    for (real,) in loader:
        fake = generator(torch.randn(64, LATENT))

        # the discriminator learns to tell real from fake
        loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()

        # the generator learns to be taken for real
        loss_g = criterion(discriminator(fake), ones)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
    if epoch % 10 == 0 or epoch == epochs:
        print(f"epoch {epoch}: loss D {loss_d:.3f}, loss G {loss_g:.3f}, distance {distance_to_real():.2f}")
