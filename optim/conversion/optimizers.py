"""Conversion of optimizers and their states to other precisions, and to other libraries."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from mcf.kernels.formats import FORMATS
from mcf.optim import checkpoint
from mcf.optim.conversion import libraries
from mcf.optim.conversion.states import Report, fill
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.precision import Precision, strategy_of
from mcf.optim.rules.adam import Adam
from mcf.optim.rules.adamax import Adamax
from mcf.optim.rules.adamw import AdamW
from mcf.optim.rules.adan import Adan
from mcf.optim.rules.ademamix import AdEMAMix
from mcf.optim.rules.collage_adamw import CollageAdamW
from mcf.optim.rules.lion import Lion
from mcf.optim.rules.muon import Muon
from mcf.optim.rules.nadam import NAdam
from mcf.optim.rules.radam import RAdam
from mcf.optim.rules.schedule_free import ScheduleFreeAdamW
from mcf.optim.rules.sgd import SGD
from mcf.optim.rules.stable_adamw import StableAdamW
from mcf.optim.storage.strategies import PrecisionName

# Longer names first, because they contain shorter ones.
_OURS: tuple[type[LowPrecisionOptimizer], ...] = (
    CollageAdamW, ScheduleFreeAdamW, StableAdamW, AdEMAMix, AdamW, NAdam, RAdam, Adamax, Adam, Adan,
    SGD, Lion, Muon,
)  # fmt: skip


def convert(
    optimizer: Optimizer,
    precision: PrecisionName | Precision | None = None,
    *,
    to: type[Optimizer] | None = None,
    params: Iterable[Tensor] | None = None,
    **options: Any,
) -> tuple[Any, Report]:
    """Return a new optimizer that continues another one under another precision or class.

        optimizer, report = mcf.optim.convert(torch_adamw, "plus", params=bf16_model.parameters())

    Each number (the parameter with its compensation, extra bits or master copy; each moment with
    its low word) is read exactly and rounded once to the target's storage; the report lists
    roundings. Step counts, groups and hyperparameters are copied. A parameter without a state gets
    one with 0 steps if it keeps bits that the visible parameter cannot: a float32 checkpoint starts
    in `plus` or `light` with all the bits they hold.

    Args:
        optimizer: an optimizer of this package, of torch.optim, optimi, bf16_fused_adam, torchao,
            bitsandbytes, FlashOptim, HeavyBall, TransformerEngine, TorchDistX or the Collage
            authors' (AdamW and Adam of each, Lion and SGD where torch or it has them).
        precision: the target's precision; by default that of `optimizer`, else the class's default.
        to: the target's class; by default the same, or this package's class of that name. For a
            class of torch.optim states get the parameter's dtype, as in torch.
        params: the target's parameters in the order of `optimizer`'s, of any of the four dtypes;
            their values are overwritten. By default the same tensors: they then have the visible
            values of the new precision, and `optimizer` must not be used any more.
        options: options of the target's groups that replace the copied ones.

    Returns:
        The new optimizer and the report.

    Raises:
        ValueError, TypeError: for arguments or states that do not fit, before any parameter is
            changed.
    """
    source = [
        (libraries.options(group), group.get("param_names"), [
            (p, _entry(optimizer, p)) for p in group["params"]
        ])
        for group in optimizer.param_groups
    ]  # fmt: skip
    cls: Any = to or _class(optimizer)
    targets = list(params) if params is not None else [p for *_, e in source for p, _ in e]
    count = sum(len(entries) for *_, entries in source)
    if len(targets) != count:
        raise ValueError(f"params has {len(targets)} tensors; the optimizer has {count}")
    remaining = iter(targets)
    groups = []
    for given, names, entries in source:
        mine = [next(remaining) for _ in entries]
        listed = list(zip(names, mine, strict=True)) if names else mine
        groups.append({"params": listed, **_options(cls, given, precision, options)})
    made = cls(groups)
    for name in ("max_grad_norm", "max_grad_value", "nonfinite", "_track_metrics"):
        if isinstance(made, LowPrecisionOptimizer) and hasattr(optimizer, name):
            setattr(made, name, getattr(optimizer, name))
    return made, fill(made, [(g, e) for g, _, e in source])


def load_converted(
    optimizer: Optimizer, state_dict: Mapping[str, Any], params: Iterable[Tensor] | None = None
) -> Report:
    """Load into an optimizer the state dict of another precision, class or library.

    The optimizer's hyperparameters are unchanged; load the learning rate with its schedule. States
    go to parameters by name if both sides name all parameters, otherwise by index.

    Args:
        optimizer: an optimizer of this package or of torch.optim.
        state_dict: the result of the other optimizer's `state_dict()`.
        params: the parameters that belong to `state_dict`, in the order of its groups (such as the
            float32 weights of a checkpoint); by default the values of `optimizer`'s own.

    Returns:
        A report of what was rounded.

    Raises:
        ValueError, TypeError: for states that do not fit, before anything is changed.
    """
    saved = state_dict["param_groups"]
    count = sum(len(group["params"]) for group in saved)
    mine = [p for group in optimizer.param_groups for p in group["params"]]
    sources = list(params) if params is not None else mine
    for what, number in (("params", len(sources)), ("the optimizer", len(mine))):
        if number != count:
            raise ValueError(f"the state dict is of {count} parameters; {what} has {number}")
    remaining = iter(sources)
    found = [
        (libraries.options(group), next(remaining), state_dict["state"].get(key, {}))
        for group in saved
        for key in group["params"]
    ]
    places = checkpoint.places(optimizer.param_groups, saved)
    if places is not None:
        if params is None:
            # A parameter is its own source, wherever the state dict has its name.
            found = [(found[k][0], p, found[k][2]) for k, p in zip(places, mine, strict=True)]
        else:
            found = [found[k] for k in places]
    return fill(optimizer, [(given, [(p, entry)]) for given, p, entry in found])


def float32_checkpoint(optimizer: LowPrecisionOptimizer) -> tuple[list[Tensor], dict[str, Any]]:
    """Return float32 weights, and the state dict of torch's optimizer of the same name for them.

    Returns:
        The stored value of each parameter in order, rounded to float32 (float64 for float64
        parameters; frozen ones of other dtypes are unchanged), and the state dict. Only a pair of
        two bf16 numbers that are far apart is rounded; all else is exact.
    """
    params = [
        Parameter(torch.empty_like(p, dtype=_wide(p.dtype)), p.requires_grad)
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    made, _ = convert(optimizer, to=getattr(torch.optim, _class(optimizer).__name__), params=params)
    return [p.detach() for p in params], made.state_dict()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a parameter in a float32 checkpoint."""
    return dtype if dtype == torch.float64 or dtype not in FORMATS else torch.float32


