"""Loop over matrices: eliminations, reflections, rotations, refinements, decompositions."""
