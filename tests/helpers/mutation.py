"""Mutation of bit patterns: the step of hill climbing on the inputs of operations and functions.

An input is a list of arguments, each an array of shape (components, inputs) of float64, in which
the numbers of every format are exact. A mutant differs from its parent in bits, runs of bits,
exponents, signs, ties and zeros of one to three components, or has components of another parent.
All choices are integers of a seeded generator and all scaling is by powers of two, so that a seed
gives the same inputs on every processor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mcf.kernels.formats import Format

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = list[Array]

_SIGN = np.int64(-(1 << 63))
_EXPONENT_UNIT = np.int64(1 << 52)


@dataclasses.dataclass(frozen=True)
class Space:
    """Which inputs there are.

    Args:
        fmt: of the components.
        low: least exponent of a leading component.
        high: largest exponent of a leading component.
        positive: whether leading components are positive.
        free: whether components may stand in any order and overlap.
        far: whether exponents move far, too, since results are not the same at every scale.
        depth: bits from a leading component below which there is nothing, if there is an end.
    """

    fmt: Format
    low: int
    high: int
    positive: bool = False
    free: bool = False
    far: bool = False
    depth: int | None = None

    def repaired(self, inputs: Inputs) -> Inputs:
        """The inputs made valid: numbers of the format, in range, |x[k + 1]| <= ulp(x[k]) / 2."""
        return [self._repaired(x) for x in inputs]

    def _repaired(self, x: Array) -> Array:
        p, eta = self.fmt.p, self.fmt.emin - self.fmt.p + 1
        x = np.where(np.isfinite(x), x, 1.0)
        # Exponents far out are brought back before anything is scaled.
        fraction, exponent = np.frexp(x)
        x = np.ldexp(fraction, np.clip(exponent, self.low + 1 - 400, self.high + 1))
        out = np.empty_like(x)
        for k in range(len(x)):
            fraction, exponent = np.frexp(x[k])
            if k == 0 or self.free:
                exponent = np.maximum(exponent, self.low + 1) if k == 0 else exponent
                value = np.ldexp(fraction, exponent)
                if self.positive:
                    value = np.abs(value)
                if k == 0:
                    value = np.where(value == 0, np.ldexp(1.0, self.low), value)
            else:
                before = np.frexp(out[k - 1])[1]
                half = np.maximum(before - p, eta) - 1
                tie = np.ldexp(1.0, half)
                value = np.ldexp(fraction, np.minimum(exponent, half + 1))
                # Above a tie and in its binade: one binade down.
                value = np.where(np.abs(value) > tie, value / 2, value)
                value = np.where(out[k - 1] == 0, 0.0, value)
            if k and self.depth is not None:
                deep = np.abs(value) < np.ldexp(np.abs(out[0]), -self.depth)
                value = np.where(deep, 0.0, value)
            out[k] = self._number(value)
        return out

    def _number(self, x: Array) -> Array:
        """Cut to the precision and to the multiples of the smallest subnormal number."""
        bits = np.ascontiguousarray(x).view(np.int64) & -(1 << (53 - self.fmt.p))
        x = bits.view(np.float64)
        eta = self.fmt.emin - self.fmt.p + 1
        exponent = np.frexp(x)[1] - 1
        small = exponent < self.fmt.emin
        if not small.any():
            return x
        cut = np.ldexp(np.trunc(np.ldexp(np.where(small, x, 0.0), -eta)), eta)
        return np.where(small, cut, x)


def mutated(space: Space, inputs: Inputs, others: Inputs, rng: np.random.Generator) -> Inputs:
    """Every input changed in one to three places; `others` are as many to take parts from."""
    out = [x.copy() for x in inputs]
    count = out[0].shape[1]
    times = np.minimum(rng.integers(1, 5, count), 3)
    for turn in range(3):
        active = times > turn
        argument = rng.integers(0, len(out), count)
        place = rng.integers(0, 4, count)
        for k, x in enumerate(out):
            for j in range(len(x)):
                chosen = np.flatnonzero(active & (argument == k) & (place % len(x) == j))
                if len(chosen):
                    _change(space, out, others, k, j, chosen, rng)
    return space.repaired(out)


def _change(
    space: Space,
    inputs: Inputs,
    others: Inputs,
    k: int,
    j: int,
    chosen: Array,
    rng: np.random.Generator,
) -> None:
    """Mutate component j of argument k of the chosen inputs, each in one of 14 ways."""
    n, p = len(chosen), space.fmt.p
    x = inputs[k]
    old = x[j, chosen]
    bits = old.view(np.int64)
    first = 53 - p
    start, length = rng.integers(0, p - 1, (2, n)) if p > 1 else np.zeros((2, n), np.int64)
    single = np.int64(1) << (first + start)
    run = _run(first, start, np.minimum(length, p - 2 - start) + 1)
    steps = rng.integers(-3, 4, n) << first
    shift = rng.integers(-3, 4, n)
    whole = np.int64((1 << 52) - 1)
    fresh = rng.integers(0, 1 << 52, n)
    source = rng.integers(0, len(inputs), n)
    borrowed = np.empty(n)
    for a, other in enumerate(inputs):
        some = source == a
        borrowed[some] = other[min(j, len(other) - 1), chosen[some]]
    before = x[j - 1, chosen] if j else old
    tie = np.ldexp(1.0, np.frexp(before)[1] - 1 - p)
    choices = [
        bits ^ single,
        bits ^ single,
        bits ^ run,
        bits | run,
        bits & ~run,
        np.where(old == 0, fresh, bits + steps),
        bits + shift * _EXPONENT_UNIT,
        bits ^ _SIGN,
        (bits & ~whole) | fresh,
        np.where(fresh & 1, bits | whole, bits & ~whole),
        borrowed.view(np.int64) ^ np.where(fresh & 2, _SIGN, 0),
        others[k][j, chosen].view(np.int64),
        np.where(fresh & 4, tie, -tie).view(np.int64) - (fresh & 1) * _EXPONENT_UNIT,
        np.where(fresh & 8, np.float64(0).view(np.int64), bits),
    ]
    if space.far:
        shift = np.where(fresh & 16, rng.integers(-2 * p, 2 * p + 1, n), shift)
        choices[6] = bits + shift * _EXPONENT_UNIT
        # Nothing becomes anything below half an ulp of the component before.
        size = ((fresh | np.int64(1023 << 52)).view(np.float64)) * tie / 2
        choices[5] = np.where(old == 0, size.view(np.int64), choices[5])
    kind = rng.integers(0, len(choices), n)
    new = np.choose(kind, choices).view(np.float64)
    # An exponent that leaves the range is no mutation.
    limit = np.ldexp(1.0, max(1000, min(space.high + 1, 1023)))
    x[j, chosen] = np.where(np.abs(new) < limit, new, old)
    # The lower components follow an exponent, so that their bits stay where they are in the whole.
    moved = kind == 6
    if moved.any() and not space.free:
        for lower in range(j + 1, len(x)):
            with np.errstate(over="ignore"):
                x[lower, chosen[moved]] = np.ldexp(x[lower, chosen[moved]], shift[moved])


def _run(first: int, start: Array, length: Array) -> Array:
    """`length` ones from bit first + start on."""
    return ((np.int64(1) << length) - 1) << (first + start)


def unrelated(space: Space, shapes: Sequence[int], count: int, rng: np.random.Generator) -> Inputs:
    """Random bit patterns with runs of zeros and ones; components with and without gaps."""
    p, first = space.fmt.p, 53 - space.fmt.p
    inputs = []
    for terms in shapes:
        x = np.empty((terms, count))
        exponent = rng.integers(space.low, space.high + 1, count)
        for k in range(terms):
            bits = rng.integers(0, 1 << 52, count)
            for _ in range(2):
                start = rng.integers(0, p - 1, count)
                run = _run(first, start, rng.integers(1, p, count) % (p - 1 - start) + 1)
                bits = np.choose(rng.integers(0, 4, count), [bits, bits | run, bits & ~run, run])
            fraction = ((bits & ((1 << 52) - 1)) | (1023 << 52)).view(np.float64)
            sign = 1.0 - 2.0 * rng.integers(0, 2, count)
            x[k] = np.ldexp(sign * fraction, exponent)
            gap = np.choose(rng.integers(0, 3, count), [1, 1, rng.integers(0, p, count)])
            exponent = exponent - p - gap
        inputs.append(x)
    return space.repaired(inputs)
