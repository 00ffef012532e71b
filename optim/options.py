"""The options that every optimizer takes in addition to the arguments of its rule."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from mcf.kernels.choices import check_choice, meant
from mcf.optim import validation
from mcf.optim.parameters import randomness
from mcf.optim.precision import Precision
from mcf.optim.storage.strategies import PrecisionName

Group = dict[str, Any]


class _Precision(TypedDict, total=False):
    precision: PrecisionName | Precision


class OtherOptions(TypedDict, total=False):
    """The options without `precision`, for `CollageAdamW`, which calls it `mode`."""

    compute_dtype: torch.dtype
    maximize: bool
    track_metrics: bool
    foreach: bool | None
    capturable: bool
    differentiable: bool
    fused: bool | None
    decouple_lr: bool
    peak_lr: float | None
    max_lr: float | None
    max_grad_norm: float | None
    max_grad_value: float | None
    nonfinite: Literal["torch", "skip", "raise"]
    check_numerics: bool
    low: Literal["nearest", "stochastic"]
    seed: int
    stream_by: str | None


class Options(_Precision, OtherOptions, total=False):
    """Keyword arguments that all constructors accept.

    For the numbers that are stored and computed:

    - `precision`: a name of `mcf.optim.AdamW`'s list, or a `Precision` composed of storage formats;
      may differ between groups. `CollageAdamW` calls it `mode`.
    - `compute_dtype`: `torch.float32` computes in float32 registers and rounds only stored values;
      the parameter's 16-bit dtype rounds every operation, as in the Collage paper.
    - `maximize`: maximize the objective.
    - `track_metrics`: sum in every step what `metrics()` returns.

    Options that choose among torch's implementations; here there is one, fused, for all tensors of
    a step:

    - `foreach`, `fused`: None, True or False, without effect on any bit.
    - `capturable`: counts, tensor `lr` and `betas` and skipped steps stay on the device, for CUDA
      graphs; the same bits. See docs/drop_in.md.
    - `differentiable`: only False. The step is one opaque kernel and has no derivative.

    For weight decay, in rules where it is decoupled from the gradient:

    - `decouple_lr`: decouple it from the learning rate as well: a step subtracts (lr / peak_lr)
      weight_decay p from p instead of lr weight_decay p.
    - `peak_lr`: the largest learning rate of the schedule; by default the constructor's. The older
      name `max_lr` is deprecated, because schedulers store a value of their own under it.

    For all parameters of an optimizer; these are its attributes and may change at any time:

    - `max_grad_norm`: clip the norm of all gradients to it, as torch.nn.utils.clip_grad_norm_ does
      to gradients, inside the step; the norm is then in `grad_norm`.
    - `max_grad_value`: clip each element of the unscaled gradients to it, as clip_grad_value_ does.
    - `nonfinite`: the effect of an infinity or NaN in a gradient: `"torch"` propagates it to that
      element's parameter and state; `"skip"` makes the step change nothing; `"raise"` raises
      `NonFiniteGradientError` before anything has changed.
    - `check_numerics`: warn once (`LostUpdatesWarning`) where more than half of a group's updates
      leave the stored weights unchanged, because its rate is too small for its precision. A sample
      of weights is compared in one of the first steps in which the rate does not rise; other steps
      have no extra cost.

    For precisions that round stochastically:

    - `low`: how `"kahan"`, `"light"` and `"plus"` round the low component of a bf16 parameter,
      `"nearest"` or `"stochastic"`. `"stochastic"` keeps updates of any size in the mean.
    - `seed`: the seed of the random numbers, which depend only on it, the step, the parameter and
      the element's index. Saved in checkpoints.
    - `stream_by`: the key of a parameter's random numbers: `"name"`, for named parameters, which
      does not depend on groups or on the part of a model, or `"place"`, its index among all
      parameters. The default is the name, if there is one. Saved in checkpoints; older ones imply
      `"place"`.
    """


# Roundings of the low component.
LOW = ("nearest", "stochastic")

# The options kept in every parameter group, as in torch, and their defaults; those of `ALWAYS` are
# in checkpoints of every version.
ALWAYS: Group = {"precision": "plus", "compute_dtype": torch.float32, "maximize": False}
_FLAGS: Group = {
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decouple_lr": False,
}
IN_GROUPS: Group = {**_FLAGS, "peak_lr": None, "low": "nearest", "seed": 0, "stream_by": None}

# Their values in checkpoints that lack them.
OLDER: Group = {**IN_GROUPS, "stream_by": "place"}

# The options that are attributes of the optimizer, and their defaults.
CHECK = "check_numerics"
OF_OPTIMIZER: Group = {
    "max_grad_norm": None,
    "max_grad_value": None,
    "nonfinite": "torch",
    CHECK: True,
}

DEFAULTS: Group = {**IN_GROUPS, **OF_OPTIMIZER, **ALWAYS, "track_metrics": False}


def defaults_of(precisions: Collection[str]) -> Group:
    """Return the defaults of all options; rules without a second moment begin with "light"."""
    return {**DEFAULTS, "precision": "plus" if "plus" in precisions else "light"}


# Arguments of constructors that groups do not keep.
_APART = ("self", "__class__", "params", "process_group", "options")


def hyperparameters(arguments: Mapping[str, Any]) -> Group:
    """Return the hyperparameters among a constructor's arguments, which are its `locals()`."""
    return {name: value for name, value in arguments.items() if name not in _APART}


