"""Limits of the kernels, importable without compiling anything."""

BLOCK = 1024  # elements worked on at once, in the first-level cache
MAX_AGENTS = 32  # bits of a contributor pattern
MAX_DENSE = 12  # up to this many agents, patterns are counted in a table of 2^N
