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
    absolute,
    bits,
    from_bits,
    greater,
    lesser,
    linear,
    number,
    rn,
    wadd,
    wand,
    where,
    wor,
    word,
    wsar,
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
    value = where(code == ZERO, ZERO, from_bits(unsigned_bits(code)))
    return where(code == constant(code, 0x437F0000), constant(code, 0x7FC00000), value)


def to_unsigned(x, random):
    """The code of x >= 0 by 16 random bits; 0 of 0 alone.

    Numbers between 0 and 2**-60 become 2**-60, and numbers above 10 become 10, NaN of infinity and
    NaN.
    """
    least, top = constant(x, 0x21800000), constant(x, 0x41200000)
    # Codes 0 and 255 would have these numbers, had they any.
    zero, nan = constant(x, 267 << 21), constant(x, 522 << 21)
    inside = greater(x, where(x > ZERO, least, zero))
    inside = where(x < constant(x, 0x7F800000), lesser(inside, top), nan)
    # 11 is 267 modulo 2**8: the bits of code 0, shifted, lose their upper ones.
    return number(wshr(placed(inside, random, 3, 128 - (11 << 24)), 24))


def placed(x, random, left, half):
    """Return the word whose upper byte is the code of x by 16 random bits.

    A code's significand ends 24 - `left` bits above a float32's. `half` is 128, a half of the last
    random bit, less the bits of code 0 shifted left by `left`, modulo 2**32. It has no bits in
    common with the random ones. The lower bits of the result are what is cut off.
    """
    return wadd(wshl(bits(x), left), wor(wshl(random, 8), half))


def from_signed(code, shift, least, top):
    """The number of a code of 8 bits with a sign and subnormals, exactly; see `to_signed`."""
    byte = word(code)
    # With copies of the sign above.
    spread = wsar(wshl(byte, 24), 24 - shift)
    # A normal number. Below the least, of half its exponent, that is taken from twice it instead.
    normal = from_bits(wadd(wand(spread, 0x7F << shift), least - (1 << 23)))
    below = linear(normal, constant(code, 128 << 23), constant(code, least - (1 << 31)))
    value = lesser(below, normal)
    value = where(number(wand(byte, 0x7F)) > constant(code, top), constant(code, 0x7FC00000), value)
    return from_bits(wor(bits(value), wand(spread, -(1 << 31))))


def to_signed(x, random, left, half, least, top):
    """The code of x by 16 random bits; the largest for all above, NaN of infinity and NaN.

    `least` and `top` are the bits of the least normal number and of the largest; for `left` and
    `half` see `placed`.
    """
    pattern, size = bits(x), absolute(x)
    inside = lesser(size, constant(x, top))
    # Below the first normal number its half is added to the half: there a unit in the last place is
    # 2**-20 of a code's.
    below = linear(inside, constant(x, 126 << 23), constant(x, least - (1 << 23)))
    code = placed(greater(below, inside), random, left, half)
    code = wor(code, wand(pattern, -(1 << 31)))
    # NaN gets no sign: it depends on the processor.
    nan = wor(wand(code, 0), 0x7F)
    return number(where(bits(size) < 0x7F800000, wshr(code, 24), nan))


def from_e4m3_over_4(code):
    """The number of a code of e4m3, over 4, exactly."""
    return from_signed(code, 20, 119 << 23, 0x42FC0000)


def to_e4m3_over_4(x, random):
    """The code of 4 x in e4m3 by 16 random bits; 112 for all above, NaN of infinity and NaN."""
    return to_signed(x, random, 4, 128 + (10 << 27), 119 << 23, 0x42E00000)


def from_e5m2_over_4096(code):
    """The number of a code of e5m2, over 2**12, exactly."""
    return from_signed(code, 21, 101 << 23, 0x42F60000)


def to_e5m2_over_4096(x, random):
    """The code of 2**12 x in e5m2 by 16 random bits; 14 for all above, NaN of infinity and NaN."""
    return to_signed(x, random, 3, 128 + (28 << 26), 101 << 23, 0x41600000)


def from_4_bits(code):
    """The number of a code of 4 bits, exactly."""
    pattern = word(code)
    # 1 + k / 8, of which k / 16, (k - 1) / 8, (k - 4) / 2 and 2 k - 11 are linear functions.
    place = from_bits(wor(wand(wshl(pattern, 20), 7 << 20), 127 << 23))
    low = linear(place, constant(code, 126 << 23), constant(code, (126 << 23) - (1 << 31)))
    middle = rn(place - constant(code, 0x3F900000))
    high = linear(place, constant(code, 129 << 23), constant(code, 0x40C00000 - (1 << 31)))
    top = linear(place, constant(code, 131 << 23), constant(code, 0x41D80000 - (1 << 31)))
    value = greater(greater(middle, low), greater(high, top))
    value = from_bits(wor(bits(value), wshl(wand(pattern, 8), 28)))
    return where(code == constant(code, 130 << 23), constant(code, 0x7FC00000), value)


def to_4_bits(x, random):
    """The code of 4 bits by 16 random bits; 3 for all above, NaN of infinity and NaN."""
    pattern, size = bits(x), absolute(x)
    # 16 x, 8 x + 1, 2 x + 4, x / 2 + 11 / 2, and 8 more: a unit in the last place is 2**-20.
    low = linear(size, constant(x, 131 << 23), constant(x, 130 << 23))
    middle = linear(size, constant(x, 130 << 23), constant(x, 0x41100000))
    high = linear(size, constant(x, 128 << 23), constant(x, 0x41400000))
    top = linear(size, constant(x, 126 << 23), constant(x, 0x41580000))
    place = lesser(lesser(middle, low), lesser(high, top))
    # NaN gets this place too.
    place = lesser(place, constant(x, 0x41700000))
    # The upper bits hold the code without a sign; those of 8 are shifted out. Below are the bits
    # that are cut off, to which 16 random bits and a half of the last of them were added.
    code = wadd(wshl(bits(place), 8), wor(wshl(random, 12), 1 << 11))
    # All codes but 0 have a sign: the sum has the upper bit where the code is 1 or more.
    sign = wand(wand(pattern, wadd(code, 7 << 28)), -(1 << 31))
    code = wshr(wor(code, sign), 28)
    return number(where(bits(size) < 0x7F800000, code, wor(wand(code, 0), 8)))
