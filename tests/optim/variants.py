"""Every update rule and its variants, once for all tests that hold for any of them.

A new optimizer is a new row here, and its formula in `models.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import mcf.optim
from mcf.optim import Precision
from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, FULL, Case, cases


@dataclasses.dataclass(frozen=True)
class Variant:
    """An optimizer with hyperparameters that all tests can use.

    Args:
        name: for test ids.
        make: the optimizer.
        options: its hyperparameters; eps is one that fp16 can hold.
        rule: the name of its formula in the models.
    """

    name: str
    make: type[LowPrecisionOptimizer]
    options: dict[str, Any] = dataclasses.field(hash=False)

    def __str__(self) -> str:
        return self.name

    @property
    def rule(self) -> str:
        """The name of its formula in the models."""
        return self.make.__name__.lower()

    def cases(self) -> list[Case]:
        """Every arithmetic it has on 16-bit parameters."""
        found = cases(self.make.precisions)
        if self.make is mcf.optim.SGD and self.name in ("sgd", "sgd-nesterov"):
            # Rounding errors are kept in a momentum buffer, and not in Nesterov's.
            found = [c for c in found if not c.precision.startswith("eco")]
        return found

    def full(self) -> list[Case]:
        """Its arithmetics on float32 and float64 parameters."""
        return [dataclasses.replace(c, precision=self.make.precisions[-1]) for c in FULL]

    def few(self) -> list[Case]:
        """An arithmetic of each kind, for tests that compile a kernel for each."""
        precisions = self.make.precisions
        best = "plus" if "plus" in precisions else "light"
        return [Case(best, BF16, FP32), Case(best, BF16, BF16), Case(precisions[-1], FP64, FP32)]


_MOMENTS: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
# With a small beta2 the second moment falls as often as it rises, and the maximum is not the last.
_AMSGRAD = {**_MOMENTS, "betas": (0.9, 0.6), "amsgrad": True}

ADAM_FAMILY = [
    Variant("adamw", mcf.optim.AdamW, {"lr": 3e-3, **_MOMENTS}),
    Variant("adamw-amsgrad", mcf.optim.AdamW, {"lr": 3e-3, **_AMSGRAD}),
    Variant("adam", mcf.optim.Adam, {"lr": 3e-3, **_MOMENTS}),
    Variant("adam-amsgrad", mcf.optim.Adam, {"lr": 3e-3, **_AMSGRAD}),
    Variant("adam-decoupled", mcf.optim.Adam,
            {"lr": 3e-3, **_MOMENTS, "decoupled_weight_decay": True}),
]  # fmt: skip

_NADAM = {"lr": 3e-3, **_MOMENTS, "momentum_decay": 4e-3}
# The variance is tractable from the sixth step on, so both formulas are run.
_RADAM = {"lr": 3e-3, **_MOMENTS, "eps": 1e-2}

OTHERS = [
    Variant("nadam", mcf.optim.NAdam, _NADAM),
    Variant("nadam-decoupled", mcf.optim.NAdam, {**_NADAM, "decoupled_weight_decay": True}),
    Variant("radam", mcf.optim.RAdam, _RADAM),
    Variant("radam-decoupled", mcf.optim.RAdam, {**_RADAM, "decoupled_weight_decay": True}),
    # With a small beta2, and so the norm is as often the decayed one as the gradient's.
    Variant("adamax", mcf.optim.Adamax, {"lr": 3e-3, **_MOMENTS, "betas": (0.9, 0.6)}),
    Variant("adamax-decoupled", mcf.optim.Adamax,
            {"lr": 3e-3, **_MOMENTS, "betas": (0.9, 0.6), "decoupled_weight_decay": True}),
    Variant("lion", mcf.optim.Lion, {"lr": 3e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}),
]  # fmt: skip

_SGD: dict[str, Any] = {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.1, "nesterov": False}

VARIANTS = [
    *ADAM_FAMILY,
    *OTHERS,
    Variant("sgd", mcf.optim.SGD, {**_SGD, "momentum": 0.0, "dampening": 0.0}),
    Variant("sgd-momentum", mcf.optim.SGD, {**_SGD, "dampening": 0.25}),
    Variant("sgd-nesterov", mcf.optim.SGD, {**_SGD, "dampening": 0.0, "nesterov": True}),
    Variant("sgd-decoupled", mcf.optim.SGD,
            {**_SGD, "dampening": 0.25, "decoupled_weight_decay": True}),
]  # fmt: skip

# What other files test in full.
NEW = [v for v in VARIANTS if v.name != "adamw" and v.make is not mcf.optim.SGD]

_MORE: dict[str, Any] = {"lr": 3e-3, "eps": 1e-6, "weight_decay": 0.1}
_ADEMAMIX = {**_MORE, "betas": (0.9, 0.99, 0.999), "alpha": 2.0}
_FREE = {**_MORE, "betas": (0.9, 0.99)}
RECENT = [
    Variant("ademamix", mcf.optim.AdEMAMix, {**_ADEMAMIX, "beta3_warmup": 20, "alpha_warmup": 30}),
    Variant("ademamix-at-once", mcf.optim.AdEMAMix, _ADEMAMIX),
    Variant("ademamix-from-0", mcf.optim.AdEMAMix,
            {**_ADEMAMIX, "betas": (0.0, 0.99, 0.999), "beta3_warmup": 20}),
    Variant("adan", mcf.optim.Adan, {**_MORE, "betas": (0.98, 0.92, 0.99)}),
    Variant("adan-no-prox", mcf.optim.Adan,
            {**_MORE, "betas": (0.98, 0.92, 0.99), "no_prox": True}),
    Variant("schedule-free", mcf.optim.ScheduleFreeAdamW, {**_FREE, "warmup_steps": 10}),
    Variant("schedule-free-weighted", mcf.optim.ScheduleFreeAdamW,
            {**_FREE, "r": 2, "weight_lr_power": 1}),
    Variant("stable-adamw", mcf.optim.StableAdamW, {**_MORE, "betas": (0.9, 0.99)}),
]  # fmt: skip
# One of each; the models of `VARIANTS` do not know them.
RECENT_RULES = [RECENT[0], RECENT[3], RECENT[5], RECENT[7]]


def named(name: str) -> Variant:
    """The variant of a name."""
    return next(v for v in VARIANTS if v.name == name)


# Of fp16 by default: a pair and a master in float32 registers, and a rounding of every operation.
_FP16 = (Case("plus", FP16, FP32), Case("master", FP16, FP32), Case("light", FP16, FP16))


def pairs(variants: list[Variant], *which: str) -> list[tuple[Variant, Case]]:
    """Each variant with each of its `cases`, `full` or `few`."""
    return [(v, case) for kind in which for v in variants for case in getattr(v, kind)()]


# The choice of `everyday`. Rules and arithmetics know nothing of each other, so that a row and a
# column of their table stand for the whole: AdamW with all arithmetics, others with one.
def row_or_column(variant: Variant, case: Case) -> bool:
    """Whether a variant runs an arithmetic at every change.

    AdamW leaves out those of fp16 that differ from bf16's in the format alone. Other rules take
    turns with those of bf16, and a rule's variants have that of float64.
    """
    if variant.name == "adamw":
        return case.dtype != FP16 or case in _FP16
    rules = [v.name for v in VARIANTS if "-" not in v.name]
    turn = 2 if "-" in variant.name else rules.index(variant.name) % 2
    # A rule whose slots are filled otherwise is another loop to compile.
    return case == variant.few()[turn] and variant.name != "adamax-decoupled"


def recent(chosen: int | None = None) -> list[Any]:
    """Each of `RECENT_RULES`, of which one runs at every change: other tests have others."""
    return everyday(RECENT_RULES, [] if chosen is None else [RECENT_RULES[chosen]])


def recent_pairs(chosen: int) -> list[Any]:
    """Each of `RECENT_RULES` with each of their `few`, of which one runs at every change."""
    return everyday(pairs(RECENT_RULES, "few"), pairs([RECENT_RULES[chosen]], "few")[:1])


# Compositions: one of each way to store each tensor.
COMPOSED = [
    Precision("pair", "float32", "pair"),
    Precision("split16", "single", "float32"),
    Precision("float32", "single", "pair"),
    Precision("single", "float32", "pair", "stochastic", True),
    Precision("kahan", "float32", "single", "stochastic"),
    Precision("split8", "stochastic", "stochastic", "stochastic"),
    Precision("pair", "ratio8", "pair"),
    Precision("single", "stochastic", "ue6m2", "stochastic", True),
]
# Options of AdamW under which it rounds at random.
RANDOM: list[dict[str, Any]] = [
    *({"precision": p} for p in ("stochastic", "bf16_sr", "8bit", "4bit", "split8_8bit")),
    *({"precision": p} for p in ("split8_sr", "split16_sr", "eco_stochastic")),
    *({"precision": p, "low": "stochastic"} for p in ("kahan", "light", "plus")),
]
