"""Functions of complex expansions composed of sums and products: einsum, addmm and similar."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch

from mcf.complexes.products import matmul
from mcf.complexes.tensor import FUNCTIONS, MCFComplexTensor, implements, pair, parts


@implements("einsum")
def einsum(equation: Any, *operands: Any) -> MCFComplexTensor:
    """Compute `torch.einsum` of complex and real operands from real sums of their parts.

    For k complex operands there are 2^k real sums, added into the real or imaginary part of the
    result. So the error is relative to the sum of moduli.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    both = [_parts("einsum", v) for v in operands]
    found: list[Any] = [None, None]
    for choice in itertools.product(*((0,) if b[1] is None else (0, 1) for b in both)):
        # The power of i.
        turns = sum(choice)
        term = torch.einsum(equation, *(b[k] for b, k in zip(both, choice, strict=True)))
        term = -term if turns % 4 > 1 else term
        before = found[turns % 2]
        found[turns % 2] = term if before is None else before + term
    return pair(*found)


def _parts(name: str, value: Any) -> tuple[Any, Any]:
    found = parts(value) if isinstance(value, (torch.Tensor, MCFComplexTensor)) else None
    if found is None:
        raise TypeError(f"torch.{name}: an operand is of type {type(value).__name__}, not a tensor")
    return found


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _added(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return the function beta input + alpha product(x, y); beta = 0 ignores `input`."""

    def call(input: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        found = _scaled(product(x, y), alpha)
        if beta == 0:
            return found
        total = _scaled(input, beta) + found
        if total.shape != found.shape:
            raise RuntimeError(
                f"torch.addmm and its like: the input of shape {list(input.shape)} does not "
                f"broadcast to the shape of the product, {list(found.shape)}"
            )
        return total

    return call


for _name in ("addmm", "addmv", "baddbmm"):
    implements(_name)(_added(matmul))
implements("addr")(_added(FUNCTIONS["outer"]))


@implements("addcmul")
def addcmul(input: Any, x: Any, y: Any, *, value: Any = 1) -> Any:
    """Return input + value x y."""
    return input + _scaled(x * y, value)


@implements("addcdiv")
def addcdiv(input: Any, x: Any, y: Any, *, value: Any = 1) -> Any:
    """Return input + value x / y."""
    return input + _scaled(x / y, value)


@implements("lerp")
def lerp(input: Any, end: Any, weight: Any) -> Any:
    """Return input + weight (end - input)."""
    return input + weight * (end - input)


@implements("linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return input weight^T + bias."""
    found = matmul(input, weight if weight.ndim == 1 else weight.mT)
    return found if bias is None else found + bias


@implements("inner")
def inner(x: Any, y: Any) -> Any:
    """Return the sum of x y along both last dimensions."""
    if not x.ndim or not y.ndim:
        return x * y
    return tensordot(x, y, ([x.ndim - 1], [y.ndim - 1]))


@implements("tensordot")
def tensordot(x: Any, y: Any, dims: Any = 2) -> Any:
    """Compute `torch.tensordot` as one matrix product."""
    if isinstance(dims, torch.Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(x.ndim, y.ndim):
            raise RuntimeError(
                f"torch.tensordot: dims must be 0 to {min(x.ndim, y.ndim)}, the lesser "
                f"number of dimensions, got {dims}"
            )
        dims = (range(x.ndim - dims, x.ndim), range(dims))
    left, right = ([d % v.ndim for d in given] for v, given in zip((x, y), dims, strict=True))
    sizes = [[v.shape[d] for d in given] for v, given in ((x, left), (y, right))]
    if sizes[0] != sizes[1]:
        raise RuntimeError(
            f"torch.tensordot: dimensions of sizes {sizes[0]} and {sizes[1]} are contracted; they "
            "must be the same"
        )
    rows = [d for d in range(x.ndim) if d not in left]
    columns = [d for d in range(y.ndim) if d not in right]
    inner = functools.reduce(operator.mul, sizes[0], 1)
    first = x.permute(*rows, *left).reshape(-1, inner)
    second = y.permute(*right, *columns).reshape(inner, -1)
    shape = [x.shape[d] for d in rows] + [y.shape[d] for d in columns]
    return matmul(first, second).reshape(shape)


implements("positive")(lambda z: z)
