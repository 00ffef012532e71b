"""Weights that other code wrote since the last step, and the state stored next to them.

A weight may be stored with a master copy, a low word or further bits. If other code writes the
weight (`load_state_dict` of the model, an initialisation, an average swapped in), that state
belongs to the old value. Users expect that the values they write take effect.

The version counter and the address show whether a weight was written. Its state is then compared
element by element: it is kept where it can belong to the present weight (a checkpoint loaded in any
order, weights swapped out and back), and reset otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.kernels.overlap import address
from mcf.optim.sharding.shards import is_sharded, like, local
from mcf.optim.step.bucket import Bucket, Named
from mcf.optim.step.norm import parts
from mcf.optim.storage.strategies import Arithmetic

# Elements compared at a time: bounds the temporary memory.
_PART = 1 << 20


class Repair(NamedTuple):
    """A repair of the state next to a weight.

    Attributes:
        where: the weight's name for error messages; "" if nothing is known to differ.
        hidden: the local tensor of the state.
        new: its new values.
    """

    where: str
    hidden: Tensor
    new: Tensor


class WeightsRewrittenWarning(UserWarning):
    """Other code wrote weights, and the state that an optimizer stored next to them is reset."""


class Marks:
    """The weights as an optimizer's last step left them, and whether it has warned.

    Attributes:
        left: by id of a parameter, its `mark`.
        warned: whether the optimizer has warned of weights that other code wrote.
    """

    def __init__(self) -> None:
        self.left: dict[int, tuple[int, int]] = {}
        self.warned = False

    def leave(self, params: Iterable[Tensor]) -> None:
        """Record that a step has left these weights as they are."""
        self.left.update((id(p), mark(p)) for p in params)

    def perhaps(self, p: Tensor) -> bool:
        """Return whether other code may have written a weight since then."""
        return not is_counted(p) or mark(p) != self.left.get(id(p))


def mark(p: Tensor) -> tuple[int, int]:
    """Return a value that changes if a tensor is written or gets other memory."""
    return version(p), address(local(p))


def is_counted(t: Tensor) -> bool:
    """Return whether torch counts writes to a tensor; it does not in inference mode."""
    return not t.is_inference() and not local(t).is_inference()


def version(t: Tensor) -> int:
    """Return how often a tensor was written; 0 if torch does not count.

    A DTensor and its local tensor have one counter each, because checkpoints are read into the
    latter.
    """
    if not is_counted(t):
        return 0
    return t._version + local(t)._version if is_sharded(t) else t._version


def beside(arith: Arithmetic) -> bool:
    """Return whether the optimizer stores a part of the weight's value next to it."""
    return bool(arith.strategy.param.hidden) and not arith.held


def repairs_of(bucket: Bucket, named: Iterable[Named], states: Mapping[Any, Any]) -> list[Repair]:
    """Return `repair` for those of a bucket's parameters that need one."""
    capturable = bool(bucket.hyper.options["capturable"])
    made = (repair(where, p, states[p], bucket.arithmetic, capturable) for where, p in named)
    return [found for found in made if found is not None]


def repair(
    where: str, p: Tensor, state: dict[str, Any], arith: Arithmetic, capturable: bool
) -> Repair | None:
    """Return the repair of the state next to a weight that may have been written, if it needs one.

    If the weight is on a device and `capturable`, the CPU does not wait to know.
    """
    storage = arith.strategy.param
    if storage.hidden not in state:
        return None
    hidden = local(state[storage.hidden])
    found = (local(p.detach()), hidden)
    pieces = [tuple(part) for part in parts(found, _PART)]
    how = arith.component, arith.strict
    ask = p.device.type == "cpu" or not capturable
    if ask and not any(bool(storage.stale(a, b, *how)[0].any()) for a, b in pieces):
        return None
    made = hidden.clone()
    for (a, b), (new,) in zip(pieces, parts([made], _PART), strict=True):
        new.copy_(torch.where(*storage.stale(a, b, *how), b))
    return Repair(where if ask else "", hidden, made)


def followed(
    where: str, p: Tensor, state: dict[str, Any], arith: Arithmetic, capturable: bool
) -> dict[str, Any]:
    """Return a state as the next step begins with it, after `repair`; the stored one is unchanged.

    It serves readers of states between steps: weights may be swapped for a while, and come back.
    """
    found = repair(where, p, state, arith, capturable)
    return state if found is None else {**state, arith.strategy.param.hidden: like(p, found.new)}


def apply(found: Sequence[Repair]) -> None:
    """Write the repairs."""
    for _, hidden, new in found:
        hidden.copy_(new)


def follow(marks: Marks, found: Iterable[tuple[str, Tensor, dict[str, Any], Arithmetic]]) -> None:
    """Repair the state next to those parameters that other code wrote.

    Args:
        marks: the optimizer's marks.
        found: name, parameter, state and arithmetic of each parameter.
    """
    every = [
        repair(where, p, state, arith, False)
        for where, p, state, arith in found
        if beside(arith) and marks.perhaps(p)
    ]
    made = [each for each in every if each is not None]
    tell(marks, made)
    apply(made)


def tell(marks: Marks, found: Iterable[Repair]) -> None:
    """Warn of rewritten weights, once per optimizer."""
    names = [where for where, *_ in found if where]
    if not names or marks.warned:
        return
    marks.warned = True
    others = f" and {len(names) - 1} others" if len(names) > 1 else ""
    warnings.warn(
        f"{names[0]}{others} changed since the last step, not by this optimizer; what is stored "
        "next to the weights (master copies, low words) follows the new values where it does not "
        "belong to them",
        WeightsRewrittenWarning,
        stacklevel=2,
    )
