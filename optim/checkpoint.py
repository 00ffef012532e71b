"""Build what `state_dict` returns; check and copy what `load_state_dict` gets."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcf.optim import options, validation
from mcf.optim.parameters import entries, randomness
from mcf.optim.sharding.shards import like, local, moved_like, packed, unpacked
from mcf.optim.step.kernel import states as formats_of

if TYPE_CHECKING:
    from mcf.optim.optimizer import LowPrecisionOptimizer

# The remedy that error messages suggest.
_CONVERTED = "mcf.optim.load_converted(optimizer, state_dict) loads states of another precision"


def portable(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict of types that torch.distributed can move, sharing the tensors."""
    state = {
        key: {n: packed(t) for n, t in entry.items()} if isinstance(entry, dict) else entry
        for key, entry in state_dict["state"].items()
    }
    groups = [options.saved(g) for g in state_dict["param_groups"]]
    return {**state_dict, "state": state, "param_groups": groups}


def in_order(groups: Sequence[Mapping[str, Any]], state_dict: Any) -> Any:
    """Return a state dict whose parameters are in the optimizer's order, by their names.

    Names are compared without wrappers' prefixes (`randomness.unwrapped`), in groups where both
    sides name every parameter once. Other groups keep their order, as in torch.

    Raises:
        ValueError: for a group with other names than the optimizer's.
    """
    saved_groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
    if not isinstance(saved_groups, list):
        return state_dict
    found = []
    for index, (group, saved) in enumerate(itertools.zip_longest(groups, saved_groups)):
        mine, theirs = _plain_names(group), _plain_names(saved)
        if mine is not None and theirs is not None and len(mine) == len(theirs) and mine != theirs:
            order = _found(f"state_dict param_groups[{index}]", mine, theirs)
            lists = {name: [saved[name][k] for k in order] for name in ("params", "param_names")}
            saved = {**saved, **lists}
        found.append(saved)
    return {**state_dict, "param_groups": found[: len(saved_groups)]}


def places(groups: Sequence[Mapping[str, Any]], saved: Sequence[Any]) -> list[int] | None:
    """Return the index of each parameter in a state dict, in the order of all groups.

    Return None if a group on either side lacks names, or if a name occurs twice.

    Raises:
        ValueError: for other names than the optimizer's.
    """
    names: list[list[str]] = []
    for side in (groups, saved):
        found = [_plain_names(group) for group in side]
        flat = [name for mine in found if mine is not None for name in mine]
        if None in found or len(set(flat)) < len(flat):
            return None
        names.append(flat)
    mine, theirs = names
    return None if len(mine) != len(theirs) else _found("state_dict", mine, theirs)


def _found(where: str, mine: list[str], theirs: list[str]) -> list[int]:
    """Return the index of each name among the names in a state dict."""
    place = {name: k for k, name in enumerate(theirs)}
    if set(mine) != place.keys():
        missing, unknown = (sorted({*a} - {*b})[:5] for a, b in ((mine, theirs), (theirs, mine)))
        raise ValueError(
            f"{where} lacks states for {missing} and has states for {unknown}; allowed are the "
            "names of the optimizer's parameters (without 'param_names' in the saved group, "
            "states go to parameters by their order)"
        )
    return [place[name] for name in mine]


def _plain_names(group: Any) -> list[str] | None:
    """Return a group's parameter names without wrappers; None if they are missing or not unique."""
    names = group.get("param_names") if isinstance(group, Mapping) else None
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        return None
    plain = [randomness.unwrapped(name) for name in names]
    whole = len(names) == len(group.get("params", ())) == len(set(plain))
    return plain if whole else None


