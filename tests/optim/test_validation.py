"""Bad hyperparameters and parameters raise, say what was given and what is allowed.

Each row of a table is one mistake and the words its message must have; the optimizer that refuses
a group goes on without it. What a step refuses: test_step_validation.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from mcf.optim import (
    SGD,
    Adam,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    CollageAdamW,
    Lion,
    NAdam,
    RAdam,
    ScheduleFreeAdamW,
)
from tests.optim.helpers import (
    BF16,
    FP16,
    FP64,
    assert_same,
    parameter,
    steps,
    stored,
)

pytestmark = pytest.mark.usefixtures("on_torch")

# (optimizer, option, value, exception, words of the message)
HYPERPARAMETERS: list[tuple[Any, str, Any, type[Exception], str]] = [
    (AdamW, "lr", -1e-3, ValueError, r"learning rate: -0.001; allowed is \[0.0, inf\)"),
    (AdamW, "lr", math.nan, ValueError, "learning rate: nan"),
    (AdamW, "lr", math.inf, ValueError, "learning rate: inf"),
    (AdamW, "lr", "fast", TypeError, "learning rate must be a number, got str"),
    (AdamW, "lr", None, TypeError, "learning rate must be a number, got NoneType"),
    (AdamW, "lr", torch.ones(2), ValueError, r"1-element, got shape \[2\]"),
    (AdamW, "lr", torch.tensor(-1.0), ValueError, "learning rate: -1.0"),
    (AdamW, "betas", (1.0, 0.9), ValueError, r"index 0: 1.0; allowed is \[0.0, 1.0\)"),
    (AdamW, "betas", (0.9, -0.1), ValueError, "index 1: -0.1"),
    (AdamW, "betas", (0.9, math.nan), ValueError, "index 1: nan"),
    (AdamW, "betas", (0.9,), ValueError, "betas: .* allowed is a pair"),
    (AdamW, "betas", 0.9, ValueError, "betas: 0.9; allowed is a pair"),
    (AdamW, "betas", (0.9, "x"), TypeError, "index 1 must be a number, got str"),
    (AdamW, "eps", -1e-8, ValueError, "epsilon value: -1e-08"),
    (AdamW, "eps", True, TypeError, "epsilon value must be a number, got bool"),
    (AdamW, "weight_decay", -0.1, ValueError, "weight_decay value: -0.1"),
    (
        AdamW,
        "precision",
        "double",
        ValueError,
        "precision must be one of 'plain', .* got 'double'",
    ),
    (AdamW, "precision", None, ValueError, "precision must be one of .*, got None"),
    (AdamW, "precision", ["plus"], ValueError, "one of .* 'master'"),
    (
        AdamW,
        "compute_dtype",
        FP64,
        ValueError,
        "compute_dtype: torch.float64; allowed are",
    ),
    (AdamW, "compute_dtype", "bf16", ValueError, "compute_dtype: bf16; allowed"),
    (
        CollageAdamW,
        "mode",
        "heavy",
        ValueError,
        "mode must be one of 'light', .* got 'heavy'",
    ),
    (CollageAdamW, "lr", -1.0, ValueError, "learning rate: -1.0"),
    (SGD, "lr", -1.0, ValueError, "learning rate: -1.0"),
    (SGD, "momentum", -0.9, ValueError, "momentum value: -0.9"),
    (SGD, "dampening", math.nan, ValueError, "dampening value: nan"),
    (SGD, "weight_decay", -1.0, ValueError, "weight_decay value: -1.0"),
    (SGD, "nesterov", True, ValueError, "Nesterov momentum requires a momentum and zero dampening"),
    (
        SGD,
        "precision",
        "plus",
        ValueError,
        "precision='plus' stores a second moment in more bits, and SGD has none",
    ),
    (SGD, "precision", "fp32_states", ValueError, "precision='fp32_states' stores a second moment"),
    (AdamW, "amsgrad", 1, TypeError, "amsgrad must be True or False, got 1"),
    (Adam, "amsgrad", "yes", TypeError, "amsgrad must be True or False, got 'yes'"),
    (Adam, "decoupled_weight_decay", None, TypeError, "must be True or False, got None"),
    (NAdam, "decoupled_weight_decay", 0, TypeError, "must be True or False, got 0"),
    (RAdam, "decoupled_weight_decay", 0, TypeError, "must be True or False, got 0"),
    (NAdam, "momentum_decay", -1e-3, ValueError, "momentum_decay value: -0.001; allowed is"),
    (NAdam, "momentum_decay", "slow", TypeError, "momentum_decay value must be a number, got str"),
    (
        Lion,
        "precision",
        "plus",
        ValueError,
        "precision='plus' stores a second moment in more bits, and Lion has none",
    ),
    (
        AdEMAMix,
        "betas",
        (0.9, 0.99),
        ValueError,
        r"Invalid betas: \(0.9, 0.99\); allowed are three",
    ),
    (AdEMAMix, "betas", (0.9, 0.99, 1.0), ValueError, "beta parameter at index 2: 1.0"),
    (Adan, "betas", (0.9, 0.99, torch.tensor(0.9)), TypeError, r"betas\[2\] is a Tensor"),
    (AdEMAMix, "alpha", -1.0, ValueError, "Invalid alpha: -1.0"),
    (AdEMAMix, "alpha_warmup", 0, ValueError, "Invalid alpha_warmup: 0; allowed is a whole number"),
    (AdEMAMix, "beta3_warmup", 0.5, TypeError, "beta3_warmup must be an int or None, got float"),
    (AdEMAMix, "precision", "eco", ValueError, "precision"),
    (Adan, "precision", "eco", ValueError, "precision"),
    (Adan, "no_prox", 1, TypeError, "no_prox must be True or False"),
    (ScheduleFreeAdamW, "betas", (0.0, 0.9), ValueError, r"index 0: 0; allowed is \(0, 1\)"),
    (ScheduleFreeAdamW, "warmup_steps", -1, ValueError, "Invalid warmup_steps: -1"),
    (ScheduleFreeAdamW, "warmup_steps", 1.5, TypeError, "warmup_steps must be an int, got float"),
    (ScheduleFreeAdamW, "r", 3, ValueError, "Invalid r: 3; allowed are 0, 1 and 2"),
]
# What every rule with these hyperparameters refuses.
HYPERPARAMETERS += [
    (make, name, value, ValueError, words)
    for make in (Adam, NAdam, RAdam, Adamax, Lion)
    for name, value, words in (
        ("lr", -1.0, "learning rate: -1.0"),
        ("betas", (1.0, 0.9), "index 0: 1.0"),
        ("betas", (0.9, 1.0), "index 1: 1.0"),
        ("betas", (0.9, 0.9, 0.9), "allowed is a pair"),
        ("betas", (torch.tensor(0.9), 0.9), "betas must be either both floats or both Tensors"),
        ("eps", -1e-8, "epsilon value: -1e-08"),
        ("weight_decay", -0.1, "weight_decay value: -0.1"),
        ("precision", "double", "precision must be one of 'plain'.*, got 'double'"),
    )
    if make is not Lion or name != "eps"
]


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "name", "value", "error", "words"), HYPERPARAMETERS)
def test_hyperparameter(
    make: Any, name: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make([parameter(3, BF16)], **{name: value})


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "name", "value", "error", "words"), HYPERPARAMETERS)
def test_hyperparameter_of_a_group(
    make: Any, name: str, value: Any, error: type[Exception], words: str
) -> None:
    optimizer = make([parameter(3, BF16)])
    before = list(optimizer.param_groups)
    with pytest.raises(error, match=words):
        optimizer.add_param_group({"params": [parameter(2, BF16)], name: value})
    assert optimizer.param_groups == before
    steps(optimizer, 1)


def test_precision_assigned_later() -> None:
    optimizer = AdamW([parameter(3, BF16)])
    steps(optimizer, 1)
    before = stored(optimizer)
    for name, value, words in (
        ("precision", "double", "precision must be one of .*, got 'double'"),
        ("precision", "light", "state of .* needs|need"),
        ("compute_dtype", FP16, "compute_dtype is torch.float16, but params"),
    ):
        old = optimizer.param_groups[0][name]
        optimizer.param_groups[0][name] = value
        with pytest.raises(ValueError, match=words):
            optimizer.step()
        optimizer.param_groups[0][name] = old
        assert_same(stored(optimizer), before)


def test_numbers_of_other_libraries() -> None:
    results = []
    for kind in (float, np.float32, np.float64, torch.tensor):
        optimizer = AdamW([parameter(3, BF16)], kind(0.5), (kind(0.5), kind(0.75)), kind(0.125))
        steps(optimizer, 2)
        results.append(stored(optimizer))
        assert_same(results[-1], results[0])


# -- parameters ----------------------------------------------------------------------------------

# (what, the parameter, exception, words of the message)
PARAMETERS: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("complex", lambda: Parameter(torch.zeros(3, dtype=torch.complex64)), TypeError,
     "dtype torch.complex64; allowed are torch.bfloat16, torch.float16, torch.float32"),
    ("fp8", lambda: Parameter(torch.zeros(3, dtype=torch.float8_e4m3fn)), TypeError,
     "float8_e4m3fn; allowed"),
    ("sparse", lambda: Parameter(torch.zeros(3, dtype=BF16).to_sparse()), TypeError,
     "layout torch.sparse_coo; allowed is torch.strided"),
    ("expanded", lambda: Parameter(torch.zeros(1, dtype=BF16).expand(3)), ValueError,
     "is expanded"),
    ("negated", lambda: Parameter(torch.view_as_complex(torch.ones(3, 2)).conj().imag), TypeError,
     "lazily negated view"),
    ("overlapping", lambda: Parameter(torch.zeros(9, dtype=BF16).as_strided((4, 3), (2, 1))),
     ValueError, "share memory"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "make", "error", "words"), PARAMETERS, ids=[r[0] for r in PARAMETERS]
)
def test_parameter(what: str, make: Callable[[], Any], error: type[Exception], words: str) -> None:
    good = parameter(2, BF16)
    with pytest.raises(error, match=rf"params\[1\] of param_groups\[0\].*{words}"):
        AdamW([good, make()])
    optimizer = AdamW([good])
    with pytest.raises(error, match=rf"params\[0\] of param_groups\[1\].*{words}"):
        optimizer.add_param_group({"params": make()})
    with pytest.raises(error, match=rf"params\[0\] \(layer.bias\) of param_groups\[0\].*{words}"):
        AdamW([("layer.bias", make())])
    assert len(optimizer.param_groups) == 1
    steps(optimizer, 1)


def test_duplicate_parameters() -> None:
    # torch warns and steps them twice; two threads on one tensor have no defined result.
    p, q = parameter(3, BF16), parameter(3, BF16)
    with pytest.raises(ValueError, match=r"params\[2\] of param_groups\[0\] .* params\[0\]"):
        AdamW([p, q, p])
    optimizer = AdamW([p])
    with pytest.raises(ValueError, match="appear in more than one parameter group"):
        optimizer.add_param_group({"params": [q, p]})
    assert len(optimizer.param_groups) == 1


def test_what_torch_refuses() -> None:
    for params, error in (
        ([], ValueError),
        ([1.0], TypeError),
        ([{"params": {parameter(3, BF16)}}], TypeError),
        (parameter(3, BF16), TypeError),
        ([parameter(3, BF16) * 1], ValueError),
    ):
        with pytest.raises(error):
            AdamW(params)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        AdamW([parameter(3, BF16)]).add_param_group([parameter(3, BF16)])  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        AdamW([parameter(3, BF16)]).add_param_group({})
