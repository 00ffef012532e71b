"""Unscale and clip gradients, and find infinities and NaN, before a step's rule.

All of it is one factor of every gradient in the kernel; gradients are read and never written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from mcf.kernels.choices import check_choice
from mcf.kernels.tables import table_of
from mcf.optim.parameters import expansions
from mcf.optim.sharding.processes import Across, has_replicas
from mcf.optim.sharding.shards import local
from mcf.optim.step.norm import Components, finite, total_norm

NONFINITE = ("torch", "skip", "raise")


class Found(NamedTuple):
    """A gradient of a step.

    Args:
        where: the parameter's name for error messages.
        components: its local components.
        place: the index of its parameter among all of the optimizer's.
        across: the processes that have its other parts; None if all of it is local.
    """

    where: str
    components: Components
    place: int = 0
    across: Across | None = None


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
    check_choice("nonfinite", options["nonfinite"], NONFINITE)


@dataclasses.dataclass
class Settings:
    """The settings for all gradients of a step before its rule.

    Args:
        max_grad_norm: the upper bound of their norm, or None.
        max_grad_value: the upper bound of an element's size, or None.
        nonfinite: the effect of an infinity or NaN.
        grad_scale: the factor by which a `torch.amp.GradScaler` multiplied the loss, or None.
        found_inf: whether the scaler found an infinity or NaN, 0 or 1, or None.
        capturable: whether the CPU must not wait for a device.
        released: whether backward has stepped already (`GradientRelease`).
        norm: the norm of all gradients, once the step has clipped it.
    """

    max_grad_norm: float | None = None
    max_grad_value: float | None = None
    nonfinite: str = "torch"
    grad_scale: Any = None
    found_inf: Any = None
    capturable: bool = False
    released: bool = False
    norm: Tensor | None = None

    @property
    def looks(self) -> bool:
        """Whether `factor` reads the gradients themselves."""
        return self.max_grad_norm is not None or self.nonfinite != "torch"


# Settings that change nothing.
PLAIN = Settings()


def components(p: Tensor, lows: Mapping[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return the local components of a gradient: one, or two of an expansion or accumulator."""
    assert p.grad is not None
    low = lows.get(p)
    return expansions.components(p.grad) if low is None else (local(p.grad), local(low))


def unscales(optimizer: Optimizer) -> bool:
    """Return whether a `torch.amp.GradScaler` leaves unscaling to the step.

    It does with `fused=True`, as in torch, because clients refuse to clip gradients that are still
    scaled. It also does if torch cannot divide: for float16 gradients and expansions, and for
    accumulators and graphs, which its writes to gradients would break. Replicas need it too: torch
    does not ask the others whether one of them has an infinity, and would step them alone.
    """
    if getattr(optimizer, "_released", False) or getattr(optimizer, "_accumulator", None):
        return True
    return any(
        group.get("fused")
        or group.get("capturable")
        or any(
            p.dtype == torch.float16 or expansions.is_expansion(p) or has_replicas(p)
            for p in group["params"]
        )
        for group in optimizer.param_groups
    )


