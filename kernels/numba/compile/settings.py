"""Settings for compiling an algorithm."""

from __future__ import annotations

from typing import NamedTuple

from mcf.kernels.formats import Format


class Settings(NamedTuple):
    """Settings that algorithms are bound with.

    Args:
        register: the format of registers.
        arithmetic: the format of every operation.
        roundings: (primitive, format) pairs of exceptions.
        payloads: whether a register may be a NaN with a payload in bits that bf16 does not keep. It
            cannot where all data is bf16: processors create NaNs without payload and propagate
            operands' NaNs.
        flags: LLVM's fast-math flags of sums and products: "contract".
    """

    register: Format
    arithmetic: Format
    roundings: tuple[tuple[str, Format], ...] = ()
    payloads: bool = True
    flags: tuple[str, ...] = ()
