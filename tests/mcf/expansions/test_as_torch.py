"""Exact: what torch refuses is refused by the same type of error, and what it takes is taken.

Each of these was otherwise before it stood here. Caught mutants: a check left out; a product that
is broadcast to its summand; a bound that torch takes for a number, rounded to one or refused; a
dtype of whole numbers summed before it is converted; a quotient of a plain tensor by way of a
reciprocal; the derivative of a distance shared among equal coordinates.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.kernels import operations
from tests.helpers import assert_alike

PLAIN = torch.tensor([1.5, -2.5, 3.0], dtype=torch.float64)
TWO = torch.tensor([1.0, 2.0], dtype=torch.float64)
NAN = float("nan")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]


def wide(x: torch.Tensor) -> Any:
    return mcf.tensor(x, terms=2, dtype=x.dtype)


# Of one tensor, plain or of expansions, and a function that makes others like it.
Call = Callable[[Any, Callable[[torch.Tensor], Any]], Any]
REFUSED: dict[str, Call] = {
    "x + y": lambda x, like: x + like(TWO),
    "x < y": lambda x, like: x < like(TWO),
    "atan2": lambda x, like: torch.atan2(x, like(TWO)),
    "maximum": lambda x, like: torch.maximum(x, like(TWO)),
    "lerp": lambda x, like: torch.lerp(x, like(TWO), 0.5),
    "isclose": lambda x, like: torch.isclose(x, like(TWO)),
    "x + plain": lambda x, like: x + TWO,
    "dot": lambda x, like: torch.dot(x, like(TWO)),
    "dot of matrices": lambda x, like: torch.dot(x[None], x[None]),
    "x - True": lambda x, like: x - True,
    "True - x": lambda x, like: True - x,
    "x - truths": lambda x, like: x - (PLAIN > 0),
    "x -= True": lambda x, like: x.clone().sub_(True),
    "alpha=True": lambda x, like: torch.add(x, x, alpha=True),
    "sub, alpha=True": lambda x, like: torch.sub(x, x, alpha=True),
    "heaviside": lambda x, like: torch.heaviside(x, like(PLAIN.float())),
    "heaviside of integers": lambda x, like: torch.heaviside(x, torch.tensor([1, 2, 3])),
    "cumsum to bool": lambda x, like: x.cumsum(0, dtype=torch.bool),
    "mean to int": lambda x, like: x.mean(dtype=torch.int64),
    "nanmean to int": lambda x, like: x.nanmean(dtype=torch.int64),
    "nearest": lambda x, like: F.interpolate(x[None, None], size=0),
    "exact": lambda x, like: F.interpolate(x[None, None], size=0, mode="nearest-exact"),
    "linear to 0": lambda x, like: F.interpolate(x[None, None], size=0, mode="linear"),
    "scale 0": lambda x, like: F.interpolate(x[None, None], scale_factor=0.1),
    "x % 1j": lambda x, like: x % 1j,
    "1j // x": lambda x, like: 1j // x,
    "bias": lambda x, like: F.linear(x, like(PLAIN[None]), like(torch.ones(2, 3))),
    "bias of batches": lambda x, like: F.linear(
        x.expand(2, 1, 3), like(PLAIN[None]), like(torch.ones(2, 1, 2))
    ),
    "a mask filled by many": lambda x, like: x.masked_fill(x > 0, x),
    "in place, by many": lambda x, like: x.clone().masked_fill_(x > 0, x),
    "ends in the wrong order": lambda x, like: F.hardtanh(x, 1.0, -1.0),
    "clamp without ends": lambda x, like: x.clamp(),
    "renorm along 5": lambda x, like: torch.renorm(x[None], 2, 5, 1.0),
    "a window of 0": lambda x, like: F.max_pool1d(x[None, None], 0),
    "a stride of 0": lambda x, like: F.avg_pool1d(x[None, None], 2, stride=0),
    "four sizes of a window": lambda x, like: F.max_pool1d(x[None, None], (2, 3, 4, 5)),
    "cdist of other columns": lambda x, like: torch.cdist(x[None], x[None, 1:]),
    "cdist of a vector": lambda x, like: torch.cdist(x, x[None]),
    "cdist of order nan": lambda x, like: torch.cdist(x[None], x[None], NAN),
    "cdist in another way": lambda x, like: torch.cdist(x[None], x[None], compute_mode="fast"),
    "pdist of order -1": lambda x, like: F.pdist(x[None], -1),
    "norm of none": lambda x, like: torch.linalg.vector_norm(x[:0], -1),
    "largest of none": lambda x, like: torch.linalg.vector_norm(x[:0], float("inf")),
}
OTHER_WORDS = (
    "bias",
    "lerp",
    "a window",
    "a stride",
    "four sizes",
    "norm of none",
    "largest of none",
)
# Along a dimension that is missing, of a number, one element and several.
MISSING: dict[str, Callable[[Any], Any]] = {
    "argmax": lambda x: x.argmax(2, keepdim=True),
    "argmin": lambda x: x.argmin(-3, keepdim=True),
    "cummax": lambda x: x.cummax(2),
    "logcumsumexp": lambda x: x.logcumsumexp(2),
    "mode": lambda x: x.mode(2),
    "nanmedian": lambda x: x.nanmedian(2),
    "quantile": lambda x: x.quantile(0.5, 2),
}
# Two rows without elements, which have no largest one.
EMPTY: dict[str, Callable[[Any], Any]] = {
    "median": lambda x: x.median(1),
    "nanmedian": lambda x: x.nanmedian(-1),
    "kthvalue": lambda x: x.kthvalue(1),
    "mode": lambda x: x.mode(-1),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "amax": lambda x: x.amax(),
    "amin": lambda x: torch.amin(x, ()),
    "amax of rows": lambda x: x.amax(1),
    "aminmax": lambda x: x.aminmax(),
}
for name, call in MISSING.items():
    for k, of in enumerate((lambda x: x[0], lambda x: x[:1], lambda x: x)):
        REFUSED[f"{name}, missing {k}"] = lambda x, like, f=call, of=of: f(of(x))
for name, call in EMPTY.items():
    REFUSED[f"{name} of none"] = lambda x, like, f=call: f(x[:0].expand(2, 0))


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011
        REFUSED[name](PLAIN, lambda x: x)
    with pytest.raises(expected.type) as found:
        REFUSED[name](wide(PLAIN), wide)
    if found.type is RuntimeError and not name.startswith(OTHER_WORDS):
        # Which of the operands is a, and the dtype's name, are torch's matter.
        assert str(found.value)[:20] == str(expected.value)[:20]
    # Where autograd records it is the same.
    with pytest.raises(expected.type):
        REFUSED[name](wide(PLAIN).requires_grad_(), wide)


TAKEN: dict[str, Callable[[Any], Any]] = {
    "sum to int": lambda x: x.sum(dtype=torch.int64),
    "sum of rows to int": lambda x: x[None].sum(1, True, dtype=torch.int32),
    "sum to bool": lambda x: x.sum(dtype=torch.bool),
    "prod to int": lambda x: x.prod(dtype=torch.int64),
    "prod of rows to int": lambda x: x[None].prod(1, dtype=torch.int64),
    "cumsum to int": lambda x: x.cumsum(0, dtype=torch.int64),
    "cumprod to int": lambda x: x.cumprod(0, dtype=torch.int64),
    "norm of order nan": lambda x: torch.linalg.vector_norm(x, NAN),
    "norm of one": lambda x: torch.linalg.vector_norm(x[:, None], NAN, 1),
    "norm of none": lambda x: torch.linalg.vector_norm(x[:0], NAN),
    "kept": lambda x: x[None].norm(NAN, dim=1, keepdim=True),
    "bias of one row": lambda x: F.linear(x, torch.stack([x, x]), x[None, :2]),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_torch_takes(name: str) -> None:
    expected, found = TAKEN[name](PLAIN), TAKEN[name](wide(PLAIN))
    assert found.dtype is expected.dtype
    assert found.shape == expected.shape
    whole = not expected.dtype.is_floating_point
    assert type(found) is (torch.Tensor if whole else mcf.MCFTensor)
    plain = found if whole else found.to_plain()
    assert torch.equal(plain, expected) or (plain.isnan() & expected.isnan()).all()


@pytest.mark.parametrize("text", ["sNaN", "snan", "NaN123", "-nan7"])
def test_nan_of_another_kind_is_no_number(text: str) -> None:
    # Nor is it one of Python's floats.
    with pytest.raises(ValueError, match="cannot parse the string"):
        mcf.tensor(text)
    with pytest.raises(ValueError, match="could not convert"):
        float(text)


def test_a_decimal_that_signals() -> None:
    with pytest.raises(ValueError, match="signaling NaN"):
        mcf.tensor(decimal.Decimal("sNaN"))
    assert mcf.tensor(decimal.Decimal("NaN5")).isnan().all()


@pytest.mark.parametrize("terms", [1, 2])
def test_a_plain_tensor_over_an_expansion_is_their_quotient(terms: int) -> None:
    odd = torch.arange(1, 200, 2, dtype=torch.float64)
    low = torch.zeros_like(odd) if terms == 1 else 2.0**-60 * (1 + odd)
    x = mcf.MCFTensor((odd.flip(0), low)[:terms])
    expected = operations.div((odd,), x.components)
    for found in (odd / x, odd.numpy() / x, torch.div(odd, x), torch.true_divide(odd, x)):
        assert_alike(found, mcf.MCFTensor(expected), "")
    bound = Fraction(mcf.bound("div", terms, torch.float64).relative)
    for n, d, q in zip(odd.tolist(), x.to_fractions(), (odd / x).to_fractions(), strict=True):
        assert abs(q * d / Fraction(n) - 1) <= bound
    # A number is torch's product with the reciprocal, as before.
    assert_alike(3 / x, x.reciprocal() * 3, "")


@pytest.mark.sampled
@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, torch.inf])
@pytest.mark.parametrize("name", ["cdist", "pdist"])
def test_derivatives_of_distances(name: str, p: float) -> None:
    """Equal largest coordinates, equal points and zeros among the differences."""
    a = torch.tensor([[1.0, 2, 3], [0, 5, -1], [1, 2, 3]], dtype=torch.float64)
    b = torch.tensor([[2.0, 3, 2], [0, 4, 0], [1, 2, 3]], dtype=torch.float64)
    grads = []
    for like in (lambda t: t.clone(), wide):
        x, y = like(a).requires_grad_(), like(b).requires_grad_()
        found = torch.cdist(x, y, p) if name == "cdist" else torch.pdist(x - y, p)
        weights = torch.arange(1, found.numel() + 1, dtype=torch.float64).reshape(found.shape)
        (found * weights).sum().backward()
        grads.append((x.grad, y.grad))
    for expected, got in zip(*grads, strict=True):
        # Small whole numbers, but for p = 2, whose roots are rounded.
        torch.testing.assert_close(got.to_plain(), expected, rtol=2.0**-50, atol=2.0**-50)


def test_derivative_of_lerp_by_a_number() -> None:
    x, end = (wide(PLAIN).requires_grad_() for _ in range(2))
    found = torch.lerp(x, end[:1], 0.1)
    assert_alike(found.detach(), torch.lerp(x.detach(), end.detach()[:1], 0.1), "")
    found.sum().backward()
    assert x.grad is not None
    assert end.grad is not None
    assert x.grad.to_fractions() == [1 - Fraction(0.1)] * 3  # type: ignore[attr-defined]
    near = mcf.tensor(3 * Fraction(0.1), dtype=torch.float64)
    assert_alike(end.grad, torch.stack([near, near * 0, near * 0]), "")


META: dict[str, Callable[[Any], Any]] = {
    "clamp": lambda x: x.clamp(-1, 1),
    "lerp": lambda x: torch.lerp(x, x, 0.3),
    "relu": lambda x: x.relu(),
    "isclose": lambda x: torch.isclose(x, x),
    "sort": lambda x: x.sort(-1).values,
    "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(),
    "median": lambda x: x.median(-1).values,
    "quantile": lambda x: x.quantile(0.3, 0),
    "frexp": lambda x: torch.frexp(x).mantissa,
    "nextafter": lambda x: x.nextafter(x),
    "round": lambda x: x.round(decimals=2),
    "index_add": lambda x: x.index_add(0, torch.zeros(2, dtype=torch.int64, device=x.device), x),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", META)
def test_tensors_without_memory(name: str) -> None:
    x = wide(torch.arange(6, dtype=torch.float64).reshape(2, 3))
    expected, found = META[name](x), META[name](x.to("meta"))
    assert found.is_meta
    assert found.shape == expected.shape
    assert found.dtype is expected.dtype
    assert type(found) is type(expected)
    assert getattr(found, "terms", 0) == getattr(expected, "terms", 0)


def test_logit_with_bounds_that_cross() -> None:
    """eps above 1/2: eps below eps, 1 - eps from there on, as torch's two comparisons."""
    x = torch.tensor([-1.0, 0.25, 0.5, 0.625, 0.75, 1.0, 2.0, torch.nan], dtype=torch.float64)
    for eps in (0.25, 0.5, 0.625, 1.0):
        want, got = torch.logit(x, eps), torch.logit(wide(x), eps).to_plain()
        # One plain logarithm against 106 bits.
        torch.testing.assert_close(got, want, rtol=2.0**-50, atol=2.0**-52, equal_nan=True)


