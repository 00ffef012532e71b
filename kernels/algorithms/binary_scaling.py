"""Exponents and powers of two in registers, where an exponent is a whole number.

Float64 registers compute them with 64-bit integers (longs), float32 registers with 32-bit words.
"""

from mcf.kernels.algorithms.primitives import (
    ZERO,
    bits,
    bits64,
    const,
    floating,
    from_bits,
    from_bits64,
    long,
    number,
    rn,
    wadd,
    wand,
    where,
    whole,
    word,
    wshl,
    wshr,
)
from mcf.kernels.algorithms.transforms import finite_only
from mcf.kernels.statements import family

# Float64 has 11 exponent bits; the biased exponent of a number in [1/2, 1) is 1022.


def exponent64(x):
    """Return k with x 2^-k in [1/2, 1), for x > 0; -1075 for 0, 1025 for infinities and NaN."""
    raised = x * from_bits64(whole((1023 + 53) << 52))
    high, low = floating(bits64(x) >> whole(52)), floating(bits64(raised) >> whole(52))
    return where(high == ZERO, low - const(53.0), high) - const(1022.0)


def power64(k):
    """Return 2^k for the exponent k of a normal number."""
    return from_bits64((long(k) + whole(1023)) << whole(52))


def normal64(k):
    """Return k clamped to the exponents of normal numbers."""
    k = where(k < const(-1022.0), const(-1022.0), k)
    return where(k > const(1023.0), const(1023.0), k)


# Float32 has 8 exponent bits; the biased exponent of a number in [1/2, 1) is 126.


def whole32(x, k):
    """Return the integer literal k as a register with the shape of x."""
    return number(wadd(wand(bits(x), 0), k))


def exponent32(x):
    """Return k with x 2^-k in [1/2, 1), for float32 x > 0; -149 for 0, 129 for inf and NaN."""
    raised = x * from_bits(wadd(wand(bits(x), 0), 1266679808))
    high, low = number(wshr(bits(x), 23)), number(wshr(bits(raised), 23))
    return where(high == ZERO, low - whole32(x, 24), high) - whole32(x, 126)


def power32(k):
    """Return 2^k for the exponent k of a normal number."""
    return from_bits(wshl(wadd(word(k), 127), 23))


def normal32(k):
    """Return k clamped to the exponents of normal numbers."""
    low, high = whole32(k, -126), whole32(k, 127)
    k = where(k < low, low, k)
    return where(k > high, high, k)


def _multiplied(normal, power):
    """Return the algorithms (x, k) -> x 2^k, each component rounded once.

    2^k is the product of two powers of two. x times the first is exact wherever x 2^k is neither 0
    nor infinite, so that only the product with the second is rounded. The low components are 0
    where the leading one is not finite.
    """

    @family("x* k")
    def multiplied(x, k):
        """Return x 2^k."""
        main = normal(k)
        first, second = power(normal(k - main)), power(main)
        return finite_only([rn((a * first) * second) for a in x])

    return multiplied


# The exponent of a number and products by powers of two, by the width of the registers.
EXPONENT = {64: exponent64, 32: exponent32}
MULTIPLIED = {64: _multiplied(normal64, power64), 32: _multiplied(normal32, power32)}
