"""Platforms: each starts the ranks of a job in its own way."""
