"""Bad hyperparameters and parameters raise, say what was given and what is allowed.

Each row of a table is one mistake and the words its message must have; the optimizer that refuses
a group goes on without it, and a step that refuses something has changed no bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import lr_scheduler

import mcf
from mcf.optim import (
    SGD,
    Adam,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    CollageAdamW,
    GradientRelease,
    Lion,
    Muon,
    NAdam,
    RAdam,
    ScheduleFreeAdamW,
)
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import (
    assert_same,
    force,
    parameter,
    parameters,
    refuses,
    steps,
    stored,
    without_gradients,
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
    (AdamW, "precision", "double", ValueError, "precision must be one of 'plain', .* got 'double'"),
    (AdamW, "precision", None, ValueError, "precision must be one of .*, got None"),
    (AdamW, "precision", ["plus"], ValueError, "one of .* 'master'"),
    (AdamW, "compute_dtype", FP64, ValueError, "compute_dtype: torch.float64; allowed are"),
    (AdamW, "compute_dtype", "bf16", ValueError, "compute_dtype: bf16; allowed"),
    (CollageAdamW, "mode", "heavy", ValueError, "mode must be one of 'light', .* got 'heavy'"),
    (CollageAdamW, "lr", -1.0, ValueError, "learning rate: -1.0"),
    (SGD, "lr", -1.0, ValueError, "learning rate: -1.0"),
    (SGD, "momentum", -0.9, ValueError, "momentum value: -0.9"),
    (SGD, "dampening", math.nan, ValueError, "dampening value: nan"),
    (SGD, "weight_decay", -1.0, ValueError, "weight_decay value: -1.0"),
    (SGD, "nesterov", True, ValueError, "Nesterov momentum requires a momentum and zero dampening"),
    (SGD, "precision", "plus", ValueError, "a second moment in more bits, and SGD has none"),
    (SGD, "precision", "fp32_states", ValueError, "precision='fp32_states' stores a second moment"),
    (AdamW, "amsgrad", 1, TypeError, "amsgrad must be True or False, got 1"),
    (Adam, "amsgrad", "yes", TypeError, "amsgrad must be True or False, got 'yes'"),
    (Adam, "decoupled_weight_decay", None, TypeError, "must be True or False, got None"),
    (NAdam, "decoupled_weight_decay", 0, TypeError, "must be True or False, got 0"),
    (RAdam, "decoupled_weight_decay", 0, TypeError, "must be True or False, got 0"),
    (NAdam, "momentum_decay", -1e-3, ValueError, "momentum_decay value: -0.001; allowed is"),
    (NAdam, "momentum_decay", "slow", TypeError, "momentum_decay value must be a number, got str"),
    (Lion, "precision", "plus", ValueError, "a second moment in more bits, and Lion has none"),
    (AdEMAMix, "betas", (0.9, 0.99), ValueError, r"betas: \(0.9, 0.99\); allowed are three"),
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
HYPERPARAMETERS += [
    (Muon, "lr", -1.0, ValueError, "learning rate: -1.0"),
    (Muon, "momentum", -0.1, ValueError, "momentum value: -0.1; allowed is"),
    (Muon, "momentum", 1.5, ValueError, "momentum value: 1.5; allowed is"),
    (Muon, "weight_decay", -0.1, ValueError, "weight_decay value: -0.1"),
    (Muon, "eps", -1e-7, ValueError, "epsilon value: -1e-07"),
    (Muon, "nesterov", 1, TypeError, "nesterov must be True or False, got 1"),
    (Muon, "ns_coefficients", (1.0, 2.0), ValueError, "ns_coefficients: .*; allowed are three"),
    (Muon, "ns_coefficients", (1.0, 2.0, "3"), TypeError, r"coefficients\[2\] must be a number"),
    (Muon, "ns_steps", 100, ValueError, r"ns_steps: 100; allowed is \[0, 100\)"),
    (Muon, "ns_steps", 5.0, TypeError, "ns_steps must be an int, got float"),
    (Muon, "adjust_lr_fn", "arbitrary", ValueError, "arbitrary is not supported; allowed are"),
    (Muon, "precision", "plus", ValueError, "precision='plus' stores a second"),
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
        ("precision", "double", "precision must be one of .*, got 'double'"),
    )
    if make is not Lion or name != "eps"
]


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "name", "value", "error", "words"), HYPERPARAMETERS)
def test_hyperparameter_is_refused_of_all_and_of_a_group(
    make: Any, name: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make([parameter((3, 4), BF16)], **{name: value})
    optimizer = make([parameter((3, 4), BF16)])
    before = list(optimizer.param_groups)
    with pytest.raises(error, match=words):
        optimizer.add_param_group({"params": [parameter((2, 3), BF16)], name: value})
    assert optimizer.param_groups == before
    steps(optimizer, 1)


def test_numbers_of_other_libraries() -> None:
    results = []
    for kind in (float, np.float32, np.float64, torch.tensor):
        optimizer = AdamW([parameter(3, BF16)], kind(0.5), (kind(0.5), kind(0.75)), kind(0.125))
        steps(optimizer, 2)
        results.append(stored(optimizer))
        assert_same(results[-1], results[0])


# -- parameters ----------------------------------------------------------------------------------

# (what, the parameter, exception, words of the message)
PARAMETERS: dict[str, Any] = {
    "complex": (lambda: Parameter(torch.zeros(3, dtype=torch.complex64)), TypeError,
     "dtype torch.complex64; allowed are torch.bfloat16, torch.float16, torch.float32"),
    "fp8": (lambda: Parameter(torch.zeros(3, dtype=torch.float8_e4m3fn)), TypeError,
     "float8_e4m3fn; allowed"),
    "sparse": (lambda: Parameter(torch.zeros(3, dtype=BF16).to_sparse()), TypeError,
     "layout torch.sparse_coo; allowed is torch.strided"),
    "expanded": (lambda: Parameter(torch.zeros(1, dtype=BF16).expand(3)), ValueError,
     "is expanded"),
    "negated": (lambda: Parameter(torch.view_as_complex(torch.ones(3, 2)).conj().imag), TypeError,
     "lazily negated view"),
    "overlapping": (lambda: Parameter(torch.zeros(9, dtype=BF16).as_strided((4, 3), (2, 1))),
     ValueError, "share memory"),
}  # fmt: skip


@pytest.mark.parametrize("what", PARAMETERS)
def test_unfit_parameter_is_refused(what: str) -> None:
    make, error, words = PARAMETERS[what]
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


# -- step ------------------------------------------------------------------------------------------


def with_gradients(stepped: bool) -> tuple[AdamW, Tensor]:
    """Return an optimizer of two groups with gradients, and its last parameter."""
    first, second, last = parameter(3, BF16, 1), parameter((2, 2), FP32, 2), parameter(4, BF16, 3)
    optimizer = AdamW([{"params": [first, second]}, {"params": [parameter(5, BF16), last]}])
    if stepped:
        steps(optimizer, 2)
    for p in parameters(optimizer):
        p.grad = torch.ones_like(p)
    return optimizer, last


# torch refuses most of these when they are assigned; `Given` lets them pass, as wrappers may.
GRADIENTS: dict[str, Any] = {
    "sparse": (lambda p: setattr(p, "grad", torch.ones(4, dtype=BF16).to_sparse()), TypeError,
     "grad has layout torch.sparse_coo; sparse gradients are not supported"),
    "dtype": (lambda p: force(p, torch.ones(4, dtype=FP16)), TypeError,
     "grad has dtype torch.float16; allowed is its parameter's, torch.bfloat16 or torch.float32"),
    "double": (lambda p: force(p, torch.ones(4, dtype=FP64)), TypeError,
     "grad has dtype torch.float64; allowed is its parameter's, torch.bfloat16 or torch.float32"),
    "shape": (lambda p: force(p, torch.ones(2, 2, dtype=BF16)), ValueError,
     r"grad has shape torch.Size\(\[2, 2\]\); allowed is its parameter's, torch.Size\(\[4\]\)"),
    "complex": (lambda p: force(p, torch.ones(4, dtype=torch.complex64)), TypeError,
     "grad has dtype torch.complex64; allowed"),
    "integer": (lambda p: force(p, torch.ones(4, dtype=torch.int64)), TypeError,
     "grad has dtype torch.int64; allowed"),
    "device": (lambda p: force(p, torch.ones(4, dtype=BF16, device="meta")), TypeError,
     "grad has device meta; allowed is its parameter's, cpu"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("what", GRADIENTS)
def test_unfit_gradient_is_refused(what: str, stepped: bool) -> None:
    spoil, error, words = GRADIENTS[what]
    optimizer, last = with_gradients(stepped)
    before = without_gradients(stored(optimizer))
    spoil(last)
    with pytest.raises(error, match=r"params\[1\] of param_groups\[1\]\." + words) as found:
        optimizer.step()
    assert_same(without_gradients(stored(optimizer)), before)
    # torch raises RuntimeError.
    assert what != "sparse" or isinstance(found.value, RuntimeError)


CHANGES: dict[str, Any] = {
    # float32 parameters have no low words at all.
    "wider": (lambda p: p.data.to(FP32), "its rule, precision and dtype need"),
    "other": (lambda p: p.data.to(FP16), "dtype torch.float16"),
    "longer": (lambda p: torch.ones(6, dtype=BF16), r"shape \[6\]"),
    "reshaped": (lambda p: p.data.view(2, 2), r"shape \[2, 2\]"),
    "expanded": (lambda p: torch.ones(1, dtype=BF16).expand(4), "is expanded"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_parameter_that_does_not_fit_its_state_is_refused(what: str) -> None:
    change, words = CHANGES[what]
    optimizer, last = with_gradients(True)
    last.grad = None
    last.data = change(last)
    last.grad = torch.ones_like(last)
    refuses(optimizer, ValueError, rf"params\[1\] of param_groups\[1\].*{words}")


def test_state_on_another_device() -> None:
    # As after model.to(device) with states made before.
    optimizer, last = with_gradients(True)
    before = stored(optimizer)
    kept = optimizer.state[last]["exp_avg"]
    optimizer.state[last]["exp_avg"] = kept.to("meta")
    words = r"state 'exp_avg' of params\[1\] of param_groups\[1\] is on the meta device"
    with pytest.raises(TypeError, match=words):
        optimizer.step()
    optimizer.state[last]["exp_avg"] = kept
    assert_same(stored(optimizer), before)


def test_executor_that_cannot_run_here() -> None:
    first, last = parameter(3, BF16), Parameter(torch.zeros(4, dtype=BF16, device="meta"))
    optimizer = AdamW([first, last])
    for p in (first, last):
        p.grad = torch.ones_like(p)
    before = first.detach().clone()
    with mcf.executor("numba"), pytest.raises(ValueError, match="'numba' runs on CPU tensors"):
        optimizer.step()
    assert_same_bits(first, before)
    assert not optimizer.state


def test_closure_runs_before_the_checks() -> None:
    optimizer, last = with_gradients(True)
    last.grad = torch.ones(4, dtype=BF16).to_sparse()

    def closure() -> float:
        last.grad = torch.ones(4, dtype=BF16)
        return 1.0

    assert optimizer.step(closure) == 1.0
    assert optimizer.state[last]["step"].item() == 3


# -- set later -------------------------------------------------------------------------------------


# The values that a new optimizer refuses, and some that only a group can have.
SET = [
    *(
        row
        for row in HYPERPARAMETERS
        if row[0] in (AdamW, SGD, NAdam, Lion)
        and row[1] not in ("precision", "decoupled_weight_decay", "nesterov")
        and not isinstance(row[2], tuple | list)
    ),
    (AdamW, "betas", (2, 0.9), ValueError, r"index 0: 2; allowed is \[0.0, 1.0\)"),
    (Lion, "betas", (0.9, math.nan), ValueError, "index 1: nan"),
    (AdamW, "lr", "0.5", TypeError, "learning rate must be a number, got str"),
    (AdamW, "betas", None, ValueError, "betas: None; allowed is a pair"),
    (Muon, "momentum", 1.5, ValueError, "momentum value: 1.5"),
    (Muon, "nesterov", None, TypeError, "nesterov must be True or False, got None"),
]


# The torch executor checks every step in full, Numba's repeats the last.
@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize("made", [0, 3], ids=["new", "stepped"])
@pytest.mark.parametrize(
    ("kind", "name", "value", "error", "words"),
    SET,
    ids=[f"{k}-{r[0].__name__}-{r[1]}" for k, r in enumerate(SET)],
)
def test_hyperparameters_out_of_range(
    kind: Any, name: str, value: Any, error: type[Exception], words: str, made: int, executor: str
) -> None:
    with mcf.executor(executor):
        optimizer = kind([parameter((3, 4), BF16)])
        steps(optimizer, made)
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        group = optimizer.param_groups[0]
        given, group[name] = group[name], value
        for _ in range(2):
            refuses(optimizer, error, words)
        group[name] = given
        optimizer.step()
        assert optimizer.state[group["params"][0]]["step"].item() == made + 1


@on_each_executor
def test_a_tensor_that_is_written(executor: str) -> None:
    lr = torch.tensor(0.5)
    with mcf.executor(executor):
        optimizer = AdamW([parameter(3, BF16)], lr)
        steps(optimizer, 3)
        lr.fill_(-0.5)
        refuses(optimizer, ValueError, "learning rate: -0.5")
        lr.fill_(0.25)
        optimizer.step()


def test_gradient_release() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p])
    release = GradientRelease(optimizer)
    p.sum().backward()
    before = p.detach().clone()
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="learning rate: -1"):
        p.sum().backward()
    assert torch.equal(p, before)
    release.remove()


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_schedules_that_miss_zero_by_a_rounding_error(executor: str) -> None:
    with mcf.executor(executor):
        for below, taken in ((-1e-20, True), (-1e-10, True), (-1e-7, False), (-1e-3, False)):
            optimizer = AdamW([parameter(3, BF16)], 1e-3)
            steps(optimizer, 2)
            optimizer.param_groups[0]["lr"] = below
            if taken:
                optimizer.step()
                other = AdamW([parameter(3, BF16)], 1e-3)
                other.load_state_dict(optimizer.state_dict())
                assert other.param_groups[0]["lr"] == below
            else:
                refuses(optimizer, ValueError, "learning rate: -")
        # Of the rate that a schedule began with, where that is another.
        optimizer = AdamW([{"params": [parameter(3, BF16)], "lr": 1e3}], 1e-3)
        lr_scheduler.LambdaLR(optimizer, lambda t: 1.0)
        steps(optimizer, 2)
        optimizer.param_groups[0]["lr"] = -1e-4
        optimizer.step()


def test_a_momentum_that_goes_to_zero_and_back() -> None:
    optimizer = SGD([parameter(3, BF16)], 1e-2, 0.9, nesterov=True)
    for momentum in (0.9, 0.0, 0.5):
        optimizer.param_groups[0]["momentum"] = momentum
        steps(optimizer, 1)
    optimizer.param_groups[0]["dampening"] = 0.5
    refuses(optimizer, ValueError, "Nesterov momentum requires a momentum and zero dampening")


NUMBERS: dict[str, Any] = {
    "int": (AdamW, "step", 3, TypeError, "is of type int; allowed is a tensor"),
    "None": (AdamW, "step", None, TypeError, "is of type NoneType; allowed is a tensor"),
    "two": (AdamW, "step", torch.ones(2), ValueError, r"has shape \[2\]; allowed is one"),
    "product": (NAdam, "mu_product", 0.5, TypeError, "is of type float; allowed is a tensor"),
}


@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_of_a_state_are_checked(what: str, executor: str) -> None:
    kind, name, value, error, words = NUMBERS[what]
    with mcf.executor(executor):
        params = [parameter(3, BF16, 1), parameter(4, BF16, 2)]
        optimizer = kind(params)
        steps(optimizer, 2)
        before, state = stored(optimizer), optimizer.state[params[1]]
        kept, state[name] = state[name], value
        with pytest.raises(error, match=rf"'{name}' of params\[1\] of param_groups\[0\] {words}"):
            optimizer.step()
        state[name] = kept
        assert_same(stored(optimizer), before)
        optimizer.step()
        assert kept is optimizer.state[params[1]][name]
