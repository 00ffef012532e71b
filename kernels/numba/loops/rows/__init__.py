"""Loops over rows: sorts, extremes, running sums and products."""
