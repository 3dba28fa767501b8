"""Merge methods: one paper a file, one pure function a method, and the registry that lists them."""
