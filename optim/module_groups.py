"""Parameter groups from a module: options by name or by class of the owning module."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# A condition of a rule: module classes, a pattern of names, or a predicate.
Match = type | tuple[type, ...] | str | Callable[[str, Tensor, nn.Module], bool]


def param_groups(module: nn.Module, *rules: tuple[Match, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return groups for an optimizer: each parameter goes to the first rule that it matches.

        groups = param_groups(
            model,
            ((nn.LayerNorm, nn.RMSNorm), {"dtype": torch.float32, "weight_decay": 0.0}),
            ("*.bias", {"weight_decay": 0.0}),
            ("embedding.*", {"precision": "master"}),
        )
        optimizer = mcf.optim.AdamW(groups, lr, precision="plus")

    Args:
        module: the model; each of its parameters is in exactly one group, under its name.
        rules: pairs of a condition and the options of its group. A class or a tuple of classes
            matches the parameters that a module of that class owns itself; a string is a pattern
            (`fnmatch`, case counts) for the full name; a function gets name, parameter and owner.
            Options are those of an optimizer's group, and `dtype`, which converts the parameters in
            place, exactly or with one rounding, before the optimizer sees them.

    Returns:
        The groups of the rules in order, without rules whose parameters all went to earlier rules;
        last, the group of all other parameters.

    Raises:
        TypeError: for a rule of another form.
        ValueError: for a rule that matches no parameter (a misspelt name, say), for a `dtype` that
            is not floating-point, or a parameter to convert that has a gradient; before any
            parameter is converted.
    """
    owned = _owners(module)
    matches = [_matcher(index, rule) for index, rule in enumerate(rules)]
    taken: list[list[tuple[str, Tensor]]] = [[] for _ in rules]
    seen = [False] * len(rules)
    rest: list[tuple[str, Tensor]] = []
    p: Tensor
    for name, p in module.named_parameters():
        fits = [k for k, match in enumerate(matches) if match(name, p, owned[name])]
        for k in fits:
            seen[k] = True
        (taken[fits[0]] if fits else rest).append((name, p))
    for (match, _), found in zip(rules, seen, strict=True):
        if not found:
            raise ValueError(f"no parameter of the module matches {match!r}")
    for (_, given), entries in zip(rules, taken, strict=True):
        _check_dtype(given, entries)
    groups = []
    for (_, given), entries in zip(rules, taken, strict=True):
        dtype = given.get("dtype")
        if dtype is not None:
            for _, p in entries:
                p.data = p.data.to(dtype)
        if entries:
            options = {k: v for k, v in given.items() if k != "dtype"}
            groups.append({"params": entries, **options})
    return [*groups, {"params": rest}] if rest else groups


def _owners(module: nn.Module) -> dict[str, nn.Module]:
    """Return the module that owns each parameter, by the parameter's first name."""
    return {
        f"{prefix}.{name}" if prefix else name: owner
        for prefix, owner in module.named_modules()
        for name in owner._parameters
    }


def _matcher(index: int, rule: Any) -> Callable[[str, Tensor, nn.Module], bool]:
    if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[1], dict)):
        raise TypeError(f"rules[{index}] is {rule!r}; allowed is a pair of a match and a dict")
    match = rule[0]
    if isinstance(match, str):
        return lambda name, p, owner: fnmatch.fnmatchcase(name, match)
    classes = match if isinstance(match, tuple) else (match,)
    if all(isinstance(c, type) for c in classes):
        return lambda name, p, owner: isinstance(owner, classes)
    if callable(match):
        return lambda name, p, owner: bool(match(name, p, owner))
    raise TypeError(
        f"rules[{index}] matches {match!r}; allowed are classes of modules, a pattern of names, or "
        "a function of name, parameter and module"
    )


def _check_dtype(given: dict[str, Any], entries: list[tuple[str, Tensor]]) -> None:
    dtype = given.get("dtype")
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype is {dtype!r}; allowed are floating-point dtypes")
    for name, p in entries:
        if p.grad is not None and p.dtype != dtype:
            raise ValueError(f"{name} has a gradient of {p.grad.dtype}; convert it before backward")
