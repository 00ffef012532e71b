"""The update of AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), Adam and AMSGrad.

Adam (Kingma and Ba 2015, arXiv:1412.6980) has its weight decay in the gradient; AMSGrad (Reddi,
Kale and Kumar 2018, arXiv:1904.09237) divides by the largest second moment so far.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ONE, div, neg, rn, sqrt
from mcf.kernels.choices import check_choice
from mcf.optim.moment_optimizer import MomentOptimizer, two_moments
from mcf.optim.options import Options, OtherOptions, hyperparameters
from mcf.optim.rule import formulas
from mcf.optim.rule.formulas import adam_feed_back, averaged, decay_and_gradient, feedback_factor
from mcf.optim.rule.rule import SECOND, Coefficients, Rule, by_flags
from mcf.optim.storage.slots import accumulate, decayed, denominator, second_moment_value, unbias
from mcf.optim.storage.strategies import STRATEGIES


def adamw(weight, grads, exp_avg, second, maximum, lr, rates, corrections, eps, weight_decay):
    """Compute one step: the new state, the parameter's update and the increment of exp_avg_sq.

    g <- g + weight_decay p (Adam);  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    w <- max(w, v) (AMSGrad), or v;  p <- p - lr (m^ / (sqrt(w^) + eps) + weight_decay p (AdamW)),
    with m^, w^ bias-corrected.

    Weight decay is inside the update, so that a compensated parameter does not lose it.
    """
    decay, gradient = decay_and_gradient(weight, grads, weight_decay)
    exp_avg, exp_avg_sq, exp_avg_sq_lo, increment = averaged(gradient, exp_avg, second, rates)
    high, low = denominator(exp_avg_sq, exp_avg_sq_lo, maximum[0], maximum[1])
    divisor, update = descent(decay, exp_avg, high, low, lr, corrections, eps)
    param, param_lo = accumulate(weight[0], weight[1], update)
    return (
        param,
        param_lo,
        exp_avg,
        exp_avg_sq,
        exp_avg_sq_lo,
        high,
        low,
        divisor,
        update,
        increment,
    )


def descent(decay, exp_avg, high, low, lr, corrections, eps):
    """sqrt(w^) + eps;  -lr (m^ / (sqrt(w^) + eps) + decay)."""
    root = rn(sqrt(unbias(second_moment_value(high, low), corrections[1])))
    divisor = rn(root + eps)
    quotient = rn(div(unbias(exp_avg, corrections[0]), divisor))
    return divisor, neg(rn(lr * decayed(quotient, decay)))


def adam_feedback(beta1, power_beta1, lr):
    """(1 - 1/b1) (1 - b1^t) / lr, the factor of `formulas.adam_feed_back`."""
    return (rn(rn(ONE - power_beta1) * feedback_factor(beta1, lr)),)


def adam_rule(name: str, *, decoupled: bool, amsgrad: bool) -> Rule:
    """Return the rule of Adam or AdamW, optionally with AMSGrad's denominator."""
    maxima = ("max_exp_avg_sq", "max_exp_avg_sq_lo")
    return two_moments(
        name,
        adamw,
        decoupled=decoupled,
        results=(*maxima, "divisor"),
        states=((maxima[0], SECOND),) if amsgrad else (),
        # torch keeps the maximum of a group whose amsgrad is turned off.
        absent=() if amsgrad else maxima,
        feed_back=adam_feed_back,
        feedback=Coefficients(adam_feedback, ("feedback",)),
        slots=(("denominator", formulas.largest if amsgrad else formulas.no_maximum),),
    )


# The rules, by whether weight decay is decoupled and whether AMSGrad's maximum is kept.
_RULES = {
    (False, False): adam_rule("adam", decoupled=False, amsgrad=False),
    (False, True): adam_rule("adam_amsgrad", decoupled=False, amsgrad=True),
    (True, False): adam_rule("adamw", decoupled=True, amsgrad=False),
    (True, True): adam_rule("adamw_amsgrad", decoupled=True, amsgrad=True),
}


