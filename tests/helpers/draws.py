"""Random inputs with the same bits on every processor.

`torch.randn` is a logarithm and a cosine, whose last bits follow the processor's vectors, as those
of `exp2` and `logspace` do; a test that turns on them is red on another machine. Here everything is
integers and powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Twelve uniform numbers have the variance 1.
_TERMS, _BITS = 12, 20


def bell(
    shape: Sequence[int] | int,
    seed: int | torch.Generator = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Numbers of mean 0 and variance 1, all within 6, exact in float64 before they are rounded.

    The sum of twelve uniform integers of 20 bits, and 29 random bits below its last.

    Args:
        shape: of the result.
        seed: a number, or a generator that goes on.
        dtype: to which the numbers are rounded.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    total = torch.full(shape, -_TERMS * (2**_BITS - 1), dtype=torch.int64, device="cpu")
    for _ in range(_TERMS):
        total += 2 * torch.randint(2**_BITS, shape, generator=generator, device="cpu")
    low = torch.randint(2**29, shape, generator=generator, device="cpu")
    return (total.double() * 2.0 ** -(_BITS + 1) + low.double() * 2.0**-50).to(dtype)


def power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent of whole numbers, exactly, in float64 (torch.ldexp multiplies by a `pow`)."""
    return torch.from_numpy(np.asarray(np.ldexp(1.0, exponent.long().numpy())))
