"""Muon under precision strategies."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FP64, Format
from mcf.optim import validation
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import Options
from mcf.optim.plan import Work
from mcf.optim.rules import muon as _rules
from mcf.optim.rules.metrics import param_terms
from mcf.optim.strategies import WITHOUT_FEEDBACK, Arithmetic
from mcf.optim.update import GradientForm, Rule, kernel, registered, update_

# The second half of a step, which neither reads nor writes the buffer.
_UPDATE = Rule(
    name="muon",
    function=_rules.muon,
    scalars=("lr", "adjustment", "weight_decay"),
    results=("param", "param_lo", "update"),
    metrics=param_terms,
    metric_count=3,
    decoupled=True,
)

_ADJUSTMENTS = (None, "original", "match_rms_adamw")


@functools.cache
def _rule() -> Rule:
    """The whole step, for what it stores."""
    return dataclasses.replace(_UPDATE, first="momentum_buffer")


def momentum_kernel(arith: Arithmetic, form: GradientForm, nesterov: bool) -> Elementwise:
    """The first half of a step: the buffer, and the matrix to orthogonalise in a tensor."""
    return _momentum_kernel(arith.format, arith.stored(arith.strategy.first), form, nesterov)


@functools.cache
def _momentum_kernel(
    arithmetic: Format, stored: Format, form: GradientForm, nesterov: bool
) -> Elementwise:
    words = ["muon_nesterov" if nesterov else "muon_momentum", arithmetic.name, stored.name]
    return registered(
        Elementwise(
            name="_".join(words) + form.suffix(stored),
            function=_rules.muon_momentum,
            results=("momentum_buffer", "direction"),
            fields=(
                Field("grad", form.format),
                *([Field("grad_lo", form.format)] if form.paired else []),
                Field("momentum_buffer", stored, written=True),
                Field("direction", arithmetic, read=False, written=True),
            ),
            stores=(("momentum_buffer", "momentum_buffer"), ("direction", "direction")),
            arithmetic=arithmetic,
            scalars=("grad_scale", "momentum", "one_minus_momentum")
            + (("grad_limit",) if form.clipped else ()),
            absent=(() if form.paired else ("grad_lo",))
            + (() if form.clipped else ("grad_limit",)),
            rounded=("momentum_buffer", "direction") if stored == arithmetic else ("direction",),
            slots=(
                ("scaled_gradient", form.slot),
                ("ahead", _rules.nesterov_ahead if nesterov else _rules.plain_ahead),
            ),
        )
    )


def orthogonal_format(component: Format) -> Format:
    """What the orthogonalised matrix is read from: bf16, or float64 for float64 parameters."""
    return FP64 if component == FP64 else BF16


def _torchs(name: str) -> Callable[..., Any]:
    try:
        # The function is not public; torch has no public one.
        from torch.optim import _muon
    except ImportError as error:
        raise ImportError(f"Muon needs torch.optim.Muon, of torch 2.9: {error}") from error
    found: Callable[..., Any] = getattr(_muon, name)
    return found


class Muon(LowPrecisionOptimizer):
    r"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), stored as a precision says.

    B <- mu B + (1 - mu) G; O = NS(B), or NS((1 - mu) G + mu B) (Nesterov);
    P <- P - lr (a O + weight_decay P).

    NS is torch's own Newton-Schulz iteration, in bf16 matrix products; a is torch's adjustment of
    the rate to the shape. Buffer and parameter are read and written by this package's kernels, one
    parameter after the other: besides the states, memory for the largest parameter's matrices.

    Args:
        params: matrices, as in torch; what is not a matrix needs another optimizer.
        lr: learning rate, a float or a 1-element tensor; may change at every step.
        weight_decay: decoupled weight decay.
        momentum: the momentum mu, in [0, 1].
        nesterov: Nesterov momentum.
        ns_coefficients: three coefficients of the iteration.
        eps: least norm that the iteration divides by.
        ns_steps: iterations, below 100.
        adjust_lr_fn: `"original"` (the default): a = sqrt(max(1, rows / columns));
            `"match_rms_adamw"`: a = .2 sqrt(max(rows, columns)) (arXiv:2502.16982).
        precision: any without a second moment and without feedback; see `mcf.optim.AdamW`.
        compute_dtype: see `mcf.optim.AdamW`; NS is the same under each.
        maximize: maximize the objective.
        track_metrics: let every step sum what `metrics()` returns.
        options: see `mcf.optim.AdamW`.

    Guarantees: those of `mcf.optim.AdamW` for the buffer and for the parameter given O. O itself
    has the bits of torch's matrix product on the device and number of threads. NaN or infinity in a
    gradient reach the whole matrix.

    Raises:
        ValueError, TypeError: as `mcf.optim.AdamW`; and for parameters that are not matrices.
        ImportError: where torch has no Muon (before 2.9).
    """

    precisions = tuple(name for name in WITHOUT_FEEDBACK if name != "plus")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        precision: str = "light",
        compute_dtype: torch.dtype = torch.float32,
        maximize: bool = False,
        track_metrics: bool = False,
        **options: Unpack[Options],
    ) -> None:
        """See the class."""
        _torchs("_zeropower_via_newtonschulz")
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "precision": precision,
            "compute_dtype": compute_dtype,
            "maximize": maximize,
        }
        super().__init__(params, defaults, track_metrics=track_metrics, **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        validation.number("learning rate", group["lr"])
        validation.number("weight_decay value", group["weight_decay"])
        validation.number("momentum value", group["momentum"], high=1.0)
        validation.number("epsilon value", group["eps"])
        validation.flag("nesterov", group["nesterov"])
        coefficients = group["ns_coefficients"]
        if not isinstance(coefficients, (tuple, list)) or len(coefficients) != 3:
            raise ValueError(
                f"Invalid ns_coefficients: {coefficients!r}; allowed are three numbers"
            )
        for k, x in enumerate(coefficients):
            validation.number(f"ns_coefficients[{k}]", x, low=float("-inf"))
        count = group["ns_steps"]
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"ns_steps must be an int, got {type(count).__name__}")
        if not 0 <= count < 100:
            raise ValueError(f"Invalid ns_steps: {count}; allowed is [0, 100)")
        if group["adjust_lr_fn"] not in _ADJUSTMENTS:
            raise ValueError(
                f"Adjust learning rate function {group['adjust_lr_fn']} is not supported; allowed "
                "are 'original', 'match_rms_adamw' and None"
            )

    def _arithmetic(self, group: dict[str, Any], p: Tensor, where: str) -> Arithmetic:
        if p.ndim != 2:
            raise ValueError(
                f"Muon only supports 2D parameters whereas we found a parameter with size: "
                f"{tuple(p.shape)}, {where}"
            )
        found = super()._arithmetic(group, p, where)
        if found.strategy.eight_bits:
            raise ValueError(
                f"precision={group['precision']!r}: Muon's step is not made in blocks, in which "
                "moments of 8 bits are stored; allowed are 'single' and 'float32' for exp_avg"
            )
        return found

    def _rule(self, group: dict[str, Any]) -> Rule:
        return _rule()

    def _advance(self, group: dict[str, Any], entries: list[dict[str, Any]]) -> list[Any]:
        steps = super()._advance(group, entries)
        shapes = (tuple(state["momentum_buffer"].shape) for state in entries)
        return list(zip(steps, shapes, strict=True))

    def _scalars(self, group: dict[str, Any], arith: Arithmetic, step: Any) -> dict[str, float]:
        _, shape = step
        adjust = _torchs("_adjust_lr")
        momentum = float(group["momentum"])
        return {
            "grad_scale": -1.0 if group["maximize"] else 1.0,
            "lr": float(group["lr"]),
            "momentum": momentum,
            "one_minus_momentum": 1 - momentum,
            "weight_decay": float(group["weight_decay"]),
            "adjustment": adjust(1.0, group["adjust_lr_fn"], shape) if 0 not in shape else 1.0,
        }

    def _launch(
        self,
        work: Work,
        rows: list[list[Tensor]],
        columns: list[dict[str, float]],
        scale: float | Tensor,
    ) -> Tensor:
        _, group, _, arith, form, _ = work
        before = momentum_kernel(arith, form, group["nesterov"])
        fmt = orthogonal_format(arith.component)
        after = kernel(_UPDATE, arith, self._track_metrics, GradientForm(fmt))
        tables = [self._table(spec, work, columns, scale) for spec in (before, after)]
        sums = []
        for k, (p, *rest) in enumerate(rows):
            grads, states = rest[: 1 + form.paired], rest[1 + form.paired :]
            direction = torch.empty_like(p, dtype=arith.format.dtype)
            # The buffer comes last among the states.
            update_(before, [[*grads, states[-1], direction]], tables[0][k : k + 1])
            orthogonal = self._orthogonal(direction, group).to(fmt.dtype)
            sums.append(update_(after, [[p, orthogonal, *states[:-1]]], tables[1][k : k + 1]))
        return torch.cat(sums)

    def _orthogonal(self, x: Tensor, group: dict[str, Any]) -> Tensor:
        """torch's Newton-Schulz iteration on a matrix; bf16."""
        if x.numel() == 0:
            return x.to(torch.bfloat16)
        newton_schulz = _torchs("_zeropower_via_newtonschulz")
        coefficients = tuple(float(c) for c in group["ns_coefficients"])
        found: Tensor = newton_schulz(x, coefficients, group["ns_steps"], float(group["eps"]))
        return found
