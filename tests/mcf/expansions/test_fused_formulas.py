"""Exact: formulas of many elements in one kernel have the bits of their operations one by one.

Caught mutants: numbers of the formula read before the operands; a number beside a pair taken for a
pair; factors in the order in which they stand; results written over operands that share memory at
other places; a condition taken for a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.expansions.launch import calls, fused_formulas
from mcf.expansions.launch.fused_formulas import MANY, fused
from mcf.kernels.operators import ADD, LT, MUL, SQRT, WHERE
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

pytest.importorskip("numba", reason="needs Numba")

COUNT = MANY + 5
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "isclose": lambda x, y: torch.isclose(x, y, 0.2, 2.0**-30),
    "isclose of itself": lambda x, y: torch.isclose(x, x),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=0.7),
    "reciprocal": lambda x, y: 0.1 / y,
    "heaviside": lambda x, y: torch.heaviside(x, y),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.3),
    "huber": lambda x, y: F.huber_loss(x, y, "none", 0.3),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.3),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "frexp": lambda x, y: torch.frexp(x),
}
# Each compiles a kernel.
EVERYDAY = ("isclose", "huber", "frexp")
CASES = [
    pytest.param(name, *kind, marks=[pytest.mark.slow] * (kind[1] > 2 or name not in EVERYDAY))
    for kind in ((torch.float64, 2), (torch.float64, 3), (torch.float64, 4))
    for name in CALLS
]
CASES += [
    pytest.param(name, *kind, marks=pytest.mark.slow)
    for kind in ((torch.float32, 2), (torch.bfloat16, 2), (torch.bfloat16, 3), (torch.float16, 1))
    for name in CALLS
]


def _flat(found: Any) -> list[torch.Tensor]:
    if isinstance(found, tuple):
        return [c for x in found for c in _flat(x)]
    return [*found.components] if isinstance(found, mcf.MCFTensor) else [found]


@pytest.mark.parametrize(("name", "dtype", "terms"), CASES)
def test_formulas_have_the_bits_of_their_operations(
    name: str, dtype: torch.dtype, terms: int
) -> None:
    x, y = (mcf.MCFTensor(hard(dtype, terms, COUNT, seed)) for seed in (1, 2))
    found = CALLS[name](x, y)
    with mcf.executor("torch"):
        expected = CALLS[name](x, y)
    assert_all_same_bits(_flat(found), _flat(expected), name)


@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    [
        ("huber", torch.float64, 2),
        *(
            pytest.param(name, *kind, marks=pytest.mark.slow)
            for kind in ((torch.float64, 3), (torch.float32, 2), (torch.bfloat16, 2))
            for name in CALLS
        ),
    ],
)
def test_gpus_have_the_bits_of_their_operations(name: str, dtype: torch.dtype, terms: int) -> None:
    x, y = (mcf.MCFTensor(hard(dtype, terms, COUNT, seed)) for seed in (1, 2))
    with mcf.executor("triton"):
        found = CALLS[name](x, y)
    with mcf.executor("torch"):
        expected = CALLS[name](x, y)
    assert_all_same_bits(_flat(found), _flat(expected), name)


def test_gpus_compile_no_formula_of_four_components() -> None:
    x, y = (mcf.MCFTensor(hard(torch.float64, 4, COUNT, seed)) for seed in (1, 2))
    with mcf.executor("triton"):
        assert fused(_product_sum, x, y, 0.3) is None


def test_other_shapes_have_the_same_kernel() -> None:
    fused_formulas._specs.clear()
    for count in (COUNT, COUNT + 1):
        x, y = (mcf.MCFTensor(hard(torch.float64, 2, count, seed)) for seed in (1, 2))
        assert isinstance(fused(_product_sum, x, y, 0.3), mcf.MCFTensor)
    assert len(fused_formulas._specs) == 1


def _product_sum(o: Any, x: Any, y: Any, factor: Any) -> Any:
    return o(ADD, o(MUL, factor, x), y)


def test_results_are_written_apart_and_on_operands() -> None:
    x, y = (mcf.MCFTensor(hard(torch.float64, 2, COUNT, seed)) for seed in (1, 2))
    expected = fused(_product_sum, x, y, 0.3)
    assert isinstance(expected, mcf.MCFTensor)
    out = torch.zeros_like(x)
    assert fused(_product_sum, x, y, 0.3, out=out.components)
    assert_all_same_bits(out.components, expected.components)
    late = [torch.zeros(COUNT + 1, dtype=torch.float64) for _ in range(2)]
    shifted = mcf.MCFTensor([c[:-1] for c in late])
    assert fused(_product_sum, shifted, y, 0.3, out=tuple(c[1:] for c in late)) is None
    assert not any(bool(c.any()) for c in late)
    assert fused(_product_sum, x, y, 0.3, out=x.components)
    assert_all_same_bits(x.components, expected.components)


def _rooted(o: Any, x: Any, y: Any) -> Any:
    return o(WHERE, o(LT, x, y), o(SQRT, y), 0.5)


def test_kinds_without_a_kernel() -> None:
    x, y = (mcf.MCFTensor(hard(torch.float64, 2, COUNT, seed)) for seed in (1, 2))
    assert isinstance(fused(_rooted, x, y), mcf.MCFTensor)
    for other in (y.to(torch.float32), y[:1], y.reshape(1, -1)):
        assert fused(_rooted, x, other) is None
    with mcf.executor("torch"):
        assert fused(_rooted, x, y) is None


class _Emptied(dict[Any, Any]):
    """A table that another thread clears whenever it has been looked at."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found

    def get(self, key: Any, other: Any = None) -> Any:
        found = super().get(key, other)
        self.clear()
        return found


def test_another_thread_may_clear_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_formulas, "_specs", _Emptied())
    monkeypatch.setattr(calls, "_calls", {})
    for shape in ((COUNT,), (2, COUNT)):
        x, y = (torch.ones(shape, dtype=torch.float64) * k for k in (1, 2))
        found = fused(_product_sum, mcf.MCFTensor([x, x * 0.0]), mcf.MCFTensor([y, y * 0.0]), 0.5)
        assert bool((found == 2.5).all())
