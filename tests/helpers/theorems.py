"""What each operation promises, checked in exact integers: its truth, precondition and bound.

Numbers are integers in units of 2**-1074 (`exactly.integers`), products in units of 2**-2148.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import Format
from mcf.kernels.pair_bounds import Bound
from mcf.kernels.pair_bounds import pair_bound as row
from tests.helpers.adversarial import Draw, all_pairs, specials
from tests.helpers.exactly import UNIT, integers

Array = np.ndarray[Any, np.dtype[Any]]
Integers = np.ndarray[Any, np.dtype[np.object_]]


def arguments(operation: str, fmt: Format, n: int, seed: int) -> list[Tensor]:
    """n hard sets of finite components for an operation, not all within its precondition."""
    draw = Draw(fmt, seed)
    p = fmt.p
    if operation in ("two_prod", "scale", "mul"):
        # Exponents whose sum lies anywhere from below the least product to overflow.
        first = draw.exponents(n)
        total = draw.rng.integers(fmt.emin + p - 4, fmt.emax + 2, n)
        second = np.clip(total - first, fmt.emin - p + 1, fmt.emax)
        a, b = draw.numbers(first), draw.numbers(second)
    else:
        a = draw.numbers(draw.exponents(n))
        b = draw.partners(a)
    if operation == "fast_two_sum":
        swap = (np.abs(a) < np.abs(b)) & (draw.rng.random(n) < 0.7)
        a, b = np.where(swap, b, a), np.where(swap, a, b)
    low = draw.low(a)
    if operation == "add":
        # Every third y cancels x to its last bits.
        y_low = draw.low(b)
        near = draw.partners(low)
        cancels = (np.arange(n) % 3 == 0) & (np.abs(near) <= draw.ulp(a) / 4)
        b, y_low = np.where(cancels, -a, b), np.where(cancels, near, y_low)
        parts = [a, low, b, y_low]
    else:
        parts = {
            "split": [a],
            "grow": [a, low, b],
            "scale": [a, low, b],
            "mul": [a, low, b, draw.low(b)],
        }.get(operation, [a, b])
    return [draw.tensor(x) for x in parts]


def special_arguments(operation: str, fmt: Format, count: int) -> list[Tensor]:
    """Zeros, infinities, NaN and edges in every pair of `count` arguments; the rest follow them."""
    x = specials(fmt)
    if count == 1:
        return [x]
    a, b = all_pairs(x)
    pieces = [a, b]
    while len(pieces) < count:
        pieces.append(pieces[-2].roll(7 * len(pieces)))
    return pieces[:count]


def truth(operation: str, components: Sequence[Integers]) -> tuple[Integers, int]:
    """The exact result and its unit as a power of two."""
    if operation == "two_prod":
        return components[0] * components[1], 2 * UNIT
    if operation == "scale":
        return (components[0] + components[1]) * components[2], 2 * UNIT
    if operation == "mul":
        return (components[0] + components[1]) * (components[2] + components[3]), 2 * UNIT
    return np.sum(np.stack(list(components)), axis=0), UNIT


def within_precondition(bound: Bound, fmt: Format, given: Sequence[Tensor]) -> Array:
    """Where the table's precondition holds, for finite and normalised arguments."""
    values = [integers(t) for t in given]
    largest, half_ulp = _units(fmt.max), _units(fmt.max * fmt.u / (2 - 2 * fmt.u))
    threshold = largest + half_ulp
    operation = bound.operation
    if bound.product_margin is not None:
        a, b = given[0], given[-1 if operation != "mul" else 2]
        total = _exponents(a) + _exponents(b)
        least = bound.least_product_exponent(fmt)
        product = integers(a) * integers(b)
        if operation == "two_prod":
            fits = np.abs(product) < threshold << -UNIT
        else:
            fits = total < fmt.emax - 1
        return fits & ((product == 0) | (total >= least))
    if operation == "split":
        factor = 2 ** ((fmt.p + 1) // 2) + 1
        return np.abs(values[0]) * factor < threshold
    exact = np.abs(truth(operation, values)[0])
    fits = exact < threshold
    if operation in ("two_sum", "renormalize"):
        return fits & (np.abs(values[1]) != largest)
    if operation == "fast_two_sum":
        ordered = (values[0] == 0) | (_exponents(given[0]) >= _exponents(given[1]))
        return fits & ordered
    # Sums of pairs: no intermediate sum may overflow.
    size = sum(np.abs(v) for v in values)
    return size < largest - 8 * half_ulp


def violations(
    operation: str, fmt: Format, given: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[int, int]:
    """How many results break the operation's bound, and how many were within its precondition."""
    bound = row(operation)
    live = torch.from_numpy(within_precondition(bound, fmt, given).astype(bool))
    results = [r[live] for r in results]
    finite = torch.isfinite(results[0]) & torch.isfinite(results[1])
    lost = int((~finite).sum())
    exact, unit = truth(operation, [integers(t[live][finite]) for t in given])
    got = sum(integers(r[finite]) for r in results) << (UNIT - unit)
    error = bound.error(fmt.u)
    wrong = np.abs(got - exact) * error.denominator > error.numerator * np.abs(exact)
    return lost + int(wrong.sum()), int(live.sum())


def _units(x: Fraction) -> int:
    units = x * 2**-UNIT
    assert units.denominator == 1
    return int(units)


def _exponents(t: Tensor) -> Array:
    x = t.double().numpy()
    return np.where(x == 0, -(1 << 20), np.frexp(x)[1] - 1)
