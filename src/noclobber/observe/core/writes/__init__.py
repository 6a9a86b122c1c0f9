"""How writes are seen: kernels on a spare dispatch key or a mode, the log, steps of optimizers."""
