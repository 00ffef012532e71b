"""Check that components from outside can form an expansion tensor.

Kernels assume that all components have the layout of the first: they would write past the end of a
smaller one. So every constructor from components that this library did not create checks them here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.forks import forked
from mcf.kernels.formats import format_of
from mcf.kernels.overlap import share, span

MAX_TERMS = 4
NAMES = ("_c0", "_c1", "_c2", "_c3")
# Attributes that are set only at construction.
FIXED = frozenset({"_terms", *NAMES})


def check_components(components: Any, name: str = "components") -> Sequence[Tensor]:
    """Return the components if they can form an expansion tensor.

    Raises:
        TypeError: unless they are plain dense tensors of one format on one device.
        ValueError: for a number of components other than 1 to 4, different shapes or strides,
            components that overlap in memory, or one that requires grad.
    """
    if isinstance(components, Tensor) or not isinstance(components, (list, tuple)):
        raise TypeError(
            f"{name} must be a tuple or list of 1 to {MAX_TERMS} tensors, largest component first, "
            f"got {type(components).__name__}"
        )
    if not 1 <= len(components) <= MAX_TERMS:
        raise ValueError(f"{name} must be 1 to {MAX_TERMS} tensors, got {len(components)}")
    for k, c in enumerate(components):
        _check_plain(f"{name}[{k}]", c)
    first = components[0]
    format_of(first.dtype, f"{name}[0]")
    for k, c in enumerate(components[1:], 1):
        _check_alike(name, k, c, first)
    _check_apart(name, components)
    return components


def check_terms(terms: Any) -> None:
    """Raise ValueError if `terms` is not a valid number of components."""
    if isinstance(terms, bool) or not isinstance(terms, int) or not 1 <= terms <= MAX_TERMS:
        raise ValueError(f"terms must be an int from 1 to {MAX_TERMS}, got {terms!r}")


def _tracing() -> tuple[type[Tensor], ...]:
    """Return torch's types that represent plain tensors while a function is traced."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor


def _check_plain(name: str, c: Any) -> None:
    if type(c) is not Tensor and type(c) not in _tracing():
        raise TypeError(
            f"{name} must be a plain torch.Tensor, got {type(c).__name__} "
            "(mcf.from_components also takes parameters, and has a derivative)"
        )
    if c.layout is not torch.strided or c.is_nested:
        raise TypeError(f"{name} must be dense (torch.strided), got layout {c.layout}")
    if c.is_neg():
        raise TypeError(f"{name} is a negative view; pass {name}.resolve_neg()")
    if c.requires_grad:
        raise ValueError(
            f"{name} must not require grad, which would be lost "
            "(mcf.from_components has a derivative)"
        )


def _check_alike(name: str, k: int, c: Tensor, first: Tensor) -> None:
    more = " (mcf.from_components broadcasts and copies)"
    for error, what, given, allowed, advice in (
        (TypeError, "dtype", c.dtype, first.dtype, ""),
        (TypeError, "device", c.device, first.device, ""),
        (ValueError, "shape", [*c.shape], [*first.shape], more),
        (ValueError, "strides", [*c.stride()], [*first.stride()], more),
    ):
        if given != allowed:
            raise error(
                f"{name}[{k}] must have the {what} of {name}[0], {allowed}, got {given}{advice}"
            )


def _check_apart(name: str, components: Sequence[Tensor]) -> None:
    first = components[0]
    # Meta tensors and traced tensors have no memory.
    if first.numel() == 0 or first.device.type == "meta" or type(first) is not Tensor:
        return
    spans = [span(c) for c in components]
    for k, j in itertools.combinations(range(len(components)), 2):
        (start, end), (other, last) = spans[k], spans[j]
        # Interleaved components in one array have overlapping spans, but share no byte.
        if start < last and other < end and share(components[k], components[j]):
            raise ValueError(
                f"{name}[{j}] and {name}[{k}] share memory: a write to one would change the other"
            )


def check_dict(given: Any) -> dict[str, Any]:
    """Return a copy of a new `__dict__` of a tensor, after checking its components.

    torch's function that rebuilds parameters sets any attribute named in a file, also `__dict__`.

    Raises:
        TypeError, ValueError: unless it is a dict with `_terms` components that pass
            `check_components`.
    """
    if not isinstance(given, dict):
        raise TypeError(f"__dict__ must be a dict, got {type(given).__name__}")
    found = [name for name in NAMES if name in given]
    terms = given.get("_terms")
    if type(terms) is not int or terms != len(found) or found != list(NAMES[:terms]):
        raise ValueError(
            f"__dict__ of an expansion tensor must hold _terms and as many components, got _terms "
            f"{terms!r} and {found}"
        )
    check_components([given[name] for name in found], "__dict__")
    # A file could later change its dict, and the sizes of its tensors.
    return given | {name: torch.ops.aten.alias.default(given[name]) for name in found}


def check_attributes(cls: type, state: Any) -> dict[str, Any]:
    """Return the attributes of a tensor in a file, if they are only a user's.

    Raises:
        ValueError: for a name that the tensor's type uses.
        TypeError: unless they are a dict with string keys.
    """
    if not isinstance(state, dict) or not all(isinstance(k, str) for k in state):
        raise TypeError(f"attributes of an expansion tensor must be a dict, got {state!r:.100}")
    for name, value in state.items():
        if name == "_is_param":
            if not isinstance(value, bool):
                raise TypeError(f"_is_param of an expansion tensor must be a bool, got {value!r}")
        elif (
            name in FIXED or name.startswith("__") or not name.isidentifier() or hasattr(cls, name)
        ):
            raise ValueError(
                f"the file sets the attribute {name!r} of an expansion tensor, a name that torch "
                "or mcf reserves"
            )
    return state


# Largest number of elements that torch copies on the calling thread alone.
_ALONE = 1 << 15


def needs_pieces(target: Tensor) -> bool:
    """Return whether a copy in a forked child would wait for threads that only its parent has."""
    return forked() and target.numel() > _ALONE and target.is_cpu


def write(targets: Sequence[Tensor], values: Sequence[Tensor], non_blocking: bool = False) -> None:
    """Copy components into the components of a tensor, in one call.

    An interrupt between two calls would leave numbers with components of different values. In a
    forked child large tensors are copied in pieces, see `needs_pieces`.
    """
    if needs_pieces(targets[0]):
        for t, v in zip(targets, values, strict=True):
            _copy_alone(t, v.expand(t.shape))
        return
    torch._foreach_copy_(list(targets), list(values), non_blocking)


def _copy_alone(target: Tensor, value: Tensor) -> None:
    """Copy a tensor of the same shape in pieces that torch copies on the calling thread."""
    if target.numel() <= _ALONE:
        target.copy_(value)
        return
    dim = max(range(target.dim()), key=target.shape.__getitem__)
    half = target.shape[dim] // 2
    for start, length in ((0, half), (half, target.shape[dim] - half)):
        _copy_alone(target.narrow(dim, start, length), value.narrow(dim, start, length))
