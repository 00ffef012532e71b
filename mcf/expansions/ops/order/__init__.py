"""Implement sorts, searches and neighbours."""
