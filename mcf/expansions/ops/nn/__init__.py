"""Implement layers, activations and losses."""
