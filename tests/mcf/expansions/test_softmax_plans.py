"""Exact: softmax and its like of few elements by plan are what the torch executor finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import calls, row_functions
from mcf.kernels.formats import FORMATS, FP32, FP64, Format
from tests.helpers import assert_all_same_bits
from tests.mcf.test_softmax_rows import numbers, special

SHAPES = ((1,), (3, 1), (2, 3, 4), (2, 40))


def _all(x: Any) -> list[Any]:
    dims = range(x.ndim)
    found = [f(x, d) for f in (torch.softmax, torch.log_softmax) for d in dims]
    found += [torch.logsumexp(x, d, d % 2 == 0) for d in dims]
    return [*found, torch.logsumexp(x, tuple(dims)), x.softmax(dim=-1)]


def _check(fmt: Format, terms: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> None:
    given = [mcf.MCFTensor([c.reshape(s) for c in numbers(fmt, terms, torch.Size(s).numel())])
             for s in shapes]  # fmt: skip
    given += [mcf.MCFTensor(special(fmt, terms, 5)), mcf.MCFTensor(special(fmt, terms, 5)).t()]
    given.append(given[-1][..., None])
    for x in given:
        with mcf.executor("torch"):
            expected = _all(x)
        for k, (found, want) in enumerate(zip(_all(x), expected, strict=True)):
            what = f"{k} of {list(x.shape)}"
            assert found.shape == want.shape, what
            assert_all_same_bits(found.components, want.components, what)


def test_plans_have_the_bits_of_the_operator() -> None:
    calls._calls.clear()
    _check(FP64, 2, ((1,), (2, 40)))
    assert {key[1][0] for key, plan in calls._calls.items() if plan is not None} == {
        "softmax", "log_softmax", "logsumexp"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_every_format(fmt: Format, terms: int) -> None:
    _check(fmt, terms)


def test_results_are_their_own() -> None:
    x = mcf.MCFTensor(numbers(FP64, 2, 9))
    first = x.softmax(0)
    kept = [c.clone() for c in first.components]
    (x * 0.5).softmax(0)
    assert_all_same_bits(first.components, kept)


def test_what_has_no_plan() -> None:
    x = mcf.MCFTensor(numbers(FP64, 2, 12))
    many = mcf.MCFTensor([torch.zeros(4096, 4, dtype=torch.float64)])
    assert row_functions.along("softmax", x.reshape(3, 4)[:, 1:], 0) is not None
    for other, dim in ((x[0], 0), (x[:0], 0), (x, 1), (many, 1)):
        assert row_functions.along("softmax", other, dim) is None
    with mcf.executor("torch"):
        assert row_functions.along("softmax", x, 0) is None
    narrow = mcf.MCFTensor(numbers(FP32, 2, 4))
    with mcf.registers("float32"):
        assert row_functions.along("softmax", narrow, 0) is None
    for dim in (2, -3):
        for function in (torch.softmax, torch.log_softmax, torch.logsumexp):
            with pytest.raises(IndexError):
                function(x.reshape(3, 4), dim)


def test_derivatives_are_those_of_the_operator() -> None:
    """First and second ones, by autograd, and rows by vmap."""
    parts = [c.reshape(3, 4) for c in numbers(FP64, 2, 12)]
    parts[0][parts[0].isinf()] = 0.5

    def derived() -> list[Any]:
        found = []
        for f in (torch.softmax, torch.log_softmax, torch.logsumexp):
            x = mcf.MCFTensor(parts).requires_grad_()
            y = f(x, 1)
            (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
            each = torch.func.vmap(lambda row, f=f: f(row, 0))(x.detach())
            found += [y, first, second, each]
        return found

    with mcf.executor("torch"):
        expected = derived()
    for k, (found, want) in enumerate(zip(derived(), expected, strict=True)):
        assert_all_same_bits(found.detach().components, want.detach().components, str(k))
