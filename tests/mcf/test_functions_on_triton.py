"""What is more than a kernel of elements has the same bits from every executor, Triton's too.

Triton's kernels run in its interpreter: conversions between formats, rounding to decimals,
remainders, half powers, softmax, and what goes along rows, for which GPUs have steps of elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import mcf
from mcf.kernels.triton import gpu
from tests.helpers.draws import bell

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Enough for a conversion to be a kernel.
MANY = 2051


def expansion(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Any:
    """Pairs; -0, infinities and NaN among them."""
    first = (bell(shape, seed) * 4).to(dtype)
    gap = {torch.float64: -60, torch.float32: -30}[dtype]
    second = (bell(shape, seed + 10) * 2.0**gap).to(dtype)
    for k, special in enumerate((-0.0, float("inf"), float("nan"), -float("inf"))):
        first.view(-1)[5 * k + 1], second.view(-1)[5 * k + 1] = special, 0.0
    return mcf.from_components((first, second))


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "to_float16": lambda x, y: x.to(torch.float16),
    "to_terms": lambda x, y: (x * y).to(terms=1),
    "to_bfloat16": lambda x, y: x.to(torch.bfloat16),
    "half_power": lambda x, y: x.abs() ** 2.5,
    "inverse_half_power": lambda x, y: x.abs() ** -0.5,
    "half_powers": lambda x, y: x.abs() ** (y.round() / 2),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": lambda x, y: x // y,
    "decimals": lambda x, y: x.round(decimals=3),
    "softmax_of_rows": lambda x, y: x.view(7, -1).nan_to_num(1.0, 2.0, 3.0).softmax(1),
    "softmax_of_columns": lambda x, y: x.view(7, -1).nan_to_num(1.0, 2.0, 3.0).softmax(0),
    "log_softmax": lambda x, y: x.view(7, -1).nan_to_num(1.0, 2.0, 3.0).log_softmax(1),
    "logsumexp": lambda x, y: x.view(-1, 7).nan_to_num(1.0, 2.0, 3.0).logsumexp(1),
    "cumsum_of_rows": lambda x, y: x.view(7, -1).nan_to_num(1.0, 2.0, 3.0).cumsum(1),
    "cumsum_of_columns": lambda x, y: x.view(-1, 7).cumsum(0),
    "cumprod_of_columns": lambda x, y: x.view(-1, 7).cumprod(0),
    "cummax_of_columns": lambda x, y: x.view(-1, 7).cummax(0).values,
    "sort": lambda x, y: x.view(7, -1).sort(1).values,
    "prod": lambda x, y: x.view(-1, 7).prod(1),
}
# Those that launch no kernel of Triton at all: their arithmetic is integers.
WITHOUT_KERNELS = {"sort", "cummax_of_columns"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bits_of_torch_and_numba(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = expansion((MANY // 7 * 7,), 1, dtype), expansion((MANY // 7 * 7,), 2, dtype)
    launched: list[str] = []
    build = gpu.build

    def noted(spec: Any, *which: Any, **named: Any) -> Any:
        launched.append(spec.name)
        return build(spec, *which, **named)

    monkeypatch.setattr(gpu, "build", noted)
    found = {}
    for executor in ("torch", "numba", "triton"):
        with mcf.executor(executor):
            found[executor] = FUNCTIONS[name](*operands)
    assert launched or name in WITHOUT_KERNELS
    for executor in ("numba", "triton"):
        pairs = zip(found[executor].components, found["torch"].components, strict=True)
        for k, (got, want) in enumerate(pairs):
            assert got.dtype == want.dtype
            nan = got.isnan() & want.isnan()
            bits = BITS[got.itemsize]
            wrong = (got.view(bits) != want.view(bits)) & ~nan
            assert not wrong.any(), f"component {k} of {executor}: {wrong.sum()} differ"
