"""Exact: what is called together has the bits of what is called one by one.

Caught mutants: the sign's mask of another format; NaN taken for an infinity; the operands of a
selection exchanged; the count of an earlier call kept.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mcf.kernels import bit_functions, registry, sequence
from mcf.kernels.formats import FP64
from mcf.kernels.operators import ADD, kernel

pytest.importorskip("numba", reason="needs Numba")
SPECIAL = (0.0, -0.0, 1.5, -2.0, torch.inf, -torch.inf, torch.nan, 5e-324, -1e-45)


def _same(x: Tensor, y: Tensor) -> bool:
    kinds = {torch.float64: torch.int64, torch.float32: torch.int32}
    kind = kinds.get(x.dtype, x.dtype)
    return x.dtype is y.dtype and torch.equal(x.view(kind), y.view(kind))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_bits_are_those_of_torch(dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    x = torch.cat([x, -x])
    y, c = x.flip(0), x > 0
    wanted = {
        name: getattr(x, name)()
        for name in ("neg", "isnan", "isinf", "isfinite", "signbit", "clone")
    }
    for name, expected in wanted.items():
        out = torch.empty_like(expected)
        found = bit_functions.simple(name, [x], out)
        assert found is not None
        assert sequence.Together([found])()
        assert _same(out, expected), name
    d = x == y
    out, chosen = torch.empty_like(c), torch.empty_like(x)
    truths = {"__and__": c & d, "__or__": c | d, "__xor__": c ^ d, "bitwise_not": ~d}
    for name, expected in truths.items():
        found = bit_functions.simple(name, [d] if name == "bitwise_not" else [c, d], out)
        assert found is not None
        assert sequence.Together([found])()
        assert torch.equal(out, expected), name
    found = bit_functions.simple("where", [c, x, y], chosen)
    assert found is not None
    assert sequence.Together([found])()
    assert _same(chosen, torch.where(c, x, y))
    # What is none of these, or of several shapes.
    assert bit_functions.simple("neg", [c], out) is None
    assert bit_functions.simple("isnan", [x[:1]], out) is None
    assert bit_functions.simple("exp", [x], chosen) is None
    assert bit_functions.simple("__and__", [x, y], chosen) is None


def test_launches_follow_each_other() -> None:
    spec = kernel(ADD, FP64, 1, 1)
    x, y, out, last = (torch.full((3,), v, dtype=torch.float64) for v in (1.0, 2.0, 0.0, 0.0))
    prepared = registry.prepare(spec, [[out, x, y]])
    assert prepared is not None
    launch = prepared.row(np.ones((1, len(spec.scalars))))
    calls = [
        sequence.bound(launch, [t.data_ptr() for t in row]) for row in ((out, x, y), (last, out, x))
    ]
    together = sequence.Together([c for c in calls if c is not None])
    for value in (1.0, 5.0):
        x.fill_(value)
        assert together()
        assert torch.equal(last, 2 * x + y)
    assert sequence.bound(print, 1) is None
