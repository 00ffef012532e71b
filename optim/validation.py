"""Checks of hyperparameters, parameters and gradients; each error names what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from mcf.expansions import MCFTensor
from mcf.kernels.formats import FORMATS, Format
from mcf.optim.parameters import entries
from mcf.optim.parameters.expansions import check_gradient, check_parameter, is_expansion
from mcf.optim.rule.rule import Rule
from mcf.optim.sharding.shards import is_sharded, local, same_place
from mcf.optim.step import shared_memory


class SparseGradientError(TypeError, RuntimeError):
    """A sparse gradient; also a RuntimeError, which torch's optimizers raise."""


def number(
    name: str, value: Any, *, low: float = 0.0, high: float = math.inf, open_high: bool = False
) -> None:
    """Raise unless a hyperparameter is in [low, high], or [low, high) if `open_high`."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            short = {"learning rate": "lr"}.get(name, name)
            raise ValueError(f"Tensor {short} must be 1-element, got shape {list(value.shape)}")
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    x = float(value)
    inside = low <= x and (x < high if open_high or high == math.inf else x <= high)
    if not inside:
        upper = ")" if open_high or high == math.inf else "]"
        raise ValueError(f"Invalid {name}: {value}; allowed is [{low}, {high}{upper}")


def betas(value: Any, count: int = 2) -> None:
    """Raise unless `betas` is a pair of numbers in [0, 1), or `count` floats."""
    if not isinstance(value, (tuple, list)) or len(value) != count:
        allowed = "is a pair of numbers" if count == 2 else "are three numbers"
        raise ValueError(f"Invalid betas: {value!r}; allowed {allowed}")
    for k, beta in enumerate(value):
        if count > 2 and isinstance(beta, Tensor):
            raise TypeError(f"betas[{k}] is a Tensor; allowed are numbers in [0, 1)")
        number(f"beta parameter at index {k}", beta, high=1.0, open_high=True)
    if isinstance(value[0], Tensor) != isinstance(value[1], Tensor):
        raise ValueError("betas must be either both floats or both Tensors")


def steps(name: str, value: Any) -> None:
    """Raise unless a number of steps is an int from 1, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int or None, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"Invalid {name}: {value}; allowed is a whole number from 1, or None")


def flag(name: str, value: Any) -> None:
    """Raise unless a hyperparameter is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


# The checks of hyperparameters that have one range in every rule, by the arguments' names.
HYPERPARAMETERS: dict[str, Callable[[Any], None]] = {
    "lr": partial(number, "learning rate"),
    "momentum": partial(number, "momentum value"),
    "eps": partial(number, "epsilon value"),
    "weight_decay": partial(number, "weight_decay value"),
    "dampening": partial(number, "dampening value", low=-math.inf),
    "momentum_decay": partial(number, "momentum_decay value"),
    "alpha": partial(number, "alpha"),
    "beta3_warmup": partial(steps, "beta3_warmup"),
    "alpha_warmup": partial(steps, "alpha_warmup"),
    **{
        name: partial(flag, name)
        for name in ("amsgrad", "decoupled_weight_decay", "no_prox", "train_mode")
    },
}


COMPUTE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def compute_dtype(value: Any) -> None:
    """Raise unless `compute_dtype` is float32 or a 16-bit float."""
    if value not in COMPUTE_DTYPES:
        allowed = ", ".join(map(str, COMPUTE_DTYPES))
        raise ValueError(f"Invalid compute_dtype: {value}; allowed are {allowed}")


def parameter(where: str, p: Tensor, expansions: bool = False) -> None:
    """Raise unless a parameter is a dense real floating-point tensor of a known format.

    With `expansions`, an expansion of two 16-bit components is allowed as well.
    """
    plain(where, p)
    check_parameter(where, p, expansions)
    if p.layout is not torch.strided:
        raise TypeError(f"{where} has layout {p.layout}; allowed is torch.strided")
    if p.dtype not in FORMATS:
        allowed = ", ".join(map(str, FORMATS))
        raise TypeError(f"{where} has dtype {p.dtype}; allowed are {allowed}")
    writable(where, local(p))


def writable(where: str, t: Tensor) -> None:
    """Raise unless a local tensor has memory of its own for each element, as it reads it."""
    shared_memory.present(where, t)
    if t.is_neg():
        raise TypeError(f"{where} is a lazily negated view; allowed is what resolve_neg() returns")
    if not t.is_contiguous() and overlaps(t):
        raise ValueError(
            f"{where} is expanded or overlaps itself (shape {list(t.shape)}, strides "
            f"{list(t.stride())}): several of its elements share memory"
        )


def plain(where: str, p: Tensor) -> None:
    """Raise unless a parameter's memory is described by its dtype, shape and strides.

    A subclass that dispatches its operators itself may store anything, except for fake tensors and
    expansions, which are known.
    """
    kind = type(p)
    if kind in _PLAIN or kind.__torch_dispatch__ is Tensor.__torch_dispatch__:
        return
    if is_sharded(p):
        if any(place.is_partial() for place in p.placements):  # type: ignore[attr-defined]
            raise TypeError(
                f"{where} is a DTensor with placements {tuple(p.placements)}; "  # type: ignore[attr-defined]
                "allowed are Shard and Replicate: of a Partial one each process has a summand"
            )
        plain(f"the part of {where} that is here", local(p))
    elif not isinstance(p, (FakeTensor, MCFTensor)):
        raise TypeError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, a tensor whose class decides "
            "itself what is stored; allowed are plain tensors, and those that need no gradient"
        )


_PLAIN = frozenset((Tensor, Parameter))


def replaced(where: str, p: Tensor) -> None:
    """Raise if `fully_shard` has replaced a parameter without a gradient by a DTensor.

    FSDP marks such parameters with an attribute.
    """
    if hasattr(p, "_fsdp_orig_uid") and p.requires_grad:
        raise RuntimeError(
            f"{where} was replaced by a DTensor in its module when fully_shard was called, after "
            "the optimizer was made, and gets no gradients any more; make the optimizer of "
            "model.parameters() after fully_shard(model)"
        )


def later(p: Tensor) -> bool:
    """Return whether a parameter is checked only once it has a gradient, as in torch.

    Frozen parameters may have any dtype, and lazy ones have no shape yet.
    """
    return not p.requires_grad or is_lazy(p)


def overlaps(p: Tensor) -> bool:
    """Return whether a stride is within the extent of the smaller ones."""
    reach = 0
    for stride, size in sorted(zip(p.stride(), p.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def distinct(where: str, params: Any) -> None:
    """Raise if one group has a parameter twice: its two steps would run concurrently."""
    if not isinstance(params, (list, tuple)):
        return
    first: dict[int, int] = {}
    for k, entry in enumerate(params):
        p = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
        j = first.setdefault(id(p), k)
        if j != k:
            raise ValueError(f"params[{k}] of {where} is the same tensor as params[{j}]")


def gradient(where: str, p: Tensor, grad: Tensor) -> None:
    """Raise unless a gradient is dense and has its parameter's shape, device and dtype."""
    if grad.layout is not torch.strided:
        raise SparseGradientError(
            f"{where}.grad has layout {grad.layout}; sparse gradients are not supported, allowed "
            "is torch.strided"
        )
    check_gradient(where, p, grad)
    wider = p.dtype.itemsize == 2 and grad.dtype == torch.float32
    for what in ("dtype", "shape", "device"):
        if what == "dtype" and wider:
            continue
        given, allowed = getattr(grad, what), getattr(p, what)
        if given != allowed:
            kind = ValueError if what == "shape" else TypeError
            raise kind(
                f"{where}.grad has {what} {given}; allowed is its parameter's, {allowed}"
                + (" or torch.float32" if what == "dtype" and p.dtype.itemsize == 2 else "")
            )
    if not same_place(p, grad):
        raise TypeError(
            f"{where}.grad is {in_words(grad)}; allowed is its parameter's layout, {in_words(p)}"
        )
    shared_memory.present(f"{where}.grad", local(grad))


