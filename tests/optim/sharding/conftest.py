"""Processes for all tests of this folder."""

from tests.helpers.processes import world

__all__ = ["world"]
