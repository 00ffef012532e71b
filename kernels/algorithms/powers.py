"""Powers with whole exponents as pairs, with the same bits on every executor.

x**n is the product of x**(2**k) over the set bits k of n, in pairs: first over the 8 lowest bits,
then over the others. Only correctly rounded operations of IEEE 754 are used, unlike libm's `pow`,
which differs between platforms.
"""

from mcf.kernels.algorithms.pairs import mul
from mcf.kernels.algorithms.primitives import ONE, ZERO, rn, where


def power(base, base_lo, exponent):
    """(base + base_lo)**exponent as a pair, for a base in [0, 1], a whole exponent in [0, 2**53).

    In float64. Relative error below 10 (exponent + 60) u^2, u = 2**-53, so that the leading
    component is the power correctly rounded but where that is as close to a midpoint; below 2**-100
    it is 0.
    """
    high, low = divided(exponent, 256.0, 0.00390625)
    near_hi, near_lo = small_power(base, base_lo, low)
    up, up_lo = raised(base, base_lo)
    far_hi, far_lo = large_power(up, up_lo, high)
    return times(near_hi, near_lo, far_hi, far_lo)


def divided(exponent, size, inverse):
    """Return exact (q, r): exponent = q size + r, 0 <= r < size = 1 / inverse, a power of two."""
    # From 2**52 on float64 has whole numbers only, so adding it rounds to a whole number.
    q = rn(rn(rn(exponent * inverse) + 4503599627370496.0) - 4503599627370496.0)
    r = rn(exponent - rn(q * size))
    return where(r < ZERO, rn(q - ONE), q), where(r < ZERO, rn(r + size), r)


def times(x_hi, x_lo, y_hi, y_lo):
    """Return x * y, or 0 below 2**-100, far above where errors would underflow."""
    hi, lo = mul(x_hi, x_lo, y_hi, y_lo)
    return where(hi < 7.888609052210118e-31, ZERO, hi), where(hi < 7.888609052210118e-31, ZERO, lo)


def raised(base, base_lo):
    """Return base**256 by 8 squarings."""
    for _ in range(8):
        base, base_lo = times(base, base_lo, base, base_lo)
    return base, base_lo


def small_power(base, base_lo, exponent):
    """Return base**exponent for exponent < 2**8."""
    # Ones with the shape of the base.
    lo = rn(base * ZERO)
    hi = rn(lo + ONE)
    for _ in range(8):
        hi, lo, base, base_lo, exponent = _bit(hi, lo, base, base_lo, exponent)
    return hi, lo


def large_power(base, base_lo, exponent):
    """Return base**exponent for exponent < 2**45."""
    lo = rn(base * ZERO)
    hi = rn(lo + ONE)
    for _ in range(45):
        hi, lo, base, base_lo, exponent = _bit(hi, lo, base, base_lo, exponent)
    return hi, lo


def _bit(hi, lo, base, base_lo, rest):
    """Multiply the product by base if rest is odd; square base and halve rest."""
    rest, odd = divided(rest, 2.0, 0.5)
    with_hi, with_lo = times(hi, lo, base, base_lo)
    hi, lo = where(odd > ZERO, with_hi, hi), where(odd > ZERO, with_lo, lo)
    base, base_lo = times(base, base_lo, base, base_lo)
    return hi, lo, base, base_lo, rest
