"""Flatten states of modules and optimizers to named plain tensors, for safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.tensor import MCFTensor

_KEY = "mcf"
_VERSION = 1
# Types of two expansions, real and imag, by their name in the metadata.
PAIRS: dict[str, Any] = {}


class _Tensors:
    """Plain tensors by name; each tensor has one name, and no two share memory."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}
        self.known: dict[int, tuple[Tensor, Any]] = {}
        self.memory: set[int] = set()

    def add(self, name: str, x: Tensor) -> str:
        if name in self.named:
            raise ValueError(f"two tensors of the state would have the name {name!r}")
        own = x.detach().contiguous()
        place = own.untyped_storage().data_ptr()
        if place in self.memory or own.untyped_storage().nbytes() != own.nbytes:
            own = own.clone()
            place = own.untyped_storage().data_ptr()
        if own.numel():
            self.memory.add(place)
        self.named[name] = own
        return name

    def described(self, x: Tensor, name: str) -> Any:
        if id(x) not in self.known:
            if isinstance(x, MCFTensor):
                parts = [self.add(f"{name}.c{k}", c) for k, c in enumerate(x.components)]
                found: dict[str, Any] = {"expansion": parts}
            elif x.layout is not torch.strided or x.is_nested:
                raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}")
            else:
                found = {"tensor": self.add(name, x)}
            # Hold the tensor too: otherwise another one could get its id.
            self.known[id(x)] = x, found
        return self.known[id(x)][1]


def flatten_state(state: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Flatten a state dict to plain tensors by name, and metadata that describes its structure.

    An expansion `weight` becomes its components `weight.c0`, `weight.c1`, ..., bit for bit. A
    complex expansion becomes `weight.real.c0`, ..., `weight.imag.c0`, .... A plain tensor keeps its
    name. Names of nested tensors join the keys, as in `state.0.exp_avg`. All else, such as an
    optimizer's groups, is in the metadata. `safetensors.torch.save_file(tensors, path, metadata)`
    stores both, and `unflatten_state` restores the state.

    Args:
        state: nested dicts, lists and tuples of real and complex expansions, plain dense tensors,
            Python numbers, strings and None.

    Returns:
        Contiguous tensors without gradients that share no memory with each other, and one entry of
        metadata. A tensor that occurs twice, such as a tied weight, is stored once.

    Raises:
        TypeError: for any other object in the state; the error names its keys.
        ValueError: if two tensors would have one name.
    """
    tensors = _Tensors()

    def described(x: Any, name: str) -> Any:
        if isinstance(x, Tensor):
            return tensors.described(x, name)
        for kind, pair in PAIRS.items():
            if isinstance(x, pair):
                parts = (("real", x.real), ("imag", x.imag))
                return {kind: [tensors.described(v, f"{name}.{k}") for k, v in parts]}
        if x is None or isinstance(x, (bool, int, float, str)):
            return {"value": x}
        if isinstance(x, Mapping):
            pairs = [(_name(k, name), v) for k, v in x.items()]
            return {"dict": [[k, described(v, _joined(name, k))] for k, v in pairs]}
        if isinstance(x, (list, tuple)):
            kind = "list" if isinstance(x, list) else "tuple"
            return {kind: [described(v, _joined(name, k)) for k, v in enumerate(x)]}
        raise TypeError(
            f"{name or 'state'} must be a tensor, dict, list, tuple, number, string or None, got "
            f"{type(x).__name__}"
        )

    text = json.dumps({"version": _VERSION, "state": described(state, "")})
    return tensors.named, {_KEY: text}


def _name(key: Any, place: str) -> str | int:
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"keys of {place or 'state'} must be strings or integers, got {key!r}")
    return key


def _joined(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def unflatten_state(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> Any:
    """Return the state that `flatten_state` flattened, bit for bit.

    Args:
        tensors: tensors by name, as from `safetensors.torch.load_file`; expansions share their
            memory.
        metadata: metadata of the file, as from `safetensors.safe_open(path, "pt").metadata()`.

    Raises:
        ValueError: for metadata not created by `flatten_state`, or missing tensors.
        TypeError, ValueError: for components that cannot form an expansion (`mcf.MCFTensor`).
    """
    try:
        given = json.loads((metadata or {})[_KEY])
        version = given["version"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"metadata must have the entry {_KEY!r} of mcf.flatten_state, got "
            f"{sorted(metadata or {})}"
        ) from None
    if version != _VERSION:
        raise ValueError(f"metadata must have version {_VERSION}, got {version!r}")
    made: dict[tuple[str, ...], Tensor] = {}

    def stored(names: Sequence[str]) -> list[Tensor]:
        missing = [n for n in names if n not in tensors]
        if missing:
            raise ValueError(f"tensors has no {missing[0]!r}, which metadata names")
        return [tensors[n] for n in names]

    def state(node: Any) -> Any:
        kind, value = _checked(node)
        if kind == "value":
            return value
        if kind == "dict":
            return {k: state(v) for k, v in value}
        if kind in ("list", "tuple"):
            parts = [state(v) for v in value]
            return parts if kind == "list" else tuple(parts)
        if kind in PAIRS:
            real, imag = (state(v) for v in value)
            return PAIRS[kind](real, imag)
        names = (kind, *([value] if kind == "tensor" else value))
        if names not in made:
            found = stored(names[1:])
            made[names] = found[0] if kind == "tensor" else MCFTensor(found)
        return made[names]

    return state(given["state"])


_KINDS = {"value", "dict", "list", "tuple", "tensor", "expansion"}


def _checked(node: Any) -> tuple[str, Any]:
    kinds = _KINDS | PAIRS.keys()
    if not isinstance(node, dict) or len(node) != 1 or not node.keys() <= kinds:
        raise ValueError(f"metadata must have nodes of {sorted(kinds)}, got {node!r:.100}")
    ((kind, value),) = node.items()
    fits = (
        all(isinstance(v, list) and len(v) == 2 for v in value)
        if kind == "dict" and isinstance(value, list)
        else isinstance(value, str)
        if kind == "tensor"
        else kind == "value" or isinstance(value, list)
    )
    if kind in PAIRS:
        fits = fits and len(value) == 2 and all(_checked(v)[0] == "expansion" for v in value)
    if not fits or (kind == "expansion" and not all(isinstance(n, str) for n in value)):
        raise ValueError(f"metadata must have a valid {kind}, got {node!r:.100}")
    return kind, value
