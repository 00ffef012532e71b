"""The options that every optimizer of this package takes beside those of its rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypedDict

from torch import Tensor

Group = dict[str, Any]


class Options(TypedDict, total=False):
    """Keyword arguments that all constructors pass on.

    Those of torch that choose among its implementations; here there is one, fused, for all
    tensors of a step:

    - `foreach`, `fused`: None, True or False, without effect on any bit.
    - `capturable`: see `LowPrecisionOptimizer`.
    - `differentiable`: only False. The step is one opaque kernel and has no derivative.

    Those for all parameters of an optimizer, which are its attributes and may change at any time:

    - `max_grad_norm`: clip the norm of all gradients to it, as torch.nn.utils.clip_grad_norm_ does
      to gradients, inside the step; the norm is then in `grad_norm`.
    - `max_grad_value`: clip each element of the unscaled gradients to it, as clip_grad_value_ does.
    - `nonfinite`: what an infinity or NaN in a gradient does: `"torch"` lets it into that
      element's parameter and state; `"skip"` makes the step change nothing; `"raise"` raises
      `NonFiniteGradientError` before anything has changed.
    """

    foreach: bool | None
    capturable: bool
    differentiable: bool
    fused: bool | None
    max_grad_norm: float | None
    max_grad_value: float | None
    nonfinite: str


# The options kept in every parameter group, as torch keeps them, and their defaults.
IN_GROUPS: Group = {"foreach": None, "capturable": False, "differentiable": False, "fused": None}

# The options that are attributes of the optimizer, and their defaults.
OF_OPTIMIZER: Group = {"max_grad_norm": None, "max_grad_value": None, "nonfinite": "torch"}

DEFAULTS: Group = {**IN_GROUPS, **OF_OPTIMIZER}


def in_groups(options: Options) -> Group:
    """The options that parameter groups keep, with defaults for those not given."""
    return {**IN_GROUPS, **{k: v for k, v in options.items() if k in IN_GROUPS}}


def of_optimizer(options: Options) -> Group:
    """The options that are attributes, with defaults for those not given."""
    return {**OF_OPTIMIZER, **{k: v for k, v in options.items() if k in OF_OPTIMIZER}}


def known(name: str, options: Options) -> None:
    """Raise TypeError, as Python does, for a keyword that no constructor has."""
    for given in options:
        if given not in DEFAULTS:
            allowed = ", ".join(DEFAULTS)
            raise TypeError(
                f"{name}.__init__() got an unexpected keyword argument {given!r}; beside its own "
                f"arguments it takes {allowed}"
            )


def check(group: Group) -> None:
    """Raise for combinations that torch refuses, in its words, and for what is not there.

    Raises:
        TypeError: for a value that is not a bool (or None, where None is allowed).
        RuntimeError: for combinations that torch refuses with it.
        NotImplementedError: for `differentiable=True`.
    """
    for name, default in IN_GROUPS.items():
        value = group[name]
        if not isinstance(value, bool) and not (value is None and default is None):
            allowed = "True, False or None" if default is None else "True or False"
            raise TypeError(f"{name} must be {allowed}, got {value!r}")
    if group["fused"] and group["differentiable"]:
        raise RuntimeError("`fused` does not support `differentiable`")
    if group["fused"] and group["foreach"]:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if group["differentiable"]:
        raise NotImplementedError(
            "differentiable=True: a step is one fused kernel and has no derivative; allowed is "
            "False"
        )
    if group["capturable"]:
        raise NotImplementedError("capturable=True is not implemented yet; allowed is False")


def check_tensors(group: Group, name: str, value: Any) -> None:
    """Raise where torch's Adam refuses a hyperparameter that is a tensor."""
    if isinstance(value, Tensor) and group["foreach"] and not group["capturable"]:
        raise ValueError(
            f"{name} as a Tensor is not supported for capturable=False and foreach=True"
        )


def signature(constructor: Callable[..., None]) -> inspect.Signature:
    """A constructor's signature, with the options spelled out where it says `**options`."""
    found = inspect.signature(constructor)
    kept = [p for p in list(found.parameters.values())[1:] if p.kind is not p.VAR_KEYWORD]
    if len(kept) + 1 < len(found.parameters):
        types = inspect.get_annotations(Options)
        kept += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=types[name]
            )
            for name in types
        ]
    return found.replace(parameters=kept)
