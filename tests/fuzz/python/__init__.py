"""Targets for the parsers in Python."""
