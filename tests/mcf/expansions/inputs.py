"""Expansions whose components tie, cancel, leave gaps and reach both ends of a format's range."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import Format, format_of


def hard(dtype: torch.dtype, terms: int, count: int, seed: int) -> tuple[Tensor, ...]:
    """Normalised components: every one at most half an ulp of the one before, many exactly half."""
    fmt = format_of(dtype)
    rng = np.random.default_rng([seed, terms, fmt.p])
    span = min(40, fmt.emax // 2)
    size = rng.integers(-span, span, count)
    # The ends of the range.
    size[:: count // 8] = rng.integers(fmt.emin - fmt.p, fmt.emin, len(size[:: count // 8]))
    size[1 :: count // 8] = fmt.emax
    first = _significand(rng, fmt, count) * np.ldexp(1.0, size)
    out = [torch.from_numpy(first).to(dtype)]
    for _ in range(terms - 1):
        above = out[-1].double().numpy()
        half = np.ldexp(1.0, _exponent(above, fmt) - fmt.p)
        kind = rng.integers(0, 5, count)
        gap = np.ldexp(1.0, -rng.integers(0, 12, count))
        value = np.select(
            [kind == 0, kind == 1, kind == 2],
            [half, 0 * half, half * gap],
            _significand(rng, fmt, count) / 2 * half * gap,
        )
        value = value * rng.choice([-1.0, 1.0], count)
        lower = torch.from_numpy(np.where(above == 0, 0.0, value)).to(dtype)
        # Below a power of two the gap is half as wide.
        settled = out[-1] + lower == out[-1]
        out.append(torch.where(settled, lower, torch.zeros_like(lower)))
    return tuple(out)


def _significand(rng: np.random.Generator, fmt: Format, count: int) -> np.ndarray:
    bits = rng.integers(2 ** (fmt.p - 1), 2**fmt.p, count).astype(np.float64)
    kind = rng.integers(0, 4, count)
    bits = np.select([kind == 0, kind == 1], [0 * bits + 2 ** (fmt.p - 1), bits - bits % 2], bits)
    return bits / 2 ** (fmt.p - 1)


def _exponent(x: np.ndarray, fmt: Format) -> np.ndarray:
    _, e = np.frexp(x)
    return np.maximum(e - 1, fmt.emin)
