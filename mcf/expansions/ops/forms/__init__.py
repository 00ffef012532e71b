"""Implement in-place forms, lists and operators behind other functions."""
