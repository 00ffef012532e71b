"""Stochastic rounding to the 8-bit and 4-bit formats that optimizers store.

A code is an integer from 0 to 255 or 15 in a register of a kernel. Rounding adds (r + 1/2) / 2**16
of the gap between the neighbours of x, where r is 16 uniform random bits, and truncates. It is
monotonic in x, leaves numbers of the format unchanged and returns one of the two neighbours. Its
mean over r is x rounded to nearest at 16 bits below the format's last bit: |mean - x| is at most
2**-17 of the gap (2**-17 + 2**-21 for signed formats).

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
    """Return the float32 with a bit pattern; a literal would be a float64 on some executors."""
    return from_bits(wor(wand(bits(like), 0), pattern))


def unsigned_bits(code):
    """Return the float32 bits of an unsigned code (6 exponent and 2 significand bits), 1 to 254."""
    # Code 1 is 2**-60, whose upper 11 bits are 4 * 67.
    return wshl(wadd(word(code), 267), 21)


def from_unsigned(code):
    """Return the number of an unsigned code (6 exponent and 2 significand bits), exactly."""
    value = where(code == ZERO, ZERO, from_bits(unsigned_bits(code)))
    return where(code == constant(code, 0x437F0000), constant(code, 0x7FC00000), value)


def to_unsigned(x, random):
    """Return the code of x >= 0 by 16 random bits; only 0 gets code 0.

    Numbers between 0 and 2**-60 become 2**-60, numbers above 10 become 10, and infinity and NaN
    become NaN.
    """
    least, top = constant(x, 0x21800000), constant(x, 0x41200000)
    # These numbers have the bits that codes 0 and 255 would have in this format.
    zero, nan = constant(x, 267 << 21), constant(x, 522 << 21)
    inside = greater(x, where(x > ZERO, least, zero))
    inside = where(x < constant(x, 0x7F800000), lesser(inside, top), nan)
    # 11 is 267 modulo 2**8: the left shift drops the upper bits of code 0's pattern.
    return number(wshr(placed(inside, random, 3, 128 - (11 << 24)), 24))


def placed(x, random, left, half):
    """Return the word whose upper byte is the code of x by 16 random bits.

    A code's significand ends 24 - `left` bits above a float32's. `half` is 128, a half of the last
    random bit, less the bits of code 0 shifted left by `left`, modulo 2**32. It has no bits in
    common with the random ones. The lower bits of the result are what is cut off.
    """
    return wadd(wshl(bits(x), left), wor(wshl(random, 8), half))


def from_signed(code, shift, least, top):
    """Return the number of a code of 8 bits with a sign and subnormals; see `to_signed`."""
    byte = word(code)
    # The bits above the code are copies of its sign.
    spread = wsar(wshl(byte, 24), 24 - shift)
    # A subnormal code with the number f gives (1 + f) / 2 of the least normal number here.
    normal = from_bits(wadd(wand(spread, 0x7F << shift), least - (1 << 23)))
    below = linear(normal, constant(code, 128 << 23), constant(code, least - (1 << 31)))
    value = lesser(below, normal)
    value = where(number(wand(byte, 0x7F)) > constant(code, top), constant(code, 0x7FC00000), value)
    return from_bits(wor(bits(value), wand(spread, -(1 << 31))))


def to_signed(x, random, left, half, least, top):
    """Return the code of x by 16 random bits; numbers above the largest get the largest code.

    Infinity and NaN get code 127, which is NaN, without a sign. `least` and `top` are the bits of
    the least normal number and of the largest; for `left` and `half` see `placed`.
    """
    pattern, size = bits(x), absolute(x)
    inside = lesser(size, constant(x, top))
    # Below the first normal number, add half of it to half of x: a unit in the last place of the
    # sum is 2**-20 of a code's.
    below = linear(inside, constant(x, 126 << 23), constant(x, least - (1 << 23)))
    code = placed(greater(below, inside), random, left, half)
    code = wor(code, wand(pattern, -(1 << 31)))
    # The sign of a NaN depends on the processor, so it is dropped.
    nan = wor(wand(code, 0), 0x7F)
    return number(where(bits(size) < 0x7F800000, wshr(code, 24), nan))


def from_e4m3_over_4(code):
    """Return a quarter of the number of an e4m3 code, exactly."""
    return from_signed(code, 20, 119 << 23, 0x42FC0000)


def to_e4m3_over_4(x, random):
    """Return the e4m3 code of 4 x by 16 random bits, at most 112; NaN for infinity and NaN."""
    return to_signed(x, random, 4, 128 + (10 << 27), 119 << 23, 0x42E00000)


def from_e5m2_over_4096(code):
    """Return the number of an e5m2 code over 2**12, exactly."""
    return from_signed(code, 21, 101 << 23, 0x42F60000)


def to_e5m2_over_4096(x, random):
    """Return the e5m2 code of 2**12 x by 16 random bits, at most 14; NaN for infinity and NaN."""
    return to_signed(x, random, 3, 128 + (28 << 26), 101 << 23, 0x41600000)


def from_4_bits(code):
    """Return the number of a code of 4 bits, exactly."""
    pattern = word(code)
    # 1 + k / 8 for code k; the candidates k / 16, (k - 1) / 8, (k - 4) / 2 and 2 k - 11 are linear
    # in it.
    place = from_bits(wor(wand(wshl(pattern, 20), 7 << 20), 127 << 23))
    low = linear(place, constant(code, 126 << 23), constant(code, (126 << 23) - (1 << 31)))
    middle = rn(place - constant(code, 0x3F900000))
    high = linear(place, constant(code, 129 << 23), constant(code, 0x40C00000 - (1 << 31)))
    top = linear(place, constant(code, 131 << 23), constant(code, 0x41D80000 - (1 << 31)))
    value = greater(greater(middle, low), greater(high, top))
    value = from_bits(wor(bits(value), wshl(wand(pattern, 8), 28)))
    return where(code == constant(code, 130 << 23), constant(code, 0x7FC00000), value)


def to_4_bits(x, random):
    """Return the code of 4 bits of x by 16 random bits; numbers above 3 get the code of 3.

    Infinity and NaN get code 8, which is NaN.
    """
    pattern, size = bits(x), absolute(x)
    # The position of x among the codes, plus 8: the least of 16 x, 8 x + 1, 2 x + 4 and x / 2 + 11
    # / 2. A unit in the last place is 2**-20.
    low = linear(size, constant(x, 131 << 23), constant(x, 130 << 23))
    middle = linear(size, constant(x, 130 << 23), constant(x, 0x41100000))
    high = linear(size, constant(x, 128 << 23), constant(x, 0x41400000))
    top = linear(size, constant(x, 126 << 23), constant(x, 0x41580000))
    place = lesser(lesser(middle, low), lesser(high, top))
    # NaN also gets this position.
    place = lesser(place, constant(x, 0x41700000))
    # The upper bits hold the unsigned code; those of the added 8 are shifted out. The lower bits
    # are truncated after adding 16 random bits and half of the last one.
    code = wadd(wshl(bits(place), 8), wor(wshl(random, 12), 1 << 11))
    # All codes but 0 may have a sign: the sum has its upper bit set if the code is at least 1.
    sign = wand(wand(pattern, wadd(code, 7 << 28)), -(1 << 31))
    code = wshr(wor(code, sign), 28)
    return number(where(bits(size) < 0x7F800000, code, wor(wand(code, 0), 8)))
