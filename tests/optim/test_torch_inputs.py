"""Every input with which torch tests its own optimizers: accepted or refused as there.

The list is `torch.testing._internal.common_optimizers`; an optimizer of ours takes part under its
name. In float64 our rules are torch's up to the order of a few operations, so ten steps agree to
1e-12 of the parameters; a wrong formula, sign or default is off by 1e-3 or more.
"""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from tests.helpers.draws import bell
from tests.optim.helpers import BF16, FP16, FP32, FP64, assert_same, random, stored
from tests.optim.torch_cases import OptimizerErrorEnum, optim_db

pytestmark = pytest.mark.usefixtures("on_torch")

# Muon takes matrices only: test_muon.py.
INFOS = [i for i in optim_db if hasattr(mcf.optim, i.name) and i.name != "Muon"]
INPUTS = [
    (info.name, case.desc, case.kwargs)
    for info in INFOS
    for case in info.optim_inputs_func(device="cpu", dtype=FP64)
]
# Of the list for GPUs, without `capturable`, which torch has only there.
INPUTS += [
    (
        "AdamW",
        "tensors",
        {"lr": torch.tensor(1e-3, dtype=FP64),
         "betas": (torch.tensor([[[0.9]]], dtype=FP64), torch.tensor([[0.99]], dtype=FP64))},
    )
]  # fmt: skip


def ours(name: str) -> Any:
    return getattr(mcf.optim, name)


def options(name: str, kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The case's keywords, copied: a tensor may be changed by a schedule."""
    found = copy.deepcopy(kwargs)
    if dtype == FP16 and "eps" in torch_defaults(name):
        found["eps"] = 0.1
    return found


def torch_defaults(name: str) -> dict[str, Any]:
    defaults: dict[str, Any] = getattr(torch.optim, name)([Parameter(torch.zeros(1))]).defaults
    return defaults


def test_the_list_is_not_empty() -> None:
    assert {"AdamW", "SGD"} <= {info.name for info in INFOS}
    assert len(INPUTS) >= 10


def run(make: Any, dtype: torch.dtype, kwargs: dict[str, Any], count: int = 10) -> list[Any]:
    shapes = [(3, 4), (5,), (), (2, 0)]
    params = [Parameter(random(s, dtype, k)) for k, s in enumerate(shapes)]
    optimizer = make(params, **kwargs)
    for t in range(count):
        for k, p in enumerate(params):
            p.grad = random(p.shape, dtype, 100 * t + k + 50, 0.1)
        optimizer.step()
    return params


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("name", "desc", "kwargs"), INPUTS, ids=[f"{n}-{d}" for n, d, _ in INPUTS])
def test_same_steps_as_torch(name: str, desc: str, kwargs: dict[str, Any]) -> None:
    mine = run(ours(name), FP64, options(name, kwargs, FP64))
    before = torch.get_default_dtype()
    try:
        # In it torch keeps the product of NAdam's momenta; ours is always float64.
        torch.set_default_dtype(FP64)
        theirs = run(
            getattr(torch.optim, name), FP64, {**options(name, kwargs, FP64), "foreach": False}
        )
    finally:
        torch.set_default_dtype(before)
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=30)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize(("name", "desc", "kwargs"), INPUTS, ids=[f"{n}-{d}" for n, d, _ in INPUTS])
def test_low_precision_follows(
    name: str, desc: str, kwargs: dict[str, Any], dtype: torch.dtype
) -> None:
    # Ten steps from the same parameters and gradients: what the stored parameter and moments are
    # rounded to moves it by a few units in the last place of `dtype` at values near 1.
    kwargs = options(name, kwargs, dtype)
    for p, q in zip(run(ours(name), dtype, kwargs), run(ours(name), FP64, kwargs), strict=True):
        torch.testing.assert_close(p.double(), q, rtol=0, atol=16 * torch.finfo(dtype).eps)


ERRORS = [
    (info.name, case)
    for info in INFOS
    for case in info.optim_error_inputs_func(device="cpu", dtype=FP32)
]


@pytest.mark.parametrize(
    ("name", "case"), ERRORS, ids=[f"{n}-{c.optimizer_error_input.desc}" for n, c in ERRORS]
)
def test_same_errors_as_torch(name: str, case: Any) -> None:
    given = case.optimizer_error_input
    params = [Parameter(torch.ones(2, 3))] if given.params is None else given.params
    error, words = case.error_type, case.error_regex
    if "duplicate parameters.*" in words:
        # torch warns and steps it twice; two steps at a time on one tensor would be a race here.
        error, words = ValueError, "is the same tensor as"
    assert case.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    with pytest.raises(error, match=words):
        ours(name)(params, **given.kwargs)


