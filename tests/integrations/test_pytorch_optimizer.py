"""Classes of pytorch-optimizer on the weights that are really stored (`mcf.optim.collage`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mcf.optim import collage
from tests.integrations.packages import package

optimizers = package("pytorch_optimizer")


def run(name: str, dtype: torch.dtype, wrapped: bool, **options: Any) -> list[torch.Tensor]:
    """The weights that are stored after some steps on given gradients."""
    weights = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((6, 4), (4,))]
    kind = getattr(optimizers, name)
    made = kind(weights, **options)
    if wrapped:
        made = collage(kind, weights, precision="master", **options)
    for t in range(6):
        for p in weights:
            grad = (torch.arange(p.numel()) * (t + 3) % 11 - 5).reshape(p.shape) / 8
            p.grad = grad.to(dtype)
        made.step()
    return [made.master_weight(p) if wrapped else p.detach() for p in weights]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SOAP", {"precondition_frequency": 2}),
        ("AdaFactor", {"lr": 1e-2}),
        ("Lion", {}),
        ("StableAdamW", {}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_with_float32_masters_they_are_float32(name: str, options: dict[str, Any]) -> None:
    mine = run(name, torch.bfloat16, True, **options)
    theirs = run(name, torch.float32, False, **options)
    assert not torch.equal(theirs[0], torch.ones(6, 4))
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("name", "words"), [("Prodigy", "keeps d, .* together"), ("Muon", "ask nothing of groups")]
)
def test_refused(name: str, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        collage(getattr(optimizers, name), [torch.nn.Parameter(torch.ones(3, 3).bfloat16())])
