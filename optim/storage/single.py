"""Storage in one component, and the code that all such storages share."""

from mcf.kernels.algorithms.primitives import ZERO, bits, rn
from mcf.kernels.bind import Algorithm
from mcf.optim.storage.base import Storage


def single(hi, lo, update):
    """One component: RN(hi + update)."""
    return rn(hi + update), lo


def shrink_single(hi, lo, beta, beta_lo):
    """One component: RN(beta hi)."""
    return rn(beta * hi), lo


def decay_single(hi, lo, beta, beta_lo, increment):
    """One component: RN(RN(beta hi) + increment)."""
    return rn(rn(beta * hi) + increment), lo


def as_one(value):
    """One component, or a value that is one."""
    return value, ZERO


def leading(hi, lo):
    """The leading component."""
    return hi


def as_stored(second, kept):
    """The bits of a second moment as it is stored."""
    return bits(kept)


def moved_components(hi, lo, new_hi, new_lo):
    """The difference of two stored numbers, component by component."""
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
