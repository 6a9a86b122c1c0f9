"""What `fix` compares: the gradients of a run, and of the one that is right."""
