"""Functions on float64 registers that PyTorch has as single operations and executors lack."""

from mcf.kernels.algorithms.primitives import (
    ONE,
    ZERO,
    absolute,
    bits,
    bits64,
    const,
    floor,
    from_bits,
    from_bits64,
    rn,
    where,
    whole,
)


def smaller(a, b):
    """Return the smaller of two longs or registers; the first if it is NaN."""
    return where(b < a, b, a)


def larger(a, b):
    """Return the larger of two longs or registers; the first if it is NaN."""
    return where(a < b, b, a)


def sign(x):
    """Return 1, -1 or 0 if x is positive, negative or zero; 0 for NaN."""
    return where(x > ZERO, ONE, where(x < ZERO, const(-1.0), ZERO))


def beside(x, k):
    """Return a literal as a register with the shape of x (on executors of many elements)."""
    return where(x == x, k, k)


def holds(k):
    """Return the condition k = 1 of a literal."""
    return whole(k) == whole(1)


def with_sign(x, y):
    """Return |x| with the sign bit of y."""
    magnitude = bits64(x) & whole(0x7FFFFFFFFFFFFFFF)
    return from_bits64(magnitude | (bits64(y) & whole(-0x8000000000000000)))


def negative(x):
    """Return whether the sign bit is set."""
    return bits64(x) < whole(0)


def infinite(x):
    """Return whether x is an infinity."""
    return absolute(x) > const(1.7976931348623157e308)


def modulo_2(x):
    """Return x - 2 floor(x / 2) for a whole number x."""
    return rn(x - rn(const(2.0) * floor(rn(const(0.5) * x))))


def nearest_bf16(x):
    """Return the bf16 number nearest to a float64, ties to even."""
    return nearest(x, whole(45), whole(897), const(3.3895313892515355e38))


def nearest_fp16(x):
    """Return the fp16 number nearest to a float64, ties to even."""
    return nearest(x, whole(42), whole(1009), const(65504.0))


def nearest(x, shift, least, largest):
    """Return the number of a format nearest to x, ties to even; infinite beyond the largest.

    The format has 52 - shift bits after the first, and `least` is the biased exponent of its
    smallest normal number. Adding 2**shift times the power of two below |x| rounds to the format's
    last place.
    """
    size = absolute(x)
    exponent = larger(smaller(bits64(size) >> whole(52), whole(1900)), least)
    base = from_bits64((exponent + shift) << whole(52))
    rounded = rn(rn(size + base) - base)
    beyond = from_bits64(whole(0x7FF0000000000000))
    return with_sign(where(rounded > largest, beyond, rounded), x)


# Functions on the bits of float32 registers, whose longs are 32-bit words.


def short_with_sign(x, y):
    """Return |x| with the sign bit of y."""
    magnitude = bits(x) & whole(0x7FFFFFFF)
    return from_bits(magnitude | (bits(y) & whole(-0x80000000)))


def short_negative(x):
    """Return whether the sign bit is set."""
    return bits(x) < whole(0)


def short_infinite(x):
    """Return whether x is an infinity."""
    return absolute(x) > const(3.4028234663852886e38)
