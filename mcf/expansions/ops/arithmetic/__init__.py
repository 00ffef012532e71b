"""Implement arithmetic, comparisons and powers."""
