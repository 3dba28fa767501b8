"""Merge RL-trained agents that share one base into a single generalist."""

__version__ = "0.1.0"
