"""Numbers of 8 bits (OCP 8-bit floating point specification 1.0): codes from and to float32.

A code is the byte as an integer in [-128, 128), which is what a register of the kernels holds.

- e4m3 has 4 bits of precision, 448 as its largest number, 2**-9 as its smallest, NaN and no
  infinities.
- e5m2 has 3 bits of precision, 57344 as its largest number, 2**-16 as its smallest, infinities and
  NaN: it is the upper half of an fp16 number.

The formulas are of a format with a precision of p bits, the exponents emin to emax of its normal
numbers, and 1.75 2**emax as its largest. The code after that of the largest number is what an
infinity becomes, and code 127 what NaN does. The functions at the end name the formats.
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


def encoded(x, p, emin, emax):
    """The code of x to nearest, ties to even; at most the largest number for a finite x."""
    pattern = bits(x)
    size = wand(pattern, 0x7FFFFFFF)
    magnitude = from_bits(size)
    # p bits remain of a normal number, whose exponent is biased by 1 - emin instead of 127.
    even = wadd(wand(wshr(size, 24 - p), 1), (1 << (23 - p)) - 1)
    normal = wsub(wshr(wadd(size, even), 24 - p), (126 + emin) << (p - 1))
    # The number whose unit in the last place is that of the format's subnormal numbers.
    base = wor(wand(size, 0), (151 + emin - p) << 23)
    subnormal = wsub(bits(rn(magnitude + from_bits(base))), base)
    code = where(magnitude < constant(size, (127 + emin) << 23), subnormal, normal)
    # The code of the largest number: the last exponent, and three quarters beside the leading bit.
    top = ((emax - emin + 1) << (p - 1)) + (3 << (p - 3))
    largest = constant(size, ((127 + emax) << 23) + 0x600000)
    code = where(magnitude > largest, wor(wand(size, 0), top), code)
    infinity = constant(size, 0x7F800000)
    code = where(magnitude < infinity, code, wor(wand(size, 0), top + 1))
    code = where(magnitude <= infinity, code, wor(wand(size, 0), 0x7F))
    return number(wsub(code, wshl(wshr(pattern, 31), 7)))


def decoded(code, p, emin, emax, beyond):
    """The number of a code, exactly; `beyond` is the pattern of what follows the largest number."""
    byte = word(code)
    size = wand(byte, 0x7F)
    count = number(size)
    # Multiples of the smallest number, below the first normal one.
    subnormal = rn(count * constant(size, (128 + emin - p) << 23))
    normal = from_bits(wadd(wshl(size, 24 - p), (126 + emin) << 23))
    magnitude = where(count < constant(size, (126 + p) << 23), subnormal, normal)
    top = ((emax - emin + 1) << (p - 1)) + (3 << (p - 3))
    after = number(wor(wand(size, 0), top + 1))
    magnitude = where(count < after, magnitude, constant(size, beyond))
    value = where(count <= after, magnitude, constant(size, 0x7FC00000))
    return from_bits(wor(bits(value), wshl(wand(byte, 0x80), 24)))


def power(exponent):
    """2**exponent, for -126 to 127."""
    return from_bits(wshl(wadd(word(exponent), 127), 23))


def inverse_power(exponent):
    """2**-exponent, for -127 to 126."""
    return from_bits(wshl(wadd(wxor(word(exponent), -1), 128), 23))


def exponent(largest, emax):
    """The smallest k with largest <= 1.75 2**emax 2**k, from -100 on, for a finite number.

    At -100 and above all that a block holds, and the inverse of its scale, are normal float32
    numbers.
    """
    # A carry from the mantissa says that it is above 1.75.
    k = wsub(wshr(wadd(bits(largest), 0x1FFFFF), 23), 127 + emax)
    least = wsub(wand(k, 0), 100)
    return number(where(number(wsub(k, least)) > ZERO, k, least))


def encoded_pair(x, p, emin, emax, beyond):
    """(hi, lo): x as hi + 2**-p lo, for a finite |x| <= 1.75 2**emax; infinity and NaN are in hi.

    hi is x to nearest and lo the nearest of what is left, times 2**p: that is the largest power of
    two for which it fits, since what is left of numbers below 2**(emax + 1) is at most
    2**(emax - p). So the pair has 2p + 1 bits, of which the sign of lo is one, and reaches down p
    bits further than hi: |x - (hi + 2**-p lo)| <= max(2**-(2p + 1) |x|, 2**(emin - 2p)).
    """
    hi = encoded(x, p, emin, emax)
    value = decoded(hi, p, emin, emax, beyond)
    # Infinity less infinity is none.
    rest = where(value == x, ZERO, rn(x - value))
    return hi, encoded(rn(rest * constant(bits(x), (127 + p) << 23)), p, emin, emax)


def decoded_pair(hi, lo, p, emin, emax, beyond):
    """hi + 2**-p lo, exactly: at most 22 bits."""
    low = decoded(lo, p, emin, emax, beyond)
    scaled = rn(low * constant(bits(low), (127 - p) << 23))
    return rn(decoded(hi, p, emin, emax, beyond) + scaled)


def at_least_one(code, above, value):
    """1, the smallest number, for a code of 0 where `above` is 0 too and the value is positive."""
    return where((code == ZERO) & (above == ZERO) & (value > ZERO), ONE, code)


def to_e4m3(x):
    """The code of x to nearest, ties to even; 448 at most, NaN for infinity and NaN."""
    return encoded(x, 4, -6, 8)


def from_e4m3(code):
    """The number of a code, exactly."""
    return decoded(code, 4, -6, 8, 0x7FC00000)


def to_e4m3_pair(x):
    """(hi, lo): x as hi + lo / 16, for |x| <= 448.

    |x - (hi + lo / 16)| <= 2**-9 |x| for |x| >= 2**-5, and 2**-14 below.
    """
    return encoded_pair(x, 4, -6, 8, 0x7FC00000)


def from_e4m3_pair(hi, lo):
    """hi + lo / 16, exactly."""
    return decoded_pair(hi, lo, 4, -6, 8, 0x7FC00000)


def e4m3_exponent(largest):
    """The smallest k with largest <= 448 2**k, from -100 on, for a finite number."""
    return exponent(largest, 8)


def to_e5m2(x):
    """The code of x to nearest, ties to even; 57344 at most for a finite x."""
    return encoded(x, 3, -14, 15)


def from_e5m2(code):
    """The number of a code, exactly."""
    return decoded(code, 3, -14, 15, 0x7F800000)


def to_e5m2_pair(x):
    """(hi, lo): x as hi + lo / 8, for a finite |x| <= 57344; (infinity, 0) for infinity.

    |x - (hi + lo / 8)| <= 2**-7 |x| for |x| >= 2**-13, and 2**-20 below.
    """
    return encoded_pair(x, 3, -14, 15, 0x7F800000)


def from_e5m2_pair(hi, lo):
    """hi + lo / 8, exactly."""
    return decoded_pair(hi, lo, 3, -14, 15, 0x7F800000)


def e5m2_exponent(largest):
    """The smallest k with largest <= 57344 2**k, from -100 on, for a finite number."""
    return exponent(largest, 15)
