"""Storage in one component, and the code that all such storages share."""

from mcf.kernels.algorithms.primitives import ZERO, bits, rn
from mcf.kernels.bind import Algorithm
from mcf.optim.storage.base import Storage


def single(hi, lo, update):
    """Return RN(hi + update), for one component."""
    return rn(hi + update), lo


def shrink_single(hi, lo, beta, beta_lo):
    """Return RN(beta hi), for one component."""
    return rn(beta * hi), lo


def decay_single(hi, lo, beta, beta_lo, increment):
    """Return RN(RN(beta hi) + increment), for one component."""
    return rn(rn(beta * hi) + increment), lo


def as_one(value):
    """Return a value as one component."""
    return value, ZERO


def leading(hi, lo):
    """Return the leading component."""
    return hi


def as_stored(second, kept):
    """Return the bits of a second moment as stored."""
    return bits(kept)


def moved_components(hi, lo, new_hi, new_lo):
    """Return the difference of two stored numbers, component by component."""
    return (new_hi - hi) + (new_lo - lo)


class Single(Storage):
    """A number in one tensor, of the parameter's format."""

    def accumulate(self, strict: bool, held: bool, random: bool) -> Algorithm:
        return single

    def loaded(self, strict: bool) -> Algorithm:
        return leading

    def moved(self) -> Algorithm:
        return moved_components

    def second_moment(self, strict: bool) -> dict[str, Algorithm]:
        return {
            "decay_and_add": decay_single,
            "shrink": shrink_single,
            "second_moment_components": as_one,
            "stored_bits": as_stored,
        }


SINGLE = Single()
