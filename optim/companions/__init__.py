"""Companions of an optimizer: accumulation, release, offload, averages and a wrapper."""
