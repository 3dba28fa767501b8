"""Checkpoints made of others without copying a byte: renamed, re-ordered, cut and stacked."""
