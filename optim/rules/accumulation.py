"""How a stored number takes an update: the part of a rule that a precision strategy decides."""

from mcf.kernels.algorithms import (
    fast_two_sum,
    grow,
    join8,
    join16,
    mul,
    split8,
    split16,
)
from mcf.kernels.algorithms.primitives import LARGEST, ZERO, div, rn, rv, where


def single(hi, lo, update):
    """One component: RN(hi + update)."""
    return rn(hi + update), lo


def replaced(value):
    """A value that takes the place of what was stored."""
    return (value,)


def kahan(hi, lo, update):
    """Fast2Sum(hi, RN(lo + update)), Kahan's summation (Kahan 1965, doi:10.1145/363707.363723).

    With registers wider than the components it is exact up to the rounding of the low component,
    also where |update| > |hi|; with strict arithmetic only where |update| <= |hi|.
    """
    return fast_two_sum(hi, rn(lo + update))


def collage(hi, lo, update):
    """Grow((hi, lo), update) of the Collage paper (arXiv:2405.03637), with TwoSum at its start."""
    return grow(hi, lo, update)


def finite(hi, lo):
    """0 beside a leading component that is not finite, which alone says what the sum is.

    Where a sum overflows, what is left of it is NaN or the other infinity.
    """
    return where(rn(hi - hi) == ZERO, lo, ZERO)


def kahan_held(hi, lo, update):
    """`kahan` for an expansion tensor: the low component is 0 where the leading one is infinite.

    An optimizer's own low word is then the other infinity or NaN. (`collage` makes NaN of an
    overflow in both components.)
    """
    hi, lo = kahan(hi, lo, update)
    return hi, finite(hi, lo)


def whole16(hi, low, update):
    """The float32 of 16 + 16 bits plus the update, split again: a float32 master weight."""
    return split16(rn(join16(hi, low) + update))


def whole8(hi, low, update):
    """The number of 16 + 8 bits plus the update, rounded to 24 bits and split again."""
    return split8(rn(join8(hi, low) + update))


def shrink_single(hi, lo, beta, beta_lo):
    """One component: RN(beta hi)."""
    return rn(beta * hi), lo


def shrink_collage(hi, lo, beta, beta_lo):
    """Mul((beta, beta_lo), (hi, lo)), the Collage paper's second moment."""
    return mul(beta, beta_lo, hi, lo)


def shrink_joined(hi, lo, beta, beta_lo):
    """beta (hi + lo) in a wide register, split into its rounding and the rest."""
    return split(rn(beta * rn(hi + lo)))


def decay_single(hi, lo, beta, beta_lo, increment):
    """One component: RN(RN(beta hi) + increment)."""
    return rn(rn(beta * hi) + increment), lo


def decay_collage(hi, lo, beta, beta_lo, increment):
    """Grow(Mul((beta, beta_lo), (hi, lo)), increment)."""
    hi, lo = mul(beta, beta_lo, hi, lo)
    return grow(hi, lo, increment)


def decay_joined(hi, lo, beta, beta_lo, increment):
    """beta (hi + lo) + increment in a wide register, split into its rounding and the rest."""
    return split(rn(rn(beta * rn(hi + lo)) + increment))


def as_one(value):
    """One component, or a value that is one."""
    return value, ZERO


def split(value):
    """A wide register as its rounding and the rest; an infinity's rest is one too, and not NaN."""
    hi = rv(value)
    return hi, rn(value - where(hi > LARGEST, LARGEST, hi))


def leading(hi, lo):
    """The leading component."""
    return hi


def joined(hi, lo):
    """Both components in a wide register."""
    return rn(hi + lo)


def moved_components(hi, lo, new_hi, new_lo):
    """The difference of two stored numbers, component by component."""
    return (new_hi - hi) + (new_lo - lo)


def moved16(hi, low, new_hi, new_low):
    """The difference of two stored numbers of 16 + 16 bits."""
    return join16(new_hi, new_low) - join16(hi, low)


def moved8(hi, low, new_hi, new_low):
    """The difference of two stored numbers of 16 + 8 bits."""
    return join8(new_hi, new_low) - join8(hi, low)


def unbias_by_division(moment, correction, inverse_correction):
    """RN(moment / correction)."""
    return rn(div(moment, correction))


def unbias_by_inverse(moment, correction, inverse_correction):
    """RN(moment * (1 / correction)): no division, and within one and a half ulp of a register."""
    return rn(moment * inverse_correction)
