"""Rules about writes that PyTorch refuses."""
