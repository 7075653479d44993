"""Codecs: gradients as fewer bytes. `mydist.Compression` has them all; docs/compression.md."""
