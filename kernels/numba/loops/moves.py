"""Loads and stores of components that loops move without arithmetic, by their format's bits."""

from __future__ import annotations

from mcf.kernels.formats import BF16, FP16, FP32, FP64

# Names of the load and the store of a format's element as an integer.
MOVES = {
    FP64: ("number", "put"),
    FP32: ("half", "put_half"),
    BF16: ("short", "put_short"),
    FP16: ("short", "put_short"),
}
