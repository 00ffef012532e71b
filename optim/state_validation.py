"""Checks of a parameter's state: entries, dtypes, shapes, layouts and devices."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mcf.kernels.formats import Format
from mcf.optim.parameters import entries
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.sharding.shards import local, same_place
from mcf.optim.step import shared_memory
from mcf.optim.validation import in_words, number, overlaps

if TYPE_CHECKING:
    from mcf.optim.rule.rule import Rule


def state(
    where: str,
    p: Tensor,
    entry: Mapping[str, Any],
    formats: Mapping[str, Format],
    rule: Rule,
    counted: bool = False,
    placed: bool = True,
) -> None:
    """Raise unless a parameter's state has the tensors, dtypes and shapes of its precision.

    Entries of other software may be there. Scalars are not read if they are on a device, or if
    `counted`. If `placed`, the state must also be distributed over processes as its parameter is.
    """
    numbers = [name for name, _ in rule.numbers]
    wanted = {"step", *numbers, *formats}
    mine = entries.own(entry)
    if mine - set(rule.unused) != wanted:
        raise ValueError(
            f"state of {where} has {sorted(mine)}; its precision and dtype need {sorted(wanted)}"
        )
    for name in ("step", *numbers):
        has_values(name, where, p, entry[name])
    for name in numbers:
        # Reading a device would wait for it, and fake tensors have no values.
        value = entry[name]
        elsewhere = isinstance(value, Tensor) and (value.device.type != "cpu" or counted)
        if not (elsewhere or isinstance(value, FakeTensor)):
            number(f"state {name!r} of {where}", entry[name])
    for name, fmt in formats.items():
        t = entry[name]
        if not isinstance(t, Tensor):
            raise TypeError(f"state {name!r} of {where} is a {type(t).__name__}, not a tensor")
        if t.layout is not torch.strided:
            raise TypeError(
                f"state {name!r} of {where} has layout {t.layout}; allowed is torch.strided"
            )
        has_values(name, where, p, t)
        if is_expansion(t):
            raise TypeError(
                f"state {name!r} of {where} is an expansion of components of {t.dtype}; allowed "
                "are plain tensors"
            )
        shape = fmt.shape(tuple(p.shape))
        if t.dtype != fmt.dtype or t.shape != shape:
            raise ValueError(
                f"state {name!r} of {where} has dtype {t.dtype} and shape {list(t.shape)}; a "
                f"parameter of dtype {p.dtype} and shape {list(p.shape)} needs {fmt.dtype} and "
                f"{list(shape)} (was the parameter changed after its state was made?)"
            )
        if placed and not same_place(p, t):
            raise TypeError(
                f"state {name!r} of {where} is {in_words(t)}; allowed is its parameter's layout, "
                f"{in_words(p)}"
            )
        t = local(t)
        shared_memory.present(f"state {name!r} of {where}", t)
        if t.is_neg():
            raise TypeError(
                f"state {name!r} of {where} is a lazily negated view; allowed is what "
                "resolve_neg() returns"
            )
        if not t.is_contiguous() and overlaps(t):
            raise ValueError(
                f"state {name!r} of {where} is expanded or overlaps itself (shape "
                f"{list(t.shape)}, strides {list(t.stride())}): several of its elements share "
                "memory"
            )


def has_values(name: str, where: str, p: Tensor, value: Any) -> None:
    """Raise for a state on the meta device, unless its parameter is there too."""
    if isinstance(value, Tensor) and value.is_meta and not p.is_meta:
        raise TypeError(
            f"state {name!r} of {where} is on the meta device, which has no values; allowed is "
            "a tensor with memory, such as on the device of its parameter"
        )


def state_device(where: str, p: Tensor, entry: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Raise unless a parameter's state is on its device, with scalars in tensors.

    Only checkpoints may hold scalars as Python numbers.
    """
    for name in sorted(entries.own(entry) - names.keys()):
        t = entry[name]
        if not isinstance(t, Tensor):
            raise TypeError(
                f"state {name!r} of {where} is of type {type(t).__name__}; allowed is a tensor, "
                "which steps write to: fill_ sets its value"
            )
        if name == "step" and t.numel() != 1:
            raise ValueError(f"state 'step' of {where} has shape {list(t.shape)}; allowed is one")
    for name in names:
        if entry[name].device != p.device:
            raise ValueError(
                f"state {name!r} of {where} is on {entry[name].device}; its parameter is on "
                f"{p.device} (was it moved after its state was made?)"
            )


def step_count(where: str, value: Any) -> None:
    """Raise unless a step count is a whole number from 0, as a number or a 1-element tensor."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"state 'step' of {where} has shape {list(value.shape)}; allowed is one")
    number = value.item() if isinstance(value, Tensor) else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"state 'step' of {where} is a {type(number).__name__}, not a number")
    x = float(number)
    if not (0 <= x < 2.0**63 and x.is_integer()):
        raise ValueError(f"state 'step' of {where} is {number}; allowed are whole numbers from 0")