def _entry(optimizer: Optimizer, p: Tensor) -> Mapping[str, Any]:
    """Return an optimizer's state of a parameter, as its next step would begin with it."""
    mine = isinstance(optimizer, LowPrecisionOptimizer) and optimizer._followed(p)
    entry: Mapping[str, Any] = mine or optimizer.state.get(p, {})
    unscaled = getattr(optimizer, "get_unscaled_state", None)
    if unscaled is not None:
        # TransformerEngine keeps the states' scales elsewhere.
        return {name: unscaled(p, name) for name in entry}
    return {
        # FlashOptim keeps objects around tensors.
        name: value.materialize() if hasattr(value, "materialize") else value
        for name, value in entry.items()
    }


def _class(optimizer: Optimizer) -> type[Optimizer]:
    """Return our class of the same name, ignoring prefixes and suffixes of other libraries."""
    if isinstance(optimizer, LowPrecisionOptimizer):
        return type(optimizer)
    name = type(optimizer).__name__
    if hasattr(optimizer, "adam_w_mode"):
        # The FusedAdam of TransformerEngine and apex can be either.
        return AdamW if optimizer.adam_w_mode else Adam
    if "AdamWScheduleFree" in name:
        return ScheduleFreeAdamW
    for known in _OURS:
        if known.__name__ in name:
            return known
    raise ValueError(
        f"to is not given, and no optimizer of this package is named like {name}; pass its class "
        "as to="
    )


def _options(
    cls: type[Optimizer],
    given: dict[str, Any],
    precision: PrecisionName | Precision | None,
    more: dict[str, Any],
) -> dict[str, Any]:
    """Return the options of a target's group."""
    make: Any = cls
    # A stand-in of float32 would cause the warning about a precision without effect.
    defaults = make([Parameter(torch.zeros(1, 2, dtype=torch.bfloat16, device="cpu"))]).defaults
    known = {*defaults, "initial_lr", *({"mode"} & inspect.signature(cls).parameters.keys())}
    foreign_names = sorted(more.keys() - known)
    if foreign_names:
        raise TypeError(
            f"options {foreign_names} are none of {cls.__name__}'s groups; allowed are "
            f"{', '.join(sorted(known))}"
        )
    found = {k: copy.deepcopy(v) for k, v in given.items() if k in defaults}
    if precision is not None:
        found["precision"] = precision
    # The target's precision may have no low component to round.
    target = {**defaults, **found}.get("precision", "plain")
    if "low" not in more and not strategy_of(str(target)).param.has_low:
        found.pop("low", None)
    if "initial_lr" in given:
        found["initial_lr"] = given["initial_lr"]
    return {**found, **more}
