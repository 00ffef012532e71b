"""Compute sort keys of narrow expansions: as few float64 numbers as determine their order.

A sum of two numbers of 32 or 16 bits is s + e with s = RN(x0 + x1) in float64, exactly. A larger
value has a larger or equal s, and e is 0 wherever the bits of both span less than 53. So s alone
nearly always decides, as one 64-bit number. Sums of float16 are exact: its largest and smallest
bit are 40 apart.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms.order import SUMMED_ALONE, left_over, summed
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FORMATS, FP16, FP64, Format

# Smaller inputs are added by PyTorch: compiling a kernel would not pay.
_MANY = 1 << 12


def limit(fmt: Format) -> float:
    """Return the smallest magnitude that rounds to infinity in a format."""
    return fmt.largest + 2.0 ** (fmt.emax - fmt.p)


# Multiplying a number beyond the limit by this gives infinity in float64.
HUGE = 2.0**1023


@functools.cache
def _kernel(fmt: Format, terms: int, rest: bool) -> Elementwise:
    """Return the kernel that computes sums and counts inexact ones, or (`rest`) their errors."""
    x = tuple(f"x{k}" for k in range(terms))
    exact = fmt == FP16
    return Elementwise(
        name=f"key_{'rest' if rest else 'sum'}_{terms}_{fmt.name}",
        function=SUMMED_ALONE[terms] if exact else summed,
        results=("s",) if exact else ("s", "e"),
        fields=(Field("r", FP64, read=False, written=True), *(Field(c, fmt) for c in x)),
        stores=(("e" if rest else "s", "r"),),
        arithmetic=FP64,
        roundings=(("rc", FP64),),
        scalars=("limit", "huge"),
        groups=(("x", x),),
        rounded=("r",),
        sums=None if exact or rest else left_over,
        sum_count=int(not (exact or rest)),
        counts=int(not (exact or rest)),
    )


@functools.cache
def _scalars(fmt: Format) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor([[limit(fmt), HUGE]], dtype=torch.float64, device="cpu")


def narrow_keys(x: Sequence[Tensor]) -> list[Tensor] | None:
    """Return float64 keys in whose lexicographic order the values are; None if unsupported.

    They depend on the value alone: of a sum beyond the range they are infinity and 0.

    Args:
        x: the components of one, of a pair or of float16, in any order and of any sizes; on a CPU.

    Returns:
        One contiguous tensor, or two where the second has a number that is not 0.
    """
    first, fmt, terms = x[0], FORMATS[x[0].dtype], len(x)
    if fmt == FP64 or first.device.type != "cpu" or (terms > 2 and fmt != FP16):
        return None
    if terms == 1:
        return [first.to(torch.float64).contiguous()]
    # Triton supports no 16-bit operands together with float64 registers.
    if first.numel() < _MANY or registry.executor_for(first.device) != "numba":
        return _by_torch(x, fmt)
    parts = [c.contiguous() for c in x]
    out = torch.empty(first.shape, dtype=torch.float64, device=first.device)
    counted = registry.run(_kernel(fmt, terms, False), [[out, *parts]], _scalars(fmt))
    if counted is None or counted.item() == 0:
        return [out]
    rest = torch.empty_like(out)
    registry.run(_kernel(fmt, terms, True), [[rest, *parts]], _scalars(fmt))
    return [out, rest]


def _by_torch(x: Sequence[Tensor], fmt: Format) -> list[Tensor]:
    """Compute `narrow_keys` with PyTorch operations."""
    first, *others = (c.to(torch.float64).contiguous() for c in x)
    s = first
    for c in others:
        s = s + c
    inside = s.abs() < limit(fmt)
    keys = [torch.where(inside, s, s * HUGE)]
    if fmt != FP16:
        t = s - first
        e = torch.where(inside, (first - (s - t)) + (others[0] - t), 0.0)
        if bool(e.any()):
            keys.append(e)
    return keys
