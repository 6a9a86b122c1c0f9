"""Watches torch.utils.checkpoint: compares what a region computes in its second run, for backward, with forward."""
