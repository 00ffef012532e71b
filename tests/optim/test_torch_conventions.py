"""What a user of torch.optim expects: signatures, groups, names, hooks, maximize, zero_grad."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_pre_hook

import mcf
import mcf.optim
from mcf.optim import AdamW, CollageAdamW
from tests.helpers import assert_same_bits
from tests.optim.helpers import (
    BF16,
    FP32,
    FP64,
    assert_same,
    parameter,
    random,
    steps,
    stored,
)

pytestmark = pytest.mark.usefixtures("on_torch")


def test_signatures_begin_as_torchs() -> None:
    counts = {"AdamW": 6, "Adam": 6, "NAdam": 7, "RAdam": 6, "Adamax": 5, "SGD": 6}
    for name, count in counts.items():
        mine, torchs = (
            list(inspect.signature(getattr(m, name)).parameters.values())[:count]
            for m in (mcf.optim, torch.optim)
        )
        assert [p.name for p in mine] == [p.name for p in torchs]
        assert [p.default for p in mine] == [p.default for p in torchs]
        # Its keywords as well, where `**options` takes them.
        keywords = inspect.signature(getattr(torch.optim, name)).parameters
        found = inspect.signature(getattr(mcf.optim, name)).parameters
        for keyword, p in keywords.items():
            assert found[keyword].default == p.default, keyword
    with pytest.raises(TypeError, match=r"unexpected keyword argument .lamda.; .* takes foreach"):
        AdamW([parameter(3, BF16)], lamda=1)  # type: ignore[call-arg]
    assert list(inspect.signature(CollageAdamW).parameters)[:5] == [
        "params", "lr", "betas", "eps", "weight_decay",
    ]  # fmt: skip


def test_each_argument_of_a_constructor_is_described_once() -> None:
    classes: list[Any] = [c for c in vars(mcf.optim).values() if hasattr(c, "precisions")]
    assert len(classes) > 10
    for found in classes:
        own = [*inspect.signature(found.__init__).parameters][1:]
        for name in (*own, "maximize", "mode" if "mode" in own else "precision"):
            assert found.__doc__.count(f"\n    {name}: ") == 1, (found, name)


def test_groups_of_different_hyperparameters_and_precisions() -> None:
    options: list[dict[str, Any]] = [
        {"lr": 1e-2, "precision": "plus"},
        {"lr": 1e-3, "precision": "master", "betas": (0.8, 0.9)},
        {"weight_decay": 0.5, "precision": "light", "compute_dtype": BF16},
        {"eps": 1e-3, "maximize": True, "precision": "plain"},
    ]

    def params() -> list[Parameter]:
        return [parameter((3, 5), BF16, 1), parameter(4, FP32 if together else BF16, 2)]

    together = False
    groups = [{"params": params(), **o} for o in options]
    optimizer = AdamW(groups, 5e-3)
    steps(optimizer, 4)
    found = stored(optimizer)
    # The same, each group alone; parameters are numbered through, and so are their gradients.
    for k, o in enumerate(options):
        alone = AdamW(params(), **{"lr": 5e-3, **o})
        for t in range(4):
            for j, p in enumerate(alone.param_groups[0]["params"]):
                p.grad = random(p.shape, p.dtype, 1 + 1000 * t + 2 * k + j, 0.1)
            alone.step()
        for name, tensor in stored(alone).items():
            index, rest = name.split(".", 1)
            assert_same_bits(found[f"{2 * k + int(index)}.{rest}"], tensor, name)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_one_group_of_several_dtypes() -> None:
    # A model that keeps its norm layers in float32.
    params = [parameter(5, d, k) for k, d in enumerate((BF16, FP32, torch.float16, FP64, BF16))]
    optimizer = AdamW(params, 1e-2)
    steps(optimizer, 3)
    for k, p in enumerate(params):
        alone = AdamW([parameter(5, p.dtype, k)], 1e-2)
        for t in range(3):
            alone.param_groups[0]["params"][0].grad = random(5, p.dtype, 1 + 1000 * t + k, 0.1)
            alone.step()
        assert_same_bits(p, alone.param_groups[0]["params"][0], str(p.dtype))


def test_add_param_group() -> None:
    first, second = parameter(3, BF16), parameter(4, BF16)
    optimizer = AdamW([first], 1e-2)
    steps(optimizer, 2)
    optimizer.add_param_group({"params": second, "precision": "light"})
    assert optimizer.param_groups[1]["lr"] == 1e-2
    steps(optimizer, 1)
    assert optimizer.state[first]["step"].item() == 3
    assert optimizer.state[second]["step"].item() == 1
    assert "exp_avg_sq_lo" not in optimizer.state[second]
    optimizer.add_param_group({"params": (p for p in [parameter(2, BF16)])})
    steps(optimizer, 1)


def test_zero_grad() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p])
    steps(optimizer, 1)
    optimizer.zero_grad(set_to_none=False)
    assert (p.grad == 0).all()
    optimizer.zero_grad()
    assert p.grad is None


def test_parameters_without_a_gradient_are_left_alone() -> None:
    used, unused, frozen = parameter(3, BF16, 1), parameter(3, BF16, 2), parameter(3, BF16, 3)
    frozen.requires_grad_(False)
    optimizer = AdamW([used, unused, frozen], 1e-2)
    used.grad = torch.ones_like(used)
    before = [unused.detach().clone(), frozen.detach().clone()]
    optimizer.step()
    assert_same_bits(unused, before[0])
    assert_same_bits(frozen, before[1])
    assert used in optimizer.state
    assert not optimizer.state.get(unused)
    assert not optimizer.state.get(frozen)


def test_a_step_without_any_gradient_does_nothing() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p], track_metrics=True)
    before = stored(optimizer)
    assert optimizer.step() is None
    assert_same(stored(optimizer), before)


def test_a_copy_takes_the_state_of_a_new_one() -> None:
    # torch gives optimizers that are unpickled an option of its own; a state without it still fits.
    copied = copy.deepcopy(AdamW([parameter(3, BF16)]))
    copied.add_param_group({"params": [parameter(2, BF16)]})
    fresh = AdamW([{"params": [parameter(3, BF16)]}, {"params": [parameter(2, BF16)]}])
    steps(fresh, 1)
    copied.load_state_dict(fresh.state_dict())
    fresh.load_state_dict(copied.state_dict())
    assert copied.param_groups[1].keys() == fresh.param_groups[1].keys()


def test_repr_names_the_precision() -> None:
    text = repr(AdamW([parameter(3, BF16)], precision="light"))
    assert text.startswith("AdamW (")
    assert "precision: light" in text


def test_collage_group_names_its_mode() -> None:
    p, q = parameter(3, BF16), parameter(3, BF16)
    optimizer = CollageAdamW([{"params": [p], "mode": "light"}, {"params": [q]}])
    assert [g["precision"] for g in optimizer.param_groups] == ["light", "plus"]
    with pytest.raises(ValueError, match=r"mode must be one of .*, got 'heavy'"):
        optimizer.add_param_group({"params": [parameter(3, BF16)], "mode": "heavy"})


def test_hooks_of_all_optimizers_see_a_step_once() -> None:
    seen: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda o, args, kwargs: seen.append(o))
    params = [parameter(3, BF16, k) for k in range(3)]
    made = [AdamW(params), mcf.optim.collage(torch.optim.AdamW, params)]
    try:
        for optimizer in made:
            steps(optimizer, 1)
    finally:
        handle.remove()
    assert seen == made
