"""What a step does to all gradients before its rule: unscale, clip, look for what is not finite.

All of it is one number that multiplies every gradient in the kernel; the gradients themselves are
read and never written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcf.kernels.formats import format_of
from mcf.optim import expansions
from mcf.optim.norm import Components, finite, total_norm
from mcf.optim.update import GradientForm

if TYPE_CHECKING:
    from mcf.optim.step import FusedOptimizer

NONFINITE = ("torch", "skip", "raise")

# The names of a step's gradients for messages, and their components.
Named = Sequence[tuple[str, Components]]


class NonFiniteGradientError(FloatingPointError):
    """A gradient holds an infinity or NaN, and the optimizer has `nonfinite="raise"`."""


def check(options: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError for options that are out of range."""
    for name in ("max_grad_norm", "max_grad_value"):
        value = options[name]
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number or None, got {type(value).__name__}")
        if not 0 < value < math.inf:
            raise ValueError(f"Invalid {name}: {value}; allowed is a number in (0, inf), or None")
    if options["max_grad_norm"] is not None and options["max_grad_value"] is not None:
        raise ValueError("max_grad_norm and max_grad_value are both given; allowed is one of them")
    if options["nonfinite"] not in NONFINITE:
        allowed = ", ".join(map(repr, NONFINITE))
        raise ValueError(f"Unknown nonfinite: {options['nonfinite']!r}; known are {allowed}")


def components(optimizer: FusedOptimizer, p: Tensor) -> tuple[Tensor, ...]:
    """A parameter's gradient: one tensor, or two of an expansion or a `GradientAccumulator`."""
    assert p.grad is not None
    low = optimizer._grad_low.get(p)
    return expansions.components(p.grad) if low is None else (p.grad, low)


def form(optimizer: FusedOptimizer, p: Tensor) -> GradientForm:
    """How the kernel of a parameter reads its gradient, which was checked."""
    given = components(optimizer, p)
    clipped = optimizer.max_grad_value is not None
    return GradientForm(format_of(given[0].dtype, "gradient"), len(given) > 1, clipped)


def looks(optimizer: FusedOptimizer) -> bool:
    """Whether `factor` looks at the gradients themselves."""
    return optimizer.max_grad_norm is not None or optimizer.nonfinite != "torch"


def factor(optimizer: FusedOptimizer, gradients: Named) -> float | Tensor | None:
    """What multiplies every gradient in this step; None where the step is to be skipped.

    It is given the gradients where it `looks` at them.

    1 / grad_scale, which a `torch.amp.GradScaler` sets, times min(1, max_grad_norm / (norm +
    1e-6)), torch's formula for clipping, of the norm of all unscaled gradients; in float64.

    Raises:
        NonFiniteGradientError: naming the first gradient, with `nonfinite="raise"`.
    """
    check(vars(optimizer))
    if optimizer._released and hasattr(optimizer, "found_inf"):
        raise RuntimeError("gradient release does not go with a GradScaler: backward has stepped")
    # GradScaler looked already: where it found something, that is what it is there for.
    found = getattr(optimizer, "found_inf", None)
    if found is not None and float(found) != 0:
        return None
    if optimizer.nonfinite != "torch" and not _all_finite(optimizer.nonfinite, gradients):
        return None
    result: float | Tensor = _inverse(getattr(optimizer, "grad_scale", None))
    if optimizer.max_grad_norm is not None:
        norm = total_norm([g for _, g in gradients])
        if isinstance(result, Tensor):
            result = result.to(norm.device)
        norm = norm * result
        optimizer.grad_norm = norm
        clip = optimizer.max_grad_norm / (norm + 1e-6)
        # As torch's clamp: NaN stays NaN.
        clip = torch.where(clip > 1, 1.0, clip)
        result = result * (clip if norm.device.type != "cpu" else clip.item())
    return result


def scaled(scalars: Tensor, column: int, number: float | Tensor) -> Tensor:
    """The table of a step's scalars with its column `grad_scale` multiplied by a number.

    On the number's device, where that is not the CPU: nothing here waits for it.
    """
    if isinstance(number, Tensor) and number.is_cuda and not scalars.is_cuda:
        scalars = scalars.pin_memory().to(number.device, non_blocking=True)
    if isinstance(number, Tensor) or number != 1:
        scalars[:, column] *= number
    return scalars


def _inverse(scale: Any) -> float | Tensor:
    """1 / scale in float64, which rounds to what torch's unscale_ multiplies by."""
    if scale is None:
        return 1.0
    if isinstance(scale, Tensor) and scale.device.type != "cpu":
        return scale.double().reciprocal().reshape(())
    return 1.0 / float(scale)


def _all_finite(policy: str, gradients: Named) -> bool:
    flags = [finite(g) for _, g in gradients]
    if not flags:
        return True
    # One wait for the device.
    answers = torch.stack([f.to(flags[0].device) for f in flags]).tolist()
    if policy == "raise" and not all(answers):
        where = gradients[answers.index(False)][0]
        raise NonFiniteGradientError(
            f"{where}.grad holds an infinity or NaN, and nonfinite='raise'; nothing was changed"
        )
    return all(answers)
