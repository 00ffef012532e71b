"""The single custom operator through which every elementary function runs.

It is opaque to `torch.compile`, checks nothing, and processes its arguments in flat pieces that
stay in the cache.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import fused
from mcf.elementary.declarations import PROGRAMS, Program
from mcf.elementary.format import computing_in
from mcf.elementary.tables import Components
from mcf.kernels.formats import Format, format_of
from mcf.kernels.register_choice import refuse_float32, registers_for

# Elements processed at a time: 16 Ki take up to twice as long per element because of calls; 256 Ki
# are no faster.
CHUNK = 1 << 16
# The functions on component tuples, and those whose programs also run in float32 registers.
FUNCTIONS: dict[str, Callable[..., Components]] = {}
IN_FLOAT32: set[str] = set()


def with_kernels(parts: int = 1) -> list[str]:
    """Return the functions that run as one kernel and return so many expansions, by name."""
    return sorted(
        n for n, p in PROGRAMS.items() if p.fused and p.parts == parts and not p.auxiliary
    )


_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("elementary(str name, Tensor[] components, int[] terms) -> Tensor[]")  # type: ignore[no-untyped-call]


@functools.cache
def _signature(names: tuple[str, ...]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(n, kind) for n in names])


def function(
    *names: str, called: str = "", doc: str = "", **declared: Any
) -> Callable[[Callable[..., Components]], Callable[..., Components]]:
    """Turn a program into a function on components, and register it.

    The program takes the arguments, their format, and the number of components to return.

    Args:
        *names: the names of its arguments, each a tuple of components.
        called: the name of the function; by default the program's.
        doc: the docstring of the function; by default the program's.
        **declared: the other attributes of `mcf.elementary.declarations.Program`.
    """
    signature = _signature(names)

    def register(program: Callable[..., Components]) -> Callable[..., Components]:
        name = called or program.__name__

        def compute(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
            return program(*arguments, fmt, terms)

        PROGRAMS[name] = Program(compute, names, **declared)
        if PROGRAMS[name].float32:
            IN_FLOAT32.add(name)

        def run(*arguments: Components, **named: Components) -> Components:
            try:
                given = signature.bind(*arguments, **named)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
            return apply(name, *given.args)

        run.__name__ = run.__qualname__ = name
        run.__module__, run.__doc__ = program.__module__, doc or program.__doc__
        run.__signature__ = signature  # type: ignore[attr-defined]
        FUNCTIONS[name] = run
        return run

    return register


def _split(components: list[Tensor], terms: list[int]) -> tuple[Components, ...]:
    out, start = [], 0
    for n in terms:
        out.append(tuple(components[start : start + n]))
        start += n
    return tuple(out)


def _run(name: str, components: list[Tensor], terms: list[int]) -> list[Tensor]:
    first = components[0]
    fmt, n = format_of(first.dtype), max(terms)
    width = registers_for(fmt, first.device)
    if name not in IN_FLOAT32:
        refuse_float32(name, fmt, first.device)
    out = _fake(name, components, terms)
    if first.numel() == 0:
        return out
    flat = [c.reshape(-1) for c in components]
    if fused.run(name, fmt, terms, flat, out):
        return out
    flat_out = [c.view(-1) for c in out]
    size = CHUNK if first.device.type == "cpu" else first.numel()
    for start in range(0, first.numel(), size):
        stop = min(start + size, first.numel())
        piece = _split([c[start:stop] for c in flat], terms)
        with computing_in(width):
            result = PROGRAMS[name].compute(piece, fmt, n)
        for target, c in zip(flat_out, result, strict=True):
            target[start:stop] = c
    return out


def _fake(name: str, components: list[Tensor], terms: list[int]) -> list[Tensor]:
    first = components[0]
    shape, dtype, device = first.shape, first.dtype, first.device
    count = max(terms) * PROGRAMS[name].parts
    return [torch.empty(shape, dtype=dtype, device=device) for _ in range(count)]


_library.impl("elementary", _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("mcf::elementary", _fake, lib=_library)


def apply(name: str, *arguments: Components) -> Components:
    """Check and broadcast the arguments, and run the function of that name."""
    tensors = checked(name, *arguments)
    terms = [len(argument) for argument in arguments]
    return tuple(torch.ops.mcf.elementary(name, tensors, terms))


def checked(name: str, *arguments: Components) -> list[Tensor]:
    """Return the components of all arguments, checked and broadcast to one shape."""
    for position, argument in enumerate(arguments):
        where = f"{name}: argument {position}"
        if not isinstance(argument, tuple | list) or not all(
            isinstance(c, Tensor) for c in argument
        ):
            raise TypeError(
                f"{where} must be a tuple of 1 to 4 tensors, largest component first, got "
                f"{type(argument).__name__}"
            )
        if not 1 <= len(argument) <= 4:
            raise ValueError(f"{where} must have 1 to 4 components, got {len(argument)}")
    flat = [c for argument in arguments for c in argument]
    first = flat[0]
    format_of(first.dtype, name)
    for c in flat:
        for what in ("dtype", "device"):
            if getattr(c, what) != getattr(first, what):
                raise TypeError(
                    f"{name}: components have {what} {getattr(first, what)} and "
                    f"{getattr(c, what)}; convert one, nothing is rounded or moved silently"
                )
        if c.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name}: a component requires grad, and this function on components has no "
                "derivative; use an MCFTensor, or detach it"
            )
    try:
        return list(torch.broadcast_tensors(*flat))  # type: ignore[no-untyped-call]
    except RuntimeError:
        shapes = ", ".join(str(list(c.shape)) for c in flat)
        raise ValueError(f"{name}: shapes do not broadcast: {shapes}") from None
