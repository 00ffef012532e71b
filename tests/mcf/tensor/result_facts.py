"""Facts of a call's results that autograd and callers rely on: gradients, shapes, memory, bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import mcf
from tests.mcf.tensor.every_function import _is_float


@dataclasses.dataclass(frozen=True)
class Fact:
    """Facts of one result of a call.

    Args:
        shape: of the result; None for a number.
        floating: whether its elements are floating-point or complex numbers.
        requires_grad: whether autograd records it.
        is_leaf: whether it is a leaf of the graph.
        argument: the place of the argument that it is, or None.
        shares: the places of the arguments whose memory it uses.
    """

    shape: tuple[int, ...] | None
    floating: bool
    requires_grad: bool
    is_leaf: bool
    argument: int | None
    shares: tuple[int, ...]


def _is_result(x: Any) -> bool:
    return isinstance(x, (Tensor, mcf.MCFComplexTensor))


def leaves(x: Any) -> list[Any]:
    """Return the tensors, complex expansions and numbers in nested results."""
    return tree_flatten(x, is_leaf=_is_result)[0]


def parts(x: Any) -> tuple[Tensor, ...]:
    """Return the plain tensors that hold a result's numbers."""
    if isinstance(x, mcf.MCFComplexTensor):
        return (*parts(x.real), *parts(x.imag))
    if isinstance(x, mcf.MCFTensor):
        return tuple(x.detach().components)
    return (x.detach(),)


def _memory(x: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in parts(x) if t.numel()} - {0}


def facts(results: Any, arguments: Sequence[Tensor]) -> list[Fact]:
    """Return the facts of the results of a call on some tensors."""
    held = [_memory(a) for a in arguments]
    found = []
    for y in leaves(results):
        if not _is_result(y):
            found.append(Fact(None, isinstance(y, float), False, True, None, ()))
            continue
        complex_numbers = isinstance(y, mcf.MCFComplexTensor) or y.is_complex()
        mine = _memory(y)
        found.append(
            Fact(
                tuple(y.shape),
                complex_numbers or y.is_floating_point(),
                y.requires_grad,
                y.is_leaf if isinstance(y, Tensor) else not y.requires_grad,
                next((k for k, a in enumerate(arguments) if a is y), None),
                tuple(k for k, memory in enumerate(held) if memory & mine),
            )
        )
    return found


def bits(results: Any) -> list[Any]:
    """Return the numbers of results as integers or bytes, which compare NaN and zeros by bits."""
    found: list[Any] = []
    for y in leaves(results):
        if not _is_result(y):
            found.append(repr(y))
            continue
        for t in parts(y):
            t = torch.view_as_real(t) if t.is_complex() else t
            kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(t.element_size())
            found.append(t.contiguous().view(kind) if t.is_floating_point() else t)
    return found


def same_bits(x: list[Any], y: list[Any]) -> bool:
    """Return whether two lists of `bits` are equal, NaN of any payload included."""
    return len(x) == len(y) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(x, y, strict=True)
    )


@dataclasses.dataclass(frozen=True)
class Call:
    """A function and its arguments, which each call takes anew.

    Args:
        function: the function.
        given: (input, args, kwargs) of expansions.
    """

    function: Callable[..., Any]
    given: Any

    def run(self, grad: bool) -> tuple[Any, list[Tensor]]:
        """Call the function on copies; the results and the copies."""

        def copied(x: Any) -> Any:
            return x.detach().clone().requires_grad_(grad) if _is_float(x) else x

        x, args, kwargs = tree_map(copied, self.given)
        torch.default_generator.manual_seed(1)
        results = self.function(x, *args, **kwargs)
        copies = [t for t in tree_flatten((x, args, kwargs))[0] if isinstance(t, Tensor)]
        return results, copies


