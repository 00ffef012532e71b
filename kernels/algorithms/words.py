"""Formulas on bits: a float32 as bf16 and the bits below it, random bits, stochastic rounding."""

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
    """(hi, low): x rounded to bf16, and what is missing as an integer in [-2**15, 2**15).

    hi is x to nearest, ties away from zero. low is the difference of the bit patterns of x and hi,
    in units of the last place of x. With ties to even a difference of half a bf16 unit could be
    +2**15 or -2**15 below an even hi, 65,537 cases for 16 bits; with ties away it is always -2**15,
    so the pair is exact for each of the 2**32 patterns: `join16` gives x back bit for bit. Below
    overflow and above x's bits are those of hi plus low, also where x is finite and hi infinite.
    NaN becomes a quiet NaN and low 0.
    """
    pattern = bits(x)
    top = wand(wadd(pattern, 0x8000), -0x10000)
    quiet = wand(wor(pattern, 0x7FC00000), -0x10000)
    low = number(wsub(pattern, top))
    # A NaN minus itself is not 0.
    return from_bits(where(x == x, top, quiet)), where(x == x, low, number(wand(pattern, 0)))


def join16(hi, low):
    """The float32 whose bit pattern is that of hi plus low, the inverse of `split16`."""
    return from_bits(wadd(bits(hi), word(low)))


def round24(x):
    """x rounded to the 24 leading bits of a float32 (16 of precision), to nearest even."""
    pattern = bits(x)
    odd = wand(wshr(pattern, 8), 1)
    near = wand(wadd(pattern, wadd(odd, 0x7F)), -0x100)
    return from_bits(where(x == x, near, pattern))


def split8(x):
    """(hi, low) of `round24(x)`: like `split16`, with low in units of 2**8, in [-2**7, 2**7)."""
    hi, low = split16(round24(x))
    return hi, number(wsar(word(low), 8))


def join8(hi, low):
    """The number of 24 bits whose pattern is that of hi plus 2**8 low, the inverse of `split8`."""
    return from_bits(wadd(bits(hi), wshl(word(low), 8)))


def stochastic24(x, random):
    """Round x to one of the two numbers of 24 leading bits next to it, by 8 of 16 random bits.

    P(away from zero) is the lower byte of x over 2**8, exactly, so that the mean is x. A number of
    24 bits stays as it is, an infinity too; NaN stays NaN; above the largest number of 24 bits the
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
    """A hash of an element's index and two keys of 32 bits; its upper bits are random.

    Three rounds of xor-shift and multiplication with the constants of Wellons' `triple32` (hash
    prospector, 2018, public domain), one key before the first and one before the second. Keys and
    first index come in halves of 16 bits.
    """
    a = wor(wshl(word(a_high), 16), word(a_low))
    b = wor(wshl(word(b_high), 16), word(b_low))
    first = wor(wshl(word(first_high), 16), word(first_low))
    x = wxor(wadd(index, first), a)
    # The literals are 0xED5AD4BB, 0xAC4C1B51 and 0x31848BAB with their signs.
    x = wadd(wmul(wxor(x, wshr(x, 17)), -0x12A52B45), b)
    x = wmul(wxor(x, wshr(x, 11)), -0x53B3E4AF)
    return wmul(wxor(x, wshr(x, 15)), 0x31848BAB)


def random16(index, a_high, a_low, b_high, b_low, first_high, first_low):
    """16 random bits of an element, as a word: the upper half of `hashed`."""
    return wshr(hashed(index, a_high, a_low, b_high, b_low, first_high, first_low), 16)


def random16_pair(index, a_high, a_low, b_high, b_low, first_high, first_low, c_high, c_low):
    """Two words of 16 random bits of an element: the halves of `hashed` after one more round.

    A third key comes between, so that for one element they are independent of `random16` over the
    keys: whatever the hash, it plus a uniform number is uniform. The constant is of Wellons'
    `lowbias32`.
    """
    x = hashed(index, a_high, a_low, b_high, b_low, first_high, first_low)
    c = wor(wshl(word(c_high), 16), word(c_low))
    # 0x846CA68B with its sign.
    x = wmul(wadd(wxor(x, wshr(x, 14)), c), -0x7B935975)
    x = wxor(x, wshr(x, 15))
    return wshr(x, 16), wand(x, 0xFFFF)


def stochastic(x, random):
    """Return x rounded by 16 random bits to one of the two bf16 numbers next to it.

    The probability of the one away from zero is the bits of x below bf16's over 2**16, so that the
    mean is exactly x. A bf16 number stays as it is, an infinity too, and NaN stays NaN. Above the
    largest bf16 number the neighbour is infinity.
    """
    pattern = bits(x)
    rounded = unless_payload(x, wadd(pattern, random), wor(pattern, 0x7FC00000))
    return from_bits(wand(rounded, -0x10000))
