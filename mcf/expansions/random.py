"""Draw random expansions with random bits in all components."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from mcf.convert.rounding import convert
from mcf.expansions.components import MAX_TERMS
from mcf.expansions.creation import (
    Device,
    Options,
    check_format,
    leaf,
    like,
    shape_of,
    spelled_out,
)
from mcf.expansions.tensor import Components, MCFTensor, wrap
from mcf.kernels import operations
from mcf.kernels.formats import Format, format_of

__all__ = ["rand", "rand_like", "randn", "randn_like"]

# A float64 holds an integer of this many bits.
_CHUNK = 48


def uniform_components(
    shape: tuple[int, ...],
    fmt: Format,
    terms: int,
    device: Device,
    generator: torch.Generator | None,
) -> Components:
    """Draw uniform multiples of 2**-b in [0, 1), b = terms * p or limited by the format's range."""
    bits = min(terms * fmt.p, fmt.p - 1 - fmt.emin)
    parts = []
    for low in range(0, bits, _CHUNK):
        size = min(_CHUNK, bits - low)
        k = torch.randint(0, 2**size, shape, generator=generator, device=device)
        parts.append(k.to(torch.float64) * 2.0 ** -(low + size))
    wide = operations.renormalize(parts, min(len(parts), MAX_TERMS))
    # Renormalised as float64 first, also where the first part is 0; then converted to the format.
    return convert(wide, fmt.dtype, terms)  # type: ignore[arg-type]


def normal_components(
    shape: tuple[int, ...],
    fmt: Format,
    terms: int,
    device: Device,
    generator: torch.Generator | None,
) -> Components:
    """Draw standard normal numbers: float64 draws with uniform digits below their last."""
    first = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
    if terms * fmt.p <= 53:
        return convert((first,), fmt.dtype, terms)  # type: ignore[arg-type]
    below = uniform_components(shape, format_of(torch.float64), 3, device, generator)
    _, exponent = torch.frexp(first)
    half = operations.sub(below, torch.full((), 0.5, dtype=torch.float64, device=first.device))
    scaled = [torch.ldexp(c, exponent - 53) for c in half]
    wide = operations.renormalize([first, *scaled], 4)
    return convert(wide, fmt.dtype, terms)  # type: ignore[arg-type]


@spelled_out(Options, terms=2)
def rand(
    *size: Any, generator: torch.Generator | None = None, **options: Unpack[Options]
) -> MCFTensor:
    """Draw uniform random numbers in [0, 1), with random bits in every component.

    They are multiples of 2**-(terms * p), p the precision of the dtype (float16: of 2**-24, its
    smallest number). Torch's seed or `generator` determines them; options as `mcf.full`.
    """
    return _drawn(uniform_components, size, generator, **options)


@spelled_out(Options, terms=2)
def randn(
    *size: Any, generator: torch.Generator | None = None, **options: Unpack[Options]
) -> MCFTensor:
    """Draw standard normal random numbers, with random bits in every component.

    The distribution is that of `torch.randn` in float64; digits below float64's are uniform.
    Torch's seed or `generator` determines them; options as `mcf.full`.
    """
    return _drawn(normal_components, size, generator, **options)


def _drawn(
    draw: Callable[..., Components],
    size: tuple[Any, ...],
    generator: torch.Generator | None,
    *,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    terms = 2 if terms is None else terms
    components = draw(shape_of(size), check_format(terms, dtype), terms, device, generator)
    return leaf(wrap(components), requires_grad)


@spelled_out(Options)
def rand_like(
    input: Tensor, *, generator: torch.Generator | None = None, **options: Unpack[Options]
) -> MCFTensor:
    """Call `mcf.rand` with shape, format and device of a tensor; a plain tensor has 2 terms."""
    return rand(tuple(input.shape), generator=generator, **like(input, options))


@spelled_out(Options)
def randn_like(
    input: Tensor, *, generator: torch.Generator | None = None, **options: Unpack[Options]
) -> MCFTensor:
    """Call `mcf.randn` with shape, format and device of a tensor; a plain tensor has 2 terms."""
    return randn(tuple(input.shape), generator=generator, **like(input, options))
