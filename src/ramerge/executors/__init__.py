"""Where chunks are worked on: local threads."""
