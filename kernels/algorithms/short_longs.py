"""Functions on the bits of float32 registers, whose longs are 32-bit words."""

from mcf.kernels.algorithms.primitives import absolute, bits, const, from_bits, whole


def with_sign(x, y):
    """Return |x| with the sign bit of y."""
    magnitude = bits(x) & whole(0x7FFFFFFF)
    return from_bits(magnitude | (bits(y) & whole(-0x80000000)))


def negative(x):
    """Return whether the sign bit is set."""
    return bits(x) < whole(0)


def infinite(x):
    """Return whether x is an infinity."""
    return absolute(x) > const(3.4028234663852886e38)
