"""Implement views, copies, indexing and movement."""
