"""When a witness is taken, and when it is looked at again: saves, hooks, ctx, checkpoint, gradients, inputs."""
