"""Training sharded: each rank holds a slice of the optimizer's state, and of the gradients."""
