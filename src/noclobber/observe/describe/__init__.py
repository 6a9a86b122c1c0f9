"""Turns records into the model: clobbers, refusals, names of tensors, PyTorch's own messages."""
