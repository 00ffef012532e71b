"""The CPU executor: Numba loops over float32 or float64 registers, vectorised, on all threads."""
