"""torch.compile gives the eager bits of reductions and matrix products, without a graph break.

*Exact*. Inductor's own code is compared in the slow test; what is traced is the same in both.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mcf
from mcf import reductions
from mcf.kernels.formats import FORMATS, FP64
from mcf.reductions.products import matmul
from tests.helpers import assert_all_same_bits
from tests.helpers.sums import Components, cancelling


def components(a: Components, b: Components) -> tuple[Tensor, ...]:
    c = matmul(a, b)
    return (
        *c,
        *reductions.sum(c, 1),
        *reductions.norm(c, 2, 0),
        *reductions.var(c),
        *reductions.sum(c, reproducible=True),
        *reductions.dot(a[0].reshape(1, -1).unbind(), b[0].reshape(1, -1).unbind(), terms=2),
    )


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_components(backend: str) -> None:
    a, b = cancelling(FP64, 2, (6, 5), 0), cancelling(FP64, 2, (5, 6), 1)
    with mcf.executor("torch"):
        expected = components(a, b)
        actual = torch.compile(components, fullgraph=True, backend=backend)(a, b)
    assert_all_same_bits(actual, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_a_gpu_gives_the_bits_of_the_cpu(terms: int) -> None:
    for fmt in FORMATS.values():
        a = cancelling(fmt, terms, (70, 300), 0)
        b = cancelling(fmt, terms, (300, 90), 1)
        on_gpu = [tuple(c.cuda() for c in x) for x in (a, b)]
        for call in (
            lambda x, y: matmul(x, y),
            lambda x, y: reductions.sum(x),
            lambda x, y: reductions.sum(x, 1),
            lambda x, y: reductions.norm(x),
            lambda x, y: reductions.sum(x, 0, reproducible=True),
        ):
            assert_all_same_bits([c.cpu() for c in call(*on_gpu)], call(a, b))
