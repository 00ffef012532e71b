"""Exact conversion between expansions and other representations of numbers."""
