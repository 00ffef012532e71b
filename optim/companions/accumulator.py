"""Sums of gradients over micro-batches in two components, so that small gradients are not lost."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP32, FP64, Format, format_of
from mcf.optim import validation
from mcf.optim.companions import reducers
from mcf.optim.companions.reducers import Companion
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.rule.formulas import fold, fold_wide
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step.opaque_operator import registered, update_


class GradientAccumulator(Companion):
    """Adds each parameter's gradients over several backward passes as an expansion hi + lo.

    Plain accumulation adds in the gradient's dtype: in bfloat16, 256 + 1 = 256. Here each gradient
    of a backward pass is added to two components, each time with an error of at most 2**-17 of the
    sum for bfloat16 (2**-22 for float16, 2**-46 for float32) instead of 2**-9, and exactly where 16
    (22, 48) bits hold the sum. The step of the optimizer reads both.

        accumulator = GradientAccumulator(optimizer)
        for micro in micro_batches:
            (loss(micro) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    `p.grad` is the leading component, so code that reads gradients (a GradScaler's search for
    infinities, logging) finds them. A gradient set to None, or zeroed by `optimizer.zero_grad`,
    starts a new sum. Clip with the optimizer's `max_grad_norm`, which reads both components.

    It costs a second tensor of the gradient's dtype for each parameter. With torch 2.10 or later
    `p.grad_dtype = torch.float32` costs as much for 16-bit gradients and has 24 bits; use this
    class for gradients that must stay in their dtype, for earlier versions, and for float32.

    Args:
        optimizer: an optimizer of this package; its present parameters take part.

    Raises:
        TypeError: for another optimizer, and for DTensor parameters (`fully_shard`).
        ValueError: if a group computes in its parameters' 16-bit dtype, which would round the
            second component away; or if the optimizer has an accumulator or is released.
        RuntimeError: with a `DistributedDataParallel`, whichever of the two is created second,
            because it averages only one of the components; and in a step, if the leading component
            alone was changed in place (for example by `scaler.unscale_` or `clip_grad_norm_`).
    """

    def __init__(self, optimizer: LowPrecisionOptimizer) -> None:
        super().__init__(optimizer)
        if optimizer._accumulator is not None:
            raise ValueError("the optimizer has an accumulator; close() it first")
        if optimizer._released:
            raise ValueError("a GradientAccumulator does not go with gradient release")
        for group, where, p in optimizer._all_named():
            if validation.later(p):
                continue
            if is_sharded(p):
                raise TypeError(
                    f"{where} is a DTensor, to whose gradient fully_shard adds in place and "
                    "before any hook; allowed are plain tensors. fully_shard itself adds up in "
                    "float32: set_requires_gradient_sync(False) for all micro-batches but the "
                    "last, with MixedPrecisionPolicy(reduce_dtype=torch.float32)"
                )
            if is_expansion(p):
                raise TypeError(
                    f"{where} is an expansion, whose gradients have two components and are "
                    "added up as expansions by autograd itself; allowed are plain tensors"
                )
            if optimizer._arithmetic(group, p, where).strict:
                raise ValueError(
                    f"{where} is computed in {p.dtype}, which rounds a second component of the "
                    "gradient away; use compute_dtype=torch.float32"
                )
        reducers.check(self._params, reducers.ADDED)
        # The components of each sum, and the version of the leading one when it was written.
        self._sums: dict[Tensor, tuple[Tensor, Tensor, int]] = {}
        for p in self._params:
            if p.requires_grad:
                hook = functools.partial(self._withdraw, p)
                self._handles.append(p.register_hook(hook))  # type: ignore[no-untyped-call]
        self._attend(self._fold, f"{reducers.ADDED}; GradientAccumulator.close() ends it")
        self._handles.append(optimizer.register_step_pre_hook(self._before_step))
        self._handles.append(optimizer.register_step_post_hook(self._after_step))
        optimizer._accumulator = self

    def components(self, p: Tensor) -> tuple[Tensor, ...]:
        """Return the components of a parameter's sum, not copied; (p.grad,) or () without one."""
        if self._current(p) and self._sums[p][1].numel() == p.numel():
            return self._sums[p][:2]
        return () if p.grad is None else (p.grad,)

    def zero(self) -> None:
        """Discard all sums, as `optimizer.zero_grad()` does."""
        self._sums.clear()
        # After a step that raised they are still there.
        self._optimizer._grad_low = {}

    def close(self) -> None:
        """End the accumulation; gradients are then those in `p.grad`."""
        self._detach()
        self.zero()
        self._optimizer._accumulator = None

    def _current(self, p: Tensor) -> bool:
        """Return whether a parameter's gradient is the leading component of its sum."""
        return p in self._sums and p.grad is self._sums[p][0]

    def _withdraw(self, p: Tensor, grad: Tensor) -> None:
        # Autograd adds in place to an existing gradient.
        if self._current(p):
            p.grad = None
        else:
            self._sums.pop(p, None)

    @torch.no_grad()
    def _fold(self, p: Tensor) -> None:
        grad = p.grad
        assert grad is not None
        if p not in self._sums:
            # The second component is created with the second gradient.
            self._sums[p] = (grad, grad.new_empty(0), grad._version)
            return
        high, low, _ = self._sums[p]
        if low.numel() != high.numel():
            low = torch.zeros_like(high)
        scalars = torch.zeros(1, 0, dtype=torch.float64, device="cpu")
        update_(kernel(format_of(high.dtype, "gradient")), [[high, low, grad]], scalars)
        p.grad = high
        self._sums[p] = (high, low, high._version)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        lows = {}
        scale = getattr(optimizer, "grad_scale", None)
        # scaler.unscale_ does not count its writes as versions; scaler.step then passes no scale.
        unscaled = scale is None and getattr(optimizer, "found_inf", None) is not None
        for p, (high, low, version) in self._sums.items():
            if p.grad is not high or low.numel() != high.numel():
                continue
            # A GradScaler that passes its scale has multiplied by 1 to find infinities.
            looked = 1 if scale is not None else 0
            if unscaled or high._version > version + looked:
                raise RuntimeError(
                    f"the gradient of a parameter of shape {list(p.shape)} was changed in place "
                    "while a GradientAccumulator holds its second component; clip with "
                    "max_grad_norm, and let scaler.step() unscale. Where a client writes them in "
                    "any case (clip_grad_norm_ for the norm alone), p.grad_dtype = torch.float32 "
                    "keeps sums in one tensor"
                )
            lows[p] = low
        self._optimizer._grad_low = lows

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizer._grad_low = {}


@functools.cache
def kernel(fmt: Format) -> Elementwise:
    """Return the kernel that adds a gradient to a sum of two components."""
    wide = fmt not in (FP32, FP64)
    return registered(
        Elementwise(
            name=f"fold_{fmt.name}",
            function=fold_wide if wide else fold,
            results=("hi", "lo"),
            fields=(
                Field("hi", fmt, written=True),
                Field("lo", fmt, written=True),
                Field("grad", fmt),
            ),
            stores=(("hi", "hi"), ("lo", "lo")),
            arithmetic=fmt.register if wide else fmt,
            roundings=(("rc", fmt),),
            rounded=("hi",),
        )
    )
