"""Conversion of optimizers and their states to other precisions, and to other libraries."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from mcf.kernels.formats import FORMATS
from mcf.kernels.tables import table_of
from mcf.optim import checkpoint
from mcf.optim.conversion import libraries
from mcf.optim.conversion.libraries import Meaning
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.precision import Precision, strategy_of
from mcf.optim.rules.adamax import Adamax
from mcf.optim.rules.adamw import Adam, AdamW, CollageAdamW
from mcf.optim.rules.adan import Adan
from mcf.optim.rules.ademamix import AdEMAMix
from mcf.optim.rules.lion import Lion
from mcf.optim.rules.muon import Muon
from mcf.optim.rules.nadam import NAdam
from mcf.optim.rules.radam import RAdam
from mcf.optim.rules.schedule_free import ScheduleFreeAdamW
from mcf.optim.rules.sgd import SGD
from mcf.optim.rules.stable_adamw import StableAdamW
from mcf.optim.sharding.processes import across
from mcf.optim.sharding.shards import is_sharded, local, moved_like, unpacked
from mcf.optim.step.bucket import new_state
from mcf.optim.step.kernel import states
from mcf.optim.storage import codes, values
from mcf.optim.storage.base import SINGLE, Storage
from mcf.optim.storage.pair import PAIR
from mcf.optim.storage.strategies import HIDDEN, PrecisionName
from mcf.optim.storage.values import Value
from mcf.optim.validation import has_values

# Longer names first, because they contain shorter ones.
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
    """Return a new optimizer that continues another one under another precision or class.

        optimizer, report = mcf.optim.convert(torch_adamw, "plus", params=bf16_model.parameters())

    Each number (the parameter with its compensation, extra bits or master copy; each moment with
    its low word) is read exactly and rounded once to the target's storage; the report lists
    roundings. Step counts, groups and hyperparameters are copied. A parameter without a state gets
    one with 0 steps if it keeps bits that the visible parameter cannot: a float32 checkpoint starts
    in `plus` or `light` with all the bits they hold.

    Args:
        optimizer: an optimizer of this package, of torch.optim, optimi, bf16_fused_adam, torchao,
            bitsandbytes, FlashOptim, HeavyBall, TransformerEngine, TorchDistX or the Collage
            authors' (AdamW and Adam of each, Lion and SGD where torch or it has them).
        precision: the target's precision; by default that of `optimizer`, else the class's default.
        to: the target's class; by default the same, or this package's class of that name. For a
            class of torch.optim states get the parameter's dtype, as in torch.
        params: the target's parameters in the order of `optimizer`'s, of any of the four dtypes;
            their values are overwritten. By default the same tensors: they then have the visible
            values of the new precision, and `optimizer` must not be used any more.
        options: options of the target's groups that replace the copied ones.

    Returns:
        The new optimizer and the report.

    Raises:
        ValueError, TypeError: for arguments or states that do not fit, before any parameter is
            changed.
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

    The optimizer's hyperparameters are unchanged; load the learning rate with its schedule. States
    go to parameters by name if both sides name all parameters, otherwise by index.

    Args:
        optimizer: an optimizer of this package or of torch.optim.
        state_dict: the result of the other optimizer's `state_dict()`.
        params: the parameters that belong to `state_dict`, in the order of its groups (such as the
            float32 weights of a checkpoint); by default the values of `optimizer`'s own.

    Returns:
        A report of what was rounded.

    Raises:
        ValueError, TypeError: for states that do not fit, before anything is changed.
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
    """Return float32 weights, and the state dict of torch's optimizer of the same name for them.

    Returns:
        The stored value of each parameter in order, rounded to float32 (float64 for float64
        parameters; frozen ones of other dtypes are unchanged), and the state dict. Only a pair of
        two bf16 numbers that are far apart is rounded; all else is exact.
    """
    params = [
        # Frozen parameters of other dtypes are unchanged.
        Parameter(
            torch.empty_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            if p.dtype in FORMATS
            else torch.empty_like(p),
            p.requires_grad,
        )
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    made, _ = convert(optimizer, to=getattr(torch.optim, _class(optimizer).__name__), params=params)
    return [p.detach() for p in params], made.state_dict()


def _entry(optimizer: Optimizer, p: Tensor) -> Mapping[str, Any]:
    """Return an optimizer's state of a parameter, as its next step would begin with it."""
    mine = isinstance(optimizer, LowPrecisionOptimizer) and optimizer._followed(p)
    entry: Mapping[str, Any] = mine or optimizer.state.get(p, {})
    unscaled = getattr(optimizer, "get_unscaled_state", None)
    if unscaled is not None:
        # TransformerEngine keeps the states' scales elsewhere.
        return {name: unscaled(p, name) for name in entry}
    return {
        # FlashOptim keeps objects around tensors.
        name: value.materialize() if hasattr(value, "materialize") else value
        for name, value in entry.items()
    }


def _class(optimizer: Optimizer) -> type[Optimizer]:
    """Return our class of the same name, ignoring prefixes and suffixes of other libraries."""
    if isinstance(optimizer, LowPrecisionOptimizer):
        return type(optimizer)
    name = type(optimizer).__name__
    if hasattr(optimizer, "adam_w_mode"):
        # The FusedAdam of TransformerEngine and apex can be either.
        return AdamW if optimizer.adam_w_mode else Adam
    if "AdamWScheduleFree" in name:
        return ScheduleFreeAdamW
    for known in _OURS:
        if known.__name__ in name:
            return known
    raise ValueError(
        f"to is not given, and no optimizer of this package is named like {name}; pass its class "
        "as to="
    )


def _options(
    cls: type[Optimizer],
    given: dict[str, Any],
    precision: PrecisionName | Precision | None,
    more: dict[str, Any],
) -> dict[str, Any]:
    """Return the options of a target's group."""
    make: Any = cls
    # A stand-in of float32 would cause the warning about a precision without effect.
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
    # The target's precision may have no low component to round.
    target = {**defaults, **found}.get("precision", "plain")
    if "low" not in more and not strategy_of(str(target)).param.has_low:
        found.pop("low", None)
    if "initial_lr" in given:
        found["initial_lr"] = given["initial_lr"]
    return {**found, **more}


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
        plain = libraries.translated(old, entry, given, where)
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
            left = codes.keep(name, state, value)
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