def test_addbmm_of_nothing() -> None:
    given = torch.ones(2, 4, dtype=torch.float64)
    for rows, inner, batch in ((0, 3, 5), (2, 0, 5), (2, 3, 0)):
        x = torch.ones(batch, rows, inner, dtype=torch.float64)
        y = torch.ones(batch, inner, 4, dtype=torch.float64)
        want = torch.addbmm(given[:rows], x, y, beta=0.5, alpha=2)
        got = torch.addbmm(wide(given[:rows]), wide(x), wide(y), beta=0.5, alpha=2)
        assert got.shape == want.shape
        assert torch.equal(got.to_plain(), want)


TABLE = (torch.arange(6.0, dtype=torch.float64) - 2).reshape(2, 3)
WIDE_TABLE = mcf.tensor(TABLE, 2, TABLE.dtype)

OF_TABLE: dict[str, Callable[[Any], Any]] = {
    "addmm 0": lambda x: torch.addmm(x[0, 0], x, x.T),
    "addmm 1": lambda x: torch.addmm(x[0, :2], x, x.T),
    "addmm 3": lambda x: torch.addmm(x[None, :, :2], x, x.T),
    "addmm other": lambda x: torch.addmm(x, x, x.T),
    "addmm left": lambda x: torch.addmm(x[:, :2], x[None], x.T),
    "addmm_": lambda x: x[0, :2].clone().addmm_(x, x.T),
    "addmv 1": lambda x: torch.addmv(x[:, 0], x, x[1]),
    "addmv 2": lambda x: torch.addmv(x[:1, :2], x, x[1]),
    "addbmm 2": lambda x: torch.addbmm(x[:, :1], x[None], x.T[None]),
    "addbmm 3": lambda x: torch.addbmm(x[None, :, :2], x[None], x.T[None]),
    "baddbmm 2": lambda x: torch.baddbmm(x[:, :2], x[None], x.T[None]),
    "baddbmm 4": lambda x: torch.baddbmm(x[None, None, :, :2], x[None], x.T[None]),
    "addr 1": lambda x: torch.addr(x[0], x[:, 0], x[1]),
    "addr 3": lambda x: torch.addr(x[None], x[:, 0], x[1]),
    "addr of a matrix": lambda x: torch.addr(x, x[:, :1], x[1]),
    "cross 1": lambda x: torch.linalg.cross(x[:1], x),
    "cross vector": lambda x: torch.linalg.cross(x[0], x),
    "cross vector behind": lambda x: torch.cross(x, x[1], dim=1),
    "cross dim": lambda x: torch.linalg.cross(x, x, dim=2),
    "cross two": lambda x: torch.linalg.cross(x, x, dim=0),
    "cross of numbers": lambda x: torch.linalg.cross(x[0, 0], x[0, 0]),
    "old cross": lambda x: torch.cross(x, x[:1]),
    "old cross of the input": lambda x: torch.cross(x.new_ones(1, 3), x.new_ones(3, 3)),
    "old cross of the other": lambda x: torch.cross(x.new_ones(3, 3), x.new_ones(1, 3)),
    "old cross of none": lambda x: torch.cross(x[:, :2], x[:, :2]),
    "renorm 0": lambda x: torch.renorm(x[0, 0], 2, 0, 1.0),
    "renorm 1": lambda x: x[0].renorm(2, 0, 1.0),
    "renorm_ 1": lambda x: x[0].clone().renorm_(2, 0, 1.0),
    "renorm_": lambda x: x.clone().renorm_(2, 0, 1.0),
    "where of numbers": lambda x: torch.where(x, x, x),
    "x.where of numbers": lambda x: x.where(x, 0.5),
    "masked_fill of numbers": lambda x: x.masked_fill(x, 0.5),
    "masked_fill_ of numbers": lambda x: x.clone().masked_fill_(x, 0.5),
    "copy_ of a number": lambda x: x.clone().copy_(0.1),
    "copy_ of True": lambda x: x.clone().copy_(True),
    "copy_ of a list": lambda x: x.clone().copy_([1.0, 2.0, 3.0]),
    "clamp vector and number": lambda x: x.clamp(x[0], 2),
    "clamp number and vector": lambda x: torch.clamp(x, 0.0, max=x[0]),
    "clamp": lambda x: x.clamp(x[0, 1], 2),
    "clamp by name": lambda x: torch.clamp(x, min=-1, max=x[0, 1]),
    "clip_": lambda x: x.clone().clip_(x[0, 1], 2.5),
    "clamp out": lambda x: torch.clamp(x, x[0, 1], 2.5, out=torch.empty_like(x)),
    "clamp recorded": lambda x: x.clone().requires_grad_().clamp(x[0, 1], 2.5).detach(),
    "clamp by a recorded number": lambda x: x.clamp(x[0, 1].clone().requires_grad_(), 2),
}


