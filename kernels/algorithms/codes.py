"""Numbers of 8 bits that optimizers store, rounded to one of two neighbours at random.

A code is a byte as an integer from 0, which is what a register of the kernels holds. Rounding takes
16 random bits r, each value of which is as likely: it adds (r + 1/2) / 2**16 of the distance to the
next number, and cuts. So a number of the format stays, the order of numbers is kept, what is stored
is one of the two neighbours, and its mean over r is x rounded to nearest at 16 bits below the
format's last one: |mean - x| <= 2**-17 of the distance between the neighbours (for `to_e4m3` below
2**-8 that and 2**-21 more).

- Unsigned, of 6 exponent bits and 2 of the significand: 0 and the normal numbers from 2**-60 to 10,
  with 3 bits of precision; code 255 is NaN. There are no subnormal numbers and no infinity.
- e4m3 of 4 x: the numbers of OCP's e4m3 over 4, with 4 bits of precision, normal from 2**-8 to 112,
  multiples of 2**-11 below; code 127 is NaN, and 128 the sign.
"""

from mcf.kernels.algorithms.primitives import (
    ZERO,
    bits,
    from_bits,
    number,
    rn,
    wadd,
    wand,
    where,
    wor,
    word,
    wshl,
    wshr,
)


def constant(like, pattern):
    """The float32 of a bit pattern; a literal would be a float64 on some executors."""
    return from_bits(wor(wand(bits(like), 0), pattern))


def unsigned_bits(code):
    """The float32 bits of the number of a code of 6 exponent and 2 significand bits, 1 to 254."""
    # Code 1 is 2**-60, whose upper 11 bits are 4 * 67.
    return wshl(wadd(word(code), 267), 21)


def from_unsigned(code):
    """The number of a code of 6 exponent and 2 significand bits, exactly."""
    value = from_bits(unsigned_bits(code))
    value = where(value > constant(code, 0x41200000), constant(code, 0x7FC00000), value)
    return where(code == ZERO, ZERO, value)


def to_unsigned(x, random):
    """The code of x >= 0 by 16 random bits; 0 of 0 alone.

    Numbers between 0 and 2**-60 become 2**-60, and numbers above 10 become 10, NaN of infinity and
    NaN.
    """
    least, top = constant(x, 0x21800000), constant(x, 0x41200000)
    inside = where(x < least, least, x)
    inside = where(inside > top, top, inside)
    # The half of the last random bit, and the bits of code 0.
    place = wadd(wadd(bits(inside), wshl(random, 5)), 16 - (267 << 21))
    code = wand(wshr(place, 21), 0xFF)
    code = where(x > ZERO, code, wand(code, 0))
    return number(where(x < constant(x, 0x7F800000), code, wor(code, 0xFF)))


def from_e4m3_over_4(code):
    """The number of a code of e4m3, over 4, exactly."""
    byte = word(code)
    # Twice a normal number. Below 8, with the exponent of 8, that of 8 is taken from it instead.
    twice = from_bits(wadd(wshl(wand(byte, 0x7F), 20), 119 << 23))
    half = rn(twice * constant(code, 126 << 23))
    below = rn(twice - constant(code, 119 << 23))
    value = where(below < half, below, half)
    value = where(value > constant(code, 0x42E00000), constant(code, 0x7FC00000), value)
    return from_bits(wor(bits(value), wshl(wand(byte, 0x80), 24)))


def to_e4m3_over_4(x, random):
    """The code of 4 x in e4m3 by 16 random bits; 112 for all above, NaN of infinity and NaN."""
    pattern = bits(x)
    size = from_bits(wand(pattern, 0x7FFFFFFF))
    least, top = constant(x, 119 << 23), constant(x, 0x42E00000)
    inside = where(size > top, top, size)
    # Below the first normal number that is added: a unit in the last place is 2**-20 of a code's.
    twice, below = rn(inside + inside), rn(inside + least)
    larger = bits(where(below > twice, below, twice))
    # The half of the last random bit, and the bits of code 0.
    code = wshr(wadd(wadd(larger, wshl(random, 4)), 8 - (119 << 23)), 20)
    code = wor(code, wshl(wshr(pattern, 31), 7))
    # Without the sign of NaN, which depends on the processor.
    return number(where(size < constant(x, 0x7F800000), code, wor(wand(code, 0), 0x7F)))
