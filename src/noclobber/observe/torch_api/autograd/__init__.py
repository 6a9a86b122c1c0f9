"""Private names about autograd: nodes, hooks on saves, the engine."""
