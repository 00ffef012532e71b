"""Running kernels on each executor."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import Format
from tests.helpers.bits import assert_same_bits

# Triton runs CPU tensors in its interpreter.
EXECUTORS = [
    "torch",
    "numba",
    pytest.param(
        "triton",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("triton") is None, reason="triton is not installed"
        ),
    ),
]
on_each_executor = pytest.mark.parametrize("executor", EXECUTORS)


def run(executor: str, spec: Elementwise, *row: Tensor) -> None:
    """Run a kernel without scalars or sums on one row of tensors."""
    with registry.executor(executor):
        registry.run(spec, [row], torch.zeros(1, 0, dtype=torch.float64))


def _identity(x):
    return (x,)


def conversion(source: Format, target: Format) -> Elementwise:
    """The kernel that only rounds: x of one format to y of another."""
    return Elementwise(
        name=f"convert_{source.name}_{target.name}",
        function=_identity,
        results=("y",),
        fields=(Field("x", source), Field("y", target, read=False, written=True)),
        stores=(("y", "y"),),
        arithmetic=source,
        roundings=(("rc", target),),
    )


def assert_numba_agrees(function: Callable[..., tuple[Tensor, ...]], *operands: object) -> None:
    """A program has the same bits on Numba as on torch."""
    with registry.executor("torch"):
        wanted = function(*operands)
    with registry.executor("numba"):
        found = function(*operands)
    for a, b in zip(found, wanted, strict=True):
        assert_same_bits(a, b)
