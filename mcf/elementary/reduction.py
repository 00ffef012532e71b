"""Reduction of an angle modulo pi/2, for any argument that a format can hold.

Up to some thousand a multiple of pi/2, in parts whose products are exact, is taken from x (Cody and
Waite, Software Manual for the Elementary Functions, 1980). Beyond, x / (2 pi) modulo 1 is computed
as a fixed-point number: each component's 53-bit integer times those digits of 1/(2 pi) that are
neither whole turns nor too small to count (Payne and Hanek, "Radian reduction for trigonometric
functions", SIGNUM Newsletter 18, 1983, doi:10.1145/1057600.1057602; here for sums of several
floats).
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import fixed
from mcf.elementary.format import working as format_of_work
from mcf.elementary.tables import (
    HALF_PI_CHUNK,
    HALF_PI_CHUNKS,
    LIMB,
    LIMBS_BEFORE,
    Components,
    constant,
    table,
)
from mcf.elementary.working import collected, exponent, power, sign_of, signed
from mcf.kernels import operations as ex
from mcf.kernels.formats import FP64, Format

_MASK = (1 << LIMB) - 1


# Up to here `medium` serves.
MEDIUM = 3000.0


def bits_needed(fmt: Format, terms: int, working: int) -> int:
    """Bits of the remainder: the result's, and those that the worst cancellation takes.

    Of 2**N arguments the one nearest to a multiple of pi/2 is about 2**-N away, N being the bits of
    all exponents and mantissas of the argument.
    """
    exponent_bits = (fmt.emax + 1).bit_length()
    return format_of_work().format.p * working + (fmt.p + exponent_bits) * terms + 16


def medium(x: Components, fmt: Format, terms: int, working: int) -> tuple[Tensor, Components]:
    """`quarter_turns` for |x| <= MEDIUM."""
    k = (x[0] * (2 / math.pi)).round()
    count = -(-bits_needed(fmt, terms, working) // HALF_PI_CHUNK)
    parts = table("half_pi_chunks", k.device)[: min(count, HALF_PI_CHUNKS)]
    return k.to(torch.int64) & 3, collected((*x, *(k * -c for c in parts)), working)


def _pieces(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """a and digits n_i with x = sum(n_i 2**(LIMB i)) * 2**(LIMB a), digits of one sign."""
    width = format_of_work().format
    e = (exponent(x) - (width.p - 1)).clamp(min=width.emin - width.p + 1)
    mantissa = (x * power(-(e >> 1)) * power((e >> 1) - e)).to(torch.int64)
    sign = mantissa.sign()
    mantissa = mantissa.abs()
    a = torch.div(e, LIMB, rounding_mode="floor")
    shift = e - LIMB * a
    # 53 + 23 bits do not fit in 63: the two halves of the mantissa are shifted apart.
    low = (mantissa & _MASK) << shift
    high = (mantissa >> LIMB) << shift
    digits = [low & _MASK, (low >> LIMB) + (high & _MASK), (high >> LIMB) & _MASK]
    digits.append(high >> (2 * LIMB))
    return a, [d * sign for d in digits]


def quarter_turns(
    x: Components, fmt: Format, terms: int, working: int
) -> tuple[Tensor, Components]:
    """q in 0..3 and r in [-pi/4, pi/4] with x = (q + 4 m) pi/2 + r for a whole m.

    r has `working` components and their full relative accuracy, also where x is as near to a
    multiple of pi/2 as a number of its format can be.
    """
    count = -(-bits_needed(fmt, terms, working) // (2 * LIMB)) * 2
    digits = table("turn_limbs", x[0].device)
    sums = [torch.zeros_like(x[0], dtype=torch.int64) for _ in range(count + 1)]
    for c in x:
        a, pieces = _pieces(c)
        start = a + (LIMBS_BEFORE - 1)
        found = [digits[start + m] for m in range(1, count + len(pieces) + 1)]
        for t in range(count + 1):
            for i, piece in enumerate(pieces):
                if t + i < len(found):
                    sums[t] += piece * found[t + i]
    carry = torch.zeros_like(sums[0])
    for t in range(count, -1, -1):
        total = sums[t] + carry
        carry = total >> LIMB
        sums[t] = total & _MASK
    # Four times the fraction, to the nearest whole number, leaves at most one half.
    q = (sums[0] + (1 << (LIMB - 3))) >> (LIMB - 2)
    sums[0] = sums[0] - (q << (LIMB - 2))
    negative = sums[0] < 0
    # One's complement, so that all digits have one sign; it errs by a unit of the last.
    flip = -negative.to(torch.int64)
    sums = [s ^ (flip & (-1 if t == 0 else _MASK)) for t, s in enumerate(sums)]
    fraction = _fraction(sums[:count], working)
    half_pi = constant(fixed.to_fraction(fixed.pi()) / 2, working, x[0].device)
    r = ex.mul(fraction, half_pi)
    return q & 3, signed(r, sign_of(negative))


def _fraction(digits: list[Tensor], terms: int) -> Components:
    """Digits, the first of weight 2**(2 - LIMB), as an expansion.

    Digits that are zero are first moved out of the way, a pair at a time.
    """
    pairs = [(digits[t] << LIMB) + digits[t + 1] for t in range(0, len(digits), 2)]
    shift = torch.zeros_like(pairs[0])
    width = format_of_work().format
    keep = min(len(pairs), -(-width.p * terms // (2 * LIMB)) + 2)
    for _ in range(len(pairs) - keep):
        empty = pairs[0] == 0
        if not bool(empty.any()):
            break
        moved = [*pairs[1:], torch.zeros_like(shift)]
        pairs = [torch.where(empty, b, a) for a, b in zip(pairs, moved, strict=True)]
        shift = shift + empty.to(torch.int64)
    unit = power(2 - 2 * LIMB * (shift + 1))
    if width is FP64:
        parts, size = pairs[:keep], 2 * LIMB
    else:
        # A float32 holds one digit.
        unit = unit * 2.0**LIMB
        parts, size = [d for p in pairs[:keep] for d in (p >> LIMB, p & _MASK)], LIMB
    floats = [
        p.to(width.dtype) * unit * float(Fraction(1, 2 ** (size * t))) for t, p in enumerate(parts)
    ]
    return collected(tuple(floats), terms)
