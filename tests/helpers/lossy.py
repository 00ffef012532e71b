"""Algorithms on expansions in which one step loses its last component.

A step is a call of another algorithm that returns several components (a TwoSum, a product, a nested
network), counted from 0 in the order of execution; those of `SHARED` count as their callers'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any

import torch

from mcf.kernels import Format
from mcf.kernels.algorithms import (
    distillation,
    ieee,
    products,
    quotients,
    roots,
    short_products,
    sums,
)
from mcf.kernels.bind import Binder
from mcf.kernels.expansion_bounds import ExpansionBound
from mcf.kernels.torch.registers import primitives
from tests.helpers.worst import arguments, errors

ALGORITHMS: dict[tuple[str, int, bool], FunctionType] = {
    ("add", 2, False): sums.sum2,
    ("add", 3, False): sums.sum3,
    ("add", 4, False): sums.sum4,
    ("add", 2, True): sums.plus_float2,
    ("mul", 2, False): products.product2,
    ("mul", 3, False): products.product3,
    ("mul", 4, False): products.product4,
    ("mul", 2, True): short_products.times_float2,
    ("mul", 3, True): short_products.times_float3,
    ("mul", 4, True): short_products.times_float4,
    ("div", 2, False): quotients.quotient2,
    ("div", 3, False): quotients.quotient3,
    ("div", 4, False): quotients.quotient4,
    ("div", 2, True): quotients.by_float2,
    ("square", 2, False): short_products.squared2,
    ("square", 3, False): short_products.squared3,
    ("square", 4, False): short_products.squared4,
    ("sqrt", 2, False): roots.root2,
    ("sqrt", 3, False): roots.root3,
    ("sqrt", 4, False): roots.root4,
    ("fma", 1, False): ieee.FMA[1],
    ("fma", 2, False): ieee.FMA[2],
    ("fma", 3, False): ieee.FMA[3],
    ("fma", 4, False): ieee.FMA[4],
    ("reciprocal", 2, False): quotients.inverse2,
    ("reciprocal", 3, False): quotients.inverse3,
    ("reciprocal", 4, False): quotients.inverse4,
    ("rsqrt", 1, False): ieee.RSQRT[1],
    ("rsqrt", 2, False): ieee.RSQRT[2],
    ("rsqrt", 3, False): ieee.RSQRT[3],
    ("rsqrt", 4, False): ieee.RSQRT[4],
    ("renormalize", 1, False): distillation.distill(4, 1),
    ("renormalize", 2, False): distillation.distill(4, 2),
    ("renormalize", 3, False): distillation.distill(6, 3),
    ("renormalize", 4, False): distillation.distill(8, 4),
}
# Functions that algorithms share, without the number of components: steps are inside.
# `below_overflow` changes nothing but at the largest number, which has a test of its own.
SHARED = ("below_overflow", "collect", "gather", "sum_of_product", "inverse_root")


Components = tuple[torch.Tensor, ...]


def on_torch(
    algorithm: FunctionType, fmt: Format, table: dict[str, Any] | None = None
) -> Callable[..., Components]:
    """An algorithm of tuples, for tensors of a format.

    Args:
        algorithm: a function of tuples.
        fmt: of arguments and result.
        table: what the primitives are, if not those of the format.
    """
    own = table or primitives(fmt.register, fmt, {"rc": fmt})
    return _of_the_format(Binder(lambda f: f, own)(algorithm), fmt)


def _of_the_format(function: Callable[..., Any], fmt: Format) -> Callable[..., Components]:
    def run(*given: Components) -> Components:
        registers = [tuple(t.to(fmt.register.dtype) for t in c) for c in given]
        return tuple(t.to(fmt.dtype) for t in function(*registers))

    return run


def lossy(
    algorithm: FunctionType, fmt: Format, faults: Collection[int]
) -> tuple[Callable[..., Components], list[int]]:
    """The algorithm whose steps of these numbers lose their last component.

    The list has the number of steps, once the function has run.
    """
    table = primitives(fmt.register, fmt, {"rc": fmt})
    function = Binder(lambda f: f, table)(algorithm)
    steps = [0]

    def without(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            result = step(*arguments)
            if not isinstance(result, tuple):
                return result
            steps[0] += 1
            if steps[0] - 1 not in faults:
                return result
            return (*result[:-1], torch.zeros_like(result[-1]))

        return run

    def spoil(namespace: dict[str, Any]) -> None:
        for key, value in list(namespace.items()):
            if key.rstrip("1234") in SHARED:
                spoil(value.__globals__)
            elif isinstance(value, FunctionType) and key not in table:
                namespace[key] = without(value)

    spoil(function.__globals__)
    whole = _of_the_format(function, fmt)

    def run(*given: Components) -> Components:
        steps[0] = 0
        return whole(*given)

    return run, steps


def excesses(row: ExpansionBound, fmt: Format, function: Callable[..., Components]) -> int:
    """How many of 3000 hard inputs give results that break a bound."""
    given = arguments(row.operation, fmt, row.terms, 3000, 5, -8, 8)
    if row.float_second:
        given[1] = given[1][:1]
    return errors(row.operation, fmt, given, function(*given)).exceeds(row, fmt)
