"""What each precision stores: names, dtypes, and the bytes of the design's table.

The bytes per parameter are the documentation's (docstring of AdamW), which is read here.
"""

from __future__ import annotations

import re

import pytest
import torch

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW, CollageAdamW
from tests.optim.helpers import BF16, FP16, FP32, STRICT, Case, cases, parameter, steps

pytestmark = pytest.mark.usefixtures("on_torch")

# name: (states in the parameter's dtype, states in float32, bytes with a 16-bit gradient)
TABLE = {
    "plain": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "kahan": ({"param_lo", "exp_avg", "exp_avg_sq"}, set(), 10),
    "light": ({"param_lo", "exp_avg", "exp_avg_sq"}, set(), 10),
    "plus": ({"param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo"}, set(), 12),
    "split16": ({"exp_avg", "exp_avg_sq"}, set(), 10),
    "split16_sr": ({"exp_avg", "exp_avg_sq"}, set(), 10),
    "split16_8bit": (set(), set(), 8),
    "split8": ({"exp_avg", "exp_avg_sq"}, set(), 9),
    "split8_sr": ({"exp_avg", "exp_avg_sq"}, set(), 9),
    "stochastic": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "bf16_sr": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "8bit": (set(), set(), 6),
    "4bit": (set(), set(), 5.5),
    "split8_8bit": (set(), set(), 7),
    "eco": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "eco_stochastic": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "fp32_states": (set(), {"exp_avg", "exp_avg_sq"}, 12),
    "master": (set(), {"master_param", "exp_avg", "exp_avg_sq"}, 16),
}


# The integers that extend a bf16 parameter, and the codes of moments.
CODES = {"exp_avg": torch.uint8, "exp_avg_sq": torch.uint8}
BITS = {
    "split16": {"param_bits": torch.int16},
    "split16_sr": {"param_bits": torch.int16},
    "split16_8bit": {"param_bits": torch.int16, **CODES},
    "split8": {"param_bits": torch.int8},
    "split8_sr": {"param_bits": torch.int8},
    "8bit": CODES,
    "4bit": CODES,
    "split8_8bit": {"param_bits": torch.int8, **CODES},
}


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(mcf.optim.PRECISIONS) == set(AdamW.precisions)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_states(case: Case) -> None:
    low, wide, size = TABLE[case.precision]
    p = parameter((3, 6), case.dtype)
    optimizer = AdamW([p], eps=1e-4, **case.options())
    assert not optimizer.state, "made before the first step"
    steps(optimizer, 1)
    state = optimizer.state[p]
    bits = BITS.get(case.precision, {})
    assert set(state) == {"step", *bits} | low | wide
    for name, dtype in bits.items():
        assert state[name].dtype == dtype, name
    # The one exception: squares of gradients leave the range of fp16.
    second = BF16 if case.dtype == FP16 and not case.strict else case.dtype
    for name in low:
        expected = second if name.startswith("exp_avg_sq") else case.dtype
        assert state[name].dtype == expected, name
    for name in wide:
        assert state[name].dtype == FP32, name
    for name in low | wide | set(bits):
        packed = case.precision == "4bit" and name == "exp_avg"
        assert state[name].shape == ((3, 3) if packed else (3, 6)), name
        assert state[name].device == p.device, name
        assert not state[name].requires_grad, name
    assert state["step"].dtype == torch.int64
    assert state["step"].shape == ()
    tensors = [p, p.grad, *(state[name] for name in low | wide | set(bits))]
    assert sum(t.numel() * t.element_size() for t in tensors) == size * p.numel()


def test_the_docstring_has_the_bytes() -> None:
    assert AdamW.__doc__ is not None
    said = dict(re.findall(r'- `"(\w+)"` \(([\d.]+)\)', AdamW.__doc__))
    assert said == {name: str(size) for name, (_, _, size) in TABLE.items()}


@pytest.mark.parametrize(
    ("precision", "momentum", "names", "size"),
    [
        ("plain", 0.0, set(), 4),
        ("plain", 0.9, {"momentum_buffer"}, 6),
        ("kahan", 0.9, {"param_lo", "momentum_buffer"}, 8),
        ("light", 0.0, {"param_lo"}, 6),
        ("light", 0.9, {"param_lo", "momentum_buffer"}, 8),
        ("master", 0.0, {"master_param"}, 8),
        ("master", 0.9, {"master_param", "momentum_buffer"}, 12),
    ],
)
def test_sgd_states(precision: str, momentum: float, names: set[str], size: int) -> None:
    p = parameter((3, 5), BF16)
    optimizer = SGD([p], momentum=momentum, precision=precision)
    steps(optimizer, 1)
    state = optimizer.state[p]
    assert set(state) == {"step"} | names
    tensors = [p, p.grad, *(state[name] for name in names)]
    assert sum(t.numel() * t.element_size() for t in tensors) == size * p.numel()


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("precision", sorted(set(TABLE) - set(STRICT)))
def test_strict_arithmetic_needs_16_bit_states(precision: str, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"compute_dtype={dtype}.*'{precision}'.*one of 'plain'"):
        AdamW([parameter(3, dtype)], eps=1e-4, precision=precision, compute_dtype=dtype)


@pytest.mark.parametrize(("dtype", "other"), [(BF16, FP16), (FP16, BF16)])
def test_arithmetic_of_another_dtype(dtype: torch.dtype, other: torch.dtype) -> None:
    message = rf"compute_dtype is {other}, but params\[0\] of param_groups\[0\] has dtype {dtype}"
    with pytest.raises(ValueError, match=message):
        AdamW([parameter(3, dtype)], eps=1e-4, compute_dtype=other)


def test_collage_has_its_modes() -> None:
    p = parameter(3, BF16)
    for mode in ("light", "plus", "kahan"):
        assert CollageAdamW([p], mode=mode).param_groups[0]["precision"] == mode
    assert CollageAdamW([p]).param_groups[0]["precision"] == "plus"
    with pytest.raises(ValueError, match=r"mode must be one of 'light', 'plus', .*, got 'master'"):
        CollageAdamW([p], mode="master")
    with pytest.raises(ValueError, match="'light', 'plus', 'kahan'"):
        CollageAdamW([{"params": [p], "precision": "plain"}])


def test_states_keep_the_memory_layout() -> None:
    # Dense in any order: a kernel then reads all in one stride.
    p = torch.nn.Parameter(parameter((6, 8), BF16).detach().t())
    optimizer = AdamW([p])
    p.grad = torch.zeros_like(p)
    optimizer.step()
    for name in ("param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo"):
        assert optimizer.state[p][name].stride() == p.stride(), name
