"""pi and e as numbers that every format rounds to the digits it can hold."""

from __future__ import annotations

from fractions import Fraction

from mcf.elementary import fixed

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


# The 640 further bits absorb the truncation errors.
pi = Constant.of("pi", fixed.pi() >> (fixed.BITS - _BITS))
e = Constant.of("e", fixed.exp(fixed.ONE) >> (fixed.BITS - _BITS))
