"""The declaration of a sum of terms, from which each executor makes its own kernels.

A fold adds up terms computed from the elements of one or two operands. Its order is part of its
definition, so that every executor, any number of threads and any vector length give the same bits:

1. The K elements are cut into blocks of BLOCK, and those into whole chunks of CHUNK = GROUP * LANES
   and a rest.
2. Element i of a chunk belongs to lane i // (GROUP * STEP) * STEP + i % STEP: GROUP elements, STEP
   apart, are a lane's, so that a loop over lanes reads memory from one end to the other. A lane
   adds them as a tree, (t0 + t1) + (t2 + t3), and combines the trees in order.
3. Element i of the rest belongs to lane i % LANES, which combines it with what it has.
4. Lanes are halved: c of them become ceil(c / 2) by combining lane j with lane j + ceil(c / 2).
5. Blocks are halved in the same way.

A matrix product folds over the inner dimension as one lane: trees of GROUP terms while there are as
many, then what is left, one by one.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from types import ModuleType

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms import accumulate
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP32, FP64, Format

LANES = 256
GROUP = 4
# A line of the cache in float64.
STEP = 8
CHUNK = GROUP * LANES
BLOCK = 64 * LANES


# Compared and hashed by identity, as `Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Fold:
    """A sum of terms in float64 registers.

    Args:
        name: for error messages and generated code.
        term: an algorithm of one tuple per operand; returns `state` registers.
        formats: the format of each operand.
        components: how many components each operand has.
        state: how many registers a partial sum has.
    """

    name: str
    term: Algorithm
    formats: tuple[Format, ...]
    components: tuple[int, ...]
    state: int

    @property
    def merge(self) -> Algorithm:
        """Adds two partial sums inside a tree of GROUP terms."""
        return getattr(accumulate, f"merge{self.state}")  # type: ignore[no-any-return]

    @property
    def combine(self) -> Algorithm:
        """Adds two partial sums anywhere else."""
        return getattr(accumulate, f"combine{self.state}")  # type: ignore[no-any-return]


def state_for(fmt: Format, terms: int) -> int:
    """How many float64 registers a partial sum needs for results of `terms` components."""
    if fmt == FP64:
        return max(2, terms)
    return 3 if fmt == FP32 and terms == 4 else 2


@functools.cache
def sum_fold(fmt: Format, components: int, terms: int) -> Fold:
    """The sum of expansions, accurate for a result of `terms` components."""
    state = state_for(fmt, max(components, terms))
    kind = "value" if fmt == FP64 or components == 1 else "narrow"
    term = getattr(accumulate, f"{kind}{components}_in{state}")
    return Fold(f"sum_{fmt.name}_{components}_{state}", term, (fmt,), (components,), state)


@functools.cache
def product_fold(fmt: Format, left: int, right: int, terms: int) -> Fold:
    """The sum of products of expansions of `left` and `right` components, equal or one of them 1.

    Components are those of one format.
    """
    state = state_for(fmt, max(left, right, terms))
    kind = "product" if fmt == FP64 else "narrow_product"
    term = getattr(accumulate, f"{kind}{left}{right}_in{state}")
    name = f"product_{fmt.name}_{left}_{right}_{state}"
    return Fold(name, term, (fmt, fmt), (left, right), state)


def _module(device: torch.device) -> ModuleType:
    return importlib.import_module(f"mcf.kernels.{registry.executor_for(device)}.fold")


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """Fold each row.

    Args:
        spec: the fold.
        operands: the components of each operand, contiguous tensors [M, K] with K > 0.

    Returns:
        The partial sums, float64 [spec.state, M].
    """
    result: Tensor = _module(operands[0][0].device).fold(spec, operands)
    return result


def product(spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Fold the inner dimension of matrix products.

    Args:
        spec: a fold of products.
        left: components, contiguous [B, M, K] with K > 0.
        right: components, contiguous [B, K, N].

    Returns:
        The partial sums, float64 [spec.state, B, M, N].
    """
    result: Tensor = _module(left[0].device).product(spec, left, right)
    return result
