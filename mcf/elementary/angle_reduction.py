"""Reduce an angle modulo pi/2, for any argument that a format can represent.

Up to some thousand, a multiple of pi/2, in parts whose products are exact, is subtracted from x
(Cody and Waite, Software Manual for the Elementary Functions, 1980). Beyond, x / (2 pi) modulo 1 is
computed in fixed point: each component's integer of 53 or 24 bits times those digits of 1/(2 pi)
that are neither whole turns nor negligible (Payne and Hanek, "Radian reduction for trigonometric
functions", SIGNUM Newsletter 18, 1983, doi:10.1145/1057600.1057602; here for sums of several
floats).
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import fixed
from mcf.elementary.format import working as format_of_work
from mcf.elementary.ordered_sums import Sums
from mcf.elementary.tables import (
    HALF_PI_CHUNK,
    HALF_PI_CHUNKS,
    LIMB,
    LIMBS_BEFORE,
    Components,
    _table,
    constant,
    entries,
    table,
    turn_digits,
)
from mcf.elementary.working import collected, exponent, integer, power, select, sign_of, signed
from mcf.kernels.formats import FP64, Format

# Up to this `medium` is used.
MEDIUM = 3000.0
# Integers have 32 bits if registers are float32, and sums of limb products must fit.
SHORT_LIMB = 12
_SHORT_BEFORE, _SHORT_AFTER = 16, 40
# Quotients by a limb are products and shifts. _OFFSET is a multiple of both limbs and exceeds the
# magnitude of every negative exponent.
_OFFSET, _SHIFT = 1080, 20
_RECIPROCAL = 1 << _SHIFT
# Remainders below this may have lost any number of leading bits to cancellation.
_CLOSE = 2.0**-10


@_table
def turn_short_limbs() -> Tensor:
    """Return 1/(2 pi) in digits of SHORT_LIMB bits as floats; digit m at _SHORT_BEFORE - 1 + m."""
    limbs = turn_digits(SHORT_LIMB, _SHORT_BEFORE, _SHORT_AFTER)
    return torch.tensor([limbs], dtype=torch.float64, device="cpu")


def bits_needed(fmt: Format, terms: int, working: int, *, full: bool = False) -> int:
    """Return the bits needed of the remainder: the result's, plus the worst cancellation.

    Of 2**N arguments the one nearest to a multiple of pi/2 is about 2**-N away, where N counts all
    exponent and mantissa bits of the argument. In float32, digits of 12 bits are truncated where
    sums of their products still have 7 bits; and it has no bits below 2**-149, unless `full`.
    """
    exponent_bits = (fmt.emax + 1).bit_length()
    width = format_of_work().format
    needed = width.p * working + (fmt.p + exponent_bits) * terms + 16
    if width is FP64:
        return needed
    return needed + 8 if full else min(needed + 8, 16 + width.p - width.emin)


def medium(x: Components, fmt: Format, terms: int, working: int) -> tuple[Tensor, Components]:
    """Return `quarter_turns` for |x| <= MEDIUM, in float64."""
    k = (x[0] * (2 / math.pi)).round()
    count = -(-bits_needed(fmt, terms, working) // HALF_PI_CHUNK)
    parts = table("half_pi_chunks", k.device)[: min(count, HALF_PI_CHUNKS)]
    floats = tuple(k * -c for c in parts)
    first = x[0] + floats[0]
    close = first.abs() < _CLOSE
    if format_of_work().format is not FP64:
        return integer(k) & 3, collected((*x, *floats), working)
    sums = Sums(first, working)
    for j, c in enumerate(x[1:]):
        sums.add(c, j)
    # The j-th is at most 2**(11 - HALF_PI_CHUNK j), and a sum at least 2**(-10 - 53 place).
    enough = -(-(53 * working + 29) // HALF_PI_CHUNK)
    for j, c in enumerate(floats[1:enough], 1):
        sums.add(c, (HALF_PI_CHUNK * j - 21) // 53)
    r = sums.total()
    if bool(close.any()):
        r = select(close, collected((*x, *floats), working), r)
    return integer(k) & 3, r


def _limb() -> int:
    """Return the number of bits of a digit of 1/(2 pi)."""
    return LIMB if format_of_work().format is FP64 else SHORT_LIMB


def _pieces(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return a and digits n_i of one sign with x = sum(n_i 2**(limb i)) * 2**(limb a)."""
    width, limb = format_of_work().format, _limb()
    mask = (1 << limb) - 1
    e = (exponent(x) - (width.p - 1)).clamp(min=width.emin - width.p + 1)
    mantissa = (x.abs() * power(-(e >> 1)) * power((e >> 1) - e)).to(torch.int64)
    sign = sign_of(x < 0).to(torch.int64)
    # floor(e / limb) for e from -1074 to 1000.
    a = ((e + _OFFSET) * -(-_RECIPROCAL // limb) >> _SHIFT) - _OFFSET // limb
    shift = e - limb * a
    # 53 + 23 bits do not fit in 63, nor 24 + 11 in 31. So the halves of the mantissa are shifted
    # separately; the upper one may have two limbs.
    low = (mantissa & mask) << shift
    high = (mantissa >> limb) << shift
    digits = [low & mask, (low >> limb) + (high & mask), (high >> limb) & mask]
    if width.p > 2 * limb:
        digits.append(high >> (2 * limb))
    return a, [d * sign for d in digits]


def _turns(start: Tensor, count: int) -> list[Tensor]:
    """Return digits of 1/(2 pi) from 2**(-limb (start + 1)) on."""
    if format_of_work().format is FP64:
        digits = table("turn_limbs", start.device)
        return [entries(digits, start + (LIMBS_BEFORE - 1) + m) for m in range(1, count + 1)]
    floats = table("turn_short_limbs", start.device)[0]
    places = [start + (_SHORT_BEFORE - 1) + m for m in range(1, count + 1)]
    return [entries(floats, place).to(torch.int64) for place in places]


def quarter_turns(
    x: Components, fmt: Format, terms: int, working: int, *, full: bool = False
) -> tuple[Tensor, Components, Tensor]:
    """Return q in 0..3, r and k: x = (q + 4 m) pi/2 + r 2**k for a whole m, |r 2**k| <= pi/4.

    r has `working` components and their full relative accuracy, however close x is to a multiple of
    pi/2. In float32, unless `full`, bits below the range are lost. k is 0 in float64.
    """
    limb = _limb()
    mask = (1 << limb) - 1
    count = -(-bits_needed(fmt, terms, working, full=full) // (2 * limb)) * 2
    sums = [torch.zeros_like(x[0], dtype=torch.int64) for _ in range(count + 1)]
    for c in x:
        start, pieces = _pieces(c)
        found = _turns(start, count + len(pieces))
        for t in range(count + 1):
            for i, piece in enumerate(pieces):
                if t + i < len(found):
                    sums[t] = sums[t] + piece * found[t + i]
    carry = torch.zeros_like(sums[0])
    for t in range(count, -1, -1):
        total = sums[t] + carry
        carry = total >> limb
        sums[t] = total & mask
    # Rounding four times the fraction to the nearest whole number leaves at most one half.
    q = (sums[0] + (1 << (limb - 3))) >> (limb - 2)
    sums[0] = sums[0] - (q << (limb - 2))
    negative = sums[0] < 0
    # One's complement gives all digits one sign; its error is a unit of the last digit.
    flip = -negative.to(torch.int64)
    sums = [s ^ (flip & (-1 if t == 0 else mask)) for t, s in enumerate(sums)]
    fraction, k = _fraction(sums[:count], working)
    half_pi = constant(fixed.to_fraction(fixed.pi()) / 2, working, x[0].device)
    r = ex.mul(fraction, half_pi)
    return q & 3, signed(r, sign_of(negative)), k


def _fraction(digits: list[Tensor], terms: int) -> tuple[Components, Tensor]:
    """Return digits, the first of weight 2**(2 - limb), as an expansion and an exponent.

    Leading zero digits are dropped first, a pair at a time; a pair becomes a float.
    """
    limb, width = _limb(), format_of_work().format
    pairs = [(digits[t] << limb) + digits[t + 1] for t in range(0, len(digits), 2)]
    shift = torch.zeros_like(pairs[0])
    keep = min(len(pairs), -(-width.p * terms // (2 * limb)) + 2)
    for _ in range(len(pairs) - keep):
        empty = pairs[0] == 0
        if not bool(empty.any()):
            break
        moved = [*pairs[1:], torch.zeros_like(shift)]
        pairs = [torch.where(empty, b, a) for a, b in zip(pairs, moved, strict=True)]
        shift = shift + empty.to(torch.int64)
    k = -2 * limb * shift
    if width is FP64:
        unit, k = power(k + (2 - 2 * limb)), torch.zeros_like(k)
    else:
        unit = torch.full_like(pairs[0], 2.0 ** (2 - 2 * limb), dtype=width.dtype)
    floats = [
        p.to(width.dtype) * unit * float(Fraction(1, 2 ** (2 * limb * t)))
        for t, p in enumerate(pairs[:keep])
    ]
    return collected(tuple(floats), terms), k
