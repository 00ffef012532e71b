"""Storages of an optimizer's numbers: one object and one file each."""
