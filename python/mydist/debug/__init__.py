"""Reads the flight recorders of all ranks: python -m mydist.debug DIR. Needs no torch."""
