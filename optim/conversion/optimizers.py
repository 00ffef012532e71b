"""Optimizers and their states under another precision, and from and to other libraries."""

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

# The longer names first, as one is part of others.
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
    """A new optimizer that goes on where another one is, under another precision or class.

        optimizer, report = mcf.optim.convert(torch_adamw, "plus", params=bf16_model.parameters())

    Each number (the parameter with its compensation, extra bits or master copy; each moment with
    its low word) is taken exactly and rounded once to what the target stores; the report says
    where. Steps, groups and hyperparameters come along. A parameter without a state gets one of no
    steps where that keeps bits which the visible parameter does not: a float32 checkpoint starts
    in `plus` or `light` with all the bits they hold.

    Args:
        optimizer: one of this package, of torch.optim, optimi, bf16_fused_adam, torchao,
            bitsandbytes, FlashOptim, HeavyBall, TransformerEngine, TorchDistX or the Collage
            authors' (AdamW and Adam of each, Lion and SGD where torch or it has them).
        precision: the target's; by default that of `optimizer`, else the class's own default.
        to: the target's class; by default the same, or ours of that name. Of torch.optim for a
            way back: states then have the parameter's dtype, as torch keeps them.
        params: the target's parameters in the order of `optimizer`'s, of any of the four dtypes;
            their values are overwritten. By default the same tensors: their visible values are
            those of the new precision then, and `optimizer` must not be used any more.
        options: further options of the target's groups, in place of those that come along.

    Returns:
        The new optimizer and the report.

    Raises:
        ValueError, TypeError: for what does not fit, before any parameter is changed.
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

    Its hyperparameters stay as they are; load the learning rate with its schedule. States go to
    parameters by name where both sides name all of theirs, else by place.

    Args:
        optimizer: of this package or of torch.optim.
        state_dict: what the other's `state_dict()` returned.
        params: the parameters that belong to it, in the order of its groups (the float32 weights of
            a checkpoint, say); by default the values of `optimizer`'s own.

    Returns:
        What was rounded.

    Raises:
        ValueError, TypeError: for what does not fit, before anything is changed.
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
    """Float32 weights, and the state dict of torch's optimizer of the same name for them.

    Returns:
        For each parameter in order the value that is stored, rounded to float32 (float64 for
        float64 parameters; frozen ones of other dtypes are as they are), and the state dict. A pair
        of two bf16 numbers that are far apart is rounded; all else is exact.
    """
    params = [
        Parameter(torch.empty_like(p, dtype=_wide(p.dtype)), p.requires_grad)
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    made, _ = convert(optimizer, to=getattr(torch.optim, _class(optimizer).__name__), params=params)
    return [p.detach() for p in params], made.state_dict()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What a checkpoint in float32 has for a parameter."""
    return dtype if dtype == torch.float64 or dtype not in FORMATS else torch.float32


def _entry(optimizer: Optimizer, p: Tensor) -> Mapping[str, Any]:
    """What an optimizer keeps of a parameter; where others wrote that, as a step would take it."""
    mine = isinstance(optimizer, LowPrecisionOptimizer) and optimizer._followed(p)
    entry: Mapping[str, Any] = mine or optimizer.state.get(p, {})
    unscaled = getattr(optimizer, "get_unscaled_state", None)
    if unscaled is not None:
        # TransformerEngine's, whose scales are elsewhere.
        return {name: unscaled(p, name) for name in entry}
    return {
        # FlashOptim's, objects around tensors.
        name: value.materialize() if hasattr(value, "materialize") else value
        for name, value in entry.items()
    }


def _class(optimizer: Optimizer) -> type[Optimizer]:
    """Our class of the same name, ignoring what other libraries add to it."""
    if isinstance(optimizer, LowPrecisionOptimizer):
        return type(optimizer)
    name = type(optimizer).__name__
    if hasattr(optimizer, "adam_w_mode"):
        # TransformerEngine's and apex's FusedAdam are either.
        return AdamW if optimizer.adam_w_mode else Adam
    if "AdamWScheduleFree" in name:
        return ScheduleFreeAdamW
    for known in _OURS:
        if known.__name__ in name:
            return known
    raise ValueError(f"no optimizer of this package is called as {name} is; name one with to=")


def _options(
    cls: type[Optimizer],
    given: dict[str, Any],
    precision: PrecisionName | Precision | None,
    more: dict[str, Any],
) -> dict[str, Any]:
    """The options of a target's group."""
    make: Any = cls
    # Every precision has an effect on 16 bits: a stand-in of float32 would make a warning.
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
    # What another precision rounds may have no low word here.
    target = {**defaults, **found}.get("precision", "plain")
    if "low" not in more and not strategy_of(str(target)).param.has_low:
        found.pop("low", None)
    if "initial_lr" in given:
        found["initial_lr"] = given["initial_lr"]
    return {**found, **more}
