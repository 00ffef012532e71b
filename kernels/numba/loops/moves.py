"""Components that loops move as they are: by the bits of their format."""

from __future__ import annotations

from mcf.kernels.formats import BF16, FP16, FP32, FP64

# What loads an element of a format as an integer, and what stores it.
MOVES = {
    FP64: ("number", "put"),
    FP32: ("half", "put_half"),
    BF16: ("short", "put_short"),
    FP16: ("short", "put_short"),
}
