"""Proof by running the program: the right gradients, trials of patches, and verdicts on them."""
