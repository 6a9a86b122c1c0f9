"""Ways of seeing a PyTorch program; the only folder that imports torch. Each file is one way and yields events."""