def factor(
    settings: Settings,
    gradients: Sequence[Found],
    sharers: Sequence[Across] = (),
    everyone: Sequence[Across] = (),
) -> tuple[float | Tensor, bool | Tensor]:
    """Return the factor of every gradient in this step, and whether the step is taken.

    Each is a tensor if a device computes it, and for `capturable` groups; then nothing is read.
    Gradients are needed if the settings say that it `looks` at them. `sharers` are all processes
    that have parts of any parameter, with and without gradient; `everyone` adds replicas. All of
    them call this, with the same parameters in the same order. All get the same decision, even if
    only one of several replicas has an infinity.

    The factor is 1 / grad_scale, which a `torch.amp.GradScaler` sets, times min(1, max_grad_norm /
    (norm + 1e-6)), torch's formula for clipping the norm of all unscaled gradients; in float64.

    Raises:
        ValueError: for `nonfinite="raise"` with a capturable group.
        NonFiniteGradientError: naming the first gradient, with `nonfinite="raise"`.
    """
    check(vars(settings))
    found = settings.found_inf
    if settings.released and found is not None:
        raise RuntimeError("gradient release does not go with a GradScaler: backward has stepped")
    apart = settings.capturable
    if apart:
        check_capturable(settings.nonfinite)
    # GradScaler has already searched; what it finds is handled by its protocol, whatever
    # `nonfinite` is.
    live: bool | Tensor = True
    if found is not None:
        found = found_by_any(found, everyone)
        live = found.reshape(()) == 0 if _by_device(found, apart) else float(found) == 0
    if settings.nonfinite != "torch" and live is not False:
        finite = _all_finite(settings.nonfinite, gradients, apart, everyone)
        if isinstance(live, Tensor) and isinstance(finite, Tensor):
            live = live & finite.to(live.device)
        elif finite is not True:
            live = finite
    if live is False:
        return 1.0, live
    result = _inverse(settings.grad_scale, apart)
    if settings.max_grad_norm is not None:
        norm = total_norm([g.components for g in gradients], [g.across for g in gradients], sharers)
        if isinstance(result, Tensor):
            result = result.to(norm.device)
        norm = norm * result
        settings.norm = norm
        clip = settings.max_grad_norm / (norm + 1e-6)
        # Like torch's clamp, this keeps NaN.
        clip = torch.where(clip > 1, 1.0, clip)
        result = result * (clip if _by_device(clip, apart) else clip.item())
    return result, live


def found_by_any(found: Any, everyone: Sequence[Across]) -> Any:
    """Return a `torch.amp.GradScaler`'s flag, 0 or 1, combined over all processes.

    Otherwise some processes would step and others not.
    """
    for who in everyone:
        flag = found if isinstance(found, Tensor) else table_of([found])
        found = who.reduce(flag.ne(0).to(torch.int32), "max")
    return found


def check_capturable(nonfinite: str) -> None:
    """Raise ValueError for a policy that needs the device's answer in every step."""
    if nonfinite == "raise":
        raise ValueError(
            "nonfinite='raise' with capturable=True: the CPU would have to wait for the device; "
            "allowed are 'torch' and 'skip'"
        )


def _by_device(x: Any, apart: bool) -> bool:
    """Return whether a number stays a tensor."""
    return isinstance(x, Tensor) and (apart or x.device.type != "cpu")


def _inverse(scale: Any, apart: bool) -> float | Tensor:
    """Return 1 / scale in float64, which rounds to the factor of torch's unscale_."""
    if scale is None:
        return 1.0
    if _by_device(scale, apart):
        inverse: Tensor = scale.double().reciprocal().reshape(())
        return inverse
    return 1.0 / float(scale)


def _all_finite(
    policy: str, gradients: Sequence[Found], apart: bool, everyone: Sequence[Across]
) -> bool | Tensor:
    flags = [finite(g.components) for g in gradients]
    if not flags and not everyone:
        return True
    home = flags[0].device if flags else torch.device("cpu")
    here = [torch.ones((), dtype=torch.bool, device=home), *(f.to(home) for f in flags)]
    together = torch.stack(here)
    if policy == "skip":
        found = together.all()
        for who in everyone:
            found = who.reduce((~found).to(torch.int32), "max") == 0
        return found if _by_device(found, apart) else bool(found)
    # One wait for the device.
    bad = [g.place for g, ok in zip(gradients, together.tolist()[1:], strict=True) if not ok]
    # Encode the first index so that it is the largest over all processes.
    first = torch.tensor(-1 - min(bad) if bad else _NONE, dtype=torch.int64, device="cpu")
    for who in everyone:
        first = who.reduce(first, "max")
    place = -1 - int(first)
    if first == _NONE:
        return True
    where = next((g.where for g in gradients if g.place == place), f"parameter {place}")
    raise NonFiniteGradientError(
        f"{where}.grad holds an infinity or NaN, and nonfinite='raise'; nothing was changed"
    )


# Below every encoded index.
_NONE = -(2**62)
