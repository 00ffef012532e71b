"""What `collage` asks of a class of torch: that it makes a step, and where errors may be kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from mcf.kernels import host
from mcf.kernels.algorithms import powers
from mcf.optim.rules import coefficients

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

    Raises:
        ValueError: saying what went wrong, so that it goes wrong before anything is changed.
    """
    kinds = {(p.dim(), p.device): p for p in group["params"] if not is_lazy(p)}
    for (dims, device), p in kinds.items():
        weight = torch.zeros([1] * dims, dtype=torch.float32, device=device, requires_grad=True)
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


# The classes whose update is a multiple of a first moment, and that moment's name.
_FIRST: dict[type[Optimizer], str] = {
    torch.optim.SGD: "momentum_buffer",
    torch.optim.Adam: "exp_avg",
    torch.optim.AdamW: "exp_avg",
}


def step(inner: Optimizer) -> None:
    """A step of the class itself, without the hooks of all optimizers that torch puts around it."""
    own: Any = type(inner).step
    (own.__wrapped__ if getattr(own, "hooked", False) else own)(inner)


def first_moment(cls: type[Optimizer], group: Group, where: str) -> str:
    """The state that takes a parameter's rounding errors.

    Raises:
        ValueError: where there is none of which the update is a multiple.
    """
    name = _FIRST.get(cls)
    if name is None:
        known = ", ".join(c.__name__ for c in _FIRST)
        raise ValueError(
            f"precision={group['precision']!r} of {where} keeps rounding errors in a first moment "
            f"of which the update is a multiple; of {cls.__name__} none is known, allowed are "
            f"torch's {known}"
        )
    if cls is torch.optim.SGD and (group["momentum"] == 0 or group["nesterov"]):
        raise ValueError(
            f"precision={group['precision']!r} of {where} keeps rounding errors in the momentum "
            "buffer: it needs a momentum, and not Nesterov's, got "
            f"momentum={group['momentum']}, nesterov={group['nesterov']}"
        )
    if cls is not torch.optim.SGD and float(group["betas"][0]) == 0:
        raise ValueError(
            f"precision={group['precision']!r} of {where} keeps rounding errors in the first "
            "moment; betas[0] is 0, allowed is more"
        )
    return name


def divisor_and_factor(
    cls: type[Optimizer], group: Group, state: Mapping[str, Any], like: Tensor
) -> tuple[Tensor, float]:
    """What the class divided its first moment by, and ECO's factor of the error before it."""
    rate = float(group["lr"])
    if cls is torch.optim.SGD:
        (factor,) = host.bind(coefficients.momentum_feedback)(float(group["momentum"]), rate)
        return torch.ones_like(like), factor
    beta1, beta2 = (float(b) for b in group["betas"])
    step = float(state["step"])
    second = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    divisor = (second / (1 - beta2**step)).sqrt() + group["eps"]
    power, _ = host.bind(powers.power)(beta1, 0.0, step)
    (factor,) = host.bind(coefficients.adam_feedback)(beta1, power, rate)
    return divisor, factor


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
