"""What is proven by running the program: the right gradients, trials of patches, and what they are worth."""