def strided(x: Any) -> Any:
    """Return an expansion with the same numbers, every second element of larger memory."""
    if not _is_float(x) or not x.dim():
        return x
    wide = torch.stack([x.detach(), torch.zeros_like(x)], -1)
    return wide[..., 0]


def forms(op: Any, call: Call) -> dict[str, Callable[[], Any]]:
    """Return the other forms of a call: strided operands, in place, and `out=`."""

    def apart() -> Any:
        torch.default_generator.manual_seed(1)
        x, args, kwargs = tree_map(strided, call.given)
        return op(x, *args, **kwargs)

    def in_place() -> Any:
        x, args, kwargs = call.given
        torch.default_generator.manual_seed(1)
        return op.inplace_variant(x.clone(), *args, **kwargs)

    def into() -> Any:
        x, args, kwargs = call.given
        found = op(x, *args, **kwargs)
        one = isinstance(found, Tensor)
        targets = [torch.empty_like(t) for t in ([found] if one else found)]
        torch.default_generator.manual_seed(1)
        op(x, *args, **kwargs, out=targets[0] if one else tuple(targets))
        return targets[0] if one else tuple(targets)

    # A function of memory has other results where memory is laid out otherwise.
    found = {} if op.name.startswith("as_strided") else {"strided": apart}
    x = call.given[0]
    if op.inplace_variant is not None and isinstance(x, mcf.MCFTensor):
        result, _ = call.run(False)
        if isinstance(result, mcf.MCFTensor) and (result.shape, result.dtype, result.terms) == (
            x.shape, x.dtype, x.terms,
        ):  # fmt: skip
            found["in place"] = in_place
    if op.supports_out and not isinstance(call.run(False)[0], mcf.MCFComplexTensor):
        found["out="] = into
    return found


def form_differences(op: Any, call: Call, executors: Sequence[str]) -> list[str]:
    """Return the forms of a call whose bits differ from those of the function itself."""
    found: list[str] = []
    with mcf.executor(executors[0]):
        wanted = bits(call.run(False)[0])
    for name, form in forms(op, call).items():
        for executor in executors:
            with mcf.executor(executor):
                try:
                    got = bits(form())
                except (mcf.UnsupportedError, RuntimeError, TypeError) as error:
                    if "out" in name or "in place" in name:
                        # An error is no wrong number; tests of `out=` say where it is refused.
                        continue
                    found.append(f"{executor}, {name}: {type(error).__name__}: {error}")
                    continue
            if not same_bits(got, wanted):
                found.append(f"{executor}, {name}: other bits than the function")
    return found


def differences(call: Call, plain: Call, calls: int, executors: Sequence[str]) -> list[str]:
    """Return what differs between an expansion's calls, or from torch's on plain tensors.

    Each executor makes `calls` calls without gradients and as many with them. All have the bits of
    the first call on the torch executor; their facts are those of torch on float64 tensors.
    """
    found: list[str] = []
    first: list[Any] | None = None
    for grad in (False, True):
        try:
            wanted = facts(*plain.run(grad))
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            # torch itself has no derivative, or refuses the sample.
            continue
        for executor in executors:
            with mcf.executor(executor):
                for number in range(1, calls + 1):
                    where = f"{executor}, call {number}{', with gradients' if grad else ''}"
                    results, copies = call.run(grad)
                    for k, (got, want) in enumerate(
                        zip(facts(results, copies), wanted, strict=True)
                    ):
                        # A derivative that torch has not is no fault.
                        more = got.requires_grad and not want.requires_grad and got.floating
                        for field in dataclasses.fields(Fact):
                            if more and field.name in ("requires_grad", "is_leaf"):
                                continue
                            a, b = getattr(got, field.name), getattr(want, field.name)
                            if a != b:
                                found.append(
                                    f"{where}: result {k} has {field.name}={a!r}, torch {b!r}"
                                )
                    now = bits(results)
                    first = now if first is None else first
                    if not same_bits(now, first):
                        found.append(f"{where}: other bits than the first call")
    return found
