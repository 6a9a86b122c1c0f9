"""What noclobber takes from PyTorch below its public names: looked up when armed, tried out, and touched nowhere else."""
