"""Reads and writes of stored parameters and states for `collage`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import algorithms, streams
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FP32, FP64, Format
from mcf.kernels.tables import table_of
from mcf.optim.sharding.shards import like, local
from mcf.optim.step.opaque_operator import registered, update
from mcf.optim.storage import values
from mcf.optim.storage.base import SINGLE, Storage
from mcf.optim.storage.pair import PAIR, kahan
from mcf.optim.storage.strategies import HIDDEN, Arithmetic

# Key of the stream of random bits, and the index of the parameter's first element in it.
Stream = tuple[float, float]


def check(where: str, p: Tensor, state: Mapping[str, Any], arith: Arithmetic) -> None:
    """Raise unless a parameter that was stepped has the hidden states of its storage."""
    storage = arith.strategy.param
    wanted = (
        {storage.hidden: storage.hidden_format(arith.component).dtype} if storage.hidden else {}
    )
    found = {k: t for k, t in state.items() if k in HIDDEN}
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


def value(p: Tensor, state: Mapping[str, Any], arith: Arithmetic, wide: torch.dtype) -> Tensor:
    """Return a stored parameter in a wide register, rounded once."""
    storage, here = arith.strategy.param, local(p.detach())
    if storage.hidden not in state:
        return like(p, here.to(wide))
    return like(p, storage.register([here, local(state[storage.hidden])], wide))


def store(
    p: Tensor, state: dict[str, Any], arith: Arithmetic, old: Tensor, new: Tensor, stream: Stream
) -> None:
    """Store a parameter's new value, or add the update to an expansion."""
    storage, stochastic = arith.strategy.param, arith.strategy.stochastic
    here, made = local(p.detach()), local(new)
    tensors = [here]
    if storage.hidden:
        if storage.hidden not in state:
            state[storage.hidden] = like(p, storage.start(here, arith.component))
        tensors.append(local(state[storage.hidden]))
    if storage.has_low:
        change = (made - local(old)).to(arith.component.register.dtype)
        spec = kernel(arith.component, stochastic)
        _update(spec, p, [*tensors, change], stream if stochastic else ())
    elif stochastic:
        number = values.rounded(values.exact(made), torch.float32)
        spec = rounding("weight", storage)
        _update(spec, p, [*tensors, number], stream)
    else:
        storage.keep(values.exact(made), tensors)


def _update(spec: Elementwise, p: Tensor, row: list[Tensor], scalars: Sequence[float]) -> None:
    """Run a kernel on the local part of a parameter."""
    update(spec, [p], [row], table_of([scalars]), None, ())


# States that belong to the parameter instead of the class.
_PARAM = (*HIDDEN, "param_step")
# Prefix of states that are kept in the class's own dtype.
_OWN = "own/"


def read(state: Mapping[str, Any], p: Tensor, wide: torch.dtype) -> dict[str, Any]:
    """Return the states as the class's step reads them: in a wide register if stored narrower."""
    names = [n for n in state if not n.endswith("_lo") and n not in _PARAM]
    return {name.removeprefix(_OWN): _read(name, state, p, wide) for name in names}


def _read(name: str, state: Mapping[str, Any], p: Tensor, wide: torch.dtype) -> Any:
    t = state[name]
    if name.startswith(_OWN) or not is_state(t, p):
        return t
    return like(
        p, PAIR.register([local(state[n]) for n in (name, f"{name}_lo") if n in state], wide)
    )


def write(
    name: str,
    state: dict[str, Any],
    new: Any,
    p: Tensor,
    arith: Arithmetic,
    second: bool,
    stream: Stream,
    wide: torch.dtype,
) -> None:
    """Store a state that the class has stepped; `second` selects the storage.

    A state in another dtype than the class computes in is stored unchanged. States with one storage
    that are rounded stochastically use the same bits.
    """
    if not is_state(new, p):
        state[name] = new
        return
    if new.dtype != wide:
        state[f"{_OWN}{name}"] = new
        return
    kind = arith.strategy.second if second else arith.strategy.first
    exact = values.exact(local(new))
    fmt = arith.second_moment if second else arith.first_moment
    for part, stored in kind.moment(name, fmt).items():
        if part not in state or state[part].dtype != stored.dtype:
            state[part] = like(p, torch.zeros_like(local(p.detach()), dtype=stored.dtype))
    if kind.stochastic:
        number = values.rounded(exact, torch.float32)
        draw = "second" if second else "first"
        _update(rounding(draw, SINGLE), p, [local(state[name]), number], stream)
    else:
        kind.keep(exact, [local(state[part]) for part in kind.moment(name, fmt)])


def is_state(t: Any, p: Tensor) -> bool:
    """Return whether a state of the class can be stored in a format of the strategy."""
    return isinstance(t, Tensor) and t.dim() > 0 and t.shape == p.shape and t.is_floating_point()


def replaced(value):
    """Return a value for the one tensor that stores it."""
    return (value,)


def replaced_twice(value):
    """Return a value for each of the two tensors that store parts of it."""
    return value, value


@functools.cache
def kernel(fmt: Format, stochastic: bool = False) -> Elementwise:
    """Return the kernel that adds an update in registers' format to two 16-bit components."""
    assert fmt not in (FP32, FP64)
    return registered(
        Elementwise(
            name=f"apply_{fmt.name}{'_stochastic' if stochastic else ''}",
            function=kahan,
            results=("hi", "lo"),
            fields=(
                Field("hi", fmt, written=True),
                Field(
                    "lo", fmt, written=True, rounding=algorithms.stochastic if stochastic else None
                ),
                Field("update", fmt.register),
            ),
            stores=(("hi", "hi"), ("lo", "lo")),
            arithmetic=fmt.register,
            roundings=(("rc", fmt),),
            rounded=("hi",),
            scalars=streams.SCALARS if stochastic else (),
        )
    )


@functools.cache
def rounding(draw: str, storage: Storage) -> Elementwise:
    """Return the kernel that rounds numbers to a storage by random bits of weights or moments."""
    formats = [BF16, *([storage.hidden_format(BF16)] if storage.hidden else [])]
    words = [
        Field(name, fmt, read=False, written=True, rounding=each, draw=draw)
        for name, fmt, each in zip(("p", "hidden"), formats, storage.roundings, strict=False)
    ]
    names = tuple(f.name for f in words)
    return registered(
        Elementwise(
            name=f"round_stochastically_{storage.name}_{draw}",
            function=replaced if len(words) == 1 else replaced_twice,
            results=names,
            fields=(*words, Field("value", FP32)),
            stores=tuple(zip(names, names, strict=True)),
            arithmetic=FP32,
            scalars=streams.SCALARS,
        )
    )
