"""Files of weights, one format a module: what holds tensors, and where their bytes lie."""
