"""Optimizers of torch and other libraries as ours, and back: exact, or rounded once."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW, NAdam, Precision, convert
from tests.helpers import assert_same_bits
from tests.optim.conversion_cases import SHAPES
from tests.optim.helpers import (
    BF16,
    FP32,
    FP64,
    assert_same,
    parameter,
    parameters,
    random,
    steps,
    stored,
)
from tests.optim.test_amp import without_gradients

pytestmark = pytest.mark.usefixtures("on_torch")

TORCH: list[tuple[Any, Any, dict[str, Any]]] = [
    (torch.optim.AdamW, AdamW, {}),
    (torch.optim.AdamW, AdamW, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    (torch.optim.Adam, mcf.optim.Adam, {"betas": (0.8, 0.9)}),
    (torch.optim.NAdam, NAdam, {}),
    (torch.optim.RAdam, mcf.optim.RAdam, {}),
    (torch.optim.Adamax, mcf.optim.Adamax, {}),
    (torch.optim.SGD, SGD, {"momentum": 0.9, "dampening": 0.5}),
    (torch.optim.SGD, SGD, {}),
]


@pytest.mark.parametrize(("theirs", "ours", "options"), TORCH)
def test_from_torch_and_back(theirs: Any, ours: Any, options: dict[str, Any]) -> None:
    # Float32 weights become master weights of a bfloat16 model, and come back bit for bit.
    params = [parameter(s, FP32, k) for k, s in enumerate(SHAPES)]
    source = theirs(params, lr=1e-2, foreach=False, **options)
    steps(source, 3)
    low = [Parameter(p.detach().to(BF16)) for p in params]
    mixed, report = convert(source, "master", params=low)
    assert report.exact
    assert type(mixed) is ours
    for p, q in zip(low, params, strict=True):
        assert_same_bits(mixed.master_weight(p), q)
    fresh = [Parameter(torch.zeros_like(p)) for p in params]
    back, report = convert(mixed, to=theirs, params=fresh)
    assert report.exact
    found, expected = without_gradients(stored(back)), without_gradients(stored(source))
    assert_same(found, expected)
    for name, value in options.items():
        assert back.param_groups[0][name] == value
    # And it runs, as does what it was in between.
    steps(back, 1)
    steps(mixed, 1)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_in_float64_it_goes_on_as_torch() -> None:
    params = [parameter(9, FP64)]
    source = torch.optim.AdamW(params, 1e-2, foreach=False)
    steps(source, 3)
    copied = copy.deepcopy(source)
    mine, report = convert(source)
    assert report.exact
    for optimizer in (copied, mine):
        steps(optimizer, 3, seed=5)
    for p, q in zip(parameters(mine), parameters(copied), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)


def test_from_float32_to_plus_is_rounded_once() -> None:
    params = [parameter((40, 30), FP32)]
    source = torch.optim.AdamW(params, 1e-2)
    steps(source, 3)
    low = [Parameter(torch.zeros(40, 30, dtype=BF16))]
    mine, report = convert(source, "plus", params=low)
    assert {r.what for r in report.rounded} == {"param", "exp_avg", "exp_avg_sq"}
    # Two bf16 numbers hold 16 bits, the sign of the second one more.
    largest = {r.what: r.largest for r in report.rounded}
    assert largest["param"] <= 2.0**-17
    assert largest["exp_avg_sq"] <= 2.0**-17
    assert largest["exp_avg"] <= 2.0**-8
    assert_same_bits(low[0], params[0].to(BF16))
    assert mine.param_groups[0]["lr"] == 1e-2


@pytest.mark.parametrize("precision", ["light", "plus", "split16", "master", "plain"])
def test_a_start_from_float32_weights(precision: str) -> None:
    # No step was made yet: what bfloat16 does not hold is kept beside it, and steps begin at 1.
    params = [parameter(300, FP32), Parameter(torch.ones(4))]
    low = [Parameter(torch.zeros_like(p, dtype=BF16)) for p in params]
    mine, report = convert(torch.optim.AdamW(params, 1e-2), precision, params=low)
    assert report.exact == (precision in ("split16", "master"))
    assert_same_bits(low[0], params[0].to(BF16))
    # Nothing beside a parameter that bfloat16 holds.
    assert not mine.state.get(low[1])
    if precision == "plain":
        assert not mine.state.get(low[0])
        return
    assert mine.state[low[0]]["step"].item() == 0
    error = (mine.master_weight(low[0]) - params[0].detach()).abs() / params[0].detach().abs()
    assert error.max() <= 2.0**-17
    steps(mine, 1)
    assert mine.state[low[0]]["step"].item() == 1
    other = AdamW([Parameter(p.detach().clone()) for p in low], 1e-2, precision=precision)
    steps(other, 1)
    for name in ("exp_avg", "exp_avg_sq"):
        assert_same_bits(mine.state[low[0]][name], other.state[next(parameters(other))][name])


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("kind", [{}, {"decouple_lr": True, "weight_decay": 1e-5}])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_from_optimi(dtype: torch.dtype, kind: dict[str, Any]) -> None:
    optimi = pytest.importorskip("optimi", reason="a peer of the benchmarks")
    params = [parameter((6, 4), dtype)]
    source = optimi.AdamW(params, 1e-2, betas=(0.9, 0.95), triton=False, foreach=False, **kind)
    steps(source, 5)
    state = source.state[params[0]]
    expected = params[0].detach().double()
    if dtype == BF16:
        expected = expected + state["kahan_comp"].double()
    mine, report = convert(source, "light")
    assert {r.what for r in report.rounded} <= {"exp_avg", "exp_avg_sq"}
    (p,) = parameters(mine)
    assert_same_bits(sum(c.double() for c in mine.master_weight(p, exact=True)), expected)
    # Its moments are divided by 1 - beta^t.
    assert_same_bits(mine.state[p]["exp_avg"], (state["exp_avg"].double() * (1 - 0.9**5)).to(dtype))
    assert mine.state[p]["step"].item() == 5
    assert mine.param_groups[0]["betas"] == (0.9, 0.95)
    assert mine.param_groups[0]["decouple_lr"] == bool(kind)


class BF16FusedAdamW(torch.optim.Optimizer):
    """The states of bf16_fused_adam, whose step needs CUDA: see its adamw.py."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(
            params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        )


