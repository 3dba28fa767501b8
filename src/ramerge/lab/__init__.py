"""The miniature study: real reinforcement learning, every method, honest statistics."""
