"""Accumulation of micro-batches in the moments: no gradient is kept between backward passes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import streams
from mcf.kernels.algorithms.primitives import rn
from mcf.optim import validation
from mcf.optim.companions import reducers
from mcf.optim.companions.reducers import Companion
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.rule.formulas import averaged
from mcf.optim.rule.rule import Rule
from mcf.optim.rules.adamw import adamw, descent
from mcf.optim.sharding.shards import like, local
from mcf.optim.step import interrupts
from mcf.optim.step.bucket import Bucket, Group, Hyperparameters, Named, Request
from mcf.optim.step.launch import Partial
from mcf.optim.step.run import Steps
from mcf.optim.storage.slots import accumulate, denominator, param_value, scaled_gradient

_ALLOWED = "allowed are Adam, AdamW and CollageAdamW of mcf.optim"

_DDP = (
    "a MomentAccumulator does not go with DistributedDataParallel: each process would take its own "
    "gradients into its moments before they are averaged; allowed are fully_shard, which reduces "
    "them before, and gradients that are kept (GradientAccumulator, GradientReduction)"
)


class MomentAccumulator(Companion):
    r"""Adds each gradient of a backward pass to Adam's moments, and frees it.

    AdamA (Zhang et al. 2023, arXiv:2305.19982): gradients g_1, ..., g_k of the backward passes
    between two steps are not added up. The moments are, one at a time:

        m <- b1 m + (1 - b1) g_1,        m <- m + (1 - b1) g_i,
        v <- b2 v + (1 - b2) g_1^2,      v <- v + (1 - b2) g_i^2,  i = 2, ..., k,

    and `step()` moves the parameters by AdamW's formula. So no gradient outlives its backward pass:
    2 bytes less for each bf16 parameter than a loop that keeps the sum, and 4 less than a
    `GradientAccumulator`. The loop is the same as in torch:

        accumulator = MomentAccumulator(optimizer)
        for micro in micro_batches:
            (loss(micro) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    Except for roundings, m is the same as for the sum of the gradients. **v is another number**:
    the sum of their squares, not the square of their sum. If gradients are mostly noise, both are k
    times the square of one gradient. If gradients are alike, v is k times smaller and updates are
    up to sqrt(k) times larger. Each gradient rounds the stored moments once more, so a precision
    that keeps v in plain bf16 (`"light"`, `"kahan"`, `"stochastic"`, ...) loses more of it at betas
    near 1; pairs (`"plus"`), float32 and stochastic rounding (`"bf16_sr"`, `"8bit"`, `"4bit"`) do
    not.

    Stochastic roundings of the i-th gradient of a step have their own stream of random numbers; for
    i = 1 it is a step's. With k = 1, float32 moments or a strict `compute_dtype` all bits are those
    of the optimizer alone.

    Args:
        optimizer: `Adam`, `AdamW` or `CollageAdamW`; its present parameters take part.

    Raises:
        TypeError: for another optimizer, and for expansion tensors.
        ValueError: with `max_grad_norm`, `nonfinite` other than `"torch"`, `track_metrics`, a
            `GradientAccumulator` or `GradientRelease`, which need the gradients of a whole step;
            for precisions that feed rounding errors back (`"eco"`), a weight decay that is part of
            the gradient (`Adam` without `decoupled_weight_decay`), and parameters that share
            memory; from a backward pass, before the moments change, if such an option is set later.
        RuntimeError: with a `DistributedDataParallel`, whichever of the two is created second; in
            the middle of a step, from `zero_grad()`, `state_dict()` and `close()`, because
            gradients cannot be removed from the moments; from a step under a GradScaler, whose
            scale comes too late.
    """

    def __init__(self, optimizer: LowPrecisionOptimizer) -> None:
        super().__init__(optimizer, _ALLOWED)
        _check(optimizer)
        reducers.check(self._params, _DDP)
        for group, where, p in optimizer._all_named():
            _check_parameter(optimizer, group, where, p)
        reducers.check_apart(optimizer)
        self._places = {
            p: (index, where)
            for index in range(len(optimizer.param_groups))
            for where, p in optimizer._named(index)
        }
        # How many gradients of this step each parameter's moments have taken.
        self._taken: dict[Tensor, int] = {}
        self._attend(self._take, f"{_DDP}; MomentAccumulator.close() ends it")
        self._handles += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_pre_hook(self._before_state_dict),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]
        optimizer._accumulator = self

    def close(self) -> None:
        """Stop taking part in backward passes and steps."""
        self._refuse("close()")
        self._detach()
        self._optimizer._accumulator = None

    def zero(self) -> None:
        """Check that nothing is pending when `optimizer.zero_grad()` is called."""
        self._refuse("zero_grad()")

    def _refuse(self, what: str) -> None:
        if self._taken:
            raise RuntimeError(
                f"{what} in the middle of a step: the moments of {len(self._taken)} parameters "
                "have taken gradients, which cannot be taken back; allowed is step() first"
            )

    # -- adding a gradient to the moments ----------------------------------------------------

    @torch.no_grad()
    def _take(self, p: Tensor) -> None:
        """Add the present gradient to the moments."""
        index, where = self._places[p]
        _check(self._optimizer, self)
        _check_parameter(self._optimizer, self._optimizer.param_groups[index], where, p)
        with interrupts.Deferred():
            self._do(self._optimizer._request((index, (where, p))), [p], self._taking)
            self._taken[p] = self._taken.get(p, 0) + 1
            p.grad = None

    def _do(self, request: Request, params: list[Tensor], part: Callable[[Bucket], Bucket]) -> None:
        """Run a part of a step on some parameters."""
        optimizer = self._optimizer
        groups: dict[int, list[Named]] = {}
        for p in params:
            index, where = self._places[p]
            groups.setdefault(index, []).append((where, p))
        for index, named in groups.items():
            optimizer._check_capture(index, named)

        def collect(skip: Container[int]) -> list[Bucket]:
            found = (optimizer._buckets(index, named, skip) for index, named in groups.items())
            return [part(bucket) for some in found for bucket in some]

        request.collect = collect
        optimizer._take(Steps(optimizer._steps.marks), request)

    def _taking(self, bucket: Bucket) -> Bucket:
        found = parts(bucket.rule)
        assert found is not None
        hyper = _Taking(bucket.hyper, self._taken.get(bucket.named[0][1], 0))
        return dataclasses.replace(bucket, rule=found[0], hyper=hyper)

    # -- the step ----------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if getattr(optimizer, "found_inf", None) is not None:
            raise RuntimeError(
                "step() under a GradScaler: the moments have taken scaled gradients; allowed is "
                "bfloat16, which needs no scaler"
            )
        for p in self._places:
            if p.grad is not None:
                self._take(p)

    @torch.no_grad()
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Move the parameters whose moments have taken gradients."""
        moved = [*self._taken]
        try:
            for p in moved:
                # A step needs parameters with gradients. This gradient has no memory and is not
                # read.
                here = local(p.detach())
                p.grad = like(p, here.new_zeros(()).expand(here.shape))
            with interrupts.Deferred():
                self._do(optimizer._request(), moved, _finishing)
                self._taken.clear()
        finally:
            for p in moved:
                p.grad = None

    # -- checkpoints -------------------------------------------------------------------------

    def _before_state_dict(self, optimizer: Any) -> None:
        self._refuse("state_dict()")

    def _after_load(self, optimizer: Any) -> None:
        # The loaded moments contain no pending gradients.
        self._taken.clear()


class _Taking:
    """The hyperparameters of one gradient, which comes after `before` others of its step."""

    def __init__(self, hyper: Hyperparameters, before: int) -> None:
        self._hyper, self._before = hyper, before

    @property
    def options(self) -> Group:
        """The group's options, with a seed for this gradient."""
        found = dict(self._hyper.options)
        if self._before:
            found["seed"] = streams.mix(streams.mix(found["seed"]) ^ self._before)
        return found

    def given(self, read: Callable[[Any], Any]) -> Group:
        """Return the group's scalars, and the decay factors of the moments."""
        found = self._hyper.given(read)
        betas = ("beta1", "beta2", "beta2_lo")
        kept = (1.0, 1.0, 0.0) if self._before else (found[name] for name in betas)
        return {**found, **dict(zip(("kept1", "kept2", "kept2_lo"), kept, strict=True))}

    def of_shape(self, shape: tuple[int, ...]) -> dict[str, float]:
        return self._hyper.of_shape(shape)

    def ask_the_same(self) -> bool:
        """Return False: a part of a step is not repeated."""
        return False


def _finishing(bucket: Bucket) -> Bucket:
    found = parts(bucket.rule)
    assert found is not None
    return dataclasses.replace(bucket, rule=found[1])


def _check(optimizer: LowPrecisionOptimizer, mine: MomentAccumulator | None = None) -> None:
    """Raise for options that need the gradients of a whole step."""
    for what, there in (
        ("max_grad_norm", optimizer.max_grad_norm is not None),
        (f"nonfinite={optimizer.nonfinite!r}", optimizer.nonfinite != "torch"),
        ("track_metrics", optimizer._track_metrics),
        ("another accumulator", optimizer._accumulator not in (None, mine)),
        ("gradient release", optimizer._released),
    ):
        if there:
            raise ValueError(f"a MomentAccumulator does not go with {what}")


def _check_parameter(optimizer: LowPrecisionOptimizer, group: Group, where: str, p: Tensor) -> None:
    """Raise for a parameter whose moments cannot take gradients separately."""
    rule = optimizer._rule(group)
    if parts(rule) is None:
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; {_ALLOWED}")
    if is_expansion(p):
        raise TypeError(f"{where} is an expansion; allowed are plain tensors")
    if group["weight_decay"] != 0 and not rule.decoupled:
        raise ValueError(
            f"weight_decay={group['weight_decay']} of {where} is part of the gradient, and would "
            "be taken once for each micro-batch; allowed are 0, AdamW, and "
            "decoupled_weight_decay=True"
        )
    if not validation.later(p) and optimizer._arithmetic(group, p, where).strategy.feedback:
        raise ValueError(
            f"a MomentAccumulator does not go with precision={group['precision']!r} of {where}, "
            "whose moments take rounding errors too"
        )


def fold(grads, exp_avg, second, rates):
    """m <- kept1 m + (1 - beta1) g;  v <- kept2 v + (1 - beta2) g^2.

    The kept factor is beta for the first gradient of a step, and 1 for the others.
    """
    return averaged(scaled_gradient(grads), exp_avg, second, rates)


def finish(weight, exp_avg, second, maximum, lr, corrections, eps, weight_decay):
    """w <- max(w, v) (AMSGrad), or v;  p <- p - lr (m^ / (sqrt(w^) + eps) + weight_decay p)."""
    decay = rn(weight_decay * param_value(weight[0], weight[1]))
    high, low = denominator(second[0], second[1], maximum[0], maximum[1])
    divisor, update = descent(decay, exp_avg, high, low, lr, corrections, eps)
    param, param_lo = accumulate(weight[0], weight[1], update)
    return param, param_lo, high, low, divisor, update


# The rates of `fold`: what is kept of the moments, and what is added.
_RATES = ("kept1", "one_minus_beta1", "kept2", "kept2_lo", "one_minus_beta2")


@functools.cache
def parts(rule: Rule) -> tuple[Rule, Rule] | None:
    """Return the rules that add a gradient and that finish the step; None if there are none.

    Both keep the states of the rule, and compute its coefficients.
    """
    if rule.function is not adamw:
        return None
    common = dataclasses.replace(rule, launcher=Partial)
    moments = ("exp_avg", "exp_avg_sq", "exp_avg_sq_lo", "increment")
    taking = dataclasses.replace(
        common,
        name=f"{rule.name}_fold",
        function=fold,
        results=moments,
        groups=(("rates", _RATES),),
        counted=False,
    )
    moved = ("param", "param_lo", "max_exp_avg_sq", "max_exp_avg_sq_lo", "divisor", "update")
    return taking, dataclasses.replace(
        common, name=f"{rule.name}_finish", function=finish, results=moved
    )
