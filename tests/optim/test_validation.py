"""Bad hyperparameters and parameters raise, say what was given and what is allowed.

Each row of a table is one mistake and the words its message must have; the optimizer that refuses
a group goes on without it, and a step that refuses something has changed no bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    assert_same,
    force,
    parameter,
    parameters,
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
    (AdamW, "precision", "double", ValueError, "precision: 'double'; known are 'plain', 'kahan'"),
    (AdamW, "precision", None, ValueError, "precision: None; known are"),
    (AdamW, "precision", ["plus"], ValueError, "known are .* 'master'"),
    (
        AdamW,
        "compute_dtype",
        FP64,
        ValueError,
        "compute_dtype: torch.float64; allowed are",
    ),
    (AdamW, "compute_dtype", "bf16", ValueError, "compute_dtype: bf16; allowed"),
    (CollageAdamW, "mode", "heavy", ValueError, "mode: 'heavy'; known are 'light', 'plus'"),
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
        ("precision", "double", "precision: 'double'; known are 'plain'"),
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
        ("precision", "double", "precision: 'double'; known are"),
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


# -- step ------------------------------------------------------------------------------------------


def assert_nothing_changes(
    optimizer: LowPrecisionOptimizer, error: type[Exception], words: str
) -> None:
    """step() raises with these words, and no bit, state or count is different after."""
    before = stored(optimizer)
    with pytest.raises(error, match=words):
        optimizer.step()
    assert_same(stored(optimizer), before)


def with_gradients(stepped: bool) -> tuple[AdamW, Tensor]:
    """Two groups, all with gradients and maybe states; and the last parameter."""
    first, second, last = parameter(3, BF16, 1), parameter((2, 2), FP32, 2), parameter(4, BF16, 3)
    optimizer = AdamW([{"params": [first, second]}, {"params": [parameter(5, BF16), last]}])
    if stepped:
        steps(optimizer, 2)
    for p in parameters(optimizer):
        p.grad = torch.ones_like(p)
    return optimizer, last


# torch refuses most of these when they are assigned; `Given` lets them pass, as wrappers may.
GRADIENTS: list[tuple[str, Callable[[Tensor], None], type[Exception], str]] = [
    ("sparse", lambda p: setattr(p, "grad", torch.ones(4, dtype=BF16).to_sparse()), TypeError,
     "grad has layout torch.sparse_coo; sparse gradients are not supported"),
    ("dtype", lambda p: force(p, torch.ones(4, dtype=FP16)), TypeError,
     "grad has dtype torch.float16; allowed is its parameter's, torch.bfloat16 or torch.float32"),
    ("double", lambda p: force(p, torch.ones(4, dtype=FP64)), TypeError,
     "grad has dtype torch.float64; allowed is its parameter's, torch.bfloat16 or torch.float32"),
    ("shape", lambda p: force(p, torch.ones(2, 2, dtype=BF16)), ValueError,
     r"grad has shape torch.Size\(\[2, 2\]\); allowed is its parameter's, torch.Size\(\[4\]\)"),
    ("complex", lambda p: force(p, torch.ones(4, dtype=torch.complex64)), TypeError,
     "grad has dtype torch.complex64; allowed"),
    ("integer", lambda p: force(p, torch.ones(4, dtype=torch.int64)), TypeError,
     "grad has dtype torch.int64; allowed"),
    ("device", lambda p: force(p, torch.ones(4, dtype=BF16, device="meta")), TypeError,
     "grad has device meta; allowed is its parameter's, cpu"),
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize(
    ("what", "spoil", "error", "words"), GRADIENTS, ids=[r[0] for r in GRADIENTS]
)
def test_gradient(
    what: str, spoil: Callable[[Tensor], None], error: type[Exception], words: str, stepped: bool
) -> None:
    optimizer, last = with_gradients(stepped)
    spoil(last)
    where = r"params\[1\] of param_groups\[1\]\."
    before = stored(optimizer)
    before.pop("3.grad", None)
    with pytest.raises(error, match=where + words):
        optimizer.step()
    after = stored(optimizer)
    after.pop("3.grad", None)
    assert_same(after, before)


def test_sparse_gradients_raise_as_in_torch() -> None:
    # torch raises RuntimeError; ours is that as well.
    optimizer, last = with_gradients(False)
    last.grad = torch.ones(4, dtype=BF16).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


CHANGES: list[tuple[str, Callable[[Tensor], Any], str]] = [
    # float32 parameters have no low words at all.
    ("wider", lambda p: p.data.to(FP32), "its precision and dtype need"),
    ("other", lambda p: p.data.to(FP16), "dtype torch.float16"),
    ("longer", lambda p: torch.ones(6, dtype=BF16), r"shape \[6\]"),
    ("reshaped", lambda p: p.data.view(2, 2), r"shape \[2, 2\]"),
]


@pytest.mark.parametrize(("change", "words"), [r[1:] for r in CHANGES], ids=[r[0] for r in CHANGES])
def test_parameter_changed_after_its_state_was_made(
    change: Callable[[Tensor], Any], words: str
) -> None:
    optimizer, last = with_gradients(True)
    last.grad = None
    last.data = change(last)
    last.grad = torch.ones_like(last)
    message = rf"params\[1\] of param_groups\[1\].*{words}"
    assert_nothing_changes(optimizer, ValueError, message)


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


def test_parameter_that_became_expanded() -> None:
    optimizer, last = with_gradients(True)
    last.data = torch.ones(1, dtype=BF16).expand(4)
    assert_nothing_changes(optimizer, ValueError, r"params\[1\] of param_groups\[1\] is expanded")


def test_nothing_is_made_for_earlier_parameters() -> None:
    optimizer, last = with_gradients(False)
    last.grad = torch.ones(4, dtype=BF16).to_sparse()
    with pytest.raises(TypeError):
        optimizer.step()
    assert not any(optimizer.state.get(p) for p in parameters(optimizer))


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


def refused(optimizer: LowPrecisionOptimizer, error: type[Exception], words: str) -> None:
    """step() raises with these words, and no bit, state or count is different after."""
    before = stored(optimizer)
    with pytest.raises(error, match=words):
        optimizer.step()
    assert_same(stored(optimizer), before)


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
            refused(optimizer, error, words)
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
        refused(optimizer, ValueError, "learning rate: -0.5")
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
            else:
                refused(optimizer, ValueError, "learning rate: -")
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
    refused(optimizer, ValueError, "Nesterov momentum requires a momentum and zero dampening")


def test_schedules_cost_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    check = AdamW._check_group
    monkeypatch.setattr(AdamW, "_check_group", lambda o, g: (seen.append(1), check(o, g))[1])
    with mcf.executor("numba"):
        optimizer = AdamW([parameter(3, BF16)], 1e-2)
        steps(optimizer, 2)
        repeated, count = optimizer._steps._repeat, len(seen)
        for k in range(5):
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + k)
            optimizer.param_groups[0]["weight_decay"] = 1e-2 * k
            steps(optimizer, 1)
        assert len(seen) == count
        optimizer.param_groups[0]["eps"] = 1e-6
        steps(optimizer, 1)
        assert len(seen) == count + 1
        assert optimizer._steps._repeat is repeated is not None


NUMBERS: list[tuple[Any, str, Callable[[], Any], type[Exception], str]] = [
    (AdamW, "step", lambda: 3, TypeError, "is of type int; allowed is a tensor"),
    (AdamW, "step", lambda: None, TypeError, "is of type NoneType; allowed is a tensor"),
    (AdamW, "step", lambda: torch.ones(2), ValueError, r"has shape \[2\]; allowed is one"),
    (NAdam, "mu_product", lambda: 0.5, TypeError, "is of type float; allowed is a tensor"),
]


@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize(
    ("kind", "name", "make", "error", "words"), NUMBERS, ids=["int", "None", "two", "product"]
)
def test_numbers_of_a_state(
    kind: Any, name: str, make: Callable[[], Any], error: type[Exception], words: str, executor: str
) -> None:
    with mcf.executor(executor):
        params = [parameter(3, BF16, 1), parameter(4, BF16, 2)]
        optimizer = kind(params)
        steps(optimizer, 2)
        state = optimizer.state[params[1]]
        kept = state[name]
        before = stored(optimizer)
        state[name] = make()
        message = rf"state '{name}' of params\[1\] of param_groups\[0\] {words}"
        with pytest.raises(error, match=message):
            optimizer.step()
        state[name] = kept
        assert_same(stored(optimizer), before)
        optimizer.step()
        assert kept is optimizer.state[params[1]][name]
