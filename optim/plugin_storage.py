"""How `collage` reads a stored parameter and stores what a class of torch made of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import streams
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FORMATS, FP32, FP64, Format
from mcf.kernels.tables import table_of
from mcf.optim import eight_bits, update, values
from mcf.optim.eight_bits import EXPONENT
from mcf.optim.plugin_rules import is_state
from mcf.optim.rules import accumulation
from mcf.optim.rules.feedback import fed
from mcf.optim.strategies import Arithmetic, Storage

# Key of the stream of random bits and the parameter's first element in it.
Stream = tuple[float, float]


def check(where: str, p: Tensor, state: Mapping[str, Any], arith: Arithmetic) -> None:
    """What further numbers a parameter's value has, if it made a step, are those of its storage."""
    storage = arith.strategy.param
    wanted = {}
    if storage.has_low:
        wanted["param_lo"] = p.dtype
    if storage is Storage.WIDE:
        wanted["master_param"] = torch.float32
    if storage.bits is not None and storage.bits.dtype is not None:
        wanted["param_bits"] = storage.bits.dtype
    found = {k: t for k, t in state.items() if k in ("param_lo", "master_param", "param_bits")}
    if not state or (
        {k: t.dtype for k, t in found.items()} == wanted
        and all(t.shape == p.shape for t in found.values())
    ):
        return
    given = {k: (t.dtype, list(t.shape)) for k, t in found.items()}
    raise ValueError(
        f"state of {where} has {given}; a parameter of dtype {p.dtype} and shape {list(p.shape)} "
        f"needs {wanted} (was the parameter changed after its state was made?)"
    )


def value(high: Tensor, state: Mapping[str, Any], wide: torch.dtype) -> Tensor:
    """A stored number in a wide register: its components' sum, rounded once."""
    master: Tensor | None = state.get("master_param")
    if master is not None:
        return master.detach().to(wide)
    if state.get("param_bits") is not None:
        return values.join(high, state["param_bits"]).to(wide)
    found: Tensor = high.detach().to(wide)
    low: Tensor | None = state.get("param_lo")
    return found if low is None else found + low.to(wide)


def store(
    p: Tensor, state: dict[str, Any], arith: Arithmetic, old: Tensor, new: Tensor, stream: Stream
) -> None:
    """Give a stored parameter its new value, or the update where it is an expansion."""
    storage, stochastic = arith.strategy.param, arith.strategy.stochastic
    table = table_of([stream if stochastic else ()])
    if storage.has_low:
        if "param_lo" not in state:
            state["param_lo"] = torch.zeros_like(p)
        change = (new - old).to(arith.component.register.dtype)
        rows = [[p, state["param_lo"], change]]
        update.update_(kernel(arith.component, stochastic), rows, table)
        return
    exact = values.exact(new)
    if storage is Storage.WIDE:
        state["master_param"].copy_(values.rounded(exact, torch.float32))
        exact = values.exact(state["master_param"])
    if storage.bits is not None:
        assert storage.bits.dtype is not None
        high, state["param_bits"] = values.split(exact, storage.bits.dtype)
        p.copy_(high)
    elif stochastic:
        update.update_(_ROUNDING, [[p, values.rounded(exact, torch.float32)]], table)
    else:
        p.copy_(values.rounded(exact, p.dtype))


# States that are the parameter's and not the class's.
_PARAM = ("param_bits", "master_param", "param_step")


def names(state: Mapping[str, Any]) -> list[str]:
    """The states of the class, as it calls them."""
    beside = {f"{name}{EXPONENT}" for name in state}
    return [n for n in state if not n.endswith("_lo") and n not in _PARAM and n not in beside]


def read(name: str, state: Mapping[str, Any], p: Tensor, wide: torch.dtype) -> Any:
    """A state of the class as its step takes it: in a wide register where it is stored in less."""
    if f"{name}{EXPONENT}" in state:
        return eight_bits.read(name, state).to(wide)
    t = state[name]
    return value(t, {"param_lo": state.get(f"{name}_lo")}, wide) if is_state(t, p) else t


def write(
    name: str, state: dict[str, Any], new: Any, p: Tensor, arith: Arithmetic, second: bool
) -> None:
    """Store a state that the class has stepped; `second` says how."""
    if not is_state(new, p):
        state[name] = new
        return
    kind = arith.strategy.second if second else arith.strategy.first
    exact = values.exact(new)
    if kind.eight_bits:
        for part, fmt in eight_bits.states(name, kind).items():
            if part not in state:
                shape = eight_bits.shape(part, p)
                state[part] = torch.zeros(shape, dtype=fmt.dtype, device=p.device)
        eight_bits.fill(name, state, values.rounded(exact, torch.float32))
        return
    dtype = (arith.second_moment if second else arith.stored(kind)).dtype
    assert dtype is not None
    if name not in state or state[name].dtype != dtype:
        state[name] = torch.empty_like(p, dtype=dtype)
    state[name].copy_(values.rounded(exact, dtype))
    if kind.has_low:
        rest = values.less(exact, state[name])
        state[f"{name}_lo"] = values.rounded(rest, dtype)


@functools.cache
def kernel(fmt: Format, stochastic: bool = False) -> Elementwise:
    """Adds an update in registers' format to a parameter of two 16-bit components."""
    assert fmt not in (FP32, FP64)
    return update.registered(
        Elementwise(
            name=f"apply_{fmt.name}{'_stochastic' if stochastic else ''}",
            function=accumulation.kahan,
            results=("hi", "lo"),
            fields=(
                Field("hi", fmt, written=True),
                Field("lo", fmt, written=True, stochastic=stochastic),
                Field("update", fmt.register),
            ),
            stores=(("hi", "hi"), ("lo", "lo")),
            arithmetic=fmt.register,
            roundings=(("rc", fmt),),
            rounded=("hi",),
            scalars=streams.SCALARS if stochastic else (),
        )
    )


_ROUNDING = update.registered(
    Elementwise(
        name="round_stochastically",
        function=accumulation.replaced,
        results=("p",),
        fields=(
            Field("p", BF16, read=False, written=True, stochastic=True),
            Field("value", FP32),
        ),
        stores=(("p", "p"),),
        arithmetic=FP32,
        scalars=streams.SCALARS,
    )
)


def feed_back(moment: Tensor, new: Tensor, stored: Tensor, divisor: Tensor, factor: float) -> None:
    """Put what storing lost of a parameter into its first moment (ECO); all in one wide format.

    Args:
        moment: the first moment, changed in place.
        new: the parameter before it was stored.
        stored: the parameter as it is stored.
        divisor: what the class divides the moment by.
        factor: (1 - 1/b1) / lr, and the bias correction of the moment where there is one.
    """
    table = table_of([[factor]])
    update.update_(_feedback(FORMATS[moment.dtype]), [[moment, new, stored, divisor]], table)


@functools.cache
def _feedback(fmt: Format) -> Elementwise:
    return update.registered(
        Elementwise(
            name=f"feed_back_{fmt.name}",
            function=fed,
            results=("out_exp_avg",),
            fields=(
                Field("out_exp_avg", fmt, written=True),
                Field("out_param", fmt),
                Field("new_param", fmt),
                Field("out_divisor", fmt),
            ),
            stores=(("out_exp_avg", "out_exp_avg"),),
            arithmetic=fmt,
            scalars=("feedback",),
        )
    )
