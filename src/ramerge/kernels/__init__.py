"""Numba kernels on raw element buffers: decode, compare, merge, encode."""
