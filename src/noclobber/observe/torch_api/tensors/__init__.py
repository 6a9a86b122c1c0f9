"""Private names about tensors and their storages."""
