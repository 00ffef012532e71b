"""Small tables that a graph keeps: by the arguments of kernels, and worked out on a device."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch

from mcf.kernels import streams, tables
from tests.helpers import assert_same_bits

NUMBERS = [0.0, -0.0, 1.5, -math.inf, math.nan, 5e-324, 1e300]


def test_arguments_keep_every_bit() -> None:
    here = torch.device("cpu")
    for t in (
        torch.tensor(NUMBERS, dtype=torch.float64),
        torch.tensor([0, -1, 2**63 - 1, -(2**63)]),
        torch.tensor(NUMBERS[:6], dtype=torch.float64).reshape(2, 3).T,
        torch.tensor(2.5, dtype=torch.float64),
    ):
        assert_same_bits(tables.as_arguments(t, here), t.contiguous())


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton has wheels for Linux only"
)
def test_work_list() -> None:
    from mcf.kernels.triton.gpu import work_list

    for counts in ([3, 0, 1, 2], [0, 0], [5], []):
        expected = [(row, k) for row, n in enumerate(counts) for k in range(n)]
        owners, blocks = work_list(torch.tensor(counts, dtype=torch.int64), sum(counts))
        assert list(zip(owners.tolist(), blocks.tolist(), strict=True)) == expected


def test_keys_of_many_tensors() -> None:
    steps, places = [0, 1, 2**31, 2**53], [0, 7, 300, 2**40]
    for seed in (0, -1, 123456789, 2**64 - 1):
        found = streams.key(seed, torch.tensor(steps), torch.tensor(places))
        expected = [streams.key(seed, s, p) for s, p in zip(steps, places, strict=True)]
        assert found.tolist() == expected
