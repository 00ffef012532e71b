"""How a moment in float32 becomes codes of 8 bits under a block's scale 2**exponent, and back."""

from mcf.kernels.algorithms.float8 import (
    exponent_of,
    from_e4m3,
    from_pair,
    inverse_power,
    power,
    to_e4m3,
    to_pair,
)
from mcf.kernels.algorithms.primitives import ZERO, rn, sqrt
from mcf.optim.rules.slots import _unfilled


def shrunk(value):
    """What is stored of a moment."""
    _unfilled("shrunk")


def grown(stored):
    """The moment of what is stored."""
    _unfilled("grown")


def floored(code, above, value):
    """The second code of a pair."""
    _unfilled("floored")


def linear(x):
    """A first moment is stored as it is."""
    return x


def root(x):
    """Of a second moment the root is stored, which has half the range of exponents."""
    return rn(sqrt(x))


def square(x):
    """RN(x^2), whose rounded root is x again."""
    return rn(x * x)


def as_it_is(code, above, value):
    """A first moment may become 0."""
    return code


def load_one(hi, lo, exponent):
    """The moment of one number."""
    return (grown(rn(from_e4m3(hi) * power(exponent))),)


def load_pair(hi, lo, exponent):
    """The moment of two numbers."""
    return (grown(rn(from_pair(hi, lo) * power(exponent))),)


def store_one(value, exponent):
    """A moment as one number."""
    return to_e4m3(rn(shrunk(value) * inverse_power(exponent))), ZERO


def store_pair(value, exponent):
    """A moment as two numbers."""
    hi, lo = to_pair(rn(shrunk(value) * inverse_power(exponent)))
    return hi, floored(lo, hi, value)


def block_exponent(largest):
    """The exponent of a block whose largest finite magnitude is given."""
    return (exponent_of(shrunk(largest)),)


def loaded(hi, lo, exponent):
    """`load_one` or `load_pair`."""
    _unfilled("loaded")


def lost(hi, lo, before, new_hi, new_lo, exponent, value):
    """Whether a moment keeps its stored value although it was to take another."""
    (old,) = loaded(hi, lo, before)
    (new,) = loaded(new_hi, new_lo, exponent)
    return ((old == new) & (value != old),)
