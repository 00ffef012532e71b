"""pi and e as numbers that every format rounds to the digits it can hold."""

from __future__ import annotations

from fractions import Fraction

# The longest nearest expansion has four float64 components. For numbers near 1 it ends above
# 2**-300, unless a component is followed by more than 80 zero bits; neither number has such a gap.
_BITS = 1024


class Constant(Fraction):
    """A number known to 1024 bits; arithmetic with it is that of `fractions.Fraction`."""

    __slots__ = ("_name",)
    _name: str

    @classmethod
    def of(cls, name: str, numerator: int) -> Constant:
        """Create the constant numerator / 2**1024 that prints as its name."""
        made = cls(numerator, 1 << _BITS)
        made._name = name
        return made

    def __repr__(self) -> str:
        return f"mcf.{self._name}"

    def __reduce__(self) -> str:
        return self._name

    def __copy__(self) -> Constant:
        return self

    def __deepcopy__(self, memo: object) -> Constant:
        return self


def _inverse_tangent(n: int) -> int:
    """Return atan(1 / n) times 2**(1024 + 32), truncated, by its Taylor series."""
    term = (1 << (_BITS + 32)) // n
    total, k, sign = 0, 1, 1
    while term:
        total += sign * (term // k)
        term //= n * n
        k, sign = k + 2, -sign
    return total


def _exponential() -> int:
    """Return e times 2**(1024 + 32), truncated, by its series."""
    total, term, k = 0, 1 << (_BITS + 32), 0
    while term:
        total += term
        k += 1
        term //= k
    return total


# Machin's formula: pi = 16 atan(1/5) - 4 atan(1/239). The 32 extra bits absorb the truncation
# errors.
pi = Constant.of("pi", (16 * _inverse_tangent(5) - 4 * _inverse_tangent(239)) >> 32)
e = Constant.of("e", _exponential() >> 32)
