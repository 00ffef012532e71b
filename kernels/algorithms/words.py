"""Formulas on bits: split a float32 into bf16 and a rest, random bits, stochastic rounding."""

from mcf.kernels.algorithms.primitives import (
    bits,
    from_bits,
    number,
    unless_payload,
    wadd,
    wand,
    where,
    wmul,
    wor,
    word,
    wsar,
    wshl,
    wshr,
    wsub,
    wxor,
)


def split16(x):
    """(hi, low): x rounded to bf16, and the rest as an integer in [-2**15, 2**15).

    hi is x rounded to nearest, ties away from zero. low is the difference of the bit patterns of x
    and hi, in units of the last place of x. With ties to even, a difference of half a bf16 unit
    could be +2**15 or -2**15 below an even hi: 65,537 cases for 16 bits. With ties away it is
    always -2**15, so the pair is exact for each of the 2**32 patterns: `join16` returns x bit for
    bit, also if x is finite and hi infinite. NaN becomes a quiet NaN and low 0.
    """
    pattern = bits(x)
    top = wand(wadd(pattern, 0x8000), -0x10000)
    quiet = wand(wor(pattern, 0x7FC00000), -0x10000)
    low = number(wsub(pattern, top))
    # NaN - NaN is not 0.
    return from_bits(where(x == x, top, quiet)), where(x == x, low, number(wand(pattern, 0)))


def join16(hi, low):
    """Return the float32 whose bit pattern is that of hi plus low, the inverse of `split16`."""
    return from_bits(wadd(bits(hi), word(low)))


def round24(x):
    """Return x rounded to nearest even in the 24 leading bits of a float32 (16 of precision)."""
    pattern = bits(x)
    odd = wand(wshr(pattern, 8), 1)
    near = wand(wadd(pattern, wadd(odd, 0x7F)), -0x100)
    return from_bits(where(x == x, near, pattern))


def split8(x):
    """(hi, low) of `round24(x)`: like `split16`, with low in units of 2**8, in [-2**7, 2**7)."""
    hi, low = split16(round24(x))
    return hi, number(wsar(word(low), 8))


def join8(hi, low):
    """Return the 24-bit number whose pattern is that of hi plus 2**8 low, inverting `split8`."""
    return from_bits(wadd(bits(hi), wshl(word(low), 8)))


def stochastic24(x, random):
    """Round x by 8 of 16 random bits to one of the two adjacent numbers of 24 leading bits.

    P(away from zero) is the lower byte of x over 2**8, exactly, so that the mean is x. A number of
    24 bits and an infinity stay as they are; NaN stays NaN. Above the largest number of 24 bits the
    neighbour is infinity.
    """
    pattern = bits(x)
    rounded = wand(wadd(pattern, wshr(random, 8)), -0x100)
    quiet = wand(wor(pattern, 0x7FC00000), -0x100)
    return from_bits(unless_payload(x, rounded, quiet))


def stochastic8_high(x, random):
    """Return the bf16 number hi of `split8(stochastic24(x, random))`."""
    return split16(stochastic24(x, random))[0]


def stochastic8_low(x, random):
    """Return the byte low of `split8(stochastic24(x, random))`."""
    return number(wsar(word(split16(stochastic24(x, random))[1]), 8))


def hashed(index, a_high, a_low, b_high, b_low, first_high, first_low):
    """Return a hash of an element's index and two keys of 32 bits; its upper bits are random.

    Three rounds of xor-shift and multiplication with the constants of Wellons' `triple32` (hash
    prospector, 2018, public domain), adding one key before the first round and one before the
    second. Keys and the first index are given in halves of 16 bits.
    """
    a = wor(wshl(word(a_high), 16), word(a_low))
    b = wor(wshl(word(b_high), 16), word(b_low))
    first = wor(wshl(word(first_high), 16), word(first_low))
    x = wxor(wadd(index, first), a)
    # The literals are 0xED5AD4BB, 0xAC4C1B51 and 0x31848BAB as signed integers.
    x = wadd(wmul(wxor(x, wshr(x, 17)), -0x12A52B45), b)
    x = wmul(wxor(x, wshr(x, 11)), -0x53B3E4AF)
    return wmul(wxor(x, wshr(x, 15)), 0x31848BAB)


def random16(index, a_high, a_low, b_high, b_low, first_high, first_low):
    """Return 16 random bits of an element, as a word: the upper half of `hashed`."""
    return wshr(hashed(index, a_high, a_low, b_high, b_low, first_high, first_low), 16)


def random16_pair(index, a_high, a_low, b_high, b_low, first_high, first_low, c_high, c_low):
    """Return two words of 16 random bits: the halves of `hashed` after one more round.

    A third key is added first. So for one element they are independent of `random16` over the keys:
    a hash plus a uniform number is uniform. The constant is that of Wellons' `lowbias32`.
    """
    x = hashed(index, a_high, a_low, b_high, b_low, first_high, first_low)
    c = wor(wshl(word(c_high), 16), word(c_low))
    # The literal is 0x846CA68B as a signed integer.
    x = wmul(wadd(wxor(x, wshr(x, 14)), c), -0x7B935975)
    x = wxor(x, wshr(x, 15))
    return wshr(x, 16), wand(x, 0xFFFF)


def stochastic(x, random):
    """Return x rounded by 16 random bits to one of the two adjacent bf16 numbers.

    The probability of rounding away from zero is the lower 16 bits of x over 2**16, so that the
    mean is exactly x. A bf16 number and an infinity stay as they are, and NaN stays NaN. Above the
    largest bf16 number the neighbour is infinity.
    """
    pattern = bits(x)
    rounded = unless_payload(x, wadd(pattern, random), wor(pattern, 0x7FC00000))
    return from_bits(wand(rounded, -0x10000))
