"""Statistics of task vectors: a block of data in, a record out, and records add."""
