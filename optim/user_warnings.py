"""Warnings, at the user's line, about problems that a training run would not show.

They report a learning rate too small for the stored precision, a precision without effect, and a
model whose parameters are no longer the optimizer's.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mcf.kernels.formats import BF16, FORMATS, FP32, FP64
from mcf.optim import options, validation
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.sharding.shards import local
from mcf.optim.storage.strategies import PLAIN

if TYPE_CHECKING:
    from mcf.optim.optimizer import LowPrecisionOptimizer

_PACKAGE = __name__.rpartition(".")[0]
# Packages of the frames between the user's line and this one: hooks and wrappers of `step`.
_PASSED = (_PACKAGE, "torch")


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the innermost frame outside of this package and of torch."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not any(name == p or name.startswith(f"{p}.") for p in _PASSED):
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


# A group is examined in these steps until its rate no longer rises, as it does in a warm-up.
_STEPS = frozenset(8 << k for k in range(16))
# Sample size: elements per tensor, and tensors per group.
_ELEMENTS, _TENSORS = 256, 16
# The share of updates that may be lost without a warning.
_MOST = 0.5


class LostUpdatesWarning(UserWarning):
    """More than half of the updates left the stored weights as they were."""


class _Sample(NamedTuple):
    """Elements of a parameter before a step: its count, each `stride`-th element of its tensors."""

    p: Tensor
    step: Tensor | None
    stored: list[Tensor]
    stride: int


class LostUpdates:
    """Compares a sample of stored weights before and after a step, once for each group.

    Updates count as lost where the gradient is not 0 and every stored word stays as it was. A group
    is compared in the first of the steps 8, 16, 32, ... whose rate is no larger than in the
    previous one of them; afterwards its steps have no extra cost. A warm-up in stairs longer than
    those intervals is compared on its first stair.
    """

    def __init__(self, active: bool) -> None:
        """Begin at the first step; only an `active` object compares anything."""
        self.active = active
        self._count = 0
        self._rates: dict[int, float] = {}
        self._settled: set[int] = set()

    def before(self, optimizer: LowPrecisionOptimizer) -> dict[int, list[_Sample]]:
        """Count a step, and sample the groups that are compared in it."""
        self._count += 1
        if self._count not in _STEPS:
            return {}
        found = {}
        for index, group in enumerate(optimizer.param_groups):
            if group["capturable"]:
                # The rate is on the device, and a step may not wait for it.
                self._settled.add(index)
                continue
            rate = float(group["lr"])
            risen = rate > self._rates.get(index, 0.0)
            self._rates[index] = rate
            if index not in self._settled and not risen and rate:
                found[index] = self._sampled(optimizer, group)
                self._settled.add(index)
        self.active = len(self._settled) < len(optimizer.param_groups)
        return found

    def _sampled(self, optimizer: LowPrecisionOptimizer, group: dict[str, Any]) -> list[_Sample]:
        samples: list[_Sample] = []
        for p in group["params"]:
            if len(samples) == _TENSORS:
                break
            # Before its first step a parameter has no state that could be compared.
            fresh = p.grad is None or not optimizer.state.get(p)
            if fresh or is_expansion(p) or not local(p.detach()).numel():
                continue
            arith = optimizer._arithmetic(group, p, "p")
            # Stochastic rounding and feedback do not lose updates; full precision has no remedy.
            late = arith.strategy.stochastic or arith.strategy.feedback
            if late or arith.component in (FP32, FP64):
                continue
            tensors = optimizer._stored(p)[1]
            stride = -(-tensors[0].numel() // _ELEMENTS)
            stored = [_every(t, stride) for t in tensors]
            step = optimizer.state.get(p, {}).get("step")
            samples.append(_Sample(p, None if step is None else step.clone(), stored, stride))
        return samples

    def after(self, optimizer: LowPrecisionOptimizer, samples: dict[int, list[_Sample]]) -> None:
        """Compare, and warn for each group that loses more than half of its updates."""
        for index, mine in samples.items():
            lost = updates = 0
            for sample in mine:
                p = sample.p
                step = optimizer.state.get(p, {}).get("step")
                if p.grad is None:
                    continue
                # A step that was skipped for its gradients changes nothing.
                before = sample.step
                if before is not None and step is not None and torch.equal(step, before):
                    continue
                live = _every(local(p.grad.detach()), sample.stride) != 0
                updates += int(live.sum())
                for t, old in zip(optimizer._stored(p)[1], sample.stored, strict=True):
                    live &= _every(t, sample.stride) == old
                lost += int(live.sum())
            if lost > _MOST * updates:
                group = optimizer.param_groups[index]
                _warn(index, group, mine[0].p, lost / updates)


def _every(t: Tensor, stride: int) -> Tensor:
    """Return a copy of every `stride`-th element of a tensor, in row-major order."""
    return t.detach().reshape(-1)[::stride].clone()


def _warn(index: int, group: dict[str, Any], p: Tensor, share: float) -> None:
    remedy = (
        "precision='split16_sr' keeps updates of any size, and 'bf16_sr' keeps their mean"
        if p.dtype == BF16.dtype
        else "precision='plus' keeps 11 bits more, and 'master' float32"
    )
    warn(
        f"{share:.0%} of the sampled updates of param_groups[{index}] left the stored weights as "
        f"they were: lr={float(group['lr']):g} is too small for precision={group['precision']!r}; "
        f"{remedy} ({options.CHECK}=False leaves out this check)",
        LostUpdatesWarning,
    )


def warn_of_replaced(groups: Iterable[Mapping[str, Any]], states: Mapping[Any, Any]) -> bool:
    """Warn if no parameter can get a gradient; for a step that has found none.

    `Module.to_empty()` and `load_state_dict(assign=True)` replace a model's parameters. The
    optimizer's parameters are then on the meta device, or nothing else refers to them.

    Args:
        groups: the optimizer's groups.
        states: the optimizer's states, by parameter.

    Returns:
        Whether a warning was issued.
    """
    params = [p for group in groups for p in group["params"] if p.requires_grad]
    if not params:
        return False
    meta = all(p.is_meta for p in params)
    if not (meta or all(_is_alone(params, k, states) for k in range(len(params)))):
        return False
    found = "are on the meta device" if meta else "are referred to by nothing else"
    warn(
        f"step() found no gradient, and the optimizer's parameters {found}: the model has others "
        "now, which are not trained. Module.to_empty() and load_state_dict(assign=True) replace "
        "parameters; make the optimizer after them",
        UserWarning,
    )
    return True


def _is_alone(params: list[Tensor], k: int, states: Mapping[Any, Any]) -> bool:
    """Return whether only its optimizer refers to a parameter."""
    # References from the list of its group, `params`, and the argument of `getrefcount`.
    known = 3 + (params[k] in states)
    return sys.getrefcount(params[k]) <= known


class NoEffectWarning(UserWarning):
    """A precision for 16-bit parameters was given, but no parameter has 16 bits."""


# Precisions that need no more than a float32 parameter has.
FULL_PRECISION = ("plain", "fp32_states", "master")
# Precisions with smaller moments for float32 parameters.
SMALL_MOMENTS = ("bf16_sr", "8bit", "4bit")


def warn_of_no_effect(optimizer: Any, first: int) -> bool:
    """Warn if every parameter is stored as under precision="plain".

    Args:
        optimizer: an optimizer with `param_groups` and the method `_arithmetic`.
        first: the index of the first new group. There is no warning unless a new group asks for a
            precision.

    Returns:
        Whether a warning was issued.
    """
    asked = []
    for index, group in enumerate(optimizer.param_groups):
        for k, p in enumerate(group["params"]):
            if validation.later(p) or p.dtype not in FORMATS:
                continue
            found = optimizer._arithmetic(group, p, f"params[{k}] of param_groups[{index}]")
            wide = found.component in (FP32, FP64)
            if not wide or found.strategy != PLAIN:
                return False
            if index >= first and group["precision"] not in FULL_PRECISION:
                asked.append((group["precision"], p.dtype))
    if asked:
        precision, dtype = asked[0]
        # Wrapped optimizers of torch cannot store codes.
        allowed = getattr(optimizer, "precisions", ("bf16_sr", "plain"))
        moments = [n for n in SMALL_MOMENTS if n in allowed and dtype == torch.float32]
        remedy = "use model.to(torch.bfloat16)"
        if moments:
            remedy += (
                f", or {' or '.join(map(repr, moments))} to store the moments of float32 "
                "parameters in fewer bytes"
            )
        if "plain" in allowed:
            remedy += ", or 'plain'"
        warn(
            f"precision={precision!r} has no effect: all parameters are {dtype}, and it stores "
            f"16-bit parameters; {remedy}",
            NoEffectWarning,
        )
    return bool(asked)
