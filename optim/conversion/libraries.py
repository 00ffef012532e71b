"""Numerical values of optimizer states, of this package and of other libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mcf.optim.options import upgraded
from mcf.optim.storage import codes as codes_of
from mcf.optim.storage import values
from mcf.optim.storage.strategies import HIDDEN, STORAGES
from mcf.optim.storage.values import Value

# Earlier versions stored moments in blocks of 128 numbers of 8 bits; they can still be read. A
# state was one or two tensors of `torch.float8_e4m3fn` or `torch.float8_e5m2` and an int8 exponent
# for each block; of second moments the root was stored. A number was (hi + 2**-p lo) 2**exponent,
# with p the bits of the format.
BLOCK = 128
EXPONENT = "_exponent"

_BITS = {torch.float8_e4m3fn: 4, torch.float8_e5m2: 3}
_ROOTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf")


def block_parts(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that store a moment in blocks: one or two of codes, and the exponents."""
    return {n: state[n] for n in (name, f"{name}_lo", f"{name}{EXPONENT}") if n in state}


def read_blocks(name: str, state: Mapping[str, Tensor]) -> Tensor:
    """Return the numbers of a moment in blocks, as float32, as steps of that version read them."""
    codes, *low = (t for n, t in block_parts(name, state).items() if not n.endswith(EXPONENT))
    number = codes.float()
    if low:
        number = number + low[0].float() * 2.0 ** -_BITS[codes.dtype]
    exponents = state[f"{name}{EXPONENT}"].to(torch.int32)
    count = codes.numel()
    scale = ((exponents + 127) << 23).view(torch.float32).repeat_interleave(BLOCK)[:count]
    number = number * scale.view(codes.shape)
    return number * number if name in _ROOTS else number


# The storage of a parameter, by the state next to it.
_KEPT = {s.hidden: s for s in STORAGES.values() if s.hidden}


@dataclasses.dataclass
class Meaning:
    """The numerical values that an optimizer stores for one parameter.

    Args:
        step: the number of steps so far.
        tensors: the parameter (`param`) and the states of its shape, by torch's names.
        numbers: the scalar states.
        empty: whether there was no state.
        stored: the original tensors, by this package's names.
    """

    step: int
    tensors: dict[str, Value]
    numbers: dict[str, float]
    stored: dict[str, Tensor]
    empty: bool


def read(p: Tensor, entry: Mapping[str, Any], group: Mapping[str, Any], where: str) -> Meaning:
    """Return the numerical values of a parameter and its state.

    It reads states of this package, torch.optim, bf16_fused_adam (`mantissas`), torchao (8-bit,
    4-bit and fp8 states, which can dequantize themselves), and those that
    `mcf.optim.conversion.others` translates.

    Raises:
        ValueError, TypeError: for a state of none of these.
    """
    found = {name: _plain(value) for name, value in entry.items() if value is not None}
    empty = not found
    for name in [n.removesuffix(EXPONENT) for n in found if n.endswith(EXPONENT)]:
        mine = block_parts(name, found)
        found = {k: v for k, v in found.items() if k not in mine}
        found[name] = read_blocks(name, mine)
    coded = [name for name in found if codes_of.holds(name, found)]
    found |= {name: codes_of.read(name, found) for name in coded}
    step = found.pop("step", group.get("step", 1 if found else 0))
    compensation = found.pop("kahan_comp", None)
    mantissas = found.pop("mantissas", None)
    hidden = {name: found.pop(name) for name in HIDDEN if name in found}
    stored = {"param": p.detach(), **hidden}
    if hidden:
        name, beside = next(iter(hidden.items()))
        parameter = _KEPT[name].value([p.detach(), beside])
    elif mantissas is not None:
        parameter = values.exact(_concatenated(p, mantissas))
    elif compensation is not None and compensation.shape == p.shape:
        # optimi, too, adds its compensation to the parameter.
        parameter = values.exact(p, compensation)
        stored["param_lo"] = compensation
    else:
        parameter = values.exact(p)
    meaning = Meaning(int(step), {"param": parameter}, {}, stored, empty)
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"state {name!r} of {where} is a {type(value).__name__}, not a tensor")
        if value.numel() == 1 and p.dim() > 0 and value.dim() == 0:
            meaning.numbers[name] = float(value)
        elif value.shape != p.shape:
            raise ValueError(
                f"state {name!r} of {where} has shape {list(value.shape)}; known are states of "
                f"the parameter's, {list(p.shape)}, and of one number"
            )
        elif name == "mu_product":
            meaning.numbers[name] = float(value)
        elif not name.endswith("_lo"):
            second = found.get(f"{name}_lo")
            parts = (value,) if second is None else (value, second)
            meaning.tensors[name] = values.exact(*parts)
            meaning.stored[name] = value
            if second is not None:
                meaning.stored[f"{name}_lo"] = second
    return meaning


def _plain(value: Any) -> Any:
    """Return a value, or a quantised tensor of torchao as plain float32."""
    if isinstance(value, Tensor) and type(value) not in (Tensor, torch.nn.Parameter):
        return value.dequantize() if hasattr(value, "dequantize") else value
    return value


def _concatenated(p: Tensor, mantissas: Tensor) -> Tensor:
    """Return the float32 with upper half p and the bits of `mantissas` as lower half."""
    upper = p.detach().contiguous().view(torch.int16).to(torch.int32) << 16
    lower = mantissas.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    return (upper | lower).view(torch.float32)


def options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's hyperparameters under torch's names."""
    # optimi uses the name that was ours before.
    known = upgraded(group)
    found = {k: v for k, v in known.items() if k not in ("params", "param_names")}
    if "beta1" in found and "beta2" in found:
        # optimi
        found["betas"] = (found.pop("beta1"), found.pop("beta2"))
    return found
