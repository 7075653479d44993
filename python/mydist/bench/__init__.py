"""Benchmarks: mydist next to its peers, measured in one run. See `python -m mydist.bench -h`."""
