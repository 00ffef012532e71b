"""Implement products, factorisations and functions of matrices."""
