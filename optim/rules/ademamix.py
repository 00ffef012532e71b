"""The update of AdEMAMix (Pagliardini, Ablin and Grangier 2024, arXiv:2409.03137)."""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, neg, rn, sqrt, where
from mcf.optim.moment_optimizer import MomentOptimizer, two_moments
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.formulas import averaged, decay_and_gradient
from mcf.optim.rule.rule import SLOW, Coefficients
from mcf.optim.storage.slots import accumulate, decay_and_add, decayed, second_moment_value, unbias
from mcf.optim.storage.strategies import WITHOUT_FEEDBACK, Arithmetic


def ademamix(
    weight, grads, exp_avg, second, slow, lr, rates, slow_rates, corrections, eps, weight_decay
):
    """Compute one step: the new state, the parameter's update and the increment of exp_avg_sq.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  n <- beta3 n + (1 - beta3) g;
    p <- p - lr ((m^ + alpha n) / (sqrt(v^) + eps) + weight_decay p), with m^, v^ bias-corrected.

    The slow average n adds a ten-thousandth of a gradient, and therefore uses the second-moment
    storage, which keeps such small increments.
    """
    decay, gradient = decay_and_gradient(weight, grads, weight_decay)
    exp_avg, exp_avg_sq, exp_avg_sq_lo, increment = averaged(gradient, exp_avg, second, rates)
    beta3, beta3_lo, one_minus_beta3, alpha = slow_rates
    share = rn(one_minus_beta3 * gradient)
    high, low = decay_and_add(slow[0], slow[1], beta3, beta3_lo, share)
    root = rn(sqrt(unbias(second_moment_value(exp_avg_sq, exp_avg_sq_lo), corrections[1])))
    mixed = rn(alpha * second_moment_value(high, low))
    mixed = rn(unbias(exp_avg, corrections[0]) + mixed)
    update = neg(rn(lr * decayed(rn(div(mixed, rn(root + eps))), decay)))
    param, param_lo = accumulate(weight[0], weight[1], update)
    return param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, high, low, update, increment


def of_slow_rates(
    step,
    whole_beta3,
    first_inverse_log,
    last_inverse_log,
    beta3_warmup,
    final_alpha,
    alpha_warmup,
    splitter,
):
    """beta3 in two components, 1 - beta3, and alpha, with their warm-ups.

    alpha_t = min(t / T_alpha, 1) alpha; 1 / ln beta3_t goes linearly from 1 / ln beta1 to 1 / ln
    beta3 in T_beta3 steps (arXiv:2409.03137, appendix A.1), so that the half-life is linear.
    """
    way = rn(rn(div(step, beta3_warmup)) * rn(last_inverse_log - first_inverse_log))
    inverse = rn(first_inverse_log + way)
    warm = where(inverse < ZERO, one_minus_exp(rn(div(ONE, inverse))), ONE)
    one_minus = where(step < beta3_warmup, warm, rn(ONE - whole_beta3))
    beta3 = where(step < beta3_warmup, rn(ONE - one_minus), whole_beta3)
    high = leading_bits(beta3, splitter)
    low = leading_bits(rn(beta3 - high), splitter)
    part = rn(rn(div(step, alpha_warmup)) * final_alpha)
    return high, low, one_minus, where(step < alpha_warmup, part, final_alpha)


def leading_bits(x, splitter):
    """The p - s leading bits of x for Veltkamp's splitter 2^s + 1; x for a splitter of 1."""
    c = rn(splitter * x)
    return rn(c - rn(c - x))


