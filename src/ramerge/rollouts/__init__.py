"""Statistics that need texts run through a model (extra `torch`)."""
