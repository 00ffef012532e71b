"""Loops over matrices: eliminations, reflections, rotations, refinements, decompositions."""
