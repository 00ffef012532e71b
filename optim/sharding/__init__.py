"""Parameters that processes share (DTensor): what is here of them, its place, and sums over all."""
