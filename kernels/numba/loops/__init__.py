"""Loops over the elements of tensors: elementwise kernels, folds, rows, matrices."""
