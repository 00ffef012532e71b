"""Implement random numbers and distributions."""
