"""Choose the moduli of a product, and the constants to convert to residues and back.

With pairwise coprime moduli m_t and M their product, an integer |X| < M / 2 is known from its
residues: with y_t = (X (M / m_t)^-1 mod m_t), X = sum y_t (M / m_t) - Q M, Q the integer nearest to
sum y_t / m_t (Chinese remainder theorem). A modulus is at most 256, so that its residues are int8,
or the square s**2 of one, whose residues are two digits of base s.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.formats import Format

# Bits kept beyond those of a result: about one element in 2**GUARD is recomputed.
GUARD = 24


@functools.cache
def bases() -> tuple[int, ...]:
    """Return the 49 largest pairwise coprime numbers up to 256, chosen greedily."""
    found: list[int] = []
    for s in range(256, 1, -1):
        if s >= 29 and all(math.gcd(s, other) == 1 for other in found):
            found.append(s)
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The moduli of a product.

    Args:
        squares: bases whose squares are moduli.
        plain: bases that are moduli themselves.
    """

    squares: tuple[int, ...]
    plain: tuple[int, ...]

    @functools.cached_property
    def moduli(self) -> tuple[int, ...]:
        """The moduli, squares first."""
        return (*(s * s for s in self.squares), *self.plain)

    @functools.cached_property
    def product(self) -> int:
        """M, the product of the moduli."""
        return math.prod(self.moduli)

    @functools.cached_property
    def bits(self) -> int:
        """P: rows and columns whose 2-norm is below 1.001 * 2**P have |X| < 1.01 M / 4."""
        return (self.product.bit_length() - 3) // 2

    @functools.cached_property
    def limb(self) -> int:
        """Bits of a limb, such that the sum of limbs times residues is below 2**48."""
        return 28 if self.squares else 37

    @functools.cached_property
    def limbs(self) -> int:
        """The number of limbs that hold an integer of P bits and a sign."""
        return -(-(self.bits + 2) // self.limb)

    @functools.cached_property
    def width(self) -> int:
        """Bits of a digit of X, such that the sum of y_t times digits is exact in float64."""
        return 32 if self.squares else 40

    @functools.cached_property
    def digits(self) -> int:
        """The number of digits of M."""
        return -(-self.product.bit_length() // self.width)

    def split(self, x: int) -> list[float]:
        """Return the digits of x >= 0, lowest first."""
        mask = (1 << self.width) - 1
        return [float(x >> (self.width * k) & mask) for k in range(self.digits)]


def centred(x: int, m: int) -> int:
    """Return the representative of x modulo m in [-m / 2, m / 2)."""
    return (x + m // 2) % m - m // 2


@functools.cache
def plan_for(fmt: Format, terms: int, inner: int) -> Plan:
    """Return the moduli for a result of `terms` components and inner dimensions up to `inner`.

    Truncation has an error of about inner * 2**-P relative to a typical result, which has p * terms
    + terms bits.
    """
    # Round up in steps, so that one kernel serves many sizes.
    grown = -(-max(10, (max(inner, 1) - 1).bit_length()) // 5) * 5
    return plan_of_bits(fmt.p * terms + terms + grown + GUARD)


@functools.cache
def plan_of_bits(bits: int) -> Plan:
    """Return the fewest moduli whose P is at least `bits`; at most 339.

    A further base contributes at least 29 < 2**5 for one matrix product, a square 2**8 for two
    products. So squares come after all bases.
    """
    for count in range(1, len(bases()) + 1):
        plan = Plan((), bases()[:count])
        if plan.bits >= bits:
            return plan
    for count in itertools.count(1):
        plan = Plan(bases()[:count], bases()[count:])
        if plan.bits >= bits:
            return plan
    raise AssertionError


@dataclasses.dataclass(frozen=True)
class Batch:
    """Moduli that a kernel processes together; the last batch of a kind is padded with moduli of 1.

    Args:
        first: the index of the first in `Plan.moduli`.
        count: the number of them.
        digits: 2 for squares, else 1.
        down: the scalars of `residues`.
        back: the scalars of `gathered`.
    """

    first: int
    count: int
    digits: int
    down: Tensor
    back: Tensor


@functools.cache
def batches(plan: Plan, size: int) -> tuple[Batch, ...]:
    """Return the moduli in batches of a size."""
    squares = len(plan.squares)
    found = []
    for digits, start, stop in ((2, 0, squares), (1, squares, len(plan.moduli))):
        for first in range(start, stop, size):
            count = min(size, stop - first)
            places = [*range(first, first + count), *[-1] * (size - count)]
            down, back = zip(*(_scalars(plan, t, digits) for t in places), strict=True)
            found.append(Batch(first, count, digits, _row(down), _row(back)))
    return tuple(found)


def _row(moduli: Sequence[tuple[list[float], list[float]]]) -> Tensor:
    """Return the constants of all moduli, then the weights of all, as one row."""
    values = [x for constants, _ in moduli for x in constants]
    values += [x for _, weights in moduli for x in weights]
    return torch.tensor([values], dtype=torch.float64, device="cpu")


Scalars = tuple[list[float], list[float]]


def _scalars(plan: Plan, place: int, digits: int) -> tuple[Scalars, Scalars]:
    """Return constants and weights of a modulus, for residues and for the way back."""
    if place < 0:
        back = [0.0, -1.0, 1.0] + [1.0, 1.0] * (digits - 1)
        return ([1.0, 1.0], [0.0] * plan.limbs), (back, [0.0] * plan.digits)
    m = plan.moduli[place]
    base = math.isqrt(m) if digits == 2 else m
    limbs = [float(centred(1 << (plan.limb * k), m)) for k in range(plan.limbs)]
    others = plan.product // m
    back = [float(centred(pow(others, -1, m), m)), -float(m), 1 / m]
    back += [float(base), 1 / base] * (digits - 1)
    return ([float(base), 1 / base], limbs), (back, plan.split(others))
