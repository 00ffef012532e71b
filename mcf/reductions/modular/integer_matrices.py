"""Convert matrices to integers: scale each row of the left and each column of the right."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from mcf.kernels.scaling import power_of_two
from mcf.reductions.modular import declarations
from mcf.reductions.modular.moduli import Plan, batches

# Elements whose residues are computed at a time, so that intermediate results stay in the cache.
CHUNK = 1 << 16
# A generous factor for the rounding errors of float64 sums.
UP = 1 + 2.0**-20


@dataclasses.dataclass
class Integers:
    """Residues of the integers nearest to c 2**-unit.

    Args:
        planes: int8 [planes, rows, columns]: first digits of all moduli, then second digits of
            squares.
        unit: the exponent of each row or column, int64.
        size: at least the sum of |c| 2**-unit along it.
        dropped: at least the largest rounding error to an integer in it; 0 if there is none.
    """

    planes: Tensor
    unit: Tensor
    size: Tensor
    dropped: Tensor


def _times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """Return x 2**exponent for |exponent| <= 2044."""
    half = exponent >> 1
    return x * power_of_two(half) * power_of_two(exponent - half)


def integers(x: list[Tensor], dim: int, plan: Plan) -> Integers:
    """Convert a matrix of finite float64 components to integers, scaled along a dimension.

    Args:
        x: components, contiguous [rows, columns].
        dim: 1 to scale rows, 0 to scale columns.
        plan: the moduli.
    """
    shape = x[0].shape
    largest = torch.stack([c.abs().amax(dim, keepdim=True) for c in x]).amax(0)
    exponent = torch.frexp(largest)[1].long()
    # Numbers are at most 1 (slightly more for expansions): nothing overflows, and nothing that
    # matters underflows.
    size = sum(
        (_times_power(c, -exponent).abs() for c in x[1:]), _times_power(x[0], -exponent).abs()
    )
    total = size.sum(dim, keepdim=True)
    norm = size.square_().sum(dim, keepdim=True).sqrt_() * UP
    places = torch.frexp(norm)[1].long()
    unit = exponent + places - plan.bits
    total = _times_power(total * UP, plan.bits - places)

    shift = (-unit).double().expand(shape).contiguous()
    planes, rest = _residues([c.view(-1) for c in x], shift.view(-1), plan)
    dropped = rest.view(shape).amax(dim) * UP
    return Integers(planes.view(-1, *shape), unit.squeeze(dim), total.squeeze(dim), dropped)


def _residues(x: list[Tensor], shift: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Return planes of residues of the integers, and the errors of rounding to integers."""
    count, device = shift.numel(), shift.device
    moduli, squares = len(plan.moduli), len(plan.squares)
    planes = torch.empty(moduli + squares, count, dtype=torch.int8, device=device)
    size = min(count, CHUNK)
    rest = torch.empty_like(shift)
    limbs = torch.empty(plan.limbs, size, dtype=torch.float64, device=device)
    # Outputs of the padding moduli that fill up a batch.
    spare = torch.empty(2 * declarations.GROUP, size, dtype=torch.int8, device=device)
    cut = declarations.limbs(len(x), plan.limbs, plan.limb)
    for start in range(0, count, CHUNK):
        part = slice(start, start + CHUNK)
        given, out = limbs[:, : min(size, count - start)], planes[:, part]
        declarations.run(cut, [*given, rest[part], *(c[part] for c in x), shift[part]])
        unused = spare[:, : given.shape[1]]
        for batch in batches(plan, declarations.GROUP):
            row: list[Tensor] = []
            for digit in range(batch.digits):
                place, end = digit * moduli + batch.first, (digit + 1) * declarations.GROUP
                row += out[place : place + batch.count]
                row += unused[end - declarations.GROUP + batch.count : end]
            spec = declarations.residues(plan.limbs, batch.digits)
            declarations.run(spec, [*row, *given], batch.down)
    return planes, rest
