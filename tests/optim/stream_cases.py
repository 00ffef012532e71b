"""Parameters by name under stochastic rounding, and what steps make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.optim import SGD, AdamW, collage
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, parameter, random

NAMES = ("embed.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight", "head.weight")


SHAPES = ((9, 7), (12, 6), (30,), (12, 6), (40,))


Named = list[tuple[str, Parameter]]


Results = dict[str, Tensor]


def model(names: Iterable[str] = NAMES) -> Named:
    """Parameters by name; the value of each follows from its name."""
    return [(n, parameter(SHAPES[NAMES.index(n)], BF16, NAMES.index(n))) for n in names]


def give(params: Iterable[tuple[str, Tensor]], t: int) -> None:
    for name, p in params:
        p.grad = random(p.shape, BF16, 100 * t + NAMES.index(name), 0.1)


def trained(
    make: Callable[[Any], Any], named: Named, groups: Any = None, first: int = 0, last: int = 4
) -> Results:
    """What steps make of parameters and low words, by name."""
    optimizer = make(named if groups is None else groups)
    train(optimizer, named, first, last)
    found = values(named)
    for name, p in named:
        if "param_lo" in optimizer.state[p]:
            found[f"{name} low"] = optimizer.state[p]["param_lo"].clone()
    return found


def train(optimizer: Any, named: Named, first: int, last: int) -> None:
    for t in range(first, last):
        give(named, t)
        optimizer.step()


def values(named: Named) -> Results:
    return {name: p.detach().clone() for name, p in named}


def assert_part(found: Results, whole: Results) -> None:
    for name, x in found.items():
        assert_same_bits(x, whole[name], name)


def adamw(params: Any, **options: Any) -> AdamW:
    return AdamW(params, 1e-2, precision="stochastic", **options)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "adamw": adamw,
    "low": lambda p: AdamW(p, 1e-2, low="stochastic"),
    "capturable": lambda p: adamw(p, capturable=True),
    "metrics": lambda p: adamw(p, track_metrics=True),
    "sgd": lambda p: SGD(p, 1e-2, precision="stochastic"),
    "collage": lambda p: collage(torch.optim.AdamW, p, lr=1e-2, precision="stochastic"),
}
