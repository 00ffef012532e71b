"""Accurate sums: of plain tensors and of expansions, in a fixed order or exactly."""
