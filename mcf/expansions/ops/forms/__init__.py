"""Implement in-place forms, lists, and the operators that other functions call."""
