"""timm makes our optimizers by name, with groups for weight decay and a rate for each layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import mcf.optim
from tests.integrations.packages import package

timm = package("timm")
optim = package("timm", "timm.optim")
schedulers = package("timm", "timm.scheduler")
registry = package("timm", "timm.optim._optim_factory")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """As docs/how_to/timm.md registers them; the registry is one for the process."""
    names = ("mcfadamw", "mcflion")
    for name, cls in zip(names, (mcf.optim.AdamW, mcf.optim.Lion), strict=True):
        info = optim.OptimInfo(
            name=name, opt_class=cls, has_betas=True, has_eps=name == "mcfadamw",
            defaults={"precision": "plus" if name == "mcfadamw" else "light"},
        )  # fmt: skip
        registry.default_registry.register(info)
    yield
    for name in names:
        registry.default_registry._optimizers.pop(name)


def vit() -> Any:
    """A vision transformer of two blocks, in bf16."""
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3
    )
    return model.to(torch.bfloat16)


def steps(model: Any, optimizer: Any, count: int = 2) -> None:
    pixels = (torch.arange(4 * 3 * 8 * 8) % 17 - 8).reshape(4, 3, 8, 8) / 8
    for _ in range(count):
        logits = model(pixels.bfloat16()).float()
        torch.nn.functional.cross_entropy(logits, torch.arange(4) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_rate_for_each_layer() -> None:
    model = vit()
    optimizer = optim.create_optimizer_v2(
        model, "mcfadamw", lr=1e-2, weight_decay=0.1, layer_decay=0.5, foreach=True
    )
    assert isinstance(optimizer, mcf.optim.AdamW)
    assert {group["precision"] for group in optimizer.param_groups} == {"plus"}
    assert len({group["lr_scale"] for group in optimizer.param_groups}) == 4
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.1}
    # timm's schedulers multiply each group's rate by its scale.
    schedule = schedulers.CosineLRScheduler(optimizer, t_initial=4, warmup_t=1)
    for epoch in range(3):
        steps(model, optimizer, 1)
        schedule.step(epoch + 1)
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(schedule._get_lr(3)[0] * group["lr_scale"])
    again = optim.create_optimizer_v2(model, "mcfadamw", lr=1e-2, weight_decay=0.1, layer_decay=0.5)
    again.load_state_dict(optimizer.state_dict())
    assert [g["lr_scale"] for g in again.param_groups] == [
        g["lr_scale"] for g in optimizer.param_groups
    ]


@pytest.mark.parametrize("name", ["mcfadamw", "mcflion", "lookahead_mcfadamw"])
def test_by_name(name: str) -> None:
    model = vit()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = optim.create_optimizer_v2(model, name, lr=1e-2, weight_decay=0.1)
    steps(model, optimizer)
    moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
    assert all(moved)