def test_flags_that_do_not_go_together() -> None:
    # In torch's list only for GPUs, because torch refuses other things first elsewhere.
    p = Parameter(torch.zeros(1))
    for name in ("AdamW", "SGD"):
        for flags, words in (
            ({"foreach": True, "fused": True}, "`fused` and `foreach` cannot be `True` together"),
            ({"fused": True, "differentiable": True}, "`fused` does not support `differentiable`"),
        ):
            for make in (getattr(torch.optim, name), ours(name)):
                with pytest.raises(RuntimeError, match=re.escape(words)):
                    make([p], **flags)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_flags_do_not_change_bits(info: Any) -> None:
    name = info.name
    default = run(ours(name), BF16, {}, 3)
    for flags in ({"foreach": True}, {"foreach": False}, {"fused": True}, {"fused": False}):
        for p, q in zip(run(ours(name), BF16, flags, 3), default, strict=True):
            assert torch.equal(p, q)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_schedulers_go_in_the_right_direction(info: Any) -> None:
    # torch's own criterion: a linear function of two inputs, seen through each of its schedules.
    for schedules in info.scheduler_inputs:
        weight = Parameter(bell((10, 5), 0, FP32))
        bias = Parameter(bell(10, 1, FP32))
        x = bell(5, 2, FP32)
        optimizer = ours(info.name)([weight, bias], lr=0.01)
        schedulers = [make(optimizer) for make in schedules]

        def closure(optimizer=optimizer, weight=weight, bias=bias, x=x) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (weight.mv(x) + bias).pow(2).sum()
            loss.backward()
            return loss

        first = closure().item()
        for _ in range(20):
            loss = optimizer.step(closure)
            for scheduler in schedulers:
                if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(loss.detach())
                else:
                    scheduler.step()
        assert closure().item() < first


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("name", "desc", "kwargs"), INPUTS, ids=[f"{n}-{d}" for n, d, _ in INPUTS])
def test_tensor_lr_is_the_number(name: str, desc: str, kwargs: dict[str, Any]) -> None:
    rate = kwargs.get("lr", 1e-2)
    results = []
    for lr in (
        float(rate),
        torch.tensor(float(rate), dtype=FP64),
        torch.tensor([[float(rate)]]).double(),
    ):
        results.append(run(ours(name), BF16, {**options(name, kwargs, BF16), "lr": lr}, 3))
    for other in results[1:]:
        for p, q in zip(other, results[0], strict=True):
            assert torch.equal(p, q)


@pytest.mark.parametrize(("name", "desc", "kwargs"), INPUTS, ids=[f"{n}-{d}" for n, d, _ in INPUTS])
def test_copies_keep_public_attributes_and_go_on(
    name: str, desc: str, kwargs: dict[str, Any]
) -> None:
    params = [Parameter(random((3, 2), BF16, 1))]
    optimizer = ours(name)(params, **options(name, kwargs, BF16))
    optimizer.step()
    params[0].grad = random((3, 2), BF16, 2)
    optimizer.step()
    params[0].grad = None

    def public(o: Any) -> set[str]:
        return {k for k in vars(o) if not k.startswith("_")}

    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert public(other) == public(optimizer)
        assert_same(stored(other), stored(optimizer))
        assert other.defaults.keys() == optimizer.defaults.keys()
        for o in (optimizer, other):
            (p,) = o.param_groups[0]["params"]
            p.grad = random((3, 2), BF16, 3)
        twin = copy.deepcopy(optimizer)
        twin.param_groups[0]["params"][0].grad = random((3, 2), BF16, 3)
        twin.step()
        other.step()
        assert_same(stored(other), stored(twin))
        params[0].grad = None


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_no_gradient_and_zero_gradients(info: Any) -> None:
    for value in (None, 0.0):
        p = Parameter(random(7, BF16, 1))
        optimizer = ours(info.name)([p], weight_decay=0.0)
        p.grad = None if value is None else torch.zeros_like(p)
        before = p.detach().clone()
        optimizer.step()
        assert torch.equal(p, before)


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_complex_parameters_are_refused(info: Any) -> None:
    with pytest.raises(TypeError, match=r"dtype torch\.complex64; allowed are"):
        ours(info.name)([Parameter(torch.zeros(2, dtype=torch.complex64))])


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_weights_only_round_trip(info: Any, tmp_path: Any) -> None:
    params = [Parameter(random((3, 2), BF16, 1))]
    optimizer = ours(info.name)(params)
    params[0].grad = random((3, 2), BF16, 2)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    other = ours(info.name)([Parameter(params[0].detach().clone())])
    other.load_state_dict(loaded)
    other.param_groups[0]["params"][0].grad = params[0].grad
    assert_same(stored(other), stored(optimizer))


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_hooks_in_order(info: Any) -> None:
    # torch's order: global before, own before, own after, global after.
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    seen: list[str] = []
    p = Parameter(torch.zeros(1))
    optimizer = ours(info.name)([p])
    handles = [
        register_optimizer_step_pre_hook(lambda o, a, k: seen.append("global before")),
        register_optimizer_step_post_hook(lambda o, a, k: seen.append("global after")),
        optimizer.register_step_pre_hook(lambda o, a, k: seen.append("before")),
        optimizer.register_step_post_hook(lambda o, a, k: seen.append("after")),
    ]
    optimizer.step()
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert seen == ["global before", "before", "after", "global after"]