def test_from_bf16_fused_adam() -> None:
    # The upper half of a float32 in the parameter, the lower half as the bits of a bfloat16.
    master = torch.cat([random(500, FP32, 1), torch.tensor([-0.0, 1e-40, -3.4e38, 1 + 2.0**-8])])
    words = master.view(torch.int32)
    p = Parameter((words >> 16).to(torch.int16).view(BF16))
    low = (words & 0xFFFF).to(torch.int16).view(BF16)
    source = BF16FusedAdamW([p])
    moments = {"exp_avg": random(504, BF16, 2), "exp_avg_sq": random(504, BF16, 3).abs()}
    source.state[p] = {"step": torch.tensor(7.0), "mantissas": low, **moments}
    for precision in ("split16", "master"):
        mine, report = convert(source, precision, params=[Parameter(torch.zeros(504, dtype=BF16))])
        assert report.exact
        (q,) = parameters(mine)
        assert_same_bits(mine.master_weight(q), master)
        assert mine.state[q]["step"].item() == 7


@pytest.mark.parametrize("bits", [8, 4])
def test_from_torchao(bits: int) -> None:
    with warnings.catch_warnings():
        # What it says about extensions for other versions of torch.
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", reason="a peer of the benchmarks")
        import torchao.optim as ao
        from torchao.optim.subclass_4bit import OptimState4bit
        from torchao.optim.subclass_8bit import OptimState8bit
    kind, make, block = {
        8: (OptimState8bit, ao.AdamW8bit, 256),
        4: (OptimState4bit, ao.AdamW4bit, 128),
    }[bits]
    p = parameter((64, 128), BF16)
    source = make([p], lr=1e-2)
    entry = {"step": torch.tensor(3.0)}
    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        t = kind.zeros(p.shape, signed=signed, block_size=block, dtype=BF16)
        t.codes.random_(0, 256, generator=torch.Generator().manual_seed(1))
        t.scale.uniform_(0.1, 1.0, generator=torch.Generator().manual_seed(2))
        entry[name] = t
    source.state[p] = entry
    meant = {name: entry[name].dequantize() for name in ("exp_avg", "exp_avg_sq")}
    for precision in ("plus", "fp32_states"):
        mine, report = convert(source, precision, params=[Parameter(p.detach().clone())])
        (q,) = parameters(mine)
        assert type(mine) is AdamW
        if precision == "fp32_states":
            assert report.exact
            assert_same_bits(mine.state[q]["exp_avg_sq"], meant["exp_avg_sq"])
        assert_same_bits(
            mine.state[q]["exp_avg"], meant["exp_avg"].to(mine.state[q]["exp_avg"].dtype)
        )
        assert mine.state[q]["step"].item() == 3


def test_blocks_of_8_bit_numbers_of_versions_before() -> None:
    """Their states are read: (hi + 2**-p lo) 2**exponent, of second moments its square."""
    count = 200
    p = Parameter(torch.ones(4, 50, dtype=torch.bfloat16))
    hi = (torch.arange(count) % 97 - 48).view(4, 50)
    lo = (torch.arange(count) % 9 - 4).view(4, 50)
    exponents = torch.tensor([-3, 5], dtype=torch.int8)
    scale = torch.tensor([2.0**-3] * 128 + [2.0**5] * 72).view(4, 50)
    entry = {
        "step": torch.tensor(3),
        "exp_avg": hi.to(torch.float8_e5m2),
        "exp_avg_exponent": exponents,
        "exp_avg_sq": hi.abs().to(torch.float8_e4m3fn),
        "exp_avg_sq_lo": lo.to(torch.float8_e4m3fn),
        "exp_avg_sq_exponent": exponents,
    }
    saved = {
        "state": {0: entry},
        "param_groups": [
            {"params": [0], "lr": 1e-3, "betas": (0.9, 0.999), "precision": "pair_e5m2_fp8x2"}
        ],
    }
    optimizer = AdamW([p], precision="master")
    with pytest.raises(ValueError, match="load_converted"):
        optimizer.load_state_dict(saved)
    report = mcf.optim.load_converted(optimizer, saved)
    assert report.exact
    state = optimizer.state[p]
    assert int(state["step"]) == 3
    first = entry["exp_avg"].float() * scale
    root = (entry["exp_avg_sq"].float() + lo / 16) * scale
    assert_same_bits(state["exp_avg"], first)
    assert_same_bits(state["exp_avg_sq"], root * root)


@pytest.mark.parametrize("name", ["fp8", "fp8x2", "e5m2", "e5m2x2"])
def test_precisions_of_versions_before_say_what_took_their_place(name: str) -> None:
    for make in (
        lambda: Precision(exp_avg=name),
        lambda: AdamW([torch.ones(2, 2)], precision=f"pair_{name}_fp8x2"),
    ):
        with pytest.raises(ValueError, match="an experiment and were removed; use 'ratio8'"):
            make()
