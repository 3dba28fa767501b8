"""Bytes to named tensors and back; knows nothing of merging."""