# The former name of `peak_lr`. OneCycleLR and Megatron's schedules write this key into groups.
_OLD = "max_lr"


def renamed(given: Options) -> Options:
    """Return a constructor's options under their present names.

    Raises:
        TypeError: for an option under both of its names.
    """
    if _OLD not in given:
        return given
    if "peak_lr" in given:
        raise TypeError("peak_lr and max_lr are both given; max_lr is its deprecated name")
    _deprecated(stacklevel=5)
    return {**{k: v for k, v in given.items() if k != _OLD}, "peak_lr": given[_OLD]}  # type: ignore[typeddict-item]


# Groups of checkpoints are plain data: torch's distributed checkpoints accept no dtypes.
_DTYPES = {str(d).removeprefix("torch."): d for d in validation.COMPUTE_DTYPES}


def dtype_of(value: Any) -> Any:
    """Return the dtype of a `compute_dtype` given by name, `"float32"`; return others unchanged."""
    return _DTYPES.get(value, value) if isinstance(value, str) else value


def saved(group: Mapping[str, Any]) -> Group:
    """Return a group as checkpoints store it."""
    names = {d: name for name, d in _DTYPES.items()}
    value = group.get("compute_dtype")
    if isinstance(value, torch.dtype):
        return {**group, "compute_dtype": names.get(value, value)}
    return dict(group)


def upgraded(group: Mapping[str, Any]) -> Group:
    """Return a group from a checkpoint of any version in today's form; foreign entries stay."""
    if "compute_dtype" in group:
        group = {**group, "compute_dtype": dtype_of(group["compute_dtype"])}
    if "peak_lr" in group or _OLD not in group:
        return dict(group)
    value = group[_OLD]
    kept = {k: v for k, v in group.items() if k != _OLD or v is not None}
    return {**kept, "peak_lr": value if group.get("decouple_lr") else None}


def _deprecated(stacklevel: int) -> None:
    warnings.warn(
        "max_lr is now called peak_lr, since learning-rate schedulers keep a max_lr of their own",
        FutureWarning,
        stacklevel=stacklevel,
    )


def chosen(options: Options, defaults: Group) -> Group:
    """Return the given options among those of a table, with its defaults for the others."""
    return {**defaults, **{k: v for k, v in options.items() if k in defaults}}


def known(name: str, options: Options) -> None:
    """Raise TypeError, as Python does, for a keyword that no constructor has."""
    for given in options:
        if given == "mode":
            raise TypeError(
                f"{name} has no mode: precision='plus' is the mode of CollageAdamW, "
                "which takes mode='light', 'plus' or 'kahan'"
            )
        if given not in DEFAULTS:
            allowed = ", ".join(DEFAULTS)
            raise TypeError(
                f"{name}.__init__() got an unexpected keyword argument {given!r}"
                f"{meant(given, DEFAULTS)}; besides its own arguments it takes {allowed}"
            )


def check(group: Group, mine: Collection[str]) -> None:
    """Raise for combinations that torch refuses, in its words, and for unsupported options.

    `mine` names the entries that this package reads; others may hold anything.

    Raises:
        TypeError: for a value that is not a bool (or None, where None is allowed).
        RuntimeError: for combinations that torch refuses with it.
        NotImplementedError: for `differentiable=True`.
        ValueError: for another value of `low`, and for a tensor that capturable steps do not read.
    """
    check_rounding(group)
    for name, default in _FLAGS.items():
        value = group[name]
        if not isinstance(value, bool) and not (value is None and default is None):
            allowed = "True, False or None" if default is None else "True or False"
            raise TypeError(f"{name} must be {allowed}, got {value!r}")
    if group["fused"] and group["differentiable"]:
        raise RuntimeError("`fused` does not support `differentiable`")
    if group["fused"] and group["foreach"]:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    for name in mine if group["capturable"] else ():
        if isinstance(group.get(name), Tensor) and name not in ("params", "lr"):
            raise ValueError(
                f"{name} is a Tensor with capturable=True; allowed are Tensors for lr and betas"
            )
    if group["differentiable"]:
        raise NotImplementedError(
            "differentiable=True: a step is one fused kernel and has no derivative; allowed is "
            "False"
        )


