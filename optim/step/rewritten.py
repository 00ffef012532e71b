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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.overlap import address
from mcf.optim.sharding.shards import is_sharded, like, local
from mcf.optim.step.bucket import Bucket, Named
from mcf.optim.step.norm import parts
from mcf.optim.storage.strategy_arithmetic import Arithmetic

# Elements compared at a time: bounds the temporary memory.
_PART = 1 << 20

# What puts new values beside a weight: the state's tensor, and what is copied into it.
Repair = tuple[Tensor, Tensor]


class WeightsRewrittenWarning(UserWarning):
    """Weights were written by others, and what an optimizer stored beside them begins anew."""


class Marks:
    """Which weights an optimizer's last step left, and whether it warned of others.

    Attributes:
        left: by id of a parameter, what changes where it is written or gets other memory.
        warned: whether the optimizer has warned of weights that others wrote.
    """

    def __init__(self) -> None:
        self.left: dict[int, tuple[int, int]] = {}
        self.warned = False

    def leave(self, params: Iterable[Tensor]) -> None:
        """A step has left these weights as they are."""
        self.left.update((id(p), mark(p)) for p in params)

    def perhaps(self, p: Tensor) -> bool:
        """Whether others may have written a weight since then."""
        return not is_counted(p) or mark(p) != self.left.get(id(p))


def mark(p: Tensor) -> tuple[int, int]:
    """What changes where a tensor is written or gets other memory."""
    return version(p), address(local(p))


def is_counted(t: Tensor) -> bool:
    """Whether torch counts how often a tensor is written: not those of inference mode."""
    return not t.is_inference() and not local(t).is_inference()


def version(t: Tensor) -> int:
    """How often a tensor was written; 0 where torch does not count.

    A DTensor and the part that is here have a counter each: checkpoints are read into parts.
    """
    if not is_counted(t):
        return 0
    return t._version + local(t)._version if is_sharded(t) else t._version


def beside(arith: Arithmetic) -> bool:
    """Whether the optimizer stores something of the weight's value beside it."""
    return bool(arith.strategy.param.hidden) and not arith.held


def repairs_of(
    bucket: Bucket, named: Iterable[Named], states: Mapping[Any, Any]
) -> list[tuple[str, list[Repair]]]:
    """`repairs` of some of a bucket's parameters."""
    capturable = bool(bucket.hyper.options["capturable"])
    arith = bucket.arithmetic
    return [repairs(where, p, states[p], arith, capturable) for where, p in named]


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
    storage = arith.strategy.param
    if storage.hidden not in state:
        return "", []
    hidden = local(state[storage.hidden])
    found = (local(p.detach()), hidden)
    pieces = [tuple(part) for part in parts(found, _PART)]
    how = arith.component, arith.strict
    ask = p.device.type == "cpu" or not capturable
    if ask and not any(bool(storage.stale(a, b, *how)[0].any()) for a, b in pieces):
        return "", []
    made = hidden.clone()
    for (a, b), (new,) in zip(pieces, parts([made], _PART), strict=True):
        new.copy_(torch.where(*storage.stale(a, b, *how), b))
    return (where if ask else ""), [(hidden, made)]


def followed(
    where: str, p: Tensor, state: dict[str, Any], arith: Arithmetic, capturable: bool
) -> dict[str, Any]:
    """A state as the next step begins with it, after `repairs`; the one that is kept stays.

    For what reads states between steps: weights may be swapped for a while, and come back.
    """
    _, found = repairs(where, p, state, arith, capturable)
    new = {id(hidden): made for hidden, made in found}
    return {
        name: like(p, new[id(local(value))]) if id(local(value)) in new else value
        for name, value in state.items()
    }


def apply(found: Sequence[tuple[str, list[Repair]]]) -> None:
    """Write the repairs."""
    for _, mine in found:
        for hidden, new in mine:
            hidden.copy_(new)


def follow(marks: Marks, found: Iterable[tuple[str, Tensor, dict[str, Any], Arithmetic]]) -> None:
    """Repair what is stored beside those parameters that others wrote.

    Args:
        marks: of the optimizer.
        found: words that name a parameter, the parameter, its state, its arithmetic.
    """
    made = [
        repairs(where, p, state, arith, False)
        for where, p, state, arith in found
        if beside(arith) and marks.perhaps(p)
    ]
    tell(marks, made)
    apply(made)


def tell(marks: Marks, found: Iterable[tuple[str, list[Repair]]]) -> None:
    """Warn of them, once for an optimizer."""
    names = [where for where, _ in found if where]
    if not names or marks.warned:
        return
    marks.warned = True
    others = f" and {len(names) - 1} others" if len(names) > 1 else ""
    warnings.warn(
        f"{names[0]}{others} changed since the last step, not by this optimizer; what is stored "
        "beside the weights (master copies, low words) follows the new values where it does not "
        "belong to them",
        WeightsRewrittenWarning,
        stacklevel=2,
    )
