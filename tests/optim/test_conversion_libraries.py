"""Optimizers of torch and other libraries as ours, and back: exact, or rounded once."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW, AdEMAMix, Lion, NAdam, Precision, convert, load_converted
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import (
    assert_same,
    parameter,
    parameters,
    random,
    steps,
    stored,
    without_gradients,
)

pytestmark = pytest.mark.usefixtures("on_torch")


SHAPES = [(7, 5), (), (0,), (3,)]


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


# -- others ----------------------------------------------------------------------------------------


BETAS = (0.9, 0.99)


def loaded(entry: Any, p: Tensor, make: Any = AdamW, **more: Any) -> dict[str, Tensor]:
    """The state of a float32 optimizer after a library's was loaded, and the weight."""
    group = {"params": [0], "lr": 1e-3, "betas": BETAS, **more}
    q = Parameter(torch.zeros(p.shape, dtype=BF16))
    optimizer = make([q], precision="master")
    load_converted(optimizer, {"state": {0: entry}, "param_groups": [group]}, [p])
    return {"weight": optimizer.master_weight(q), **optimizer.state[q]}


def integers(shape: Any, low: int, high: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


# -- bitsandbytes ------------------------------------------------------------------------------


SHAPE = (40, 15)
TABLE = torch.arange(-128, 128, dtype=FP32) / 128
UNSIGNED = torch.arange(256, dtype=FP32) / 255


def bytes_of(seed: int, table: Tensor, scales: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
    """Codes, and what each means: the table's number times the scale of its block, in float32."""
    code = integers(SHAPE, 0, 256, seed, torch.uint8)
    size = 256 if scales.numel() == 3 else 2048
    flat = [
        np.float32(table[c]) * np.float32(scales[k // size])
        for k, c in enumerate(code.flatten().tolist())
    ]
    return code, torch.tensor(np.array(flat)).view(SHAPE)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("blocks", [3, 1], ids=["256", "2048"])
def test_bitsandbytes(blocks: int, packed: bool) -> None:
    p = random(SHAPE, BF16, 1)
    scales = [random(blocks, FP32, k).abs() for k in (2, 3)]
    (m, first), (v, second) = bytes_of(4, TABLE, scales[0]), bytes_of(5, UNSIGNED, scales[1])
    own = {
        "state1": m, "qmap1": TABLE, "absmax1": scales[0],
        "state2": v, "qmap2": UNSIGNED, "absmax2": scales[1],
    }  # fmt: skip
    entry = {"step": 7, "unorm_vec": torch.zeros(1), **own}
    if packed:
        entry = {"step": 7, "__bnb_optimizer_quant_state__": own}
    found = loaded(entry, p)
    assert_same_bits(found["exp_avg"], first)
    assert_same_bits(found["exp_avg_sq"], second)
    assert_same_bits(found["weight"], p.float())
    assert found["step"].item() == 7


@pytest.mark.parametrize(
    ("make", "name"), [(Lion, "exp_avg"), (SGD, "momentum_buffer")], ids=["lion", "sgd"]
)
def test_bitsandbytes_with_one_state(make: Any, name: str) -> None:
    p = random(SHAPE, BF16, 1)
    code, value = bytes_of(2, TABLE, scales := random(3, FP32, 3).abs())
    entry = {"step": 3, "state1": code, "qmap1": TABLE, "absmax1": scales}
    made = (lambda q, **o: SGD(q, momentum=0.9, **o)) if make is SGD else make
    assert_same_bits(loaded(entry, p, made)[name], value)


_P, _LOW, _ZERO = random(SHAPE, BF16, 1), random(SHAPE, BF16, 2, 2.0**-10), torch.zeros(SHAPE)
_CODES, _TWO = integers(SHAPE, 0, 256, 2, torch.uint8), random((2, *SHAPE), FP32, 2)
_M, _V = random(SHAPE, FP32, 3), random(SHAPE, FP32, 4).abs()
_THREE = (AdEMAMix, {"betas": (0.9, 0.99, 0.999)})
# An entry, what our state has, and another rule.
PLAIN: dict[str, Any] = {
    "bitsandbytes' whole tensors": (
        {"state1": _CODES, "qmap1": TABLE, "max1": torch.tensor([0.5]),
         "new_max1": torch.zeros(1), "state2": _V},
        {"exp_avg": TABLE[_CODES.long()] * 0.5, "exp_avg_sq": _V},
    ),
    "bitsandbytes' AdEMAMix": (
        {"state1": _TWO, "state2": _V}, {"exp_avg": _TWO[0], "exp_avg_slow": _TWO[1]}, *_THREE,
    ),
    "AdEMAMix of its authors": (
        {"exp_avg_fast": _TWO[0], "exp_avg_slow": _TWO[1], "exp_avg_sq": _V},
        {"exp_avg": _TWO[0], "exp_avg_slow": _TWO[1]}, *_THREE,
    ),
    **{
        name: ({name: _LOW, "exp_avg": _M, "exp_avg_sq": _V}, {"weight": _P.float() + _LOW.float()})
        for name in ("compensation", "weight_accounted")
    },
    "Collage of its authors": (
        {"exp_avg": _ZERO, "exp_avg_sq": _P.abs(), "weight_accounted": _ZERO.to(BF16),
         "exp_avg_sq_accounted": _LOW},
        {"exp_avg_sq": _P.abs().float() + _LOW.float()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLAIN)
def test_states_under_other_names_are_read_bit_for_bit(what: str) -> None:
    entry, expected, *more = PLAIN[what]
    make, options = more or (AdamW, {})
    found = loaded({"step": 3, **entry}, random(SHAPE, BF16, 1), make, **options)
    for name, right in expected.items():
        assert_same_bits(found[name], right, name)


# -- corrections in parts of half a unit in the last place -------------------------------------


def corrected(p: Tensor, errors: Tensor) -> Tensor:
    """p + e / m 2^(k - 1) in float32, by rationals, where 2^k is the unit of p's last place."""
    most = {torch.int8: 127, torch.int16: 32767}[errors.dtype]
    bits, lowest = {BF16: (8, -133), FP16: (11, -24)}[p.dtype]
    found = []
    for x, e in zip(p.flatten().tolist(), errors.flatten().tolist(), strict=True):
        unit = Fraction(2) ** max(math.frexp(x)[1] - bits, lowest) if x else Fraction(2) ** lowest
        share = Fraction(float(np.float32(e) / np.float32(most))) * unit / 2
        found.append(float(np.float32(x) + np.float32(float(share))))
    return torch.tensor(found, dtype=FP32).view(p.shape)


def numbers(dtype: torch.dtype) -> Tensor:
    """Numbers of many sizes, powers of two, zeros and subnormals."""
    more = torch.tensor([0.0, -0.0, 1.0, -2.0, 2.0**-24, 1e-7, 3e-39, -(2.0**-133)])
    return torch.cat([random(40, FP32, 1), random(40, FP32, 2) * 2.0**-9, more]).to(dtype)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("width", [torch.int8, torch.int16], ids=str)
def test_flashoptim(dtype: torch.dtype, width: torch.dtype) -> None:
    p = numbers(dtype)
    n, most = p.numel(), 127 if width == torch.int8 else 32767
    errors = integers((n,), -most, most + 1, 3, width)
    m, v = integers((n,), -127, 128, 4, torch.int8), integers((n,), 0, 256, 5, torch.uint8)
    scales = [random(-(-n // 32), FP32, k).abs().to(FP16) for k in (6, 7)]
    wide = [s.float().repeat_interleave(32)[:n] for s in scales]
    entry = {
        "step": torch.tensor(4.0), "error_bits": errors,
        "exp_avg::quantized": m, "exp_avg::scales": scales[0],
        "exp_avg_sq::quantized": v, "exp_avg_sq::scales": scales[1],
    }  # fmt: skip
    # As its state dict keeps them, in the dtype of the parameter.
    saved = errors.to(dtype) if width == torch.int8 else errors.view(dtype)
    bytes_per_weight = 3 if width == torch.int8 else 4
    results = [
        loaded(entry, p),
        loaded({**entry, "error_bits": saved}, p, master_bytewidth=bytes_per_weight),
    ]
    share = m.float() / 127
    for found in results:
        assert_same_bits(found["weight"], corrected(p, errors))
        assert_same_bits(found["exp_avg"], share / (2 - share.abs()) * wide[0])
        assert_same_bits(found["exp_avg_sq"], (v.float() / 255 * wide[1]).square())


@pytest.mark.parametrize("coded", [False, True])
def test_heavyball(coded: bool) -> None:
    p = numbers(BF16).view(8, 11)
    view: dict[str, Any] = {
        "is_initialized": {0},
        "update_by_adam_exp_avg_0": random(p.shape, BF16, 2),
        "update_by_adam_exp_avg_sq_0": random(p.shape, BF16, 3).abs(),
    }
    if coded:
        view |= {
            "param::ecc": integers(p.shape, -32767, 32768, 4, torch.int16),
            "update_by_adam_exp_avg_0::ecc": integers(p.shape, -127, 128, 5, torch.int8),
        }
    found = loaded({0: view}, p, step=torch.tensor(5))
    m, v = view["update_by_adam_exp_avg_0"], view["update_by_adam_exp_avg_sq_0"]
    first = corrected(m, view["update_by_adam_exp_avg_0::ecc"]) if coded else m
    # Its moments are divided by 1 - beta^t.
    for name, x, beta in (("exp_avg", first, 0.9), ("exp_avg_sq", v, 0.99)):
        right = x.double() * float(1 - Fraction(beta) ** 5)
        assert ((found[name] - right) / right).abs().max() < 2.0**-24
    whole = corrected(p, view["param::ecc"]) if coded else p.float()
    assert_same_bits(found["weight"], whole)
    assert found["step"].item() == 5


# -- a second number beside the parameter ------------------------------------------------------


def moments(shape: Any) -> dict[str, Tensor]:
    return {"exp_avg": random(shape, FP32, 3), "exp_avg_sq": random(shape, FP32, 4).abs()}


def test_transformer_engine() -> None:
    """The bits of a float32 are those of p, rounded up at a half, and a remainder with a sign."""
    w = torch.cat([random(50, FP32, 1), torch.tensor([1 + 2.0**-8, -0.0, 1e-39, -3.4e38])])
    bits = w.view(torch.int32)
    upper = (bits + 0x8000) >> 16
    p = (upper << 16).view(FP32).to(BF16)
    remainder = (bits - (upper << 16)).to(torch.int16)
    for master in (remainder, w):
        found = loaded({**moments(p.shape), "master_param": master}, p, step=9)
        assert_same_bits(found["weight"], w)
        assert_same_bits(found["exp_avg"], moments(p.shape)["exp_avg"])
        assert found["step"].item() == 9


class FusedAdam(torch.optim.Optimizer):
    """A TransformerEngine optimizer, whose float16 states have their scales elsewhere."""

    def __init__(self, params: Any, adam_w_mode: bool) -> None:
        super().__init__(params, {"lr": 0.1, "betas": BETAS, "eps": 1e-8, "weight_decay": 0.0})
        self.adam_w_mode = int(adam_w_mode)

    def get_unscaled_state(self, p: Tensor, name: str) -> Tensor:
        found: Tensor = self.state[p][name].float() * 0.5
        return found


@pytest.mark.parametrize("decoupled", [False, True])
def test_transformer_engine_alive(decoupled: bool) -> None:
    p = parameter(6, BF16)
    source = FusedAdam([p], decoupled)
    source.state[p] = {name: t.to(FP16) for name, t in moments(6).items()}
    source.param_groups[0]["step"] = 3
    mine, _ = convert(source, "master")
    assert type(mine) is (AdamW if decoupled else mcf.optim.Adam)
    assert_same_bits(mine.state[p]["exp_avg"], moments(6)["exp_avg"].to(FP16).float() / 2)
    assert mine.state[p]["step"].item() == 3


# -- what is not known -------------------------------------------------------------------------

_CODE = torch.zeros(4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"state1": _CODE}, r"state1 of params\[0\].* has 8 bits and no qmap1 of 256 numbers"),
        ({"state1": _CODE, "qmap1": TABLE}, "and neither absmax1 nor max1"),
        (
            {"state1": _CODE, "qmap1": TABLE, "absmax1": torch.ones(2)},
            "absmax1 of .* has 2 numbers for 4 elements; known are blocks of 256 and of 2048",
        ),
        ({"__bnb_optimizer_quant_state__": {}}, "and no 'state1' of bitsandbytes"),
        ({"exp_avg::quantized": _CODE}, "exp_avg of .* has 8 bits, and no scale for each 32"),
        ({"error_bits": torch.zeros(4, dtype=torch.int32)}, "corrections of torch.int32; known"),
        ({0: {}, 1: {}}, "states of 2 views of the parameter, as HeavyBall cuts it"),
        ({0: {"update_by_laprop_exp_avg_0": _CODE}}, "'update_by_laprop_exp_avg_0' of HeavyBall"),
        (
            {"exp_avg::other": _CODE},
            r"states \['exp_avg::other'\], which belong to no known library",
        ),
    ],
    ids=range(9),
)
def test_what_is_not_recognised_is_refused(entry: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        loaded(entry, torch.zeros(4, dtype=BF16))


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_an_optimi_run_goes_on(name: str) -> None:
    """Its moments are divided by 1 - beta^t; taken for ours, they made the step half of its own."""
    optimi = pytest.importorskip("optimi", reason="a peer of the benchmarks")
    p = parameter((6, 4), FP64)
    options = {"betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.0}
    source = getattr(optimi, name)([p], 1e-2, kahan_sum=False, **options)
    steps(source, 7)
    q = Parameter(p.detach().clone())
    mine, _ = convert(source, params=[q])
    for optimizer in (source, mine):
        steps(optimizer, 3, seed=5)
    # Some roundings of 2**-53 in each of three steps.
    assert (p - q).abs().max() < 1e-14


class AdamWScheduleFree(torch.optim.Optimizer):
    """Schedule-free AdamW as its authors store it, by the paper's x, y and z; p is y."""

    def __init__(self, params: Any) -> None:
        defaults = {
            "lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-6, "r": 0.0, "k": 0, "warmup_steps": 3,
            "train_mode": True, "weight_sum": 0.0, "lr_max": -1.0, "weight_lr_power": 2.0,
            "weight_decay": 0.1, "foreach": True,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        (group,) = self.param_groups
        (p,), (beta1, beta2) = group["params"], group["betas"]
        state = self.state[p]
        if not state:
            state |= {"z": p.clone(), "exp_avg_sq": torch.zeros_like(p)}
        group["k"] += 1
        warm = min(group["k"] / group["warmup_steps"], 1.0)
        rate = group["lr"] * warm * (1 - beta2 ** group["k"]) ** 0.5
        group["lr_max"] = max(rate, group["lr_max"])
        group["weight_sum"] += group["lr_max"] ** 2
        c, z, v = group["lr_max"] ** 2 / group["weight_sum"], state["z"], state["exp_avg_sq"]
        x = (p - (1 - beta1) * z) / beta1
        v.mul_(beta2).add_((1 - beta2) * p.grad * p.grad)
        u = p.grad / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
        z.sub_(rate * u)
        p.copy_(beta1 * ((1 - c) * x + c * z) + (1 - beta1) * z)


def test_a_schedule_free_run_goes_on() -> None:
    p = parameter(8, FP64)
    source = AdamWScheduleFree([p])
    steps(source, 5)
    q = Parameter(p.detach().clone())
    mine, report = convert(source, params=[q])
    assert type(mine) is mcf.optim.ScheduleFreeAdamW
    assert report.exact
    for optimizer in (source, mine):
        steps(optimizer, 4, seed=5)
    # Roundings of 2**-53, of which x has ten times as many.
    assert (p - q).abs().max() < 1e-14
    source.param_groups[0]["train_mode"] = False
    with pytest.raises(ValueError, match="train_mode=False; allowed is its state in train mode"):
        convert(source, params=[q])
