"""Numbers of 8 and 4 bits that optimizers store, rounded to one of two neighbours at random.

A code is an integer from 0 to 255 or 15, which is what a register of the kernels holds. Rounding
takes 16 random bits r, each value of which is as likely: it adds (r + 1/2) / 2**16 of the distance
to the next number, and cuts. So a number of the format stays, the order of numbers is kept, what is
stored is one of the two neighbours, and its mean over r is x rounded to nearest at 16 bits below
the format's last one: |mean - x| <= 2**-17 of the distance between the neighbours (for numbers
with a sign that and 2**-21 more).

- Unsigned, of 6 exponent bits and 2 of the significand: 0 and the normal numbers from 2**-60 to 10,
  with 3 bits of precision; code 255 is NaN. There are no subnormal numbers and no infinity.
- e4m3 of 4 x: the numbers of OCP's e4m3 over 4, with 4 bits of precision, normal from 2**-8 to 112,
  multiples of 2**-11 below; code 127 is NaN, and 128 the sign.
- e5m2 of 2**12 x: the numbers of OCP's e5m2 over 2**12, with 3 bits of precision, normal from
  2**-26 to 14, multiples of 2**-28 below; codes 124 to 127 are NaN (127 is stored), and 128 the
  sign.
- 4 bits: 0, 1/16, 1/8, 1/4, 3/8, 1/2, 1, 3 in the order of codes 0 to 7; 8 is the sign, and code 8
  alone NaN. The distances never fall, so that the place of a number among them is a concave
  function of it, the least of four linear ones; and the number at a place the largest of four.
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


def from_signed(code, shift, least, top):
    """The number of a code of 8 bits with a sign and subnormals, exactly; see `to_signed`."""
    byte = word(code)
    # Twice a normal number. Below 8, with the exponent of 8, that of 8 is taken from it instead.
    twice = from_bits(wadd(wshl(wand(byte, 0x7F), shift), least))
    half = rn(twice * constant(code, 126 << 23))
    below = rn(twice - constant(code, least))
    value = where(below < half, below, half)
    value = where(value > constant(code, top), constant(code, 0x7FC00000), value)
    return from_bits(wor(bits(value), wshl(wand(byte, 0x80), 24)))


def to_signed(x, random, shift, half, least, top):
    """The code of x by 16 random bits; the largest for all above, NaN of infinity and NaN.

    A code's significand ends `shift` bits above a float32's, `half` is 2**(shift - 17), and `least`
    and `top` are the bits of the least normal number and of the largest.
    """
    pattern = bits(x)
    size = from_bits(wand(pattern, 0x7FFFFFFF))
    inside = where(size > constant(x, top), constant(x, top), size)
    # Below the first normal number that is added: a unit in the last place is 2**-20 of a code's.
    twice, below = rn(inside + inside), rn(inside + constant(x, least))
    larger = bits(where(below > twice, below, twice))
    # The half of the last random bit, and the bits of code 0.
    noise = wadd(wshl(random, shift - 16), half)
    code = wshr(wsub(wadd(larger, noise), least), shift)
    code = wor(code, wshl(wshr(pattern, 31), 7))
    # Without the sign of NaN, which depends on the processor.
    return number(where(size < constant(x, 0x7F800000), code, wor(wand(code, 0), 0x7F)))


def from_e4m3_over_4(code):
    """The number of a code of e4m3, over 4, exactly."""
    return from_signed(code, 20, 119 << 23, 0x42E00000)


def to_e4m3_over_4(x, random):
    """The code of 4 x in e4m3 by 16 random bits; 112 for all above, NaN of infinity and NaN."""
    return to_signed(x, random, 20, 8, 119 << 23, 0x42E00000)


def from_e5m2_over_4096(code):
    """The number of a code of e5m2, over 2**12, exactly."""
    return from_signed(code, 21, 101 << 23, 0x41600000)


def to_e5m2_over_4096(x, random):
    """The code of 2**12 x in e5m2 by 16 random bits; 14 for all above, NaN of infinity and NaN."""
    return to_signed(x, random, 21, 16, 101 << 23, 0x41600000)


def from_4_bits(code):
    """The number of a code of 4 bits, exactly."""
    pattern = word(code)
    k = number(wand(pattern, 7))
    # k / 16, (k - 1) / 8, (k - 4) / 2, 2 k - 11.
    low = rn(k * constant(code, 123 << 23))
    middle = rn(rn(k * constant(code, 124 << 23)) - constant(code, 124 << 23))
    high = rn(rn(k * constant(code, 126 << 23)) - constant(code, 128 << 23))
    top = rn(rn(k + k) - constant(code, 0x41300000))
    value = where(low < middle, middle, low)
    value = where(value < high, high, value)
    value = where(value < top, top, value)
    value = from_bits(wor(bits(value), wshl(wand(pattern, 8), 28)))
    return where(code == constant(code, 130 << 23), constant(code, 0x7FC00000), value)


def to_4_bits(x, random):
    """The code of 4 bits by 16 random bits; 3 for all above, NaN of infinity and NaN."""
    pattern = bits(x)
    size = from_bits(wand(pattern, 0x7FFFFFFF))
    # 16 x, 8 x + 1, 2 x + 4, x / 2 + 11 / 2, and 8 more: a unit in the last place is 2**-20.
    low = rn(rn(size * constant(x, 131 << 23)) + constant(x, 130 << 23))
    middle = rn(rn(size * constant(x, 130 << 23)) + constant(x, 0x41100000))
    high = rn(rn(size + size) + constant(x, 0x41400000))
    top = rn(rn(size * constant(x, 126 << 23)) + constant(x, 0x41580000))
    place = where(middle < low, middle, low)
    place = where(high < place, high, place)
    place = where(top < place, top, place)
    # Also for NaN.
    place = where(place < constant(x, 0x41700000), place, constant(x, 0x41700000))
    # The half of the last random bit; the upper bits are those of 8, whose code is 0.
    code = wand(wshr(wadd(wadd(bits(place), wshl(random, 4)), 8), 20), 7)
    # 0 has no sign.
    code = wor(code, wand(wand(wshr(pattern, 28), 8), wadd(code, 7)))
    return number(where(size < constant(x, 0x7F800000), code, wor(wand(code, 0), 8)))
