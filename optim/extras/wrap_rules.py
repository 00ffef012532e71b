"""What `collage` asks of a class of torch: that it makes a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from mcf.optim.sharding.shards import is_sharded, like, local

Group = Mapping[str, Any]

# Options of groups that are ours and not the class's.
OURS = ("params", "param_names", "precision", "low", "seed", "stream_by")


def theirs(group: Group) -> dict[str, Any]:
    """A group's options that are the class's."""
    return {k: v for k, v in group.items() if k not in OURS}


def snapshot(group: Group) -> dict[str, Any]:
    """The values of a group's options, tensors by value, to compare with later ones."""
    return {
        k: tuple(v.flatten().tolist()) if isinstance(v, Tensor) else v
        for k, v in theirs(group).items()
    }


def try_steps(make: Callable[[], Optimizer], group: Group, where: str) -> None:
    """Make two steps on stand-ins for a group's parameters, one for each number of dimensions.

    Of shared ones one for each layout, which is as large as the parameter: a class that asks for
    more than a part of it asks the other processes.

    Raises:
        ValueError: saying what went wrong, so that it goes wrong before anything is changed.
    """
    kinds = {(p.dim(), p.device, _layout(p)): p for p in group["params"] if not is_lazy(p)}
    for (dims, device, layout), p in kinds.items():
        weight = torch.zeros([1] * dims, dtype=torch.float32, device=device)
        if layout is not None:
            weight = like(p, torch.zeros_like(local(p), dtype=torch.float32))
        weight.requires_grad_()
        weight.grad = torch.ones_like(weight)
        inner = make()
        inner.param_groups = [{**theirs(group), "params": [weight]}]
        try:
            with torch.no_grad():
                step(inner)
                step(inner)
        except Exception as error:
            raise ValueError(
                f"{type(inner).__name__} makes no step on a parameter of shape {list(p.shape)} "
                f"with the options of {where}: {type(error).__name__}: {error}"
            ) from error


def _layout(p: Tensor) -> Any:
    return (p.device_mesh, tuple(p.placements)) if is_sharded(p) else None  # type: ignore[attr-defined]


def step(inner: Optimizer) -> None:
    """A step of the class itself, without the hooks of all optimizers that torch puts around it."""
    own: Any = type(inner).step
    (own.__wrapped__ if getattr(own, "hooked", False) else own)(inner)


def is_state(t: Any, p: Tensor) -> bool:
    """Whether a state of the class is stored in a format of the strategy."""
    return isinstance(t, Tensor) and t.dim() > 0 and t.shape == p.shape and t.is_floating_point()


def names_of(given: Collection[str]) -> frozenset[str]:
    """Names of states, checked.

    Raises:
        TypeError: for one string in place of several.
    """
    if isinstance(given, str):
        raise TypeError(f"second_moments is the string {given!r}; allowed are several names")
    return frozenset(given)
