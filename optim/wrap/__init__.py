"""A wrapper for any per-parameter optimizer of torch."""
