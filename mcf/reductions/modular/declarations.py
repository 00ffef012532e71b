"""Elementwise kernels of products by residues; `mcf.kernels.algorithms` has the formulas."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms import residues as residue_steps
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import FP32, FP64, INT8, INT32, Format

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
