"""Steps of a wrapped class of torch, and checks that it can make them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from mcf.optim.sharding.shards import is_sharded, like, local

Group = Mapping[str, Any]

# Options of groups that belong to this package instead of the class.
OURS = ("params", "param_names", "precision", "low", "seed", "stream_by")


def theirs(group: Group) -> dict[str, Any]:
    """Return a group's options that belong to the class."""
    return {k: v for k, v in group.items() if k not in OURS}


def made(kind: type[Optimizer], options: Mapping[str, Any]) -> Optimizer:
    """Return a class with a stand-in for a parameter; it checks the options.

    Raises:
        TypeError: for a class that needs more in groups than its options.
    """
    make: Callable[..., Optimizer] = kind
    weight = torch.zeros(1, 1, dtype=torch.float32, device="cpu", requires_grad=True)
    try:
        return make([weight], **options)
    except (ValueError, TypeError):
        raise
    except Exception as error:
        raise TypeError(
            f"{kind.__name__} cannot be made for a list of parameters: {type(error).__name__}: "
            f"{error}; allowed are classes that, as torch.optim's, ask nothing of groups but params"
        ) from error


def snapshot(group: Group) -> dict[str, Any]:
    """Return the values of a group's options, tensors by value, to compare with later ones."""
    return {
        k: tuple(v.flatten().tolist()) if isinstance(v, Tensor) else v
        for k, v in theirs(group).items()
    }


def written(inner: Optimizer, given: Group) -> dict[str, Any]:
    """Return the entries that a class has written into its group, such as a count of steps."""
    (group,) = inner.param_groups
    before = snapshot(given)
    changed = {k for k, v in snapshot(group).items() if k not in before or v != before[k]}
    return {k: v for k, v in group.items() if k in changed}


def try_steps(make: Callable[[], Optimizer], group: Group, where: str) -> frozenset[str]:
    """Make two steps on stand-ins for a group's parameters, one for each number of dimensions.

    DTensors have one stand-in per layout, as large as the parameter, because a class that needs
    more than the local part communicates with other processes.

    Returns:
        The names of the entries that the class writes into groups, equal for all parameters.

    Raises:
        ValueError: with the class's error, before anything is changed; and for a class whose
            entries in groups depend on parameters or gradients.
    """
    names: set[str] = set()
    kinds = {(p.dim(), p.device, _layout(p)): p for p in group["params"] if not is_lazy(p)}
    for (dims, device, layout), p in kinds.items():
        found = []
        for number in (0.0, 1.0):
            weight = torch.full([1] * dims, number, dtype=torch.float32, device=device)
            if layout is not None:
                weight = like(p, torch.full_like(local(p), number, dtype=torch.float32))
            weight.requires_grad_()
            weight.grad = torch.ones_like(weight) * (1 + number)
            inner = make()
            inner.param_groups = [{**theirs(group), "params": [weight]}]
            try:
                with torch.no_grad():
                    step(inner)
                    step(inner)
            except Exception as error:
                raise ValueError(
                    f"{type(inner).__name__} makes no step on a parameter of shape "
                    f"{list(p.shape)} with the options of {where}: {type(error).__name__}: {error}"
                ) from error
            found.append(snapshot(written(inner, group)))
        if found[0] != found[1]:
            differ = sorted(
                k for k in {**found[0], **found[1]} if found[0].get(k) != found[1].get(k)
            )
            raise ValueError(
                f"{type(inner).__name__} keeps {', '.join(differ)} of all parameters of a group "
                "together, and each is stepped by itself here; allowed are classes that treat "
                "each parameter by itself"
            )
        names |= {*found[0]}
    return frozenset(names)


def _layout(p: Tensor) -> Any:
    return (p.device_mesh, tuple(p.placements)) if is_sharded(p) else None  # type: ignore[attr-defined]


def step(inner: Optimizer) -> None:
    """Make a step of the class itself, without the hooks that torch puts around all optimizers."""
    own: Any = type(inner).step
    (own.__wrapped__ if getattr(own, "hooked", False) else own)(inner)


def is_state(t: Any, p: Tensor) -> bool:
    """Return whether a state of the class can be stored in a format of the strategy."""
    return isinstance(t, Tensor) and t.dim() > 0 and t.shape == p.shape and t.is_floating_point()


def names_of(given: Collection[str]) -> frozenset[str]:
    """Return names of states, after a check.

    Raises:
        TypeError: for a string instead of a collection.
    """
    if isinstance(given, str):
        raise TypeError(f"second_moments is the string {given!r}; allowed are several names")
    return frozenset(given)
