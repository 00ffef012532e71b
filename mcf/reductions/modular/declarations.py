"""The elementwise kernels of products by residues; `mcf.kernels.algorithms` has the formulas."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms import residues
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import FP32, FP64, INT8, Format


def _kernel(
    name: str,
    function: Algorithm,
    results: Sequence[tuple[str, Format]],
    scalars: Sequence[str] = (),
) -> Elementwise:
    """A kernel of float64 fields, which the parameters that are no scalars name."""
    names = [p for p in parameters(function) if p not in scalars]
    return Elementwise(
        name=name,
        function=function,
        results=tuple(r for r, _ in results),
        fields=(
            *(Field(r, fmt, read=False, written=True) for r, fmt in results),
            *(Field(n, FP64) for n in names),
        ),
        stores=tuple((r, r) for r, _ in results),
        arithmetic=FP64,
        roundings=(("rc", FP64),),
        scalars=tuple(scalars),
        rounded=tuple(r for r, _ in results),
    )


@functools.cache
def limbs(terms: int, count: int, width: int) -> Elementwise:
    """Components and an exponent to limbs and a rest."""
    results = [*((f"l{k}", FP64) for k in range(count)), ("rest", FP64)]
    return _kernel("limbs", residues.limbs(terms, count, width), results)


@functools.cache
def residue() -> Elementwise:
    """A row for each modulus."""
    return _kernel("residue", residues.residue, [("r0", INT8)], ("m", "inverse"))


@functools.cache
def two_digits() -> Elementwise:
    """A row for each base of a modulus that is a square."""
    results = [("r0", INT8), ("r1", INT8)]
    return _kernel("two_digits", residues.two_digits, results, ("m", "inverse"))


@functools.cache
def multiple() -> Elementwise:
    """A row for each modulus."""
    return _kernel("multiple", residues.multiple, [("y", FP64)], ("factor", "m", "inverse"))


@functools.cache
def joined() -> Elementwise:
    """A row for each modulus that is a square."""
    scalars = ("factor", "base", "base_inverse", "m", "inverse")
    return _kernel("joined", residues.joined, [("y", FP64)], scalars)


@functools.cache
def rounded(fmt: Format, count: int, width: int, terms: int) -> Elementwise:
    """Digits to components, and 1 where they are certain."""
    if fmt == FP64:
        function = residues.rounded_wide(count, width, terms)
    else:
        function = residues.rounded_narrow(count, width, terms, fmt.p, fmt.emin, fmt.emax)
    # Numbers of 16 bits are numbers of float32.
    kept = FP64 if fmt == FP64 else FP32
    results = [*((f"x{k}", kept) for k in range(terms)), ("ok", INT8)]
    scalars = tuple(f"m{k}" for k in range(count))
    return _kernel(f"rounded_{fmt.name}", function, results, scalars)


def run(
    spec: Elementwise, rows: Sequence[Sequence[Tensor]], scalars: Sequence[Sequence[float]] = ()
) -> None:
    """Run a kernel on rows of contiguous tensors."""
    values = torch.tensor(scalars or [()] * len(rows), dtype=torch.float64, device="cpu")
    registry.run(spec, rows, values)
