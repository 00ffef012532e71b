"""Wrap any per-parameter optimizer of torch."""
