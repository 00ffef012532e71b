"""docs/optimizers.md has the rules that there are, and the bytes that they take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

import mcf
import mcf.optim
from mcf.optim import (
    SGD,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    Lion,
    Muon,
    NAdam,
    ScheduleFreeAdamW,
    StableAdamW,
)
from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.optim.helpers import BF16, parameter, steps

PAGE = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()

ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW, Adam": (AdamW, {}),
    "with `amsgrad`": (AdamW, {"amsgrad": True}),
    "NAdam, RAdam": (NAdam, {}),
    "Adamax": (Adamax, {}),
    "StableAdamW": (StableAdamW, {}),
    "AdEMAMix": (AdEMAMix, {}),
    "Adan": (Adan, {}),
    "ScheduleFreeAdamW": (ScheduleFreeAdamW, {}),
    "Lion": (Lion, {}),
    "Muon": (Muon, {}),
    "SGD": (SGD, {}),
    "SGD with momentum": (SGD, {"momentum": 0.9}),
}


def size(make: Any, precision: str, options: dict[str, Any]) -> str:
    """Bytes per parameter after a step, gradient included, or a dash."""
    try:
        optimizer = make([parameter((2, 4), BF16)], precision=precision, **options)
    except ValueError:
        return "-"
    with mcf.executor("torch"):
        steps(optimizer, 1)
    (p,) = optimizer.param_groups[0]["params"]
    tensors = [p, p.grad, *(t for t in optimizer.state[p].values() if t.dim())]
    return f"{sum(t.nbytes for t in tensors) / p.numel():g}"


def test_bytes() -> None:
    lines = PAGE.split("<!-- bytes: begin -->\n")[1].split("<!-- bytes: end -->")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    precisions = [cell.strip("`") for cell in header[1:]]
    assert set(precisions) == set(mcf.optim.PRECISIONS)
    assert [row[0] for row in rows] == list(ROWS)
    for name, *cells in rows:
        make, options = ROWS[name]
        assert cells == [size(make, precision, options) for precision in precisions], name


def test_every_optimizer_has_its_row() -> None:
    found = {
        name
        for name, value in vars(mcf.optim).items()
        if isinstance(value, type) and issubclass(value, LowPrecisionOptimizer)
    }
    section = PAGE.split("\n## Rules\n")[1].split("<!-- bytes: begin -->")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert listed == found - {"CollageAdamW"}
    for name in listed - {"Lion", "AdEMAMix", "Adan", "ScheduleFreeAdamW", "StableAdamW"}:
        assert issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
