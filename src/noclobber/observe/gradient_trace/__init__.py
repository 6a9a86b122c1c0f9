"""Records and compares what `fix` needs: the gradients of a run, and the right gradients."""
