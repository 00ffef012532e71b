"""Launch kernels on the components of expansion tensors."""
