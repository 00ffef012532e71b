"""Implement elementary and special functions."""
