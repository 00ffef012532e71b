"""Muon (Jordan et al. 2024): the two halves of a step, before and after the orthogonalisation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.optim import validation
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import Options
from mcf.optim.rule.rule import FIRST, Coefficients, Rule
from mcf.optim.rules import muon_formulas, muon_halves
from mcf.optim.sharding.lines import Replicas
from mcf.optim.storage.arithmetic import Arithmetic
from mcf.optim.storage.strategies import WITHOUT_SECOND, PrecisionName

# What the rate is multiplied with, of rows and columns: torch's functions by name.
_ADJUSTMENTS: dict[str | None, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral_unclamped": lambda rows, columns: math.sqrt(rows / columns),
}
_ADJUSTMENTS[None] = _ADJUSTMENTS["original"]


# The whole step, for what it keeps; with Nesterov momentum, and without.
_RULES = {
    nesterov: dataclasses.replace(
        muon_formulas.UPDATE,
        name="muon_nesterov" if nesterov else "muon_plain",
        states=(("momentum_buffer", FIRST),),
        coefficients=(Coefficients(muon_formulas.complement, ("one_minus_momentum",)),),
        launcher=functools.partial(muon_halves.Halves, nesterov=nesterov),
    )
    for nesterov in (False, True)
}


def _divided(replicas: Replicas | None) -> dict[bool, Rule]:
    """The rules for processes that divide the matrices of a step among them."""
    if replicas is None:
        return _RULES
    return {
        nesterov: dataclasses.replace(
            rule,
            launcher=functools.partial(muon_halves.Halves, nesterov=nesterov, replicas=replicas),
        )
        for nesterov, rule in _RULES.items()
    }


class Muon(LowPrecisionOptimizer):
    r"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), stored as a precision says.

    B <- mu B + (1 - mu) G; O = NS(B), or NS((1 - mu) G + mu B) (Nesterov);
    P <- P - lr (a O + weight_decay P).

    NS is torch's own Newton-Schulz iteration, in bf16 matrix products; a is the adjustment of the
    rate to the shape, as torch's. Buffer and parameter are read and written by this package's
    kernels, as many matrices at a time as need no more memory beside the states than the largest
    alone.

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
            `"match_rms_adamw"`: a = .2 sqrt(max(rows, columns)) (arXiv:2502.16982);
            `"spectral_unclamped"`: a = sqrt(rows / columns), of torch 2.14 on.
        precision: any without a second moment and without feedback; see `mcf.optim.AdamW`.
        compute_dtype: see `mcf.optim.AdamW`; NS is the same under each.
        maximize: maximize the objective.
        track_metrics: let every step sum what `metrics()` returns.
        process_group: processes that have the same plain parameters and gradients, as under
            DistributedDataParallel (`model.process_group`): each matrix is orthogonalised by one of
            them, in round robin (Dion, arXiv:2504.05295), and they exchange results, with the same
            bits. All of them step together. None: each works on all matrices. Shared parameters
            (DTensors) need none: their mesh says who has them. Not part of checkpoints.
        options: see `mcf.optim.AdamW`.

    Guarantees: those of `mcf.optim.AdamW` for the buffer and for the parameter given O. O itself
    has the bits of torch's matrix product on the device and number of threads. NaN or infinity in a
    gradient reach the whole matrix.

    Raises:
        ValueError, TypeError: as `mcf.optim.AdamW`; for parameters that are not matrices; for a
            `process_group` without this process or that is none; in a step, before anything is
            changed, if its processes do not have the same matrices to step.
        RuntimeError: for a `process_group` where torch.distributed is not initialized.
        ImportError: where torch has no Muon (before 2.9).
    """

    precisions = WITHOUT_SECOND
    takes_expansions = False

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
        precision: PrecisionName = "light",
        compute_dtype: torch.dtype = torch.float32,
        maximize: bool = False,
        track_metrics: bool = False,
        process_group: Any = None,
        **options: Unpack[Options],
    ) -> None:
        """See the class."""
        self._rules = _divided(None if process_group is None else Replicas(process_group))
        muon_halves.torchs("_zeropower_via_newtonschulz")
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
                "are 'original', 'match_rms_adamw', 'spectral_unclamped' and None"
            )

    def _arithmetic(self, group: dict[str, Any], p: Tensor, where: str) -> Arithmetic:
        if p.ndim != 2:
            raise ValueError(
                f"Muon only supports 2D parameters whereas we found a parameter with size: "
                f"{tuple(p.shape)}, {where}"
            )
        return super()._arithmetic(group, p, where)

    def _rule(self, group: dict[str, Any]) -> Rule:
        return self._rules[group["nesterov"]]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimizer; groups of processes are not pickled."""
        self.__dict__.setdefault("_rules", _RULES)
        super().__setstate__(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with copies of the parameters, for the same processes."""
        made = super().__deepcopy__(memo)
        made._rules = self._rules
        return made

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        return {
            "grad_scale": -1.0 if group["maximize"] else 1.0,
            "lr": read(group["lr"]),
            "momentum": read(group["momentum"]),
            "weight_decay": read(group["weight_decay"]),
        }

    def _of_shape(self, group: dict[str, Any], shape: tuple[int, ...]) -> dict[str, float]:
        adjusted = _ADJUSTMENTS[group["adjust_lr_fn"]]
        return {"adjustment": adjusted(*shape) if 0 not in shape else 1.0}