class AdamW(MomentOptimizer):
    r"""AdamW (arXiv:1711.05101) with a storage precision for each tensor.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
    p <- p - lr (m^ / (sqrt(v^) + eps) + weight_decay p), m^ = m / (1 - b1^t), v^ = v / (1 - b2^t).

    Weight decay is part of the update, so a compensated parameter does not lose it. Scalars are
    computed in float64. One fused kernel steps each tensor and reads and writes each state once.

    Precisions, for 16-bit parameters, with their bytes per parameter, 16-bit gradient included:

    - `"plain"` (8): parameter and moments in the parameter's dtype.
    - `"kahan"` (10): the parameter with a Kahan compensation (Zamirai et al., arXiv:2010.06192).
    - `"light"` (10): the parameter as an expansion of two components (Collage-light).
    - `"plus"` (12): also the second moment as an expansion (Collage-plus, arXiv:2405.03637).
    - `"split16"` (10): 16 bits next to the bf16 parameter, which together are a float32: bit for
      bit a float32 master weight with moments in bf16. bf16 parameters only.
    - `"split16_sr"` (10): the weights of `"split16"` with both moments in bf16, rounded
      stochastically, so that their means are exact. bf16 only.
    - `"split16_8bit"` (8): the weights of `"split16"` with the moments of `"8bit"`. bf16 only.
    - `"split8"` (9): 8 bits next to the bf16 parameter, 16 bits of precision. bf16 only.
    - `"split8_sr"` (9): `"split8"` with the byte and both moments rounded stochastically. bf16
      only.
    - `"stochastic"` (8): the parameter rounded stochastically, so that updates of any size are kept
      in the mean (Zamirai et al.). bf16 only; see `seed` in `mcf.optim.options.Options`.
    - `"bf16_sr"` (8): parameter and both moments rounded stochastically, moments in bf16, so that a
      second moment keeps increments of any size, too. bf16 only.
    - `"8bit"` (6): the parameter rounded stochastically, the moments codes of 8 bits for each
      element (`mcf.optim.storage.codes`), rounded stochastically too; those of vectors (biases,
      norm layers) are in bf16, as under `"bf16_sr"`. Second moments are clamped to 10 above, and to
      2**-60 below (gradients under 1e-9). bf16 only.
    - `"4bit"` (5.5): `"8bit"` with first moments in codes of 4 bits, two neighbours of a row per
      byte; matrices whose last dimension is odd use the codes of `"8bit"`. bf16 only.
    - `"split8_8bit"` (7): the moments of `"8bit"` with the weights of `"split8_sr"`. bf16 only.
    - `"eco"` (8): the parameter's rounding error goes into the first moment, so that later updates
      compensate for it (ECO, arXiv:2601.22101); betas[0] must not be 0.
    - `"eco_stochastic"` (8): `"eco"` with stochastic rounding. bf16 only.
    - `"fp32_states"` (12): moments in float32.
    - `"master"` (16): moments and a master copy of the parameter in float32.

    State next to a parameter (the copy, low words, bits) follows the values that other code writes
    to it between steps, with one `WeightsRewrittenWarning`. Writes in place through `p.data` cannot
    be detected; see `reload_model_params`.

    float32 and float64 parameters (such as norm layers) use plain AdamW in their own dtype under
    every precision. The second moment of float16 parameters is stored in bfloat16 when
    compute_dtype is float32, because float16 cannot hold the squares of ordinary gradients.

    Args:
        precision: one of the above, or a `Precision` composed of storage formats; may differ
            between groups.
        compute_dtype: `torch.float32` computes in float32 registers and rounds only stored values;
            the parameter's 16-bit dtype rounds every operation, as in the Collage paper.

    Guarantees: the same bits on every executor (`mcf.set_executor`), whatever the layout, the
    number of threads or the other tensors of the step. NaN and infinity in a gradient reach that
    element's parameter and state, as in torch, and no other element.

    Raises:
        ValueError, TypeError: for hyperparameters out of range, unknown precisions, and parameters
            or gradients that are not dense floating-point tensors; before anything is changed.
    """

    precisions = tuple(STRATEGIES)
    variants = ("amsgrad",)
    later = ("amsgrad",)
    rules = by_flags(lambda amsgrad: _RULES[True, amsgrad])

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)


class Adam(MomentOptimizer):
    r"""Adam (arXiv:1412.6980) with an L2 penalty and a storage precision for each tensor.

    g <- g + weight_decay p; m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
    p <- p - lr m^ / (sqrt(v^) + eps), m^ = m / (1 - b1^t), v^ = v / (1 - b2^t).

    The penalty goes through both moments; `mcf.optim.AdamW` decays the parameter itself.

    Args:
        weight_decay: L2 penalty.
        decoupled_weight_decay: decay the parameter itself; then this is AdamW, bit for bit.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    precisions = tuple(STRATEGIES)
    variants = ("decoupled_weight_decay", "amsgrad")
    rules = _RULES

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)


class CollageAdamW(AdamW):
    """AdamW of the Collage paper (arXiv:2405.03637): `AdamW` with `precision=mode`.

    Args:
        mode: `"light"` (option B of the paper, the parameter as an expansion), `"plus"` (option C,
            the second moment and beta2 too) or `"kahan"` (a special case of light).
        compute_dtype: the parameter's dtype gives the paper's arithmetic.
    """

    precisions = ("light", "plus", "kahan")
    custom = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does; the group may have its own `mode`."""
        if isinstance(param_group, dict) and "mode" in param_group:
            mode = param_group["mode"]
            check_choice("mode", mode, self.precisions)
            rest = {name: option for name, option in param_group.items() if name != "mode"}
            param_group = {**rest, "precision": mode}
        super().add_param_group(param_group)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        mode: Literal["light", "plus", "kahan"] = "plus",
        **options: Unpack[OtherOptions],
    ) -> None:
        if "precision" in options:
            raise TypeError(
                f"{type(self).__name__} has no precision: the argument is mode='light', 'plus' or "
                "'kahan'; AdamW takes any precision"
            )
        check_choice("mode", mode, self.precisions)
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, precision=mode, **options)