def check(optimizer: LowPrecisionOptimizer, state_dict: Mapping[str, Any]) -> None:
    """Raise unless `state_dict` fits this optimizer; change nothing."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be a dict, got {type(state_dict).__name__}")
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise ValueError(f"state_dict has no {key!r}; it has {sorted(state_dict)}")
    saved_groups = state_dict["param_groups"]
    if len(saved_groups) != len(optimizer.param_groups):
        raise ValueError(
            f"state_dict has {len(saved_groups)} parameter groups; the optimizer has "
            f"{len(optimizer.param_groups)}"
        )
    for index, saved in enumerate(saved_groups):
        _check_group(optimizer, index, saved, state_dict["state"])
    known = {key for saved in saved_groups for key in saved["params"]}
    unknown = [
        key
        for key, entry in state_dict["state"].items()
        if key not in known and _is_state(key, entry)
    ]
    if unknown:
        raise ValueError(
            f"state_dict has states for parameters {unknown}, which are in none of its groups"
        )


def _is_state(key: Any, entry: Any) -> bool:
    """Return whether an entry outside the groups is the state of a parameter.

    Entries of other software may count steps, too.
    """
    return isinstance(key, int) or (isinstance(entry, Mapping) and entries.own(entry) > {"step"})


def _check_group(
    optimizer: LowPrecisionOptimizer, index: int, saved: Mapping[str, Any], states: Any
) -> None:
    where = f"state_dict param_groups[{index}]"
    group = optimizer.param_groups[index]
    later = optimizer._later_options().keys()
    missing = sorted({"params", *optimizer._required} - saved.keys() - later)
    if missing:
        raise ValueError(
            f"{where} lacks {missing}: it was made by another optimizer; {_CONVERTED}, "
            "and takes those of torch.optim, optimi and torchao"
        )
    if len(saved["params"]) != len(group["params"]):
        raise ValueError(
            f"state_dict has {len(saved['params'])} parameters in param_groups[{index}]; "
            f"the optimizer has {len(group['params'])}"
        )
    saved = {**optimizer._later_options(), **options.upgraded(saved)}
    now = options.upgraded(group)
    for name in ("precision", "compute_dtype", "low"):
        if saved[name] != now[name]:
            raise ValueError(
                f"{where} has {name}={saved[name]!r}; the optimizer has {name}={now[name]!r}; "
                f"{_CONVERTED}"
            )
    lr = saved["lr"]
    # A schedule down to 0 can miss it from below by a rounding error.
    size = abs(lr) if isinstance(lr, (int, float, Tensor)) else lr
    options.check(saved, optimizer.defaults)
    optimizer._check_group({**saved, "lr": size})
    names = {k: v for k, v in group.items() if k == "param_names"}
    randomness.stream_names(where, {**names, **saved, "params": group["params"]})
    rule = optimizer._rule({**group, **saved})
    options.check_decay(saved, rule.decoupled, type(optimizer).__name__)
    for key, (name, p) in zip(saved["params"], optimizer._named(index), strict=True):
        entry = states.get(key)
        if entries.made(entry):
            formats = formats_of(rule, optimizer._arithmetic({**saved}, p, name))
            found = {n: unpacked(p, t) for n, t in entry.items()}
            validation.state(name, p, found, formats, rule, placed=False)
            validation.step_count(name, entry["step"])


def groups(optimizer: LowPrecisionOptimizer, state_dict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the saved groups with the optimizer's parameters, and its names if none are saved."""
    # One memo: groups may share a tensor learning rate.
    memo: dict[int, Any] = {}
    return [
        {
            **{k: v for k, v in group.items() if k == "param_names"},
            **optimizer._later_options(),
            **{
                k: copy.deepcopy(v, memo)
                for k, v in options.upgraded(saved).items()
                if k != "params"
            },
            "params": group["params"],
            # The device of the step count is not part of the training state.
            "capturable": group["capturable"],
        }
        for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True)
    ]


def states(
    optimizer: LowPrecisionOptimizer, state_dict: Mapping[str, Any]
) -> defaultdict[Any, Any]:
    """Return copies of the saved states on the parameters' devices, each in its own dtype.

    Entries that other software added, to a parameter's state or at the top level, are copied too.
    """
    loaded: defaultdict[Any, Any] = defaultdict(dict)
    memo: dict[int, Any] = {}
    taken = set()
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        numbers = {name for name, _ in optimizer._rule({**group, **saved}).numbers}
        for key, p in zip(saved["params"], group["params"], strict=True):
            # Otherwise on the CPU, where it is read without waiting for a device.
            home = p.device if group["capturable"] else torch.device("cpu")
            entry = state_dict["state"].get(key, {})
            taken.add(key)
            theirs = entries.foreign(entry)
            for name, value in entry.items():
                if name in theirs:
                    loaded[p][name] = entries.moved(value, p.device, memo)
                elif name == "step":
                    loaded[p][name] = torch.tensor(int(value), dtype=torch.int64, device=home)
                elif name in numbers:
                    loaded[p][name] = torch.tensor(float(value), dtype=torch.float64, device=home)
                else:
                    mine = unpacked(p, moved_like(p, value.detach()))
                    here = local(mine).to(p.device, copy=True)
                    # A code with several numbers per element has another shape than the parameter.
                    loaded[p][name] = like(p, here, mine.shape)
    for key, value in state_dict["state"].items():
        if key not in taken:
            loaded[key] = copy.deepcopy(value, memo)
    return loaded
