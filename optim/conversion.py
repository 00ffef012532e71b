"""Optimizers and their states under another precision, and from and to other libraries."""

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

import mcf.optim as ours
from mcf.optim import eight_bits, foreign, update, values
from mcf.optim.eight_bits import EXPONENT
from mcf.optim.expansions import is_expansion
from mcf.optim.foreign import Meaning
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.precision import Precision, strategy_of


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


def convert(
    optimizer: Optimizer,
    precision: str | Precision | None = None,
    *,
    to: type[Optimizer] | None = None,
    params: Iterable[Tensor] | None = None,
    **options: Any,
) -> tuple[Any, Report]:
    """A new optimizer that goes on where another one is, under another precision or class.

        optimizer, report = mcf.optim.convert(torch_adamw, "plus", params=bf16_model.parameters())

    Each number (the parameter with its compensation, extra bits or master copy; each moment with
    its low word) is taken exactly and rounded once to what the target stores; the report says
    where. Steps, groups and hyperparameters come along. A parameter without a state gets one of no
    steps where that keeps bits which the visible parameter does not: a float32 checkpoint starts
    in `plus` or `light` with all the bits they hold.

    Args:
        optimizer: one of this package, of torch.optim, optimi, bf16_fused_adam or torchao.
        precision: the target's; by default that of `optimizer`, else the class's own default.
        to: the target's class; by default the same, or ours of that name. Of torch.optim for a
            way back: states then have the parameter's dtype, as torch keeps them.
        params: the target's parameters in the order of `optimizer`'s, of any of the four dtypes;
            their values are overwritten. By default the same tensors: their visible values are
            those of the new precision then, and `optimizer` must not be used any more.
        options: further options of the target's groups, in place of those that come along.

    Returns:
        The new optimizer and the report.

    Raises:
        ValueError, TypeError: for what does not fit, before any parameter is changed.
    """
    source = [
        (foreign.options(group), group.get("param_names"), [
            (p, optimizer.state.get(p, {})) for p in group["params"]
        ])
        for group in optimizer.param_groups
    ]  # fmt: skip
    cls: Any = to or _class(optimizer)
    if precision is None and isinstance(optimizer, LowPrecisionOptimizer):
        precision = None if _is_foreign(cls) else "source"
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
    return made, _fill(made, [(g, e) for g, _, e in source])


def load_converted(
    optimizer: Optimizer, state_dict: Mapping[str, Any], params: Iterable[Tensor] | None = None
) -> Report:
    """Load into an optimizer the state dict of another precision, class or library.

    Its hyperparameters stay as they are; load the learning rate with its schedule.

    Args:
        optimizer: of this package or of torch.optim.
        state_dict: what the other's `state_dict()` returned.
        params: the parameters that belong to it, in the order of its groups (the float32 weights of
            a checkpoint, say); by default the values of `optimizer`'s own.

    Returns:
        What was rounded.

    Raises:
        ValueError, TypeError: for what does not fit, before anything is changed.
    """
    saved = state_dict["param_groups"]
    count = sum(len(group["params"]) for group in saved)
    mine = [p for group in optimizer.param_groups for p in group["params"]]
    sources = list(params) if params is not None else mine
    for what, number in (("params", len(sources)), ("the optimizer", len(mine))):
        if number != count:
            raise ValueError(f"the state dict is of {count} parameters; {what} has {number}")
    remaining = iter(sources)
    return _fill(
        optimizer,
        [
            (foreign.options(group),
             [(next(remaining), state_dict["state"].get(key, {})) for key in group["params"]])
            for group in saved
        ],
    )  # fmt: skip


def float32_checkpoint(optimizer: LowPrecisionOptimizer) -> tuple[list[Tensor], dict[str, Any]]:
    """Float32 weights, and the state dict of torch's optimizer of the same name for them.

    Returns:
        For each parameter in order the value that is stored, rounded to float32 (float64 for
        float64 parameters), and the state dict. A pair of two bf16 numbers that are far apart is
        rounded; all else is exact.
    """
    kinds = {torch.float64: torch.float64}
    params = [
        Parameter(torch.empty_like(p, dtype=kinds.get(p.dtype, torch.float32)))
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    made, _ = convert(optimizer, to=getattr(torch.optim, _class(optimizer).__name__), params=params)
    return [p.detach() for p in params], made.state_dict()


def _is_foreign(cls: type) -> bool:
    return not issubclass(cls, LowPrecisionOptimizer)


def _class(optimizer: Optimizer) -> type[Optimizer]:
    """Our class of the same name, ignoring what other libraries add to it."""
    if isinstance(optimizer, LowPrecisionOptimizer):
        return type(optimizer)
    name = type(optimizer).__name__
    known_classes = (
        "CollageAdamW", "AdamW", "NAdam", "RAdam", "Adamax", "Adam", "SGD", "Lion", "Muon",
    )  # fmt: skip
    for known in known_classes:
        if known in name and hasattr(ours, known):
            found: type[Optimizer] = getattr(ours, known)
            return found
    raise ValueError(f"no optimizer of this package is called as {name} is; name one with to=")


def _options(
    cls: type[Optimizer],
    given: dict[str, Any],
    precision: str | Precision | None,
    more: dict[str, Any],
) -> dict[str, Any]:
    """The options of a target's group."""
    make: Any = cls
    defaults = make([Parameter(torch.zeros(1, 1))]).defaults
    known = {*defaults, "initial_lr", *({"mode"} & inspect.signature(cls).parameters.keys())}
    foreign_names = sorted(more.keys() - known)
    if foreign_names:
        raise TypeError(
            f"options {foreign_names} are none of {cls.__name__}'s groups; allowed are "
            f"{', '.join(sorted(known))}"
        )
    found = {k: copy.deepcopy(v) for k, v in given.items() if k in defaults}
    if precision is not None and precision != "source":
        found["precision"] = precision
    # What another precision rounds may have no low word here.
    target = {**defaults, **found}.get("precision", "plain")
    if "low" not in more and not strategy_of(str(target)).param.has_low:
        found.pop("low", None)
    if "initial_lr" in given:
        found["initial_lr"] = given["initial_lr"]
    return {**found, **more}


Entries = Sequence[tuple[Tensor, Mapping[str, Any]]]


@torch.no_grad()
def _fill(target: Optimizer, source: Sequence[tuple[dict[str, Any], Entries]]) -> Report:
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
        state = {"step": torch.tensor(float(meaning.step))} if "momentum" not in group else {}
        wanted = set(meaning.tensors) - {"param"}
        state.update({n: torch.empty_like(p) for n in wanted})
        numbers = list(meaning.numbers)
        state.update({n: torch.tensor(0.0) for n in numbers})
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