def check_rounding(group: Group) -> None:
    """Raise for invalid values of `low`, `seed` and `stream_by`."""
    if group.get("stream_by") is not None:
        check_choice("stream_by", group["stream_by"], randomness.STREAM_BY)
    check_choice("low", group["low"], LOW)
    if isinstance(group["seed"], bool) or not isinstance(group["seed"], int):
        raise TypeError(f"seed must be an int, got {type(group['seed']).__name__}")


def with_peak_lr(group: Group, given: Group) -> Group:
    """Return a group with the learning rate that its decoupled weight decay is relative to.

    Args:
        group: the group with all defaults.
        given: the entries that were passed for this group alone.
    """
    if not group["decouple_lr"]:
        return group
    if _OLD in given and "peak_lr" not in given:
        _deprecated(stacklevel=4)
        return {**group, "peak_lr": given[_OLD]}
    return group if group["peak_lr"] is not None else {**group, "peak_lr": float(group["lr"])}


def check_decay(group: Group, decoupled: bool, rule: str) -> None:
    """Raise if the rule cannot decouple its weight decay from the learning rate."""
    value = group["peak_lr"]
    if not group["decouple_lr"]:
        if value is not None:
            raise ValueError(f"peak_lr is {value} and decouple_lr is False; allowed is None")
        return
    if not decoupled:
        option = "decoupled_weight_decay"
        allowed = f"; set {option}=True as well" if option in group else ""
        raise ValueError(
            f"decouple_lr=True: the weight decay of {rule} is not decoupled from the gradient"
            + allowed
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"peak_lr must be a number or None, got {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"Invalid peak_lr: {value}; allowed is a number in (0, inf)")


def weight_decay(group: Group, scalars: Group) -> Group:
    """Return scalars, numbers or tensors, whose weight decay is relative to `peak_lr`."""
    value, whole = scalars["weight_decay"], group["peak_lr"]
    # A GPU divides by a Python number by multiplying with its inverse, which rounds differently.
    of = torch.full_like(value, whole) if isinstance(value, Tensor) else whole
    return {**scalars, "weight_decay": value / of}


def check_tensors(group: Group, name: str, value: Any) -> None:
    """Raise if torch's Adam would refuse a hyperparameter that is a tensor."""
    if isinstance(value, Tensor) and group["foreach"] and not group["capturable"]:
        raise ValueError(
            f"{name} as a Tensor is not supported for capturable=False and foreach=True"
        )


def signature(constructor: Callable[..., None], precisions: Collection[str]) -> inspect.Signature:
    """Return a constructor's signature with `**options` spelled out."""
    found = inspect.signature(constructor)
    kept = [p for p in list(found.parameters.values())[1:] if p.kind is not p.VAR_KEYWORD]
    if len(kept) + 1 < len(found.parameters):
        defaults = defaults_of(precisions)
        if "mode" in found.parameters:
            del defaults["precision"]
        kept += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=kind.__forward_arg__,
            )
            for name, kind in inspect.get_annotations(Options).items()
            if name in defaults and name not in found.parameters
        ]
    return found.replace(parameters=kept)


# The descriptions of arguments that several constructors share.
_MEANINGS = {
    "params": "parameters, named parameters or groups, as in torch; dense and floating-point.",
    "lr": "learning rate, a float or a 1-element tensor; may change at every step.",
    "betas": "decay rates of the two moments, in [0, 1).",
    "eps": "added to the denominator.",
    "weight_decay": "decoupled weight decay.",
    "amsgrad": "divide by the largest v so far (arXiv:1904.09237), stored as v is.",
    "decoupled_weight_decay": "decay the parameter itself, as AdamW does.",
    "precision": "a name or a `Precision`; see `mcf.optim.AdamW`.",
    "compute_dtype": "see `mcf.optim.AdamW`.",
    "maximize": "maximize the objective.",
    "track_metrics": "sum in every step what `metrics()` returns.",
    "options": "torch's `foreach`, `capturable`, `differentiable`, `fused`, and others; see\n"
    "        `mcf.optim.options.Options`.",
}


def documented(text: str, arguments: Sequence[str]) -> str:
    """Return a class docstring whose `Args` also describe the arguments that it leaves out.

    Args:
        text: the docstring, with its own descriptions where they differ from `_MEANINGS`.
        arguments: the names of the constructor's arguments, in order.
    """
    head, mark, rest = inspect.cleandoc(text).partition("\nArgs:\n")
    if not mark:
        return head
    own, gap, tail = rest.partition("\n\n")
    entries = [f"    {name}: {meaning}" for name, meaning in _MEANINGS.items()]
    entries += re.split(r"\n(?=    \w+:)", own)
    found = {entry.strip().partition(":")[0]: entry for entry in entries}
    return head + mark + "\n".join(found[n] for n in arguments if n in found) + gap + tail
