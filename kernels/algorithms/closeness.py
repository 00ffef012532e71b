"""Whether numbers are close, by their first components, where these decide."""

from mcf.kernels.algorithms.primitives import ONE, ZERO, absolute, rn, where


def closeness(x, y, rtol, atol, margin, least):
    """1 where |x - y| < atol + rtol |y| for certain, 0 where it is larger for certain, else 2.

    A number is within u |x0| of its first component, of the tolerances too, and each operation
    here is off by u of its result, u being the format's: together not by more than `margin`, 16 u,
    times the sizes of all, and where products are subnormal by `least`. Infinities and NaN make
    sums or differences with which every comparison fails.
    """
    error = absolute(rn(x[0] - y[0]))
    allowed = rn(rn(absolute(y[0]) * rtol[0]) + atol[0])
    size = rn(rn(absolute(x[0]) + absolute(y[0])) + allowed)
    around = rn(rn(size * margin[0]) + least[0])
    near, far = rn(error + around) < allowed, rn(error - around) > allowed
    return (where(near, ONE, where(far, ZERO, ONE + ONE)),)
