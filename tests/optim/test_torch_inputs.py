"""Every input with which torch tests its own optimizers: accepted or refused as there.

The list is `torch.testing._internal.common_optimizers`; an optimizer of ours takes part under its
name. In float64 our rules are torch's up to the order of a few operations, so ten steps agree to
1e-12 of the parameters; a wrong formula, sign or default is off by 1e-3 or more.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from tests.helpers import hypothesis_profile
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import random

with hypothesis_profile.kept():
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

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
