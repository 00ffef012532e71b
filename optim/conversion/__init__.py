"""Optimizers and their states under other precisions, and from and to other libraries."""
