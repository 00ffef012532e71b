"""Exchange expansion tensors with NumPy, text, pickles and flat tensors."""
