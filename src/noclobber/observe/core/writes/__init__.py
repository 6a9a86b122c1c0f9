"""How writes are seen: kernels on a spare dispatch key, the log, steps of optimizers."""
