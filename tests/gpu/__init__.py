"""Tests that need a GPU: the kernels in C++, the Python API in Python."""
