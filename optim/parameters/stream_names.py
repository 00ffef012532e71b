"""Streams of random numbers keyed by parameters' names, independent of grouping."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

# Keys of random bits besides seed, step and element: `stream_by` of a group.
BY = ("name", "place")

# The attribute of a parameter that `set_stream` sets.
ATTRIBUTE = "_mcf_stream"

# Prefixes of wrappers: inside names those of torch.compile, FSDP and activation checkpointing; at
# the front that of DistributedDataParallel, DataParallel and AveragedModel.
_INSIDE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_FRONT = "module"

# Indices are below, hashes of names from here on, so that they never coincide.
_NAMES = 2**62


def settle(where: str, group: dict[str, Any]) -> None:
    """Set the default of a new group's `stream_by`.

    Raises:
        ValueError: if names are requested and missing.
    """
    if group.get("stream_by") is None:
        group["stream_by"] = "place" if group.get("param_names") is None else "name"
    elif group["stream_by"] == "name" and group.get("param_names") is None:
        raise ValueError(
            f"{where} has stream_by='name' and no param_names; allowed is 'place', or parameters "
            "that are given with names"
        )


def names(where: str, group: Mapping[str, Any]) -> Sequence[str] | None:
    """Return parameter names used as RNG stream keys; None if streams are keyed by index.

    Raises:
        ValueError, TypeError: unless each parameter has a name.
    """
    params = group["params"]
    if group.get("stream_by") != "name" or all(told(p) is not None for p in params):
        return None
    found = group.get("param_names")
    if not isinstance(found, (list, tuple)) or len(found) != len(params):
        has = len(found) if isinstance(found, (list, tuple)) else type(found).__name__
        raise ValueError(
            f"{where} has {len(params)} params and {has} param_names, and random bits are keyed on "
            "names; allowed are as many, stream_by='place', or mcf.optim.set_stream for each "
            "parameter of a part"
        )
    for k, name in enumerate(found):
        if not isinstance(name, str):
            raise TypeError(
                f"param_names[{k}] of {where} is a {type(name).__name__}, and random bits are "
                "keyed on names; allowed are strings, or stream_by='place'"
            )
    return found


def numbers(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Tensor, int]]:
    """Yield each parameter with the number of its stream, from `set_stream`, its name or its index.

    Raises:
        ValueError, TypeError: for names that do not fit their group.
    """
    place, seen = 0, dict[str, int]()
    for index, group in enumerate(groups):
        given = names(f"param_groups[{index}]", group)
        for k, p in enumerate(group["params"]):
            number = place
            if given is not None:
                name = unwrapped(given[k])
                before = seen.get(name, 0)
                seen[name] = before + 1
                number = of_name(name, before)
            mine = told(p)
            if mine is not None:
                number = of_name(unwrapped(mine)) if isinstance(mine, str) else mine
            yield p, number
            place += 1


def told(p: Tensor) -> str | int | None:
    """Return the stream that `mcf.optim.set_stream` set for a parameter."""
    found: str | int | None = getattr(p, ATTRIBUTE, None)
    return found


@functools.lru_cache(1 << 16)
def unwrapped(name: str) -> str:
    """Return a parameter's name without prefixes of module wrappers.

    "module._orig_mod.layers.0._checkpoint_wrapped_module.weight" is "layers.0.weight".
    """
    words = [word for word in name.split(".") if word not in _INSIDE]
    while len(words) > 1 and words[0] == _FRONT:
        del words[0]
    return ".".join(words)


@functools.lru_cache(1 << 16)
def of_name(name: str, before: int = 0) -> int:
    """Return the number of a name's stream, 62 bits of its SHA-256 (UTF-8).

    Args:
        name: as `unwrapped` returns it.
        before: the number of earlier parameters of that name, so that each gets its own stream.
    """
    text = f"{name}\0{before}" if before else name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return _NAMES | int.from_bytes(digest[:8], "big") >> 2
