"""Optimizers whose moments are codes of 8 or 4 bits, and the numbers that their states store."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.optim import (
    SGD,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    Lion,
    Muon,
    ScheduleFreeAdamW,
    StableAdamW,
)
from mcf.optim.storage import codes

SHAPE = (3, 40)
EPS = 1e-8

# Each rule that has moments in codes; betas are those of `averages`.
RULES: dict[str, Any] = {
    "adamw": lambda p, **o: AdamW(p, 1e-2, (0.9, 0.99), EPS, 0.1, **o),
    "stable": lambda p, **o: StableAdamW(p, 1e-2, (0.9, 0.99), 1e-6, 0.1, **o),
    "ademamix": lambda p, **o: AdEMAMix(p, 1e-2, (0.9, 0.99, 0.999), 2.0, weight_decay=0.1, **o),
    "adan": lambda p, **o: Adan(p, 1e-2, (0.98, 0.92, 0.99), weight_decay=0.1, **o),
    "schedule-free": lambda p, **o: ScheduleFreeAdamW(p, 1e-2, (0.9, 0.99), **o),
    "adamax": lambda p, **o: Adamax(p, 1e-2, (0.9, 0.99), EPS, **o),
    "sgd": lambda p, **o: SGD(p, 1e-2, 0.9, **o),
    "nesterov": lambda p, **o: SGD(p, 1e-2, 0.9, nesterov=True, **o),
    "lion": lambda p, **o: Lion(p, 1e-3, (0.9, 0.99), **o),
    "muon": lambda p, **o: Muon(p, 1e-2, **o),
}
# Rules whose momentum has no second moment to be relative to.
ALONE = ("sgd", "nesterov", "lion", "muon")
# Each rule with each precision that it has.
PAIRS = [
    (rule, precision)
    for rule in RULES
    for precision in (("8bit",) if rule in ALONE else ("8bit", "4bit", "split8_8bit"))
    if (rule, precision) != ("schedule-free", "4bit")
]


def number(name: str, state: dict[str, Tensor]) -> Tensor:
    """Return the numbers that a state stores, in float64."""
    return (codes.read(name, state) if codes.holds(name, state) else state[name]).double()


def numbers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the numbers of all states of an element."""
    return {n: number(n, state) for n, x in state.items() if n != "param_bits" and x.dim()}


def moments(optimizer: Any) -> tuple[Tensor, Tensor]:
    """Return the two moments of the only parameter."""
    (p,) = optimizer.param_groups[0]["params"]
    return number("exp_avg", optimizer.state[p]), number("exp_avg_sq", optimizer.state[p])


def averages(rule: str, was: dict[str, Tensor], g: Tensor, t: int) -> dict[str, Tensor]:
    """Return the states after the gradient of step t, from 0, without those that need the rate."""
    if rule in ALONE:
        name = "exp_avg" if rule == "lion" else "momentum_buffer"
        decay, share = {"lion": (0.99, 0.01), "muon": (0.95, 0.05)}.get(rule, (0.9, 1.0))
        return {name: decay * was[name] + share * g}
    if rule == "adamax":
        norm = torch.maximum(0.99 * was["exp_inf"], g.abs() + EPS)
        return {"exp_avg": 0.9 * was["exp_avg"] + 0.1 * g, "exp_inf": norm}
    ahead, found = g, {}
    if rule == "adan":
        d = g - was["previous_grad"] if t else g - g
        ahead = g + 0.92 * d
        found = {"exp_avg_diff": 0.92 * was["exp_avg_diff"] + 0.08 * d, "previous_grad": g}
    if rule == "ademamix":
        found = {"exp_avg_slow": 0.999 * was["exp_avg_slow"] + 0.001 * g}
    if rule != "schedule-free":
        b1 = 0.98 if rule == "adan" else 0.9
        found["exp_avg"] = b1 * was["exp_avg"] + (1 - b1) * g
    return {**found, "exp_avg_sq": 0.99 * was["exp_avg_sq"] + 0.01 * ahead * ahead}


def distance(m: Tensor, u: Tensor) -> Tensor:
    """Return the distance of the neighbours of m / u among the numbers of 4 bits, times u."""
    levels = torch.tensor([0, 1, 2, 4, 6, 8, 16, 48], dtype=torch.float64) / 16
    at = torch.bucketize((m / u).abs(), levels[1:-1], right=True)
    return torch.maximum(levels.diff()[at] * u, m.abs() - 3 * u)


def unit(v: Tensor) -> Tensor:
    """Return the power of two in (sqrt(v), 2 sqrt(v)]."""
    return torch.ldexp(torch.ones_like(v), v.sqrt().frexp().exponent)
