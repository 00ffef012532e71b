"""Numbers of 8 bits, e4m3 (OCP 8-bit floating point specification 1.0): codes from and to float32.

A code is the byte as an integer in [-128, 128), which is what a register of the kernels holds. e4m3
has 4 bits of precision, 448 as its largest number, 2**-9 as its smallest, NaN and no infinities.
"""

from mcf.kernels.algorithms.primitives import (
    ONE,
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
    wsub,
    wxor,
)


def constant(like, pattern):
    """The float32 of a bit pattern; a literal would be a float64 on some executors."""
    return from_bits(wor(wand(like, 0), pattern))


def to_e4m3(x):
    """The code of x to nearest, ties to even; 448 at most, NaN for infinity and NaN."""
    pattern = bits(x)
    size = wand(pattern, 0x7FFFFFFF)
    magnitude = from_bits(size)
    # 4 bits remain of a normal number, whose exponent is biased by 7 instead of 127.
    even = wadd(wand(wshr(size, 20), 1), 0x7FFFF)
    normal = wsub(wshr(wadd(size, even), 20), 960)
    # A unit in the last place of 2**14 is 2**-9, that of numbers below 2**-6.
    base = wor(wand(size, 0), 0x46800000)
    subnormal = wsub(bits(rn(magnitude + from_bits(base))), base)
    code = where(magnitude < constant(size, 0x3C800000), subnormal, normal)
    code = where(magnitude > constant(size, 0x43E00000), wor(wand(size, 0), 0x7E), code)
    finite = magnitude < constant(size, 0x7F800000)
    code = where(finite, code, wor(wand(size, 0), 0x7F))
    return number(wsub(code, wshl(wshr(pattern, 31), 7)))


def from_e4m3(code):
    """The number of a code, exactly."""
    byte = word(code)
    size = wand(byte, 0x7F)
    count = number(size)
    # 2**-9 times the code below 8, the first normal number.
    subnormal = rn(count * constant(size, 0x3B000000))
    normal = from_bits(wadd(wshl(size, 20), 0x3C000000))
    magnitude = where(count < constant(size, 0x41000000), subnormal, normal)
    # The last code, 127, is NaN.
    value = where(count < constant(size, 0x42FE0000), magnitude, constant(size, 0x7FC00000))
    return from_bits(wor(bits(value), wshl(wand(byte, 0x80), 24)))


def power(exponent):
    """2**exponent, for -126 to 127."""
    return from_bits(wshl(wadd(word(exponent), 127), 23))


def inverse_power(exponent):
    """2**-exponent, for -127 to 126."""
    return from_bits(wshl(wadd(wxor(word(exponent), -1), 128), 23))


def exponent_of(largest):
    """The smallest k with largest <= 448 2**k, from -100 on, for a finite number.

    At -100 and above all that a block holds, and the inverse of its scale, are normal float32
    numbers.
    """
    # A carry from the mantissa says that it is above 1.75, the mantissa of 448.
    k = wsub(wshr(wadd(bits(largest), 0x1FFFFF), 23), 135)
    least = wsub(wand(k, 0), 100)
    return number(where(number(wsub(k, least)) > ZERO, k, least))


def to_pair(x):
    """(hi, lo): x as hi + lo / 16, for |x| <= 448: hi to nearest, and lo the nearest of the rest.

    The factor 16 is the bits of hi: what is left of hi is at most 16, so that 16 times as much fits
    too, and the pair reaches down to 2**-13 instead of 2**-9. |x - (hi + lo / 16)| <= 2**-9 |x|
    for |x| >= 2**-5, and 2**-14 below.
    """
    hi = to_e4m3(x)
    rest = rn(x - from_e4m3(hi))
    return hi, to_e4m3(rn(rest * constant(bits(x), 0x41800000)))


def from_pair(hi, lo):
    """hi + lo / 16, exactly: at most 22 bits."""
    low = from_e4m3(lo)
    return rn(from_e4m3(hi) + rn(low * constant(bits(low), 0x3D800000)))


def at_least_one(code, above, value):
    """1, the smallest number, for a code of 0 where `above` is 0 too and the value is positive."""
    return where((code == ZERO) & (above == ZERO) & (value > ZERO), ONE, code)
