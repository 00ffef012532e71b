"""What the components of an expansion tensor have in common, checked where they come from outside.

Kernels take every component to be laid out as the first: one that is smaller would be written past
its end. So whatever makes a tensor of components that this library has not made comes by here.
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
# Attributes that are set where a tensor is made, and nowhere else.
FIXED = frozenset({"_terms", *NAMES})


def check_components(components: Any, name: str = "components") -> Sequence[Tensor]:
    """The components, if they can be those of one expansion tensor.

    Raises:
        TypeError: for what is no sequence of plain dense tensors of one format and one device.
        ValueError: for another number of them, shapes or strides that differ, components that lie
            in the same memory, one that requires grad.
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


def _tracing() -> tuple[type[Tensor], ...]:
    """Types of torch's that stand for a plain tensor while a function is traced."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor


def _check_plain(name: str, c: Any) -> None:
    if type(c) is not Tensor and type(c) not in _tracing():
        raise TypeError(
            f"{name} is of type {type(c).__name__}; allowed are plain tensors, torch.Tensor itself "
            "(mcf.from_components takes parameters, too, and has a derivative)"
        )
    if c.layout is not torch.strided or c.is_nested:
        raise TypeError(f"{name} has layout {c.layout}; only dense (torch.strided) is allowed")
    if c.is_neg():
        raise TypeError(f"{name} is a negative view; give {name}.resolve_neg()")
    if c.requires_grad:
        raise ValueError(
            f"{name} requires grad, which would be lost; allowed are tensors that do not "
            "(mcf.from_components has a derivative)"
        )


def _check_alike(name: str, k: int, c: Tensor, first: Tensor) -> None:
    for what in ("dtype", "device"):
        if getattr(c, what) != getattr(first, what):
            raise TypeError(
                f"{name}[{k}] has {what} {getattr(c, what)}, {name}[0] has {getattr(first, what)}; "
                "all must have the same"
            )
    for what, given, allowed in (
        ("shape", c.shape, first.shape),
        ("strides", c.stride(), first.stride()),
    ):
        if given != allowed:
            raise ValueError(
                f"{name}[{k}] has {what} {list(given)}, {name}[0] has {list(allowed)}; all must "
                "have the same (mcf.from_components broadcasts and copies)"
            )


def _check_apart(name: str, components: Sequence[Tensor]) -> None:
    first = components[0]
    # What has no memory has no place: meta tensors, tensors that stand for others.
    if first.numel() == 0 or first.device.type == "meta" or type(first) is not Tensor:
        return
    spans = [span(c) for c in components]
    for k, j in itertools.combinations(range(len(components)), 2):
        (start, end), (other, last) = spans[k], spans[j]
        # Components that lie in turn in one array have overlapping spans and no common byte.
        if start < last and other < end and share(components[k], components[j]):
            raise ValueError(
                f"{name}[{j}] and {name}[{k}] lie in the same memory, in part at least; what is "
                "written to one would change the other"
            )


def check_dict(given: Any) -> dict[str, Any]:
    """A copy of what is to be a tensor's `__dict__`, if it has the components of one.

    torch's function that rebuilds parameters sets any attribute that a file names, this one too.

    Raises:
        TypeError, ValueError: for what is no such dict, and as `check_components`.
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
    # A file could go on to change the dict, and the sizes of tensors that it has made.
    return given | {name: torch.ops.aten.alias.default(given[name]) for name in found}


def check_attributes(cls: type, state: Any) -> dict[str, Any]:
    """What a file says are a tensor's attributes, if they are a user's and nothing else.

    Raises:
        ValueError: for a name that means something to the tensor's type.
        TypeError: for what are no attributes.
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
                f"the file sets the attribute {name!r} of an expansion tensor; allowed are names "
                "that torch and mcf do not use themselves"
            )
    return state


# torch copies no more elements than these without its threads.
_ALONE = 1 << 15


def needs_pieces(target: Tensor) -> bool:
    """Return whether torch would wait for threads that only this process's parent had."""
    return forked() and target.numel() > _ALONE and target.is_cpu


def write(targets: Sequence[Tensor], values: Sequence[Tensor], non_blocking: bool = False) -> None:
    """Copy components into those of a tensor, in one call.

    An interrupt comes between two calls: a number would keep the first component of one value and
    the second of another. In a forked child, where torch waits for threads that its parent had, a
    few elements at a time.
    """
    if needs_pieces(targets[0]):
        for t, v in zip(targets, values, strict=True):
            _copy_alone(t, v.expand(t.shape))
        return
    torch._foreach_copy_(list(targets), list(values), non_blocking)


def _copy_alone(target: Tensor, value: Tensor) -> None:
    """Copy a tensor of the same shape in pieces for which torch asks none of its threads."""
    if target.numel() <= _ALONE:
        target.copy_(value)
        return
    dim = max(range(target.dim()), key=target.shape.__getitem__)
    half = target.shape[dim] // 2
    for start, length in ((0, half), (half, target.shape[dim] - half)):
        _copy_alone(target.narrow(dim, start, length), value.narrow(dim, start, length))
