"""Matrices of integers and their residues, and the elementwise kernels that compute them.

`mcf.kernels.algorithms.residues` has the formulas. Each row of the left matrix and each column of
the right one is scaled to integers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms import residues as residue_steps
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import FP32, FP64, INT8, INT32, Format, power_of_two
from mcf.reductions.modular.moduli import Plan, batches

# Moduli per kernel: enough to read limbs and digits rarely, few enough to compile fast.
GROUP = 8


def _kernel(
    name: str,
    function: Algorithm,
    results: Sequence[tuple[str, Format]],
    scalars: Sequence[str] = (),
    formats: Mapping[str, Format] | None = None,
) -> Elementwise:
    """Return a kernel whose fields are the results and the non-scalar parameters.

    Parameters are float64 unless `formats` has another format; a result replaces the parameter of
    the same name.
    """
    known, written = formats or {}, [r for r, _ in results]
    names = [p for p in parameters(function) if p not in scalars]
    return Elementwise(
        name=name,
        function=function,
        results=tuple(written),
        fields=(
            *(Field(r, fmt, read=r in names, written=True) for r, fmt in results),
            *(Field(n, known.get(n, FP64)) for n in names if n not in written),
        ),
        stores=tuple((r, r) for r in written),
        arithmetic=FP64,
        roundings=(("rc", FP64),),
        scalars=tuple(scalars),
        rounded=tuple(written),
    )


@functools.cache
def limbs(terms: int, count: int, width: int) -> Elementwise:
    """Return the kernel from components and an exponent to limbs and a rest."""
    results = [*((f"l{k}", FP64) for k in range(count)), ("rest", FP64)]
    return _kernel("limbs", residue_steps.limbs(terms, count, width), results)


@functools.cache
def residues(count: int, digits: int) -> Elementwise:
    """Return the kernel from limbs to the residues of GROUP moduli."""
    function = residue_steps.residues(count, GROUP, digits)
    results = [(f"{name}{g}", INT8) for name in "rs"[:digits] for g in range(GROUP)]
    scalars = parameters(function)[count:]
    return _kernel("residues", function, results, scalars)


@functools.cache
def gathered(count: int, digits: int) -> Elementwise:
    """Return the kernel that adds sums of products of residues of GROUP moduli to digits."""
    function = residue_steps.gathered(count, GROUP, digits)
    results = [*(f"g{k}" for k in range(count)), "f"]
    given = GROUP * digits
    sums = parameters(function)[:given]
    scalars = parameters(function)[given + len(results) :]
    return _kernel(
        "gathered", function, [(r, FP64) for r in results], scalars, dict.fromkeys(sums, INT32)
    )


@functools.cache
def rounded(fmt: Format, count: int, width: int, terms: int) -> Elementwise:
    """Return the kernel from digits to components, and 1 where these are certain."""
    if fmt == FP64:
        function = residue_steps.rounded_wide(count, width, terms)
    else:
        function = residue_steps.rounded_narrow(count, width, terms, fmt.p, fmt.emin, fmt.emax)
    # Numbers of 16 bits are kept as float32.
    kept = FP64 if fmt == FP64 else FP32
    results = [*((f"x{k}", kept) for k in range(terms)), ("ok", INT8)]
    scalars = tuple(f"m{k}" for k in range(count))
    return _kernel(f"rounded_{fmt.name}", function, results, scalars)


def run(spec: Elementwise, row: Sequence[Tensor], scalars: Tensor | None = None) -> None:
    """Run a kernel on contiguous tensors; scalars are float64 on the CPU."""
    registry.run(spec, [row], _NONE if scalars is None else scalars)


_NONE = torch.zeros(1, 0, dtype=torch.float64, device="cpu")


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
    buffer = torch.empty(plan.limbs, size, dtype=torch.float64, device=device)
    # Outputs of the padding moduli that fill up a batch.
    spare = torch.empty(2 * GROUP, size, dtype=torch.int8, device=device)
    cut = limbs(len(x), plan.limbs, plan.limb)
    for start in range(0, count, CHUNK):
        part = slice(start, start + CHUNK)
        given, out = buffer[:, : min(size, count - start)], planes[:, part]
        run(cut, [*given, rest[part], *(c[part] for c in x), shift[part]])
        unused = spare[:, : given.shape[1]]
        for batch in batches(plan, GROUP):
            row: list[Tensor] = []
            for digit in range(batch.digits):
                place, end = digit * moduli + batch.first, (digit + 1) * GROUP
                row += out[place : place + batch.count]
                row += unused[end - GROUP + batch.count : end]
            spec = residues(plan.limbs, batch.digits)
            run(spec, [*row, *given], batch.down)
    return planes, rest
