"""Bind tensors, parameters and output layout to one plan of a merge."""
