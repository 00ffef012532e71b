"""States filled with the numbers of another optimizer's, with a report of what was rounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mcf.kernels.formats import FORMATS
from mcf.kernels.tables import table_of
from mcf.optim import eight_bits, foreign, update, values
from mcf.optim.eight_bits import EXPONENT
from mcf.optim.expansions import is_expansion
from mcf.optim.foreign import Meaning
from mcf.optim.optimizer import LowPrecisionOptimizer


@dataclasses.dataclass(frozen=True)
class Rounded:
    """One tensor that the target could not hold exactly.

    Args:
        where: the parameter, by its place and name.
        what: `param`, or the state's name.
        elements: how many elements were rounded.
        size: of how many.
        largest: the largest |rounded - exact| / |exact|.
    """

    where: str
    what: str
    elements: int
    size: int
    largest: float


@dataclasses.dataclass(frozen=True)
class Report:
    """What a conversion rounded; nothing where `exact` is true."""

    rounded: tuple[Rounded, ...]

    @property
    def exact(self) -> bool:
        """Whether every number is the same as before."""
        return not self.rounded

    def __str__(self) -> str:
        if self.exact:
            return "exact"
        return "\n".join(
            f"{r.what} of {r.where}: {r.elements} of {r.size} rounded, by at most {r.largest:.3g}"
            for r in self.rounded
        )


Entries = Sequence[tuple[Tensor, Mapping[str, Any]]]


@torch.no_grad()
def fill(target: Optimizer, source: Sequence[tuple[dict[str, Any], Entries]]) -> Report:
    """Give a target the states of a source: all of them are made before any is put in place."""
    flat = [(group, p, entry) for group, entries in source for p, entry in entries]
    everything = [*(p for _, p, _ in flat), *(p for g in target.param_groups for p in g["params"])]
    if any(map(is_expansion, everything)):
        raise TypeError("a parameter is an expansion tensor; conversion knows plain tensors only")
    places = [
        (index, group, k, p)
        for index, group in enumerate(target.param_groups)
        for k, p in enumerate(group["params"])
    ]
    made: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
    report: list[Rounded] = []
    for (given, old, entry), (index, group, k, p) in zip(flat, places, strict=True):
        names = group.get("param_names")
        where = f"params[{k}]{f' ({names[k]})' if names else ''} of param_groups[{index}]"
        if old.shape != p.shape:
            raise ValueError(f"{where} has shape {list(p.shape)}; the source's {list(old.shape)}")
        if old.dtype not in FORMATS or p.dtype not in FORMATS:
            # Frozen, of a dtype that is no matter of precision.
            if old.dtype != p.dtype or entry:
                raise TypeError(
                    f"{where} has dtype {p.dtype}, the source's {old.dtype}; allowed are floating-"
                    "point dtypes, and the same one for parameters without a state"
                )
            made.append((p, old.detach(), {}))
            continue
        meaning = foreign.read(old, entry, given, where)
        state = _state(target, group, p, meaning, where)
        new = _stored(p, meaning, state, report, where)
        if meaning.empty and not _needed(p, meaning, state, new):
            state = {}
        made.append((p, new, state))
    for p, new, state in made:
        p.data.copy_(new)
        target.state.pop(p, None)
        if state:
            target.state[p] = state
    return Report(tuple(report))


def _state(
    target: Optimizer, group: dict[str, Any], p: Tensor, meaning: Meaning, where: str
) -> dict[str, Any]:
    """Empty tensors for a target's state of a parameter, and its numbers."""
    if meaning.empty and not isinstance(target, LowPrecisionOptimizer):
        return {}
    if isinstance(target, LowPrecisionOptimizer):
        rule = target._rule(group)
        arith = target._arithmetic(group, p, where)
        state = target._new_state(group, rule, arith, p)
        if meaning.empty:
            return state
        state["step"].fill_(meaning.step)
        names = update.states(rule, arith)
        wanted = {n.removesuffix("_lo").removesuffix(EXPONENT) for n in names}
        wanted -= {"param", "param_bits", "master_param"}
        numbers = [name for name, _ in rule.numbers]
    else:
        # torch counts in float32, up to 2**24.
        state = (
            {"step": table_of(float(meaning.step), torch.float32)}
            if "momentum" not in group
            else {}
        )
        wanted = set(meaning.tensors) - {"param"}
        state.update({n: torch.empty_like(p) for n in wanted})
        numbers = list(meaning.numbers)
        state.update({n: table_of(0.0, torch.float32) for n in numbers})
    for name in numbers:
        if name not in meaning.numbers:
            raise ValueError(f"{where}: the source has no {name!r}, which the target needs")
        state[name].fill_(meaning.numbers[name])
    missing = sorted(wanted - set(meaning.tensors))
    if missing:
        known = sorted(set(meaning.tensors) - {"param"})
        raise ValueError(f"{where}: the target needs {missing}; the source has {known}")
    return state


