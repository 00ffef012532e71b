"""Matrices as integers: each row of the left, each column of the right times a power of two."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from mcf.reductions.modular import declarations
from mcf.reductions.modular.moduli import LIMB, Plan, powers

# Elements whose residues are made at a time, so that what lies between stays in the cache.
CHUNK = 1 << 15
# What rounding errors of float64 sums may add, generously.
UP = 1 + 2.0**-20


@dataclasses.dataclass
class Integers:
    """Residues of the integers nearest to c 2**-unit.

    Args:
        planes: int8 [planes, rows, columns]: first digits of all moduli, then second digits of
            squares.
        unit: the exponent of each row or column, int64.
        size: at least the sum of |c| 2**-unit along it.
        dropped: at least the largest |c| 2**-unit less its integer in it; 0 where all is kept.
    """

    planes: Tensor
    unit: Tensor
    size: Tensor
    dropped: Tensor


def _times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """x 2**exponent for |exponent| <= 2044."""
    half = exponent >> 1
    return x * _power(half) * _power(exponent - half)


def _power(exponent: Tensor) -> Tensor:
    return ((exponent + 1023) << 52).view(torch.float64)


def integers(x: list[Tensor], dim: int, plan: Plan) -> Integers:
    """The integers of a matrix of finite float64 components, scaled along a dimension.

    Args:
        x: components, contiguous [rows, columns].
        dim: 1 to scale rows, 0 to scale columns.
        plan: what they are residues of.
    """
    shape = x[0].shape
    largest = torch.stack([c.abs().amax(dim, keepdim=True) for c in x]).amax(0)
    exponent = torch.frexp(largest)[1].long()
    # Of numbers up to 1 and, in expansions, somewhat more: nothing overflows, nothing that counts
    # underflows.
    size = sum(
        (_times_power(c, -exponent).abs() for c in x[1:]), _times_power(x[0], -exponent).abs()
    )
    total = size.sum(dim, keepdim=True)
    norm = size.square_().sum(dim, keepdim=True).sqrt_() * UP
    places = torch.frexp(norm)[1].long()
    unit = exponent + places - plan.bits
    total = _times_power(total * UP, plan.bits - places)

    count = x[0].numel()
    held = torch.empty(plan.limbs + 1, count, dtype=torch.float64, device=x[0].device)
    shift = (-unit).double().expand(shape).contiguous()
    spec = declarations.limbs(len(x), plan.limbs, LIMB)
    declarations.run(spec, [[*held, *(c.view(-1) for c in x), shift.view(-1)]])
    dropped = held[-1].view(shape).amax(dim)
    planes = _residues(held[:-1], plan).view(-1, *shape)
    return Integers(planes, unit.squeeze(dim), total.squeeze(dim), dropped * UP)


def _residues(limbs: Tensor, plan: Plan) -> Tensor:
    """Planes of the residues of numbers in limbs [limbs, count]."""
    count, squares = limbs.shape[1], len(plan.squares)
    bases = (*plan.squares, *plan.plain)
    planes = torch.empty(len(bases) + squares, count, dtype=torch.int8, device=limbs.device)
    coefficients = powers(plan, limbs.device)
    scalars = [[float(s), 1 / s] for s in bases]
    for start in range(0, count, CHUNK):
        part = slice(start, start + CHUNK)
        # Exact: integers below 2**48 whatever the order of additions.
        numbers = coefficients @ limbs[:, part].contiguous()
        out = planes[:, part]
        plain = range(squares, len(bases))
        declarations.run(
            declarations.residue(), [[out[t], numbers[t]] for t in plain], scalars[squares:]
        )
        if squares:
            rows = [[out[t], out[len(bases) + t], numbers[t]] for t in range(squares)]
            declarations.run(declarations.two_digits(), rows, scalars[:squares])
    return planes
