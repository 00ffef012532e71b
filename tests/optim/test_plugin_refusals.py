"""What `mcf.optim.collage` refuses, with the reason, and before anything is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import collage
from tests.optim.helpers import BF16, FP16, assert_same, parameter, steps, stored
from tests.optim.test_plugin import params, run

pytestmark = pytest.mark.usefixtures("on_torch")

BAD: list[tuple[Any, dict[str, Any], str]] = [
    # What these classes do not check when they are made.
    (torch.optim.ASGD, {"t0": "soon"}, "ASGD makes no step on a parameter .*: TypeError"),
    (torch.optim.AdamW, {"capturable": True}, "AdamW makes no step on .* capturable"),
    (torch.optim.Rprop, {"step_sizes": (1e-6,)}, "Rprop makes no step on"),
]


@pytest.mark.parametrize(("make", "options", "words"), BAD)
def test_bad_options_raise_at_construction(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        collage(make, params(BF16), **options)


def test_bad_options_of_later_raise_before_anything_changes() -> None:
    mine = collage(torch.optim.AdamW, [{"params": [p]} for p in params(BF16)])
    run(mine, BF16)
    before = stored(mine)
    mine.param_groups[1]["weight_decay"] = "none"
    with pytest.raises(ValueError, match=r"with the options of param_groups\[1\]: TypeError"):
        mine.step()
    assert_same(stored(mine), before)
    mine.param_groups[1]["weight_decay"] = 0.0
    mine.step()


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (torch.optim.SGD, {"precision": "eco"}, "precision='eco' feeds rounding errors back"),
        (
            torch.optim.AdamW,
            {"precision": "single_single_single_stochastic_feedback"},
            "feeds rounding errors back.*use mcf.optim.SGD, Adam or AdamW",
        ),
        (torch.optim.AdamW, {"precision": "plain", "low": "stochastic"}, "no low component"),
        (torch.optim.AdamW, {"low": "up"}, "low must be one of .*, got 'up'"),
        (
            torch.optim.AdamW,
            {"precision": "8bit"},
            r"precision='8bit' of params\[0\].* keeps moments as codes relative to each other",
        ),
    ],
)
def test_refused_storage(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        collage(make, params(BF16), **options)
    with pytest.raises(TypeError, match="seed must be an int"):
        collage(make, params(BF16), seed=0.5)  # type: ignore[arg-type]


def test_refused() -> None:
    p = parameter(3, BF16)
    for error, words, make, options in (
        (TypeError, "allowed is a class", lambda x: x, {}),
        (ValueError, "LBFGS does not treat", torch.optim.LBFGS, {}),
        (ValueError, "learning rate: -1", torch.optim.AdamW, {"lr": -1.0}),
        (ValueError, "precision: 'double'; known", torch.optim.AdamW, {"precision": "double"}),
        (ValueError, "compute_dtype: torch.bfloat16", torch.optim.AdamW, {"compute_dtype": BF16}),
        (TypeError, "unexpected keyword", torch.optim.AdamW, {"momentum": 1.0}),
    ):
        with pytest.raises(error, match=words):
            collage(make, [p], **options)  # type: ignore[arg-type]
    mine = collage(torch.optim.AdamW, [p])
    with pytest.raises(ValueError, match="Invalid beta"):
        mine.add_param_group({"params": [parameter(2, BF16)], "betas": (2.0, 0.9)})
    with pytest.raises(ValueError, match="bits of bfloat16"):
        mine.add_param_group({"params": [parameter(2, FP16)], "precision": "split16"})
    assert len(mine.param_groups) == 1
    steps(mine, 1)
    with pytest.raises(ValueError, match=r"\(1, 'light', 'nearest'\)\]; the opt.*'plus'"):
        collage(torch.optim.AdamW, [p], precision="plus").load_state_dict(mine.state_dict())


@pytest.mark.parametrize("precision", ["light", "split16", "master"])
def test_a_parameter_of_another_dtype_is_refused(precision: str) -> None:
    # Else the low component, or the bits, would be dropped in silence.
    first, p = (Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = mcf.optim.collage(torch.optim.SGD, [first, p], precision=precision, lr=1e-3)
    for q in (first, p):
        q.grad = torch.ones_like(q)
    optimizer.step()
    p.data = p.data.float()
    p.grad = torch.ones_like(p)
    before = first.detach().clone()
    with pytest.raises(ValueError, match=r"state of params\[1\] .*was the parameter changed"):
        optimizer.step()
    assert torch.equal(first.detach(), before)
