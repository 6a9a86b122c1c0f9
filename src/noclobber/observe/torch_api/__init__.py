"""What noclobber takes from below PyTorch's public names: looked up when armed, tried out, touched nowhere else."""
