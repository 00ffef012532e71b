"""Reach the implementations: torch functions above autograd, operators below it."""
