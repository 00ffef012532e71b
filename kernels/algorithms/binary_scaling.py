"""Exponents and powers of two in registers, as whole numbers in registers of the same width.

Float64 registers have them from their longs, float32 registers from their words.
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

# Float64: 11 bits of exponent, which is 1022 for a number from 1/2 to 1.


def exponent64(x):
    """The k with x 2^-k in [1/2, 1), for x > 0; -1075 for 0, 1025 for what is not finite."""
    raised = x * from_bits64(whole((1023 + 53) << 52))
    high, low = floating(bits64(x) >> whole(52)), floating(bits64(raised) >> whole(52))
    return where(high == ZERO, low - const(53.0), high) - const(1022.0)


def power64(k):
    """2^k of a normal exponent."""
    return from_bits64((long(k) + whole(1023)) << whole(52))


def normal64(k):
    """k, or the nearest exponent of a normal number."""
    k = where(k < const(-1022.0), const(-1022.0), k)
    return where(k > const(1023.0), const(1023.0), k)


# Float32: 8 bits, and 126.


def whole32(x, k):
    """A word as a register, shaped as x is; k is a literal."""
    return number(wadd(wand(bits(x), 0), k))


def exponent32(x):
    """The same of a float32 register; -149 for 0, 129 for what is not finite."""
    raised = x * from_bits(wadd(wand(bits(x), 0), 1266679808))
    high, low = number(wshr(bits(x), 23)), number(wshr(bits(raised), 23))
    return where(high == ZERO, low - whole32(x, 24), high) - whole32(x, 126)


def power32(k):
    """2^k of a normal exponent."""
    return from_bits(wshl(wadd(word(k), 127), 23))


def normal32(k):
    """k, or the nearest exponent of a normal number."""
    low, high = whole32(k, -126), whole32(k, 127)
    k = where(k < low, low, k)
    return where(k > high, high, k)


# The forms: `normal` and `power` are those of a register.


def factors(k):
    """Two powers of two whose product is 2^k; the second is as near to it as it can be.

    x times the first is exact wherever x 2^k is neither 0 nor infinite, and so what the second
    makes of it is rounded once.
    """
    main = normal(k)
    return power(normal(k - main)), power(main)


def multiplied1(x, k):
    """x 2^k of a component, rounded once."""
    first, second = factors(k)
    return (rn((x[0] * first) * second),)


def multiplied2(x, k):
    """x 2^k; of two components, which are rounded once each, 0 under an infinity."""
    first, second = factors(k)
    x0, x1 = rn((x[0] * first) * second), rn((x[1] * first) * second)
    return x0, where(rn(x0 - x0) == ZERO, x1, ZERO)


def multiplied3(x, k):
    """The same of three components."""
    first, second = factors(k)
    x0 = rn((x[0] * first) * second)
    finite = rn(x0 - x0) == ZERO
    x1, x2 = rn((x[1] * first) * second), rn((x[2] * first) * second)
    return x0, where(finite, x1, ZERO), where(finite, x2, ZERO)


def multiplied4(x, k):
    """The same of four components."""
    first, second = factors(k)
    x0 = rn((x[0] * first) * second)
    finite = rn(x0 - x0) == ZERO
    x1, x2 = rn((x[1] * first) * second), rn((x[2] * first) * second)
    x3 = rn((x[3] * first) * second)
    return x0, where(finite, x1, ZERO), where(finite, x2, ZERO), where(finite, x3, ZERO)
