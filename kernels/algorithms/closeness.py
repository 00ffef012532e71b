"""Decide `isclose` from the first components, where these suffice."""

from mcf.kernels.algorithms.primitives import ONE, ZERO, absolute, rn, where


def closeness(x, y, rtol, atol, margin, least):
    """Return 1 if |x - y| < atol + rtol |y| is certain, 0 if it is certainly larger, else 2.

    A number, also a tolerance, is within u |x0| of its first component, where u is the format's
    unit roundoff. Each operation here has an error of at most u times its result. The total error
    is at most `margin` = 16 u times the sum of the magnitudes, plus `least` where products are
    subnormal. With infinities and NaN every comparison fails.
    """
    error = absolute(rn(x[0] - y[0]))
    allowed = rn(rn(absolute(y[0]) * rtol[0]) + atol[0])
    size = rn(rn(absolute(x[0]) + absolute(y[0])) + allowed)
    around = rn(rn(size * margin[0]) + least[0])
    near, far = rn(error + around) < allowed, rn(error - around) > allowed
    return (where(near, ONE, where(far, ZERO, ONE + ONE)),)
