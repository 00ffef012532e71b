"""Mutation of bit patterns: the step of hill climbing on the inputs of operations and functions.

An expansion is a row of float64 numbers, each one of the format, every one at most half an ulp of
the one before. A mutant differs from its parent in a bit, a run of bits, an exponent or a sign, or
it has components of another parent. Only integers and powers of two are drawn, so that a seed
gives the same mutants on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mcf.kernels.formats import Format

Array = np.ndarray[Any, np.dtype[Any]]

# Kinds of change, by turns at random.
_KINDS = 8


def _parts(x: Array, fmt: Format) -> tuple[Array, Array]:
    """Signed integers of p bits at most, and exponents with x = m 2**e."""
    e = np.maximum(np.frexp(x)[1] - 1, fmt.emin) - fmt.p + 1
    return np.ldexp(x, -e).astype(np.int64), e


def _run(rng: np.random.Generator, n: int, p: int) -> Array:
    """Runs of ones in words of p bits."""
    start = rng.integers(0, p, n)
    length = rng.integers(1, p, n)
    ones = (np.int64(1) << np.minimum(length, p - start)) - 1
    return ones << start


def mutants(
    rng: np.random.Generator, fmt: Format, parents: Array, mates: Array, low: int, high: int
) -> Array:
    """One mutant of each parent.

    Args:
        rng: the source.
        fmt: of the components.
        parents: [terms, count] normalised expansions, not zero.
        mates: as many, from which components may come.
        low, high: exponents between which those of leading components stay.
    """
    terms, count = parents.shape
    p = fmt.p
    m, e = _parts(parents, fmt)
    at = rng.integers(0, terms, count)
    each = np.arange(count)
    kind = rng.integers(0, _KINDS, count)
    one, size, sign = m[at, each], np.abs(m[at, each]), np.where(m[at, each] < 0, -1, 1)
    bit = np.int64(1) << rng.integers(0, p, count)
    run, where = _run(rng, count, p), e[at, each]
    step = rng.integers(-3, 4, count)
    changed = np.select(
        [kind == k for k in range(6)],
        [size ^ bit, size & ~run, size | run, size ^ run, size + step, size],
        size,
    )
    changed = np.clip(np.abs(changed), 0, (1 << p) - 1)
    # Its leading bit stays, but for components that become zero, and come out of it.
    empty = (one == 0) & (kind != 7) & (at > 0)
    where = np.where(empty, e[np.maximum(at - 1, 0), each] - p - 1, where)
    fresh = rng.integers(0, 1 << p, count)
    changed = np.where(empty, fresh, changed)
    changed = np.where((at == 0) & (kind < 7), changed | (1 << (p - 1)), changed)
    changed = np.where((kind == 7) & (at > 0), 0, changed)
    sign = np.where((kind == 5) | (empty & (step > 0)), -sign, sign)
    # Exponents: by a little, or anywhere below the one before.
    little, far = rng.integers(-2, 3, count), -rng.integers(0, 2 * p, count)
    shift = np.where(rng.integers(0, 2, count) == 0, little, np.where(at > 0, far, 4 * little))
    m[at, each] = sign * changed
    e[at, each] = where + np.where(kind == 6, shift, 0)
    with np.errstate(over="ignore"):
        out = np.ldexp(m.astype(np.float64), e)
    # Components of another from some place on, as far below as they were there.
    cross = (rng.integers(0, 8, count) == 0) & (terms > 1)
    place = rng.integers(1, max(terms, 2), count)
    lift = np.frexp(out[0])[1] - np.frexp(mates[0])[1]
    rank = np.arange(terms)[:, None]
    out = np.where(cross & (rank >= place), np.ldexp(mates, lift), out)
    return normalised(fmt, out, low, high)


def normalised(fmt: Format, x: Array, low: int, high: int) -> Array:
    """Rows made normalised, every component by a power of two; leading exponents within limits."""
    bottom, out = fmt.emin - fmt.p + 1, []
    lead = np.frexp(x[0])[1] - 1
    lead = np.where(x[0] == 0, 0, np.clip(lead, max(low, fmt.emin), high) - lead)
    rows = np.ldexp(x, lead)
    before = np.where(rows[0] == 0, np.ldexp(1.0, max(low, fmt.emin)), rows[0])
    out.append(before)
    for c in rows[1:]:
        ulp = np.ldexp(1.0, np.maximum(np.frexp(before)[1] - fmt.p, bottom))
        gone = np.zeros(len(c), bool) | (before == 0)
        # A power of two has nearer neighbours below it.
        half = np.where(np.abs(np.frexp(before)[0]) == 0.5, ulp / 4, ulp / 2)
        over = np.frexp(c)[1] - np.frexp(half)[1]
        over = np.where(np.abs(c) > half, np.maximum(over, 0), 0)
        c = np.ldexp(c, -over)
        c = np.where(np.abs(c) > half, c / 2, c)
        # What is below the bottom of the range is cut off.
        unit = max(bottom, -1000)
        c = np.ldexp(np.trunc(np.ldexp(c, -unit)), unit) if bottom == unit else c
        gone |= np.abs(c) > half
        c = np.where(gone, 0.0, c)
        out.append(c)
        before = c
    return np.stack(out)
