"""The `mydistrun` command: starts the ranks of a job on this and other hosts and looks after them.

Only the standard library is imported here, never torch nor the compiled extension.
"""
