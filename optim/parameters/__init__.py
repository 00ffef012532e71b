"""Parameters and their states: expansion tensors, entries, random numbers."""
