"""States of libraries that keep moments in codes or corrections beside numbers, made by hand.

Exact: what each element means, by the formulas of the libraries' sources, in rationals or the same
float32 operations.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf.optim
from mcf.optim import SGD, AdamW, AdEMAMix, Lion, convert, load_converted
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP16, FP32, parameter, random

pytestmark = pytest.mark.usefixtures("on_torch")

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


def test_bitsandbytes_of_whole_tensors_and_in_float32() -> None:
    p, code = random(SHAPE, BF16, 1), integers(SHAPE, 0, 256, 2, torch.uint8)
    entry = {
        "step": 1, "state1": code, "qmap1": TABLE, "max1": torch.tensor([0.5]),
        "new_max1": torch.zeros(1), "state2": random(SHAPE, FP32, 3).abs(),
    }  # fmt: skip
    found = loaded(entry, p)
    assert_same_bits(found["exp_avg"], TABLE[code.long()] * 0.5)
    assert_same_bits(found["exp_avg_sq"], entry["state2"])


@pytest.mark.parametrize(
    ("make", "name"), [(Lion, "exp_avg"), (SGD, "momentum_buffer")], ids=["lion", "sgd"]
)
def test_bitsandbytes_with_one_state(make: Any, name: str) -> None:
    p = random(SHAPE, BF16, 1)
    code, value = bytes_of(2, TABLE, scales := random(3, FP32, 3).abs())
    entry = {"step": 3, "state1": code, "qmap1": TABLE, "absmax1": scales}
    made = (lambda q, **o: SGD(q, momentum=0.9, **o)) if make is SGD else make
    assert_same_bits(loaded(entry, p, made)[name], value)


def test_bitsandbytes_ademamix() -> None:
    p = random(SHAPE, BF16, 1)
    two = random((2, *SHAPE), FP32, 2)
    entry = {"step": 3, "state1": two, "state2": random(SHAPE, FP32, 3).abs()}
    found = loaded(entry, p, AdEMAMix, betas=(0.9, 0.99, 0.999))
    assert_same_bits(found["exp_avg"], two[0])
    assert_same_bits(found["exp_avg_slow"], two[1])


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
    """Of many sizes, powers of two, zeros and subnormals."""
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


def test_flashoptim_with_plain_moments() -> None:
    p = random(9, BF16, 1)
    entry = {"step": 2, "error_bits": integers((9,), -127, 128, 2, torch.int8),
             "exp_avg": random(9, BF16, 3), "exp_avg_sq": random(9, BF16, 4).abs()}  # fmt: skip
    found = loaded(entry, p)
    assert_same_bits(found["exp_avg"], entry["exp_avg"].float())
    assert_same_bits(found["weight"], corrected(p, entry["error_bits"]))


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


@pytest.mark.parametrize("name", ["compensation", "weight_accounted"])
def test_compensations(name: str) -> None:
    p, low = random(20, BF16, 1), random(20, BF16, 2, 2.0**-10)
    found = loaded({"step": torch.tensor(3.0), name: low, **moments(20)}, p)
    assert_same_bits(found["weight"], p.float() + low.float())


def test_the_collage_authors_second_moment() -> None:
    p, zero = random(20, BF16, 1), torch.zeros(20, dtype=BF16)
    v, low = random(20, BF16, 2).abs(), random(20, BF16, 3, 2.0**-12)
    entry = {
        "step": torch.tensor(3.0), "exp_avg": zero, "exp_avg_sq": v,
        "weight_accounted": zero, "exp_avg_sq_accounted": low,
    }  # fmt: skip
    assert_same_bits(loaded(entry, p)["exp_avg_sq"], v.float() + low.float())


def test_ademamix_of_its_authors() -> None:
    p, fast = random(9, BF16, 1), random(9, FP32, 2)
    slow, second = random(9, FP32, 3), random(9, FP32, 4).abs()
    entry = {"step": 3, "exp_avg_fast": fast, "exp_avg_slow": slow, "exp_avg_sq": second}
    found = loaded(entry, p, AdEMAMix, betas=(0.9, 0.99, 0.999))
    assert_same_bits(found["exp_avg"], fast)
    assert_same_bits(found["exp_avg_slow"], slow)


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
