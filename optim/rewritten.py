"""Weights that others wrote since the last step, and what is stored beside them.

A weight may be stored with a master copy, a low word or further bits. Where someone else writes
the weight (`load_state_dict` of the model, an initialisation, an average swapped in), what is
stored beside it belongs to the old one. Users expect that what they write takes effect.

Whether a weight was written is told by its version counter and its address. What is beside it is
then compared element by element: it stays where it may belong to the weight that is there now (a
checkpoint loaded in any order, weights swapped out and back), and else begins anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcf.kernels.overlap import address
from mcf.optim import values
from mcf.optim.norm import parts
from mcf.optim.strategies import Arithmetic, Storage

if TYPE_CHECKING:
    from mcf.optim.base import GroupedOptimizer
    from mcf.optim.plugin import Collage

# The states that belong to the value of a weight.
HIDDEN = ("master_param", "param_lo", "param_bits")

# Elements compared at a time: bounds the temporary memory.
_PART = 1 << 20

# What puts new values beside a weight: the state's tensor, and what is copied into it.
Repair = tuple[Tensor, Tensor]


class WeightsRewrittenWarning(UserWarning):
    """Weights were written by others, and what an optimizer stored beside them begins anew."""


def mark(p: Tensor) -> tuple[int, int]:
    """What changes where a tensor is written or gets other memory."""
    return version(p), address(p)


def version(t: Tensor) -> int:
    """How often a tensor was written; 0 where torch does not count (inference tensors)."""
    return 0 if t.is_inference() else t._version


def perhaps(p: Tensor, before: tuple[int, int] | None) -> bool:
    """Whether others may have written a weight that a step left with the mark `before`."""
    return p.is_inference() or mark(p) != before


def beside(arith: Arithmetic) -> bool:
    """Whether the optimizer stores something of the weight's value beside it."""
    return arith.strategy.param is not Storage.SINGLE and not arith.held


def repairs(
    where: str, p: Tensor, state: dict[str, Any], arith: Arithmetic, capturable: bool
) -> tuple[str, list[Repair]]:
    """What has to be written beside a weight that was perhaps written.

    Args:
        where: names the weight.
        p: the weight.
        state: its state.
        arith: its arithmetic.
        capturable: whether a device must not be asked for an answer.

    Returns:
        `where` if something is known to differ, else "", and the repairs.
    """
    name = next((n for n in HIDDEN if n in state), None)
    if name is None:
        return "", []
    hidden, stale = state[name], _STALE[name]
    pieces = list(parts([p.detach(), hidden], _PART))
    ask = p.device.type == "cpu" or not capturable
    if ask and not any(bool(stale(a, b, arith)[0].any()) for a, b in pieces):
        return "", []
    made = hidden.clone()
    for (a, b), (new,) in zip(pieces, parts([made], _PART), strict=True):
        new.copy_(torch.where(*stale(a, b, arith), b))
    return (where if ask else ""), [(hidden, made)]


def followed(
    where: str, p: Tensor, state: dict[str, Any], arith: Arithmetic, capturable: bool
) -> dict[str, Any]:
    """A state as the next step begins with it, after `repairs`; the one that is kept stays.

    For what reads states between steps: weights may be swapped for a while, and come back.
    """
    _, found = repairs(where, p, state, arith, capturable)
    new = {id(hidden): made for hidden, made in found}
    return {name: new.get(id(value), value) for name, value in state.items()}


def _master(p: Tensor, master: Tensor, arith: Arithmetic) -> tuple[Tensor, Tensor]:
    visible = master.to(p.dtype)
    same = (visible == p) | (visible.isnan() & p.isnan())
    return ~same, p.to(master.dtype)


def _bits(p: Tensor, bits: Tensor, arith: Arithmetic) -> tuple[Tensor, Tensor]:
    # Any bits make a number near the weight, but for a few beside 0 and infinity.
    high, _ = values.split(values.exact(values.join(p, bits)), bits.dtype)
    same = (high == p) | p.isnan()
    return ~same, torch.zeros_like(bits)


def _low(p: Tensor, low: Tensor, arith: Arithmetic) -> tuple[Tensor, Tensor]:
    # A step leaves at most half a unit in the last place; Kahan's form in 16-bit arithmetic, where
    # the update is larger than the weight, up to one and a half and a rounding.
    most = 2.0 if arith.strict else 0.5
    component = arith.component
    value = p.double()
    smallest = float(component.min_subnormal)
    exponent = torch.frexp(torch.where(value.isfinite(), value, 0.0)).exponent - component.p
    unit = ((exponent.long() + 1023) << 52).view(torch.float64)
    unit = torch.where(value == 0, 0.0, most * unit).clamp(min=smallest)
    same = (low.double().abs() <= unit) | ~value.isfinite()
    return ~same, torch.zeros_like(low)


_STALE: dict[str, Callable[[Tensor, Tensor, Arithmetic], tuple[Tensor, Tensor]]] = {
    "master_param": _master,
    "param_lo": _low,
    "param_bits": _bits,
}


def apply(found: Sequence[tuple[str, list[Repair]]]) -> None:
    """Write the repairs."""
    for _, mine in found:
        for hidden, new in mine:
            hidden.copy_(new)


def follow(
    optimizer: Collage, found: Iterable[tuple[str, Tensor, dict[str, Any], Arithmetic]]
) -> None:
    """Repair what is stored beside those parameters that others wrote since `mark` was kept.

    Args:
        optimizer: the optimizer.
        found: words that name a parameter, the parameter, its state, its arithmetic.
    """
    made = [
        repairs(where, p, state, arith, False)
        for where, p, state, arith in found
        if beside(arith) and perhaps(p, optimizer._seen.get(id(p)))
    ]
    tell(optimizer, made)
    apply(made)


def tell(optimizer: GroupedOptimizer | Collage, found: Iterable[tuple[str, list[Repair]]]) -> None:
    """Warn of them, once for an optimizer."""
    names = [where for where, _ in found if where]
    if not names or optimizer._warned_of_rewriting:
        return
    optimizer._warned_of_rewriting = True
    others = f" and {len(names) - 1} others" if len(names) > 1 else ""
    warnings.warn(
        f"{names[0]}{others} changed since the last step, not by this optimizer; what is stored "
        "beside the weights (master copies, low words) follows the new values where it does not "
        "belong to them",
        WeightsRewrittenWarning,
        stacklevel=2,
    )
