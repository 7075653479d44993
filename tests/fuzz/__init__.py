"""Targets for fuzzers: any bytes for each parser, and what it promises of them."""
