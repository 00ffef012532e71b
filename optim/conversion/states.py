"""Copying of the numbers in one optimizer's states to another's, with a report of roundings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mcf.kernels.formats import FORMATS
from mcf.kernels.tables import table_of
from mcf.optim.conversion import libraries, others
from mcf.optim.conversion.libraries import Meaning
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.sharding.across import across
from mcf.optim.sharding.portable import unpacked
from mcf.optim.sharding.shards import is_sharded, local, moved_like
from mcf.optim.state_validation import has_values
from mcf.optim.step.bucket import new_state
from mcf.optim.step.kernel import states
from mcf.optim.storage import codes, values
from mcf.optim.storage.base import Storage
from mcf.optim.storage.pair import PAIR
from mcf.optim.storage.single import SINGLE
from mcf.optim.storage.strategies import HIDDEN
from mcf.optim.storage.values import Value


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A tensor that the target could not hold exactly.

    Args:
        where: the parameter, by its index and name.
        what: `param`, or the state's name.
        elements: the number of rounded elements.
        size: the number of all elements.
        largest: the largest |rounded - exact| / |exact|.
    """

    where: str
    what: str
    elements: int
    size: int
    largest: float


@dataclasses.dataclass(frozen=True)
class Report:
    """The roundings of a conversion; none if `exact` is true."""

    rounded: tuple[Rounded, ...]

    @property
    def exact(self) -> bool:
        """Whether every number has its original value."""
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
    """Convert the states of a source into a target; build all before storing any."""
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
            # Frozen, and of a dtype to which precision does not apply.
            if old.dtype != p.dtype or entry:
                raise TypeError(
                    f"{where} has dtype {p.dtype}, the source's {old.dtype}; allowed are floating-"
                    "point dtypes, and the same one for parameters without a state"
                )
            made.append((p, old.detach(), {}))
            continue
        for name, value in entry.items():
            has_values(name, where, p, value)
        plain = others.translated(old, entry, given, where)
        meaning = libraries.read(*_placed(p, old, plain), given, where)
        state, storage = _state(target, group, p, meaning, where)
        here = {name: local(t) for name, t in state.items()}
        new = _stored(p, meaning, here, storage, report, where)
        if meaning.empty and not _needed(p, meaning, here, new):
            state = {}
        made.append((p, new, state))
    for p, new, state in made:
        local(p.data).copy_(local(new))
        target.state.pop(p, None)
        if state:
            target.state[p] = state
    return Report(tuple(report))


def _placed(p: Tensor, old: Tensor, entry: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return a source's parameter and state, with the same local parts as the target."""

    def placed(t: Any) -> Any:
        t = unpacked(old, t)
        shared = isinstance(t, Tensor) and (is_sharded(p) or is_sharded(t))
        if not shared or not (t.shape == p.shape or codes.numbers_of(t, p.shape)):
            return t
        return local(moved_like(p, t))

    kept = {name: placed(t) for name, t in entry.items()}
    return placed(old.detach()), kept


def _state(
    target: Optimizer, group: dict[str, Any], p: Tensor, meaning: Meaning, where: str
) -> tuple[dict[str, Any], Storage]:
    """Return empty tensors for a target's state of a parameter, its scalars, and its storage."""
    storage: Storage = SINGLE
    if meaning.empty and not isinstance(target, LowPrecisionOptimizer):
        return {}, storage
    if isinstance(target, LowPrecisionOptimizer):
        rule = target._rule(group)
        arith = target._arithmetic(group, p, where)
        state = new_state(rule, arith, p, group["capturable"])
        storage = arith.strategy.param
        if meaning.empty:
            return state, storage
        state["step"].fill_(meaning.step)
        names = states(rule, arith)
        wanted = {n.removesuffix("_lo") for n in names}
        wanted -= {"param", *HIDDEN}
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
    return state, storage


def _needed(p: Tensor, meaning: Meaning, state: dict[str, Any], new: Tensor) -> bool:
    """Return whether a state with 0 steps keeps bits that the visible parameter does not."""
    if not set(HIDDEN) & state.keys():
        return False
    some = (values.less(meaning.tensors["param"], new)[0] != 0).any()
    return bool(_over_all(p, some.to(torch.int64), "max"))


def _over_all(p: Tensor, t: Tensor, operation: str) -> Tensor:
    """Reduce a number of a parameter's local part over all processes that have parts of it."""
    who = across(p)
    return t if who is None else who.reduce(t, operation)


def _stored(
    p: Tensor,
    meaning: Meaning,
    state: dict[str, Any],
    storage: Storage,
    report: list[Rounded],
    where: str,
) -> Tensor:
    """Fill a state's local tensors with their values; return the new parameter."""
    new = torch.empty_like(local(p.detach()))
    for name in codes.in_order(list(meaning.tensors)):
        value = meaning.tensors[name]
        if name == "param":
            hidden = [state[storage.hidden]] if storage.hidden else []
            left = _store(meaning, name, storage, [new, *hidden])
        elif codes.holds(name, state):
            left = _store_codes(meaning, name, state)
        elif name in state:
            low = state.get(f"{name}_lo")
            kept = [state[name]] if low is None else [state[name], low]
            left = _store(meaning, name, SINGLE if low is None else PAIR, kept)
        else:
            continue
        report += rounding(p, where, name, value, left)
    return new


def rounding(p: Tensor, where: str, what: str, value: Value, left: Tensor) -> list[Rounded]:
    """Return the rounding of a stored value over all processes, or an empty list if it is exact.

    Args:
        p: the parameter.
        where: see `Rounded`.
        what: see `Rounded`.
        value: the value of the local part.
        left: the rounding error.
    """
    count = int(_over_all(p, (left != 0).sum(), "sum"))
    if not count:
        return []
    share = (left.abs() / value[0].abs())[left != 0]
    here = share.max() if share.numel() else share.new_zeros(())
    # As an integer, whose maximum keeps NaN.
    largest = _over_all(p, here.double().view(torch.int64), "max").view(torch.float64)
    return [Rounded(where, what, count, p.numel(), largest.item())]


def _store(meaning: Meaning, name: str, storage: Storage, tensors: list[Tensor]) -> Tensor:
    """Store a value; return the rounding error."""
    old, old_low = meaning.stored.get(name), meaning.stored.get(f"{name}_lo")
    if old is None or old_low is None or old.dtype != tensors[0].dtype or not storage.has_low:
        return storage.keep(meaning.tensors[name], tensors)
    # With the same storage the bits are copied, even if they are not normalised.
    for t, kept in zip(tensors, (old, old_low), strict=True):
        t.copy_(kept)
    return torch.zeros_like(tensors[0], dtype=torch.float64)


def _store_codes(meaning: Meaning, name: str, state: dict[str, Any]) -> Tensor:
    """Store a value in codes; return the rounding error."""
    codes.fill(name, state, values.rounded(meaning.tensors[name], torch.float32))
    return codes.left_of(meaning.tensors[name], name, state)
