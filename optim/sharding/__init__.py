"""Parameters that processes share (DTensor): local parts, indices, and reductions."""
