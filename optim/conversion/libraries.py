"""Numerical values of optimizer states, of this package and of other libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import host
from mcf.kernels.algorithms import powers
from mcf.kernels.formats import FORMATS
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
    `mcf.optim.conversion.libraries` translates.

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


State = dict[Any, Any]


def translated(
    p: Tensor, entry: Mapping[str, Any], group: Mapping[str, Any], where: str
) -> Mapping[str, Any]:
    """Return a parameter's state in the form of torch.optim or of this package.

    - bitsandbytes: `state1`, `state2`, float32 or codes of 8 bits, with `qmap1` and `absmax1` of
      blocks (or `max1` of the tensor), also packed as newer versions save them. A single state is
      the moment of Lion or the momentum of SGD; the state does not say which.
    - FlashOptim: `exp_avg::quantized` and `::scales`, `error_bits` of the parameter.
    - HeavyBall's AdamW: `update_by_adam_exp_avg_0`, with `::ecc` of states and `param::ecc`.
    - TransformerEngine's FusedAdam: `master_param`, in 16 bits if it holds remainders.
    - TorchDistX's AnyPrecisionAdamW: `compensation`; the Collage authors': `weight_accounted`,
      `exp_avg_sq_accounted`.
    - AdEMAMix's authors: `exp_avg_fast`; schedule-free AdamW's authors: `z`, in train mode.
    - optimi (`kahan_comp`) and HeavyBall keep moments divided by 1 - beta^t, which is undone here.

    Other states are returned unchanged.

    Args:
        p: the library's parameter.
        entry: its state; not changed.
        group: the options of its group, betas under torch's name.
        where: the parameter's name for error messages.

    Raises:
        ValueError, TypeError: for a state with a library's keys but not its form.
    """
    found = dict(entry)
    for recognised, read in _LIBRARIES:
        if recognised(found):
            found = read(p, found, group, where)
    odd = sorted(str(k) for k in found if not isinstance(k, str) or "::" in k)
    if odd:
        raise ValueError(f"{where} has states {odd}, which belong to no known library")
    return found


# -- 8 bits and a scale for each block ---------------------------------------------------------

_PACKED = "__bnb_optimizer_quant_state__"
# Norms of gradients and updates, which clipping needs.
_NORMS = ("gnorm_vec", "unorm_vec", "new_max1", "new_max2")


def _bitsandbytes(p: Tensor, found: State, group: Mapping[str, Any], where: str) -> State:
    found = {**{k: v for k, v in found.items() if k != _PACKED}, **found.get(_PACKED, {})}
    for name in _NORMS:
        found.pop(name, None)
    first, second = _moment(p, found, 1, where), _moment(p, found, 2, where)
    if first is None:
        raise ValueError(f"{where} has {sorted(found)}, and no 'state1' of bitsandbytes")
    if first.shape == (2, *p.shape) and second is not None:
        # A state of AdEMAMix.
        return {**found, "exp_avg": first[0], "exp_avg_slow": first[1], "exp_avg_sq": second}
    if second is not None:
        return {**found, "exp_avg": first, "exp_avg_sq": second}
    return {**found, "exp_avg": first, "momentum_buffer": first}


def _moment(p: Tensor, found: State, k: int, where: str) -> Tensor | None:
    """Remove one state of bitsandbytes from `found` and return it in float32."""
    code, table = found.pop(f"state{k}", None), found.pop(f"qmap{k}", None)
    blocks, whole = found.pop(f"absmax{k}", None), found.pop(f"max{k}", None)
    if code is None:
        return None
    made: Tensor = code.float()
    if code.dtype != torch.uint8:
        return made
    if table is None or table.numel() != 256:
        raise ValueError(f"state{k} of {where} has 8 bits and no qmap{k} of 256 numbers")
    numbers: Tensor = table.float()[code.long()]
    if whole is not None:
        made = numbers * whole.float()
        return made
    if blocks is None:
        raise ValueError(f"state{k} of {where} has 8 bits, and neither absmax{k} nor max{k}")
    # AdEMAMix has two moments of the parameter's size.
    several = code.numel() // p.numel() if p.numel() else 1
    scales = blocks.float().reshape(several, -1)
    flat = numbers.reshape(several, -1)
    for size in (256, 2048):
        if scales.shape[1] == -(-flat.shape[1] // size):
            spread = scales.repeat_interleave(size, 1)[:, : flat.shape[1]]
            made = (flat * spread).reshape(code.shape)
            return made
    raise ValueError(
        f"absmax{k} of {where} has {blocks.numel()} numbers for {code.numel()} elements; known are "
        "blocks of 256 and of 2048"
    )


def _flashoptim(p: Tensor, found: State, group: Mapping[str, Any], where: str) -> State:
    for key in [k for k in found if isinstance(k, str) and k.endswith("::quantized")]:
        name = key.removesuffix("::quantized")
        code, scales = found.pop(key), found.pop(f"{name}::scales", None)
        if scales is None or scales.numel() != -(-code.numel() // 32):
            raise ValueError(f"{name} of {where} has 8 bits, and no scale for each 32 of them")
        # An optimizer that loads the state casts codes; all dtypes of parameters represent them.
        second = name == "exp_avg_sq"
        value = code.float() / (255.0 if second else 127.0)
        if not second:
            # The inverse of softsign.
            value = value / (2.0 - value.abs())
        spread = scales.float().repeat_interleave(32)[: code.numel()].reshape(code.shape)
        value = value * spread
        found[name] = value * value if second else value
    errors = found.pop("error_bits", None)
    if errors is None:
        return found
    width = int(group.get("master_bytewidth", p.element_size() + errors.element_size()))
    if errors.is_floating_point():
        errors = errors.to(torch.int8) if width == 3 else errors.contiguous().view(torch.int16)
    return {**found, "master_param": _corrected(p, errors, where)}


# -- corrections in parts of half a unit in the last place -------------------------------------


def _corrected(x: Tensor, errors: Tensor, where: str) -> Tensor:
    """x + e 2^(k - 1) / m in float32, 2^k the unit in the last place of x, m the largest e."""
    most = {torch.int8: 127.0, torch.int16: 32767.0}.get(errors.dtype)
    if most is None or x.dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(
            f"{where} of {x.dtype} has corrections of {errors.dtype}; known are int8 and int16 "
            "for bfloat16 and float16"
        )
    fmt = FORMATS[x.dtype]
    bits = x.detach().contiguous().view(torch.int16).to(torch.int32) & 0x7FFF
    exponent = (bits >> (fmt.p - 1)).clamp(min=1) + fmt.emin - 1
    # In float64, where no power underflows; the library multiplies by two in float32, also exactly.
    unit = ((exponent.long() - fmt.p + 1023) << 52).view(torch.float64)
    share = (errors.float() / most).double() * unit
    corrected: Tensor = x.detach().float() + share.float()
    return corrected


# HeavyBall's names of AdamW's update.
_ADAM = ("update_by_adam_", "scale_by_adam_", "update_by_adamc_")


def _heavyball(p: Tensor, found: State, group: Mapping[str, Any], where: str) -> State:
    views = {k: v for k, v in found.items() if isinstance(k, int)}
    if set(views) != {0}:
        raise ValueError(
            f"{where} has states of {len(views)} views of the parameter, as HeavyBall cuts it; "
            "known is one"
        )
    made: State = {}
    view = {k: v for k, v in views[0].items() if k != "is_initialized"}
    errors = view.pop("param::ecc", None)
    for key, value in view.items():
        if key.endswith("::ecc"):
            continue
        prefix = next((x for x in _ADAM if key.startswith(x)), None)
        name = "" if prefix is None else key.removeprefix(prefix).rpartition("_")[0]
        if name not in ("exp_avg", "exp_avg_sq") or value.numel() != p.numel():
            raise ValueError(f"{where} has a state {key!r} of HeavyBall; known are those of AdamW")
        low = view.get(f"{key}::ecc")
        whole = value if low is None else _corrected(value, low, f"{key} of {where}")
        made[name] = whole.reshape(p.shape)
    if errors is not None:
        made["master_param"] = _corrected(p, errors.reshape(p.shape), where)
    return _biased(made, group, where)


# -- a second number next to the parameter -----------------------------------------------------


def _renamed(**names: str) -> Callable[..., State]:
    """Return a reader of states that differ from ours in some names."""
    return lambda p, found, group, where: {names.get(k, k): v for k, v in found.items()}


# -- other names -------------------------------------------------------------------------------


def _ademamix(p: Tensor, found: State, group: Mapping[str, Any], where: str) -> State:
    fast = found.pop("exp_avg_fast")
    if fast is None:
        raise ValueError(f"{where} has no exp_avg_fast, as AdEMAMix with betas[0] = 0 has none")
    return {**found, "exp_avg": fast}


def _schedule_free(p: Tensor, found: State, group: Mapping[str, Any], where: str) -> State:
    missing = sorted({"k", "weight_sum", "lr_max", "train_mode"} - group.keys())
    if missing or not group["train_mode"]:
        raise ValueError(
            f"{where} has a z of schedule-free AdamW, and its group no {missing} or train_mode="
            f"{group.get('train_mode')}; allowed is its state in train mode"
        )
    numbers = {
        name: torch.tensor(float(group[name]), dtype=torch.float64, device="cpu")
        for name in ("weight_sum", "lr_max")
    }
    ahead = found.pop("z").double() - p.detach().double()
    return {**found, **numbers, "z_minus_y": ahead, "step": int(group["k"])}


# -- moments that were divided by 1 - beta^t ---------------------------------------------------


def _biased(found: State, group: Mapping[str, Any], where: str) -> State:
    """Return a state whose moments are multiplied by 1 - beta^t, in float64."""
    betas, step = group.get("betas"), found.get("step", group.get("step"))
    if betas is None or step is None or len(betas) != 2:
        raise ValueError(f"the group of {where} has no pair of betas, or no step")
    power = host.bind(powers.power)
    for name, beta in zip(("exp_avg", "exp_avg_sq"), betas, strict=True):
        if name in found:
            high, low = power(float(beta), 0.0, float(step))
            found[name] = found[name].double() * ((1.0 - high) - low)
    return found


def _is_optimi(found: State) -> bool:
    # optimi's Lion and SGD divide nothing; its Adan is not supported.
    return "kahan_comp" in found and {"exp_avg", "exp_avg_sq"} <= found.keys()


def _is_remainder(found: State) -> bool:
    t = found.get("master_param")
    return isinstance(t, Tensor) and t.dtype == torch.int16


_LIBRARIES: tuple[tuple[Callable[[State], bool], Callable[..., State]], ...] = (
    (_is_optimi, lambda p, found, group, where: _biased(found, group, where)),
    (lambda s: "state1" in s or _PACKED in s, _bitsandbytes),
    (lambda s: "error_bits" in s or any(str(k).endswith("::quantized") for k in s), _flashoptim),
    (lambda s: any(isinstance(k, int) for k in s), _heavyball),
    # TransformerEngine's remainders are, as ours, differences of bit patterns.
    (_is_remainder, _renamed(master_param="param_bits")),
    (lambda s: {"z", "exp_avg_sq"} <= s.keys(), _schedule_free),
    (lambda s: "exp_avg_fast" in s, _ademamix),
    (lambda s: "compensation" in s, _renamed(compensation="kahan_comp")),
    (
        lambda s: "weight_accounted" in s,
        _renamed(weight_accounted="kahan_comp", exp_avg_sq_accounted="exp_avg_sq_lo"),
    ),
)
