"""sin, cos and atan2 of expansions, by tables and short series, and the reduction of large angles.

The tables have multiples of 1/256 and 1/64. Up to some thousand, a multiple of pi/2, in parts whose
products are exact, is subtracted from x (Cody and Waite, Software Manual for the Elementary
Functions, 1980). Beyond, x / (2 pi) modulo 1 is computed in fixed point: each component's integer
of 53 or 24 bits times those digits of 1/(2 pi) that are neither whole turns nor negligible (Payne
and Hanek, "Radian reduction for trigonometric functions", SIGNUM Newsletter 18, 1983,
doi:10.1145/1057600.1057602; here for sums of several floats).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import fixed, series
from mcf.elementary import working as ex
from mcf.elementary.error_steps import Magnitudes, Steps
from mcf.elementary.format import working
from mcf.elementary.tables import (
    Components,
    _chunks,
    constant,
    entries,
    lookup,
    register_tables,
    rows,
    table,
)
from mcf.kernels.formats import FP64, Format

# sin, cos: nodes are multiples of 1 / ANGLE_STEPS; atan: of 1 / ATAN_STEPS.
ANGLE_STEPS, ATAN_STEPS = 256, 64
SIN_LAST, ATAN_LAST = 202, 64
# Cody and Waite: bits of the parts of pi/2, whose products with k < 2**11 are exact.
HALF_PI_CHUNK = 42
HALF_PI_CHUNKS = 12
# Payne and Hanek: bits of a limb of 1/(2 pi); the first limb has weight 2**-LIMB.
LIMB = 24
LIMBS_BEFORE, LIMBS_AFTER = 64, 68


def _sin_cos(j: int) -> list[Fraction]:
    return [fixed.to_fraction(v) for v in fixed.sin_cos(Fraction(j, ANGLE_STEPS))]


def _turn_limbs(*digits: int) -> Tensor:
    return torch.tensor(turn_digits(*digits), dtype=torch.int64, device="cpu")


def turn_digits(limb: int, before: int, after: int) -> list[int]:
    """Return digits of 1/(2 pi) after `before` zeros."""
    value = fixed.quotient(fixed.ONE, 2 * fixed.pi())
    mask = (1 << limb) - 1
    digits = [value >> (fixed.BITS - limb * m) & mask for m in range(1, after + 1)]
    return [0] * before + digits


# Up to this `_medium_turns` is used.
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


register_tables(
    # sin(j / ANGLE_STEPS), cos(j / ANGLE_STEPS) and atan(j / ATAN_STEPS).
    sines=lambda: rows([_sin_cos(j)[0] for j in range(SIN_LAST + 1)]),
    cosines=lambda: rows([_sin_cos(j)[1] for j in range(SIN_LAST + 1)]),
    arctangents=lambda: rows(
        [fixed.to_fraction(fixed.atan(Fraction(j, ATAN_STEPS))) for j in range(ATAN_LAST + 1)]
    ),
    # Parts of pi/2, HALF_PI_CHUNK bits each, largest first.
    half_pi_chunks=lambda: _chunks(
        fixed.to_fraction(fixed.pi()) / 2, -1, HALF_PI_CHUNK, HALF_PI_CHUNKS
    ),
    # 1/(2 pi) as digits of LIMB bits; digit m (weight 2**(-LIMB m)) at LIMBS_BEFORE - 1 + m. In
    # digits of SHORT_LIMB bits as floats; digit m at _SHORT_BEFORE - 1 + m.
    turn_limbs=lambda: _turn_limbs(LIMB, LIMBS_BEFORE, LIMBS_AFTER),
    turn_short_limbs=lambda: _turn_limbs(SHORT_LIMB, _SHORT_BEFORE, _SHORT_AFTER)[None].double(),
)


def bits_needed(fmt: Format, terms: int, count: int, *, full: bool = False) -> int:
    """Return the bits needed of the remainder: the result's, plus the worst cancellation.

    Of 2**N arguments the one nearest to a multiple of pi/2 is about 2**-N away, where N counts all
    exponent and mantissa bits of the argument. In float32, digits of 12 bits are truncated where
    sums of their products still have 7 bits; and it has no bits below 2**-149, unless `full`.
    """
    exponent_bits = (fmt.emax + 1).bit_length()
    width = working().format
    needed = width.p * count + (fmt.p + exponent_bits) * terms + 16
    if width is FP64:
        return needed
    return needed + 8 if full else min(needed + 8, 16 + width.p - width.emin)


def _medium_turns(x: Components, fmt: Format, terms: int, count: int) -> tuple[Tensor, Components]:
    """Return `quarter_turns` for |x| <= MEDIUM, in float64."""
    k = (x[0] * (2 / math.pi)).round()
    chunks = -(-bits_needed(fmt, terms, count) // HALF_PI_CHUNK)
    parts = table("half_pi_chunks", k.device)[: min(chunks, HALF_PI_CHUNKS)]
    floats = tuple(k * -c for c in parts)
    first = x[0] + floats[0]
    close = first.abs() < _CLOSE
    if working().format is not FP64:
        return ex.integer(k) & 3, ex.collected((*x, *floats), count)
    sums = ex.Sums(first, count)
    for j, c in enumerate(x[1:]):
        sums.add(c, j)
    # The j-th is at most 2**(11 - HALF_PI_CHUNK j), and a sum at least 2**(-10 - 53 place).
    enough = -(-(53 * count + 29) // HALF_PI_CHUNK)
    for j, c in enumerate(floats[1:enough], 1):
        sums.add(c, (HALF_PI_CHUNK * j - 21) // 53)
    r = sums.total()
    if bool(close.any()):
        r = ex.select(close, ex.collected((*x, *floats), count), r)
    return ex.integer(k) & 3, r


def _limb() -> int:
    """Return the number of bits of a digit of 1/(2 pi)."""
    return LIMB if working().format is FP64 else SHORT_LIMB


def _pieces(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return a and digits n_i of one sign with x = sum(n_i 2**(limb i)) * 2**(limb a)."""
    width, limb = working().format, _limb()
    mask = (1 << limb) - 1
    e = (ex.exponent(x) - (width.p - 1)).clamp(min=width.emin - width.p + 1)
    mantissa = (x.abs() * ex.power(-(e >> 1)) * ex.power((e >> 1) - e)).to(torch.int64)
    sign = ex.sign_of(x < 0).to(torch.int64)
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
    if working().format is FP64:
        digits = table("turn_limbs", start.device)
        return [entries(digits, start + (LIMBS_BEFORE - 1) + m) for m in range(1, count + 1)]
    floats = table("turn_short_limbs", start.device)[0]
    places = [start + (_SHORT_BEFORE - 1) + m for m in range(1, count + 1)]
    return [entries(floats, place).to(torch.int64) for place in places]