WHOLE = torch.tensor([[1, 2, 0], [3, 0, 5]])
# Next to whole numbers and truths, which become the nearest expansion.
BESIDE: dict[str, Callable[[Any, Any], Any]] = {
    "xlogy": torch.xlogy,
    "xlogy behind": lambda x, i: torch.xlogy(i, x.abs()),
    "xlog1py": torch.special.xlog1py,
}


@pytest.mark.parametrize("name", BESIDE)
def test_whole_numbers_stand_beside(name: str) -> None:
    for whole in (WHOLE, WHOLE > 1):
        got = BESIDE[name](WIDE_TABLE, whole).to_plain()
        # torch has no float64 result of some pairs of kinds.
        expected = BESIDE[name](TABLE, whole.to(torch.float64))
        assert torch.allclose(got, expected, 1e-14, 0.0, equal_nan=True)


def _said(call: Callable[[Any], Any], x: Any) -> Any:
    try:
        return call(x)
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", OF_TABLE)
def test_shapes_and_errors_are_torchs(name: str) -> None:
    got, expected = (_said(OF_TABLE[name], x) for x in (WIDE_TABLE, TABLE))
    if isinstance(expected, type):
        assert got is expected
    else:
        assert_alike(got.to_plain(), expected, name)


def test_a_bound_beside_a_number_keeps_all_components() -> None:
    low = mcf.tensor("0.1", 2, torch.float64)
    x = mcf.tensor(["0.01", "0.5"], 2, torch.float64)
    for y in (x, x.clone().requires_grad_()):
        for got in (y.clamp(low, 2), torch.clip(y, min=low, max=2.0), y.clamp(0, low)):
            assert low.components[1].item() in got.detach().components[1].tolist()
