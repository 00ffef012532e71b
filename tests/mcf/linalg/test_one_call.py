"""Systems, determinants and factors of one panel in one call have the bits of many calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mcf.kernels import operations, registry
from mcf.linalg import lu_factors, parts, qr_factors
from tests.mcf.linalg.test_elimination_loops import (
    F64,
    FORMATS,
    SPECIAL,
    assert_same_bits,
    components,
)


def counted(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> list[str]:
    """The calls of an executor's methods from now on."""
    calls: list[str] = []
    kind = type(registry.on(torch.device("cpu")))

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            calls.append(name)
            return real(*args, **more)

        return call

    for name in names:
        monkeypatch.setattr(kind, name, noted(name, getattr(kind, name)))
    return calls


@pytest.mark.parametrize(("dtype", "terms"), FORMATS)
def test_systems_and_determinants(dtype: torch.dtype, terms: int) -> None:
    """One and several right-hand sides, batches, one column, exchanges of either parity."""
    for shape, sides in (((1, 1), 1), ((3, 5, 5), 2), ((2, 8, 8), 17), ((32, 32), 40)):
        a = components(dtype, terms, *shape)
        b = components(dtype, terms, *shape[:-1], sides)
        assert_same_bits(lambda a=a, b=b: lu_factors.solved(a, b))
        assert_same_bits(lambda a=a: lu_factors.determined(a))


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str) -> None:
    leading = torch.tensor(SPECIAL[name], dtype=F64)
    a = (leading, torch.zeros_like(leading))
    assert_same_bits(lambda: lu_factors.solved(a, a))
    assert_same_bits(lambda: lu_factors.determined(a))


def test_a_small_system_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger ones, more right-hand sides and one matrix for many right-hand sides are several."""
    calls = counted(monkeypatch, ("eliminate", "substitute", "product"))
    a, b = components(F64, 2, 9, 9), components(F64, 2, 9, 3)
    lu_factors.solved(a, b)
    lu_factors.determined(a)
    assert calls == ["eliminate"] * 2
    for x, y in (((33, 33), (33, 1)), ((3, 3), (3, 65)), ((3, 3), (2, 3, 1))):
        calls.clear()
        a, b = components(F64, 2, *x), components(F64, 2, *y)
        solution, factors = lu_factors.solved(a, b)
        assert len(calls) >= 3
        two = lu_factors.solve(*lu_factors.factor(a)[:2], b)
        assert all(torch.equal(p, q) for p, q in zip(solution, two, strict=True))
        assert solution[0].shape == torch.Size((*y[:-1], y[-1]))
        assert factors[0][0].shape == a[0].shape


def test_the_comparison_rejects_rows_in_another_order() -> None:
    """The mutants: solutions by the factors without exchanges, a determinant without its sign."""
    a, b = components(F64, 2, 6, 6), components(F64, 2, 6, 2)

    def by_factors(pivoted: bool) -> parts.Components:
        return lu_factors.solve(*lu_factors.factor(a, pivoted)[:2], b)

    calls = iter([True, False, False])
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: by_factors(next(calls)))
    factors, pivots, _ = lu_factors.factor(a)
    assert int(lu_factors.parity(pivots)) == -1
    home = torch.arange(1, 7, dtype=torch.int32)
    both = iter([pivots, home, home])
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: lu_factors.determinant(factors, next(both)))


def test_a_solution_is_that_of_the_factors() -> None:
    """Factors that come out of the same call, used again."""
    a = operations.add(components(F64, 2, 4, 7, 7), torch.eye(7, dtype=F64))
    b = components(F64, 2, 4, 7, 3)
    x, (factors, pivots, info) = lu_factors.solved(a, b)
    assert not info.any()
    again = lu_factors.solve(factors, pivots, b)
    assert all(torch.equal(p, q) for p, q in zip(x, again, strict=True))


def test_a_small_qr_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide and tall ones too, in every mode."""
    calls = counted(monkeypatch, ("reflect", "product", "run"))
    for shape in ((5, 3), (3, 5)):
        a = components(F64, 2, *shape)
        for mode in ("reduced", "complete", "r"):
            calls.clear()
            qr_factors.factor(a, mode)
            assert calls == ["reflect"]
            assert_same_bits(lambda a=a, mode=mode: qr_factors.factor(a, mode)[mode == "r" :])
