"""What an algorithm is compiled for."""

from __future__ import annotations

from typing import NamedTuple

from mcf.kernels.formats import Format


class Settings(NamedTuple):
    """What algorithms are bound for.

    Args:
        register: the format of registers.
        arithmetic: that of every operation.
        roundings: (primitive, format) pairs of others.
        payloads: whether a register may be a NaN with a payload in bits that bf16 does not keep. It
            cannot where all data is bf16: processors make NaNs without payload and pass on
            operands'.
        flags: what LLVM may do with sums and products: "contract".
    """

    register: Format
    arithmetic: Format
    roundings: tuple[tuple[str, Format], ...] = ()
    payloads: bool = True
    flags: tuple[str, ...] = ()
