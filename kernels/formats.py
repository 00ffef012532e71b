"""Binary floating-point formats of stored components and of registers."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary floating-point format with gradual underflow, as in IEEE 754.

    Args:
        name: short name, also used in generated code and in error messages.
        p: precision in bits, the leading bit counted; the unit roundoff is u = 2**-p.
        emin: exponent of the smallest normal number, 2**emin.
        emax: exponent of the largest finite number, (2 - 2**(1-p)) * 2**emax.
        dtype: the torch dtype that stores it, or None for a toy format (used in proofs by
            exhaustion; it has no storage and lives in float64 registers).
        packed: the number of neighbours in the last dimension that share one element of a tensor;
            the first in the lowest bits.
    """

    name: str
    p: int
    emin: int
    emax: int
    dtype: torch.dtype | None = None
    packed: int = 1

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a tensor that stores numbers of this shape, packed if need be."""
        return shape if self.packed == 1 else (*shape[:-1], shape[-1] // self.packed)

    @property
    def u(self) -> Fraction:
        """Unit roundoff 2**-p, the largest relative error of one rounding to nearest."""
        return Fraction(1, 2**self.p)

    @property
    def max(self) -> Fraction:
        """Largest finite number."""
        return (2 - Fraction(2, 2**self.p)) * Fraction(2) ** self.emax

    @functools.cached_property
    def largest(self) -> float:
        """The largest finite number as a Python float."""
        return float(self.max)

    @property
    def min_normal(self) -> Fraction:
        """Smallest positive normal number."""
        return Fraction(2) ** self.emin

    @functools.cached_property
    def min_subnormal(self) -> Fraction:
        """Smallest positive number."""
        return Fraction(2) ** (self.emin - self.p + 1)

    @property
    def itemsize(self) -> float:
        """Bytes of one number in memory; 0 for a toy format."""
        return 0 if self.dtype is None else self.dtype.itemsize / self.packed

    @property
    def register(self) -> Format:
        """The hardware format that holds one value while it is computed with.

        float32 for the 16-bit formats: it is wide enough (24 >= 2p + 2) that a sum, product,
        quotient or square root computed in it and then rounded to the format is the correctly
        rounded one wherever the result is in the format's normal range.
        """
        if self.dtype is None or self.dtype is torch.float64:
            return FP64
        return FP32


BF16 = Format("bf16", 8, -126, 127, torch.bfloat16)
FP16 = Format("fp16", 11, -14, 15, torch.float16)
FP32 = Format("fp32", 24, -126, 127, torch.float32)
FP64 = Format("fp64", 53, -1022, 1023, torch.float64)

# Integer formats: a register holds the value. They are not formats of components.
INT32 = Format("int32", 32, 0, 31, torch.int32)
INT16 = Format("int16", 16, 0, 15, torch.int16)
INT8 = Format("int8", 8, 0, 7, torch.int8)
UINT8 = Format("uint8", 8, 0, 7, torch.uint8)
# Two numbers are packed into a byte.
UINT4 = Format("uint4", 4, 0, 3, torch.uint8, packed=2)

FORMATS: dict[torch.dtype, Format] = {
    torch.bfloat16: BF16,
    torch.float16: FP16,
    torch.float32: FP32,
    torch.float64: FP64,
}


def toy(p: int, emin: int = -6, emax: int = 6) -> Format:
    """Return a format with few enough numbers to test exhaustively.

    At most 24 bits, so that every product and sum of two of its numbers is exact in the float64
    registers it lives in.
    """
    if not 2 <= p <= 24 or emin > emax or emin < -200 or emax > 200:
        raise ValueError(
            f"toy format needs 2 <= p <= 24 and -200 <= emin <= emax <= 200, "
            f"got p={p}, emin={emin}, emax={emax}"
        )
    return Format(f"toy{p}_{-emin}_{emax}", p, emin, emax)


def format_of(dtype: torch.dtype, argument: str = "dtype") -> Format:
    """Return the format of a torch dtype; raise `TypeError` naming `argument` for any other."""
    try:
        return FORMATS[dtype]
    except (KeyError, TypeError):
        known = ", ".join(str(d) for d in FORMATS)
        if argument == "dtype" or not isinstance(dtype, torch.dtype):
            raise TypeError(f"{argument} must be one of {known}, got {dtype!r}") from None
        raise TypeError(f"{argument} has dtype {dtype}; expected one of {known}") from None


def power_of_two(exponent: Tensor, fmt: Format = FP64) -> Tensor:
    """Return 2**exponent in float64 or float32, made from its bits; clamped to the normal range."""
    assert fmt.dtype is not None
    integers = torch.int64 if fmt == FP64 else torch.int32
    biased = exponent.clamp(fmt.emin, fmt.emax).to(integers) + fmt.emax
    return (biased << (fmt.p - 1)).view(fmt.dtype)