def _needed(p: Tensor, meaning: Meaning, state: dict[str, Any], new: Tensor) -> bool:
    """Whether a state without steps keeps what the visible parameter alone does not."""
    beside = {"param_lo", "param_bits", "master_param"} & state.keys()
    return bool(beside) and bool((values.less(meaning.tensors["param"], new)[0] != 0).any())


def _stored(
    p: Tensor, meaning: Meaning, state: dict[str, Any], report: list[Rounded], where: str
) -> Tensor:
    """Fill a state's tensors with their values; the new parameter."""
    new = torch.empty_like(p)
    for name, value in meaning.tensors.items():
        if name == "param":
            left = _store_param(p, meaning, state, new)
        elif f"{name}{EXPONENT}" in state:
            left = _store_blocks(meaning, name, state)
        elif name in state:
            left = _store(meaning, name, state[name], state.get(f"{name}_lo"))
        else:
            continue
        count = int((left != 0).sum())
        if count:
            share = left.abs() / value[0].abs()
            largest = share[left != 0].max().item()
            report.append(Rounded(where, name, count, left.numel(), largest))
    return new


def _store_param(p: Tensor, meaning: Meaning, state: dict[str, Any], new: Tensor) -> Tensor:
    """Store a parameter's value; what is left of it."""
    value = meaning.tensors["param"]
    if "master_param" in state:
        master = state["master_param"]
        master.copy_(values.rounded(value, master.dtype))
        new.copy_(values.rounded(values.exact(master), p.dtype))
        return values.less(value, master)[0]
    if "param_bits" in state:
        high, bits = values.split(value, state["param_bits"].dtype)
        new.copy_(high)
        state["param_bits"].copy_(bits)
        return values.less(value, values.join(high, bits))[0]
    return _store(meaning, "param", new, state.get("param_lo"))


def _store(meaning: Meaning, name: str, high: Tensor, low: Tensor | None) -> Tensor:
    """Store a value in one or two components; what is left of it."""
    old, old_low = meaning.stored.get(name), meaning.stored.get(f"{name}_lo")
    if low is not None and old is not None and old_low is not None and old.dtype == high.dtype:
        # The same storage: these very bits, also where they are not normalised.
        high.copy_(old)
        low.copy_(old_low)
        return torch.zeros_like(high, dtype=torch.float64)
    value = meaning.tensors[name]
    high.copy_(values.rounded(value, high.dtype))
    rest = values.less(value, high)
    if low is None:
        return rest[0]
    low.copy_(values.rounded(rest, low.dtype))
    return values.less(rest, low)[0]


def _store_blocks(meaning: Meaning, name: str, state: dict[str, Any]) -> Tensor:
    """Store a value in blocks of numbers of 8 bits; what is left of it."""
    mine, old = eight_bits.parts(name, state), eight_bits.parts(name, meaning.stored)
    if {k: t.dtype for k, t in mine.items()} == {k: t.dtype for k, t in old.items()}:
        for key, t in mine.items():
            t.copy_(old[key])
    else:
        eight_bits.fill(name, state, values.rounded(meaning.tensors[name], torch.float32))
    return values.less(meaning.tensors[name], eight_bits.read(name, state))[0]
