"""A GPU that is played: what `torch.cuda` answers, and what its kernels keep."""
