"""One step of each rule from one state is torch's up to rounding, on float32 and float64.

Why not bit for bit: torch multiplies the parameter by 1 - lr wd first where ours keeps the decay in
the update; it interpolates m (`lerp`), divides by bias corrections where ours multiplies by their
inverses, and adds products with a scalar as an FMA or not, by the processor; NAdam adds the shares
of gradient and moment to the parameter one after the other. So the results differ by rounding.

With u the unit roundoff, counting one u for each rounding of an operation or a scalar on either
side and two for torch's root, to first order, and with the sizes

    G = |g| + wd |p| (L2), or |g|,   S = b1 |m| + (1 - b1) (G + |m|),   V = b2 v + (1 - b2) G^2,

    g: 6 u G (L2), or 0;   m: 13 u S;   v: 20 u V;   max v: as v;   n of Adamax: 4 u n' + 6 u G
    p: u (3 |p| + 3 |p'| + 5 lr wd |p|) + u lr (40 A + 10 |a| r) / d,

where the update is lr a / d, A is the size of a, d the denominator, and r how much the relative
error of what d is made of exceeds u: V / v' for second moments (10 is half of 20, for the root) and
(n' + 6 G) / n' for Adamax. Lion's sign is the same wherever the number it is taken of exceeds 10 u
times its size, and then A = 1 and d = 1.

The check rejects a mutant of each rule.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.rule import formulas
from mcf.optim.rules.lion import lion
from mcf.optim.step import table
from tests.optim.helpers import FP32, FP64, random
from tests.optim.reference_lion import ReferenceLion
from tests.optim.strict_model import nadam_weights, radam_rate
from tests.optim.variants import NEW, Variant, named

N = 4000
STEPS = 12
OPTIONS = {"eps": 1e-8}
# torch has no decoupled decay of it.
IN_TORCH = [v for v in NEW if v.name != "adamax-decoupled"]


def sizes(
    variant: Variant, before: dict[str, Tensor], after: dict[str, Tensor], g: Tensor, t: int
) -> dict[str, Tensor]:
    """The bound of each state over u, and NaN where there is none; float64."""
    o = variant.options
    beta1, beta2 = o["betas"]
    lr, wd, eps = o["lr"], o["weight_decay"], o.get("eps", 0.0)
    p, m = before["param"], before["exp_avg"]
    decoupled = variant.rule in ("adamw", "lion") or o.get("decoupled_weight_decay", False)
    size = g.abs() + (0 if decoupled else wd * p.abs())
    rate = beta2 if variant.rule == "lion" else beta1
    moment = rate * m.abs() + (1 - rate) * (size + m.abs())
    found = {"exp_avg": 13 * moment}
    first, a = moment / (1 - beta1**t), after["exp_avg"].abs() / (1 - beta1**t)
    if variant.rule == "lion":
        ahead = beta1 * m + (1 - beta1) * g
        clear = ahead.abs() > 10 * torch.finfo(FP32).eps * (beta1 * m.abs() + g.abs())
        # No number of elements worth the name is left out.
        assert clear.double().mean() > 0.999
        update = torch.where(clear, 40 * lr, torch.nan)
    elif variant.rule == "adamax":
        n = after["exp_inf"]
        found["exp_inf"] = 4 * n + 6 * size
        update = lr * (40 * first + 10 * a * (n + 6 * size) / n) / n
    else:
        v = beta2 * before["exp_avg_sq"] + (1 - beta2) * size**2
        found["exp_avg_sq"] = 20 * v
        used = after["exp_avg_sq"]
        if "max_exp_avg_sq" in after:
            found["max_exp_avg_sq"] = 20 * v
            used = after["max_exp_avg_sq"]
        denominator = (used / (1 - beta2**t)).sqrt() + eps
        if variant.rule == "nadam":
            of_g, of_m = nadam_weights(beta1, o["momentum_decay"], t)
            first = of_g * size + of_m * moment
            a = first
        elif variant.rule == "radam":
            r = radam_rate(beta2, t)
            denominator = (used.sqrt() + eps) / r if r else torch.ones_like(used)
        update = lr * (40 * first + 10 * a * v / used) / denominator
    found["param"] = 3 * p.abs() + 3 * after["param"].abs() + 5 * lr * wd * p.abs() + update
    return found


def excess(variant: Variant, theirs: Any, dtype: torch.dtype, make: Any = None) -> float:
    """The largest difference after one step over its bound, of every state, over many steps."""
    variant = dataclasses.replace(variant, options=with_small_eps(variant))
    u = torch.finfo(dtype).eps / 2
    p = Parameter(random(N, dtype, 1) * 10 ** (-3 * random(N, dtype, 2).abs()))
    p.data[::10] = 0
    ours = (make or variant.make)([p], **variant.options)
    worst = 0.0
    for t in range(1, STEPS + 1):
        g = random(N, dtype, 10 + t) * 10 ** (-3 * random(N, dtype, 3).abs())
        # The same state to start from, so that a step's own difference is seen.
        q = Parameter(p.detach().clone())
        torchs = theirs([q], **variant.options)
        names = [n for n, x in ours.state.get(p, {}).items() if x.shape == p.shape]
        state = copy.deepcopy({**ours.state[p], "step": torch.tensor(t - 1.0)}) if t > 1 else {}
        torchs.state[q].update(state)
        zero = torch.zeros(N, dtype=FP64)
        before = {
            n: x.double().clone()
            for n, x in {"param": p.detach(), **state}.items()
            if n in ("param", *names)
        }
        p.grad, q.grad = g, g.clone()
        ours.step()
        torchs.step()
        after = {"param": p.detach(), **ours.state[p]}
        expected = {"param": q.detach(), **torchs.state[q]}
        full = {n: x.double() for n, x in after.items() if x.shape == p.shape}
        starts = {n: before.get(n, zero) for n in full}
        bounds = sizes(variant, starts, full, g.double(), t)
        assert bounds.keys() == full.keys()
        for name, bound in bounds.items():
            difference = (full[name] - expected[name].double()).abs()
            assert (difference[bound == 0] == 0).all()
            live = bound > 0
            worst = max(worst, float((difference[live] / (u * bound[live])).max()))
    return worst


def with_small_eps(variant: Variant) -> dict[str, Any]:
    return {**variant.options, **(OPTIONS if "eps" in variant.options else {})}


def theirs(variant: Variant) -> Any:
    """torch's optimizer of the name, or the reference implementation."""
    if variant.rule == "lion":
        return ReferenceLion
    make = getattr(torch.optim, variant.make.__name__)
    return lambda params, **options: make(params, foreach=False, **options)


