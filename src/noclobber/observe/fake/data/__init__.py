"""What comes from outside into a fake run: batches, weights in files, loaders."""
