"""The figures that mydist is built to reach, measured: `make bench`, or `python -m benchmarks`."""