@pytest.fixture(autouse=True)
def reference_executor():
    before = torch.get_default_dtype()
    # In it torch keeps the product of NAdam's momenta, which is float64 here.
    torch.set_default_dtype(FP64)
    with mcf.executor("torch"):
        yield
    torch.set_default_dtype(before)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("dtype", [FP32, FP64])
@pytest.mark.parametrize("variant", IN_TORCH, ids=str)
def test_distance(variant: Variant, dtype: torch.dtype) -> None:
    found = excess(variant, theirs(variant), dtype)
    print(f"{variant} {dtype}: {found:.3g}")
    # A bound that nothing comes near would not be one.
    assert 0.05 < found <= 1


# -- mutants -------------------------------------------------------------------------------------


def wrong_rule(name: str, **changes: Any) -> Any:
    """The variant's optimizer with parts of its rule replaced."""
    variant = named(name)

    class Wrong(variant.make):  # type: ignore[name-defined, misc]
        def _rule(self, group: dict[str, Any]) -> Any:
            return dataclasses.replace(super()._rule(group), name=f"wrong_{name}", **changes)

    return Wrong


def wrong_scalars(name: str, change: Any) -> Any:
    """The variant's optimizer with other scalars."""
    variant = named(name)

    class Wrong(variant.make):  # type: ignore[name-defined, misc]
        def _take(self, steps: Any, request: Any) -> None:
            right = table.on_host

            def wrong(some: Any, known: Any, count: int) -> dict[str, float]:
                found = right(some, known, count)
                return {**found, **change({**known, **found}, count)}

            with mock.patch.object(table, "on_host", wrong):
                super()._take(steps, request)

    return Wrong


def slots(name: str, **changes: Any) -> tuple[Any, ...]:
    """The slots of a variant's rule, some of them filled otherwise."""
    variant = named(name)
    optimizer: LowPrecisionOptimizer = variant.make([Parameter(torch.zeros(1))], **variant.options)
    rule = optimizer._rule(optimizer.param_groups[0])
    return tuple((slot, changes.get(slot, filled)) for slot, filled in rule.slots)


def lion_of_the_new_moment(
    param, param_lo, grad, grad_lo, exp_avg, grad_scale, grad_limit, lr, beta1, one_minus_beta1,
    beta2, one_minus_beta2, weight_decay,
):  # fmt: skip
    """The moment is updated first, as in Adam."""
    _, _, moment, _ = lion(
        param, param_lo, grad, grad_lo, exp_avg, grad_scale, grad_limit, lr, beta1, one_minus_beta1,
        beta2, one_minus_beta2, weight_decay,
    )  # fmt: skip
    param, param_lo, _, update = lion(
        param, param_lo, grad, grad_lo, moment, grad_scale, grad_limit, lr, beta1, one_minus_beta1,
        beta2, one_minus_beta2, weight_decay,
    )  # fmt: skip
    return param, param_lo, moment, update


MUTANTS: dict[str, tuple[str, Any]] = {
    "Adam whose decay is decoupled": (
        "adam", lambda name: wrong_rule(name, slots=(*formulas.DECOUPLED, *slots(name)[2:])),
    ),
    "AMSGrad that keeps the last": (
        "adamw-amsgrad",
        lambda name: wrong_rule(name, slots=slots(name, denominator=formulas.no_maximum)),
    ),
    "NAdam without the gradient's share": (
        "nadam", lambda name: wrong_scalars(name, lambda s, t: {"gradient_weight": 0.0}),
    ),
    "NAdam with the next step of Adam's bias correction": (
        "nadam-decoupled",
        lambda name: wrong_scalars(
            name, lambda s, t: {"moment_weight": s["beta1"] / (1 - s["beta1"] ** (t + 1))}
        ),
    ),
    "RAdam that is always rectified": (
        "radam",
        lambda name: wrong_scalars(name, lambda s, t: {"rectification": s["rectification"] or 1.0}),
    ),
    "RAdam that never is": (
        "radam-decoupled", lambda name: wrong_scalars(name, lambda s, t: {"rectification": 0.0}),
    ),
    "Adamax whose norm never falls": (
        "adamax", lambda name: wrong_scalars(name, lambda s, t: {"beta2": 1.0}),
    ),
    "Lion of the new moment": (
        "lion", lambda name: wrong_rule(name, function=lion_of_the_new_moment),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("what", MUTANTS)
def test_mutant_is_rejected(what: str) -> None:
    name, make = MUTANTS[what]
    assert excess(named(name), theirs(named(name)), FP64, make(name)) > 100


def test_every_rule_has_a_mutant() -> None:
    assert {named(name).rule for name, _ in MUTANTS.values()} == {v.rule for v in IN_TORCH}
