"""The same as `mcf.tensor.shortcuts` for products of matrices and what is one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.operators import MUL
from mcf.tensor.gathered import MOST, gathered
from mcf.tensor.ops.matmul import expands
from mcf.tensor.product_plans import multiplied
from mcf.tensor.recorded import watched
from mcf.tensor.registry import DIRECT, OPERATORS, STRAIGHT
from mcf.tensor.shortcuts import TENSORS, counted, forms, operator, register
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten
_duals = torch.autograd.forward_ad
_unasked = torch._C.DisableTorchFunctionSubclass


def _matmul(x: Any, y: Any) -> Any:
    if type(x) is not MCFTensor or type(y) is not MCFTensor:
        return NotImplemented
    if x.dim() == y.dim() == 1:
        return OPERATORS[aten.dot.default](x, y)
    few = multiplied(x, y)
    return NotImplemented if few is None else few


_PRODUCTS = torch.matmul, Tensor.matmul, Tensor.__matmul__
register(counted(_matmul, 2), *_PRODUCTS)


def _straight(args: tuple[Any, ...]) -> Any:
    """The same of two expansions, before anything else is asked."""
    if len(args) != 2 or torch.compiler.is_compiling() or _duals._current_level >= 0:
        return NotImplemented
    x, y = args
    if type(x) is not MCFTensor or type(y) is not MCFTensor or watched():
        return NotImplemented
    with _unasked():
        if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
            return NotImplemented
        return _matmul(x, y)


for _function in _PRODUCTS:
    STRAIGHT[_function] = _straight
for _name in "mm mv bmm".split():
    operator(getattr(aten, _name).default, 2, kinds=TENSORS)


# The dimensions of a matrix exchanged.
_TRANSPOSED = (1, 0), None
_SUMS = {"addmm": (2, 2), "addmv": (2, 1), "baddbmm": (3, 3)}


def _sum(name: str) -> Callable[..., Any]:
    """given + x @ y, in one where the factors are 1."""
    function, dims = OPERATORS[getattr(aten, name).default], _SUMS[name]

    def call(given: Any, x: Any, y: Any, **factors: Any) -> Any:
        if not factors and type(x) is type(y) is MCFTensor and (x.dim(), y.dim()) == dims:
            found = multiplied(x, y, plus=given)
            if found is not None:
                return found
        return function(given, x, y, **factors)

    return counted(call, 3, "beta", "alpha", kinds=TENSORS)


for _name in _SUMS:
    register(_sum(_name), *forms(_name))


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """x @ weight.T + bias of a vector or a matrix, by torch's names of them."""
    x = input
    if type(x) is not MCFTensor or type(weight) is not MCFTensor or weight.dim() != 2:
        return NotImplemented
    left, right, turned = (weight, x, None) if x.dim() == 1 else (x, weight, _TRANSPOSED)
    if bias is not None:
        found = multiplied(left, right, None, turned, bias)
        if found is not None:
            return found
    few = multiplied(left, right, None, turned)
    if few is None or bias is None:
        return NotImplemented if few is None else few
    # Torch expands what is added to the product, not the other way round, and says so.
    if not expands(bias.shape, few.shape):
        return NotImplemented
    return OPERATORS[aten.add.Tensor](few, bias)


# Above autograd it is looked at alone.
DIRECT[torch.nn.functional.linear] = _linear


def _product(o: Any, x: Any, y: Any) -> Any:
    return o(MUL, x, y)


def _outer(x: Any, y: Any) -> Any:
    """The products of all pairs of elements of two vectors."""
    if type(x) is not MCFTensor or type(y) is not MCFTensor or x.dim() != 1 or y.dim() != 1:
        return NotImplemented
    sizes = x.shape[0], y.shape[0]

    def places() -> Any:
        return [(0, np.indices(sizes)[0]), (1, np.indices(sizes)[1])]

    if sizes[0] * sizes[1] <= MOST:
        found = gathered(("outer", sizes), _product, places, x, y)
        if found is not None:
            return found
    rows = wrap([c.unsqueeze(1) for c in x.components])
    return OPERATORS[aten.mul.Tensor](rows, wrap([c.unsqueeze(0) for c in y.components]))


register(counted(_outer, 2), *forms("outer"))


def _inner(x: Any, y: Any) -> Any:
    """Products of all rows with all rows."""
    if type(x) is not MCFTensor or type(y) is not MCFTensor or 0 in (x.dim(), y.dim()):
        return NotImplemented
    if x.dim() == y.dim() == 1:
        return OPERATORS[aten.dot.default](x, y)
    few = multiplied(x, y, None, _TRANSPOSED) if y.dim() == 2 and x.dim() > 1 else None
    return NotImplemented if few is None else few


register(counted(_inner, 2), *forms("inner"))


@functools.lru_cache(1024)
def _read(equation: str, *dims: int) -> tuple[tuple[int, ...], tuple[int, ...], bool] | None:
    """The orders of both operands' dimensions in which an equation is a product of matrices.

    And whether it has no common index. None for what is no such product, or gives its dimensions in
    another order.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    labels = left.split(",")
    if [*map(len, labels)] != [*dims] or not all(a.isalpha() and a.isascii() for a in labels):
        return None
    a, b = labels
    common = [k for k in a if k in b]
    kept = [k for k in a if k not in common], [k for k in b if k not in common]
    named = "".join(kept[0] + kept[1])
    if not arrow:
        # As torch has it: capitals first.
        right = "".join(sorted(named))
    repeated = len(set(a)) < len(a) or len(set(b)) < len(b)
    if repeated or right != named or len(common) > 1 or not kept[0] or len(kept[1]) > 1:
        return None
    orders = ([a.index(k) for k in kept[0] + common], [b.index(k) for k in common + kept[1]])
    return tuple(orders[0]), tuple(orders[1]), not common


def _einsum(equation: Any, *operands: Any) -> Any:
    """A sum over products that is a product of matrices, or of a matrix and a vector."""
    if type(equation) is not str or [*map(type, operands)] != [MCFTensor, MCFTensor]:
        return NotImplemented
    x, y = operands
    found = _read(equation, x.dim(), y.dim())
    if found is None:
        return NotImplemented
    first, second, apart = found
    few = multiplied(x, y, (first, -1 if apart else None), (second, 0 if apart else None))
    return NotImplemented if few is None else few


register(_einsum, torch.einsum)
