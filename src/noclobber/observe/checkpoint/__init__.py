"""torch.utils.checkpoint: what a region computes anew for backward, compared with what it computed in forward."""
