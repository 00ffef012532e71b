"""Random bits from counters, and rounding with them.

`random16` and `random16_pair` on every executor have the bits of a Python model written from their
docstrings. The bits of nearby elements, of weight and moments of one element, of neighbouring
steps, tensors and seeds pass tests of uniformity and independence
at four standard deviations (seeded, so they pass always or never); a generator with one
round fails them. `stochastic` is unbiased by construction: for each of the 2**16 draws it is
compared with exact arithmetic.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from mcf.kernels import registry, streams
from mcf.kernels.algorithms.words import (
    join8,
    random16,
    random16_pair,
    stochastic,
    stochastic8_high,
    stochastic8_low,
    stochastic24,
)
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.exact import bind
from mcf.kernels.formats import BF16, FP32, INT8
from tests.helpers import assert_same_bits
from tests.helpers.draws import bell
from tests.helpers.executors import on_each_executor

N = 1 << 16


def identity(x):
    return (x,)


# Rounds x stochastically to y, as weights and moments.
SPECS = {
    draw: Elementwise(
        name=f"stochastically_{draw}",
        function=identity,
        results=("y",),
        fields=(
            Field("x", FP32),
            Field("y", BF16, read=False, written=True, rounding=stochastic, draw=draw),
        ),
        stores=(("y", "y"),),
        arithmetic=FP32,
        scalars=streams.SCALARS,
    )
    for draw in ("weight", "first", "second")
}


def twice(x):
    return x, x


# Rounds x stochastically to a bf16 number and a byte.
BYTE = Elementwise(
    name="stochastically_24",
    function=twice,
    results=("hi", "low"),
    fields=(
        Field("x", FP32),
        Field("hi", BF16, read=False, written=True, rounding=stochastic8_high),
        Field("low", INT8, read=False, written=True, rounding=stochastic8_low),
    ),
    stores=(("hi", "hi"), ("low", "low")),
    arithmetic=FP32,
    scalars=streams.SCALARS,
)


def rounded(
    x: Tensor, key: int = 1, index: int = 0, executor: str = "numba", draw: str = "weight"
) -> Tensor:
    y = torch.zeros(x.shape, dtype=torch.bfloat16)
    with registry.executor(executor):
        registry.run(SPECS[draw], [[x, y]], torch.tensor([[key, index]], dtype=torch.float64))
    return y


def draws(
    key: int, index: int = 0, n: int = N, rounds: int = 3, draw: str = "weight"
) -> np.ndarray:
    """The model: 16 bits of elements from `index` on."""
    high, low = divmod(index, 2**32)
    mixed = streams.mix(streams.mix(key) ^ high)
    c = np.uint32(streams.mix(mixed) >> 32)
    a, b = (np.uint32(mixed >> 32), np.uint32(mixed & 0xFFFFFFFF))
    x = (np.arange(low, low + n, dtype=np.uint64) % 2**32).astype(np.uint32) ^ a
    x = (x ^ x >> 17) * np.uint32(0xED5AD4BB) + b
    if rounds > 1:
        x = (x ^ x >> 11) * np.uint32(0xAC4C1B51)
    if rounds > 2:
        x = (x ^ x >> 15) * np.uint32(0x31848BAB)
    if draw != "weight":
        x = ((x ^ x >> 14) + c) * np.uint32(0x846CA68B)
        x = x ^ x >> 15
    return x & 0xFFFF if draw == "second" else x >> 16


def above(draw: np.ndarray) -> Tensor:
    """1 + draw / 2**16 of a bf16 unit at 1, which is rounded up for larger draws only."""
    pattern = 0x3F800000 + (0x10000 - draw.astype(np.int64)) % 0x10000
    return torch.from_numpy(pattern.astype(np.int32)).view(torch.float32)


@pytest.mark.sampled(every=9)
@on_each_executor
@pytest.mark.parametrize(
    ("index", "drawn"),
    [
        *((i, "weight") for i in (0, 12345, 2**31 - 7, 2**32 - 100, 2**35 + 2**32 - 5000)),
        *((i, drawn) for drawn in ("first", "second") for i in (7, 2**35 + 2**32 - 5000)),
    ],
)
def test_bits_are_the_models(executor: str, index: int, drawn: str) -> None:
    n = 20_000
    key = streams.key(seed=3, step=7, tensor=2)
    rest = index + 300
    parts = [(i, 1) for i in range(index, rest)]
    # The model counts below the next multiple of 2**32.
    whole = (index + n) // 2**32 == rest // 2**32
    parts += [(rest, n - 300)] if whole else [(i, 1) for i in range(rest, index + n)]
    draw = np.concatenate([draws(key, i, count, draw=drawn) for i, count in parts])
    # With one less in the lower half the carry of the draw does not arrive.
    up = rounded(above(draw), key, index, executor, drawn)
    down = rounded(above(draw + 1), key, index, executor, drawn)
    inside = torch.from_numpy(draw > 0)
    assert (up[inside] == 1 + 2**-7).all()
    assert (down[inside & torch.from_numpy(draw < 0xFFFF)] == 1).all()


def test_exact_executor_has_the_same_bits() -> None:
    key = streams.key(0, 1, 0)
    scalars = dict(zip(streams.SCALARS, map(Fraction, streams.scalars(key, 0)), strict=True))
    weight, moments = (
        [bind(f, FP32)(i, *(scalars[s] for s in names)) for i in range(100)]
        for f, names in ((random16, streams.WEIGHT), (random16_pair, streams.MOMENTS))
    )
    assert weight == draws(key, n=100).tolist()
    for k, draw in enumerate(("first", "second")):
        assert [pair[k] for pair in moments] == draws(key, n=100, draw=draw).tolist()


def test_keys_are_distinct() -> None:
    keys = {
        streams.key(seed, step, tensor)
        for seed in (0, 1, -1, 2**63) for step in range(50) for tensor in range(50)
    }  # fmt: skip
    assert len(keys) == 4 * 50 * 50
    assert all(0 <= k < 2**streams.KEY_BITS for k in keys)


def chi_square(x: np.ndarray, bins: int) -> float:
    """Standard deviations by which the counts of values in [0, bins) are off a uniform one."""
    counts = np.bincount(x, minlength=bins)
    expected = len(x) / bins
    return float((((counts - expected) ** 2 / expected).sum() - (bins - 1)) / (2 * bins - 2) ** 0.5)


def correlations(first: np.ndarray, other: np.ndarray) -> float:
    """Correlation of two draws, in standard deviations."""
    a, b = first / 65535 - 0.5, other / 65535 - 0.5
    return float((a * b).mean() * 12 * len(a) ** 0.5)


def worst(rounds: int, draw: str = "weight") -> float:
    key = streams.key(0, 1, 0)
    x = draws(key, rounds=rounds, draw=draw)
    others = [
        draws(streams.key(*k), rounds=rounds, draw=draw) for k in ((0, 2, 0), (0, 1, 1), (1, 1, 0))
    ]
    others += [draws(key, rounds=rounds, draw=d) for d in SPECS if d != draw]
    found = [chi_square(x >> 8, 256), chi_square(x & 0xFF, 256)]
    # Pairs of neighbours, and of elements at distances that rows of matrices have.
    for d in (1, 2, 3, 64, 256, 768, 1024, 4096, 16384):
        found += [chi_square((x[:-d] >> 12) * 16 + (x[d:] >> 12), 256)]
        found += [correlations(x[:-d], x[d:])]
    for y in others:
        found += [chi_square((x >> 12) * 16 + (y >> 12), 256), correlations(x, y)]
    return max(abs(f) for f in found)


@pytest.mark.statistical
def test_uniform_and_independent() -> None:
    for draw in SPECS:
        assert worst(3, draw) < 4, draw
    assert worst(1) > 40, "one round is not enough"


@on_each_executor
@pytest.mark.statistical
def test_unbiased(executor: str) -> None:
    # Mean of n draws of up (1) or down (0) with probability f: 4 standard deviations.
    n = 40_000 if executor != "triton" else 8_000
    for k, fraction in enumerate((1 / 65536, 0.01, 0.3, 0.5, 0.9)):
        for sign in (1, -1):
            bits = round(fraction * 65536)
            x = sign * torch.full((n,), 0x3F800000 + bits, dtype=torch.int32).view(torch.float32)
            y = rounded(x, streams.key(5, k, 1), executor=executor).float().abs()
            assert ((y == 1) | (y == 1 + 2**-7)).all()
            f = bits / 65536
            mean = float(((y - 1) * 2**7).mean())
            assert abs(mean - f) <= 4 * (f * (1 - f) / n) ** 0.5 + 1e-9


def test_stochastic24_over_every_draw_is_unbiased() -> None:
    # The upper 8 of 16 bits decide; the share of roundings up is the lower byte over 2**8 exactly.
    function = bind(stochastic24, FP32)
    both = bind(stochastic8_high, FP32), bind(stochastic8_low, FP32), bind(join8, FP32)
    # The fourth pattern carries from the byte into the bf16 number, the last one to infinity.
    patterns = (0x3F80_0001, 0x3F80_0080, 0x0000_12FF, 0x3F80_7FFF, 0x3F80_1200, 0x7F7F_FF80)
    for pattern in patterns:
        x = Fraction(torch.tensor(pattern, dtype=torch.int32).view(torch.float32).item())
        found = [function(x, draw << 8) for draw in range(2**8)]
        byte = pattern & 0xFF
        assert [y > x for y in found] == [draw + byte >= 2**8 for draw in range(2**8)]
        ups = {y for y in found if y > x}
        if byte and math.inf not in ups:
            assert sum(map(Fraction, found)) == 2**8 * x
        assert all(function(x, (draw << 8) + 0xFF) == found[draw] for draw in range(0, 2**8, 16))
        # The bf16 number and the byte are those of the rounded number.
        for draw in range(0, 2**8, 5):
            high, low = (part(x, draw << 8) for part in both[:2])
            if math.inf not in ups:
                assert -(2**7) <= low < 2**7
                assert both[2](high, low) == found[draw]


@on_each_executor
def test_stochastic24_has_the_bits_of_a_model(executor: str) -> None:
    count = 20_000 if executor != "triton" else 2_000
    key = streams.key(seed=3, step=7, tensor=2)
    pattern = (np.arange(count, dtype=np.int64) * 2654435761) % 2**32
    x = torch.from_numpy(pattern.astype(np.uint32).view(np.int32)).view(torch.float32)
    hi = torch.zeros(count, dtype=torch.bfloat16)
    low = torch.zeros(count, dtype=torch.int8)
    with registry.executor(executor):
        registry.run(BYTE, [[x, hi, low]], torch.tensor([[key, 0]], dtype=torch.float64))
    rounded24 = (pattern + (draws(key, n=count) >> 8)) & 0xFFFFFF00
    top = (rounded24 + 0x8000) & 0xFFFF0000
    finite = ~x.isnan().numpy()
    assert np.array_equal(
        (hi.view(torch.int16).numpy().astype(np.int64) << 16 & 0xFFFFFFFF)[finite],
        top[finite] & 0xFFFFFFFF,
    )
    assert np.array_equal(low.numpy().astype(np.int64)[finite], ((rounded24 - top) >> 8)[finite])
    assert hi.isnan().numpy()[~finite].all()
    assert (low.numpy()[~finite] == 0).all()


def test_every_draw() -> None:
    # Over all 2**16 draws the number of times that x is rounded up is exactly its lower half.
    function = bind(stochastic, FP32)
    for pattern in (0x3F80_0001, 0x3F80_8000, 0x3F80_FFFF, 0x0000_1234, 0x7F7F_4000):
        x = Fraction(torch.tensor(pattern, dtype=torch.int32).view(torch.float32).item())
        ups = sum(function(x, draw) > x for draw in range(0, 2**16, 64))
        assert ups == sum(draw + (pattern & 0xFFFF) >= 2**16 for draw in range(0, 2**16, 64))
        assert ups in (0, 1, 512, 1023, 72, 256)


@on_each_executor
def test_numbers_of_the_format_stay(executor: str) -> None:
    count = 2**16 if executor != "triton" else 2**12
    top = torch.linspace(-(2**15), 2**15 - 1, count).to(torch.int16)
    y = top.view(torch.bfloat16)
    for key in (1, 2):
        z = rounded(y.float(), key, executor=executor)
        same = ~y.isnan()
        assert_same_bits(z[same], y[same])
        assert z[~same].isnan().all()


@on_each_executor
def test_nan_and_infinity(executor: str) -> None:
    # Adding to the bits would make -0 of the first, infinity of the third.
    patterns = [0x7FFFFFFF, 0x7FC00000, 0x7F800001, -1, -0x7FFFFF, 0x7F800000, -0x800000]
    x = torch.tensor(patterns * 20, dtype=torch.int32).view(torch.float32)
    y = rounded(x, executor=executor)
    assert torch.equal(y.isnan(), x.isnan())
    assert torch.equal(y[y.isinf()].float(), x[x.isinf()])
    # The largest float32 may go to infinity, and nowhere else.
    z = rounded(torch.full((100,), torch.finfo(torch.float32).max), executor=executor)
    assert ((z == torch.inf) | (z == torch.finfo(torch.bfloat16).max)).all()


@on_each_executor
def test_layouts_and_pieces(executor: str) -> None:
    x = bell((37, 50), 1, torch.float32)
    whole = rounded(x, executor=executor)
    for layout in (x.t().contiguous().t(), torch.cat([x, x], 1)[:, :50], x.expand(1, 37, 50)[0]):
        assert_same_bits(rounded(layout, executor=executor), whole)
    out = torch.zeros(50, 37, dtype=torch.bfloat16).t()
    with registry.executor(executor):
        registry.run(SPECS["weight"], [[x, out]], torch.tensor([[1.0, 0.0]]).double())
    assert_same_bits(out.contiguous(), whole)
    parts = [rounded(x[a:b], index=50 * a, executor=executor) for a, b in ((0, 5), (5, 6), (6, 37))]
    assert_same_bits(torch.cat(parts), whole)


def test_large_strided_tensors() -> None:
    # Across the slabs in which tensors that are not contiguous are copied.
    x = bell((3, 50_000), 1, torch.float32)
    assert_same_bits(rounded(x.t().contiguous().t()), rounded(x))
    assert_same_bits(rounded(x.t()), rounded(x.t().contiguous()))
