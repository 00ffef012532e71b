"""How a moment in float32 becomes codes of 8 bits under a block's scale 2**exponent, and back."""

from mcf.kernels.algorithms.float8 import inverse_power, power
from mcf.kernels.algorithms.primitives import ZERO, rn, sqrt
from mcf.optim.rules.slots import unfilled


def encode(x):
    """The code of a number; see `mcf.kernels.algorithms.float8` for this and the next four."""
    unfilled("encode")


def decode(code):
    """The number of a code."""
    unfilled("decode")


def encode_pair(x):
    """The two codes of a number."""
    unfilled("encode_pair")


def decode_pair(hi, lo):
    """The number of two codes."""
    unfilled("decode_pair")


def exponent_of(largest):
    """The exponent of a block's scale."""
    unfilled("exponent_of")


def shrunk(value):
    """What is stored of a moment."""
    unfilled("shrunk")


def grown(stored):
    """The moment of what is stored."""
    unfilled("grown")


def floored(code, above, value):
    """The second code of a pair."""
    unfilled("floored")


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
    return (grown(rn(decode(hi) * power(exponent))),)


def load_pair(hi, lo, exponent):
    """The moment of two numbers."""
    return (grown(rn(decode_pair(hi, lo) * power(exponent))),)


def store_one(value, exponent):
    """A moment as one number."""
    return encode(rn(shrunk(value) * inverse_power(exponent))), ZERO


def store_pair(value, exponent):
    """A moment as two numbers."""
    hi, lo = encode_pair(rn(shrunk(value) * inverse_power(exponent)))
    return hi, floored(lo, hi, value)


def block_exponent(largest):
    """The exponent of a block whose largest finite magnitude is given."""
    return (exponent_of(shrunk(largest)),)


def loaded(hi, lo, exponent):
    """`load_one` or `load_pair`."""
    unfilled("loaded")


def lost(hi, lo, before, new_hi, new_lo, exponent, value):
    """Whether a moment keeps its stored value although it was to take another."""
    (old,) = loaded(hi, lo, before)
    (new,) = loaded(new_hi, new_lo, exponent)
    return ((old == new) & (value != old),)
