"""Strategies: when ranks communicate while they train, and what they average. See 0025."""
