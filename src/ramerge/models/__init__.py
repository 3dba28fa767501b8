"""Models read as named tensors, whatever form they are stored in; knows nothing of merging."""
