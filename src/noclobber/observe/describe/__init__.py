"""From what was recorded to the model: clobbers, refusals, names of tensors, PyTorch's own words."""