def in_words(t: Tensor) -> str:
    """Return how processes share a tensor, in words."""
    if not is_sharded(t):
        return "a plain tensor"
    return f"a DTensor with placements {tuple(t.placements)} on {t.device_mesh}"  # type: ignore[attr-defined]


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
    if mine - set(rule.absent) != wanted:
        raise ValueError(
            f"state of {where} has {sorted(mine)}; its rule, precision and dtype need "
            f"{sorted(wanted)}"
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
        t, what = entry[name], f"state {name!r} of {where}"
        if not isinstance(t, Tensor):
            raise TypeError(f"{what} is a {type(t).__name__}, not a tensor")
        if t.layout is not torch.strided:
            raise TypeError(f"{what} has layout {t.layout}; allowed is torch.strided")
        has_values(name, where, p, t)
        if is_expansion(t):
            raise TypeError(
                f"{what} is an expansion of components of {t.dtype}; allowed are plain tensors"
            )
        shape = fmt.shape(tuple(p.shape))
        if t.dtype != fmt.dtype or t.shape != shape:
            raise ValueError(
                f"{what} has dtype {t.dtype} and shape {list(t.shape)}; a parameter of dtype "
                f"{p.dtype} and shape {list(p.shape)} needs {fmt.dtype} and {list(shape)} (was the "
                "parameter changed after its state was made?)"
            )
        if placed and not same_place(p, t):
            raise TypeError(
                f"{what} is {in_words(t)}; allowed is its parameter's layout, {in_words(p)}"
            )
        writable(what, local(t))


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
        if name == "step":
            one_count(where, t)
    for name in names:
        if entry[name].device != p.device:
            raise ValueError(
                f"state {name!r} of {where} is on {entry[name].device}; its parameter is on "
                f"{p.device} (was it moved after its state was made?)"
            )


def step_count(where: str, value: Any) -> None:
    """Raise unless a step count is a whole number from 0, as a number or a 1-element tensor."""
    if isinstance(value, Tensor):
        one_count(where, value)
    number = value.item() if isinstance(value, Tensor) else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"state 'step' of {where} is a {type(number).__name__}, not a number")
    x = float(number)
    if not (0 <= x < 2.0**63 and x.is_integer()):
        raise ValueError(f"state 'step' of {where} is {number}; allowed are whole numbers from 0")


def one_count(where: str, t: Tensor) -> None:
    """Raise unless a step count is one number."""
    if t.numel() != 1:
        raise ValueError(f"state 'step' of {where} has shape {list(t.shape)}; allowed is one")