def quarter_turns(
    x: Components, fmt: Format, terms: int, count: int, *, full: bool = False
) -> tuple[Tensor, Components, Tensor]:
    """Return q in 0..3, r and k: x = (q + 4 m) pi/2 + r 2**k for a whole m, |r 2**k| <= pi/4.

    r has `count` components and their full relative accuracy, however close x is to a multiple of
    pi/2. In float32, unless `full`, bits below the range are lost. k is 0 in float64.
    """
    limb = _limb()
    mask = (1 << limb) - 1
    digits = -(-bits_needed(fmt, terms, count, full=full) // (2 * limb)) * 2
    sums = [torch.zeros_like(x[0], dtype=torch.int64) for _ in range(digits + 1)]
    for c in x:
        start, pieces = _pieces(c)
        found = _turns(start, digits + len(pieces))
        for t in range(digits + 1):
            for i, piece in enumerate(pieces):
                if t + i < len(found):
                    sums[t] = sums[t] + piece * found[t + i]
    carry = torch.zeros_like(sums[0])
    for t in range(digits, -1, -1):
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
    fraction, k = _fraction(sums[:digits], count)
    half_pi = constant(fixed.to_fraction(fixed.pi()) / 2, count, x[0].device)
    r = ex.mul(fraction, half_pi)
    return q & 3, ex.signed(r, ex.sign_of(negative)), k


def _fraction(digits: list[Tensor], terms: int) -> tuple[Components, Tensor]:
    """Return digits, the first of weight 2**(2 - limb), as an expansion and an exponent.

    Leading zero digits are dropped first, a pair at a time; a pair becomes a float.
    """
    limb, width = _limb(), working().format
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
        unit, k = ex.power(k + (2 - 2 * limb)), torch.zeros_like(k)
    else:
        unit = torch.full_like(pairs[0], 2.0 ** (2 - 2 * limb), dtype=width.dtype)
    floats = [
        p.to(width.dtype) * unit * float(Fraction(1, 2 ** (2 * limb * t)))
        for t, p in enumerate(pairs[:keep])
    ]
    return ex.collected(tuple(floats), terms), k


# -log2 of the squares of |d| <= 1/512, and of quotients up to 1/128.
_BITS, _ATAN_BITS = 18.0, 14.0
# Component counts that leave bits to spare, so that products may be added without networks. Two are
# too few for four float32 components, and with four every bit counts.
_SPARING = 3


def _sine_coefficient(k: int) -> Fraction:
    """Return the k-th coefficient of (sin(d)/d - 1) / d^2 in d^2."""
    return Fraction((-1) ** (k + 1), math.factorial(2 * k + 3))


def _cosine_coefficient(k: int) -> Fraction:
    """Return the k-th coefficient of (cos(d) - 1) / d^2 in d^2."""
    return Fraction((-1) ** (k + 1), math.factorial(2 * k + 2))


def _arctangent_coefficient(k: int) -> Fraction:
    """Return the k-th coefficient of (atan(d)/d - 1) / d^2 in d^2."""
    return Fraction((-1) ** (k + 1), 2 * k + 3)


def _odd(d: Components, z: Components, tail: Components) -> Components:
    """Return d + d z tail."""
    return ex.plus(d, ex.mul(d, ex.mul(z, tail)))


class Angle:
    """Sine and cosine of an angle |r| slightly above pi/4 at most, as a node plus a remainder.

    sin(j/256 + d) = S + (C sin d + S (cos d - 1)) with the node's sine S and cosine C from tables.
    The cosine has C and -S in their place.
    """

    def __init__(self, r: Components) -> None:
        terms = len(r)
        self._node = (r[0].abs() * ANGLE_STEPS).round()
        self._sign = ex.sign_of(r[0] < 0)
        a = ex.signed(r, self._sign)
        index = ex.integer(self._node)
        # The difference is exact, and the next component is at most half of its last bit.
        first = a[0] - self._node * (1 / ANGLE_STEPS)
        if working().format is FP64:
            d = ex.gathered(first, [(0, a[1:2]), (1, a[2:])], terms)
        else:
            d = ex.renormalize((first, *a[1:]), terms)
        z = ex.mul(d, d)
        self._s = _odd(d, z, series.polynomial(z, _BITS, _sine_coefficient, _BITS))
        self._c = ex.mul(z, series.polynomial(z, _BITS, _cosine_coefficient, _BITS - 1))
        self._sines = lookup("sines", index, terms)
        self._cosines = lookup("cosines", index, terms)

    def _turned(self, big: Components, other: Components) -> Components:
        if len(big) != _SPARING:
            return ex.plus(big, ex.add(ex.mul(other, self._s), ex.mul(big, self._c)))
        sums = ex.Sums(big[0], len(big))
        sums.add_product(other, self._s)
        sums.add_product(big, self._c)
        # Add the large component last, so that fewer sums are large.
        for k, c in enumerate(big[1:], 1):
            sums.add(c, k)
        return sums.total()

    def _signed_sine(self, sine: Components) -> Components:
        return ex.signed(ex.select(self._node == 0, self._s, sine), self._sign)

    def both(self) -> tuple[Components, Components]:
        """Return sine and cosine."""
        sine = self._signed_sine(self._turned(self._sines, self._cosines))
        return sine, self._turned(self._cosines, ex.minus(self._sines))

    def one(self, across: Tensor) -> Components:
        """Return the cosine where `across` holds, else the sine."""
        big = ex.select(across, self._cosines, self._sines)
        other = ex.select(across, ex.minus(self._sines), self._cosines)
        found = self._turned(big, other)
        return ex.select(across, found, self._signed_sine(found))


def atan2(y: Components, x: Components, terms: int) -> Components:
    """Return the angle of the point (x, y), y >= 0, x >= 0, both normal or zero, not both zero.

    With t the multiple of 1/64 nearest to y/x (for y <= x, else of x/y):
    atan(y/x) = atan(t) + atan((y - t x)/(x + t y)).
    """
    steep = y[0] > x[0]
    low, high = ex.select(steep, x, y), ex.select(steep, y, x)
    node = (low[0] / high[0] * ATAN_STEPS).round()
    t = node * (1 / ATAN_STEPS)
    numerator = ex.add(low, ex.mul(high, ex.head((-t,), terms)))
    # The numerator is exactly low if t = 0.
    numerator = ex.select(node == 0, low, numerator)
    d = ex.div(numerator, ex.add(high, ex.mul(low, ex.head((t,), terms))))
    z = ex.mul(d, d)
    small = _odd(d, z, series.polynomial(z, _ATAN_BITS, _arctangent_coefficient, _ATAN_BITS))
    angle = ex.plus(lookup("arctangents", ex.integer(node), terms), small)
    angle = ex.select(node == 0, small, angle)
    return ex.select(steep, ex.add(half_pi(terms, angle[0]), ex.minus(angle)), angle)


def half_pi(terms: int, like: Tensor) -> Components:
    """Return pi/2 on the device of a tensor and expanded to its shape."""
    value = constant(fixed.to_fraction(fixed.pi()) / 2, terms, like.device)
    return tuple(c.expand(like.shape) for c in ex.head(value, terms))


# Up to this the argument is its own remainder: the reduction would find q = 0.
_REDUCED = 0.78125


class Rest(NamedTuple):
    """The difference of a finite angle and the nearest multiple of pi/2.

    Attributes:
        quadrant: 0 to 3.
        r: components.
        lifted: components of r 2**-k, none of which underflows.
        k: 0 in float64.
    """

    quadrant: Tensor
    r: Components
    lifted: Components
    k: Tensor


def rest_of(y: Components, fmt: Format, terms: int, count: int, *, full: bool = False) -> Rest:
    """Reduce an angle; `full` keeps all bits of a tiny remainder in float32, too."""
    r, q = ex.head(y, count), torch.zeros_like(y[0], dtype=torch.int64)
    lifted, k = r, q
    size = y[0].abs()
    if working().format is FP64:
        medium = (size >= _REDUCED) & (size <= MEDIUM)
        if bool(medium.any()):
            near = ex.sanitized(y, medium, 1.0)
            turned, reduced = _medium_turns(near, fmt, terms, count)
            q, r = torch.where(medium, turned, q), ex.select(medium, reduced, r)
        large = size > MEDIUM
        wanted = ex.rare(large)
    else:
        # In float32 all larger arguments use the digits of 1/(2 pi).
        large = size > _REDUCED
        wanted = bool(large.any())
    if wanted:
        turned, above, e = quarter_turns(y, fmt, terms, count, full=full)
        q = torch.where(large, turned, q)
        if working().format is FP64:
            r = ex.select(large, above, r)
            return Rest(q, r, r, k)
        lifted, k = ex.select(large, above, r), torch.where(large, e, 0)
        r = ex.scale_all(lifted, k)
    return Rest(q, r, r if working().format is FP64 else lifted, k)


def sine_and_cosine(
    y: Components, fmt: Format, terms: int, count: int
) -> tuple[Components, Components]:
    """Return sine and cosine of an angle of any size; see `rest_of`."""
    q, rest, *_ = rest_of(y, fmt, terms, count)
    s, c = Angle(rest).both()
    odd = (q & 1) == 1
    sine = ex.signed(ex.select(odd, c, s), ex.sign_of(q >= 2))
    return sine, ex.signed(ex.select(odd, s, c), ex.sign_of((q == 1) | (q == 2)))


def sin_cos_error(e: Steps) -> tuple[float, float]:
    """Return the errors of sine and cosine for angles up to pi/4, with the reduction."""
    d = 0.5 / ANGLE_STEPS
    # The reduction by the digits of 1/(2 pi) has more steps; the digits are truncated at 2**-15
    # u^n.
    argument = e.collect() + e.mul() + e.constant() + 2.0**-15 * e.constant()
    square = 2 * e.collect() + e.mul()
    bits = _BITS
    p = e.polynomial(d * d, bits, _sine_coefficient, bits, square)
    s = e.plus() + e.collect() + d * d / 6 * 1.001 * (e.collect() + square + p + 2 * e.mul())
    q = e.polynomial(d * d, bits, _cosine_coefficient, bits - 1, square)
    c = square + q + e.mul()
    sine, cosine = s + argument, 0.0
    for j in range(SIN_LAST):
        node = j / ANGLE_STEPS
        low, high = max(node - d, 0.0), min(node + d, math.pi / 4 + 0.001)
        a, b = math.sin(node), math.cos(node)
        for big, other, value in (
            (a, b, math.sin(low)), (b, a, math.cos(high)),
        ):  # fmt: skip
            if big is a and j == 0:
                continue
            across, down = other * d, big * d * d / 2
            total = big * e.constant() + across * (s + e.constant()) + down * (c + e.constant())
            if e.terms == _SPARING:
                sums = Magnitudes(e, big)
                sums.add_product(across)
                sums.add_product(down)
                for k in range(1, e.terms):
                    sums.add(big * e.constant(k), k)
                own = sums.lost / value
            else:
                total += (across + down) * (e.mul() + e.add())
                own = e.plus()
            # The angle's error is multiplied by x cot x in the sine, x tan x in the cosine: at most
            # 1.
            found = total / value + own + argument
            sine, cosine = (max(sine, found), cosine) if big is a else (sine, max(cosine, found))
    return sine, cosine


def atan2_error(e: Steps, ratio: float = 0.0) -> float:
    """Return the error of atan(t) + atan((y - t x) / (x + t y)), then from pi/2 or pi.

    An error of y / x changes the angle by the factor sin cos / angle, which is at most 1.
    """
    d = 0.5 / ATAN_STEPS * 1.001
    quotient = e.div()
    square = 2 * quotient + e.mul()
    bits = _ATAN_BITS
    p = e.polynomial(d * d, bits, _arctangent_coefficient, bits, square)
    cubic = d * d / 3 * (square + p + 2 * e.mul())
    worst = 0.0
    for j in range(ATAN_LAST + 1):
        t = j / ATAN_STEPS
        if j:
            # y - t x, where t x is rounded; x = 1.
            numerator = t * e.mul() + d * (1 + t * t + t * d) * e.add()
            below = e.mul() * t * (t + d) / (1 + t * (t - d)) + e.add()
            off = numerator / (1 + t * max(t - d, 0.0)) + d * (below + quotient)
            small, node = d, math.atan(t)
        else:
            off, small, node = d * quotient, d, 0.0
        off += small * (cubic + e.plus())
        if j:
            total = (node * e.constant() + off) / math.atan(t - d) + e.plus()
        else:
            total = off / d
        worst = max(worst, total)
    # pi/2 minus an angle up to pi/4; then pi minus one up to pi/2, which loses no more.
    turned = worst + 2 * e.constant() + e.add()
    return turned + 2 * e.constant() + e.add() + ratio