def one_minus_exp(x):
    """1 - e^x for x < 0, to a few units in the last place for x above -18.

    With y = x / 2^8 it evaluates Taylor's sum of ten terms over 10!, whose coefficients are
    integers, and doubles by e^(2y) - 1 = E (2 + E), E = e^y - 1, which has no cancellation.
    """
    y = rn(x * 0.00390625)
    total = rn(rn(rn(y + 10.0) * y) + 90.0)
    total = rn(rn(rn(rn(total * y) + 720.0) * y) + 5040.0)
    total = rn(rn(rn(rn(total * y) + 30240.0) * y) + 151200.0)
    total = rn(rn(rn(rn(total * y) + 604800.0) * y) + 1814400.0)
    total = rn(rn(total * y) + 3628800.0)
    e = rn(div(rn(total * y), rn(ONE * 3628800.0)))
    e = rn(e * rn(e + 2.0))
    e = rn(e * rn(e + 2.0))
    e = rn(e * rn(e + 2.0))
    e = rn(e * rn(e + 2.0))
    e = rn(e * rn(e + 2.0))
    e = rn(e * rn(e + 2.0))
    e = rn(e * rn(e + 2.0))
    return neg(rn(e * rn(e + 2.0)))


@functools.cache
def inverse_log(beta: float) -> float:
    """Return 1 / ln beta rounded to nearest, 0 for 0, with the same bits on every system."""
    if not beta:
        return 0.0
    context = decimal.Context(prec=50)
    return float(context.divide(decimal.Decimal(1), context.ln(decimal.Decimal(beta))))


_SLOW = ("exp_avg_slow", "exp_avg_slow_lo")
_SLOW_RATES = ("beta3", "beta3_lo", "one_minus_beta3", "alpha")
_RULES = {(): two_moments(
    "ademamix",
    ademamix,
    decoupled=True,
    results=_SLOW,
    states=((_SLOW[0], SLOW),),
    coefficients=(Coefficients(of_slow_rates, _SLOW_RATES),),
    groups=(("slow", _SLOW), ("slow_rates", _SLOW_RATES)),
)}  # fmt: skip


class AdEMAMix(MomentOptimizer):
    r"""AdEMAMix (arXiv:2409.03137) with a storage precision for each tensor.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; n <- b3 n + (1 - b3) g;
    p <- p - lr ((m^ + alpha n) / (sqrt(v^) + eps) + weight_decay p),
    m^ = m / (1 - b1^t), v^ = v / (1 - b2^t).

    The slow average n, `exp_avg_slow`, adds 1 - b3, a ten-thousandth, of each gradient. One bf16
    number loses an addend below half a unit, 2^-9 of n. So n is stored as v is: under `"plus"` as
    an expansion, under `"bf16_sr"` rounded stochastically.

    Names and defaults are those of the authors' implementation (apple/ml-ademamix), except that the
    fast average is `exp_avg`, as in Adam. Warm-ups are those of the paper; the implementation adds
    1e-8 to betas inside logarithms.

    Args:
        betas: decay rates of m, v and n, floats in [0, 1).
        alpha: how much of n is added to m^.
        beta3_warmup: the number of steps in which the rate of n goes from betas[0] to betas[2], its
            half-life linearly; None for no warm-up.
        alpha_warmup: the number of steps in which alpha rises linearly from 0; None for no warm-up.
        precision: any of `mcf.optim.AdamW` except ECO's. With moments of 4 and 8 bits n is in bf16,
            rounded stochastically: v decays faster, so no multiple of its root bounds n.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    precisions = WITHOUT_FEEDBACK
    beta_count = 3
    rules = _RULES

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 2.0,
        beta3_warmup: int | None = None,
        alpha_warmup: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        beta1, _, beta3 = group["betas"]
        return {
            **super()._given(group, arith, read),
            "whole_beta3": float(beta3),
            "first_inverse_log": inverse_log(float(beta1)),
            "last_inverse_log": inverse_log(float(beta3)),
            # Steps are counted from 1, so 1 means no warm-up.
            "beta3_warmup": float(group["beta3_warmup"] or 1),
            "final_alpha": float(group["alpha"]),
            "alpha_warmup": float(group["alpha_warmup"] or 1),
        }
