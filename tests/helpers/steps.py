"""A step of three bodies: a small problem of many operations on few numbers."""

from __future__ import annotations

from typing import Any

import torch

import mcf

# Chenciner and Montgomery's figure of eight (2000, doi:10.2307/2661357): positions, velocities.
POSITIONS = [["0.97000436", "-0.24308753"], ["-0.97000436", "0.24308753"], ["0", "0"]]
VELOCITIES = [
    ["0.466203685", "0.43236573"],
    ["0.466203685", "0.43236573"],
    ["-0.93240737", "-0.86473146"],
]
STEP = 2.0**-10


def acceleration(x: Any) -> Any:
    """Of bodies of mass 1 at x[..., body, coordinate]."""
    gap = x.unsqueeze(-3) - x.unsqueeze(-2)
    square = (gap * gap).sum(-1) + torch.eye(3, dtype=x.dtype)
    inverse = square.rsqrt()
    return (gap * (inverse * inverse * inverse).unsqueeze(-1)).sum(-2)


def step(x: Any, v: Any) -> tuple[Any, Any]:
    """Positions and velocities after a step of leapfrog."""
    v = v + acceleration(x) * (STEP / 2)
    x = x + v * STEP
    return x, v + acceleration(x) * (STEP / 2)


def bodies(terms: int, dtype: torch.dtype, systems: int = 0) -> tuple[Any, Any]:
    """Positions and velocities of one system, or of several that differ a little."""
    x, v = (mcf.tensor(p, terms=terms, dtype=dtype) for p in (POSITIONS, VELOCITIES))
    if not systems:
        return x, v
    shifts = mcf.tensor(list(range(systems)), terms=terms, dtype=dtype) * 2.0**-20
    return x + shifts[:, None, None], v.expand(systems, 3, 2).clone()
