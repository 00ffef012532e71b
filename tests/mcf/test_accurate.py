"""mcf.sum, dot, norm, mean, var, std and polyval: what they promise to a caller.

*Proven bound* of norms against rational arithmetic (sums, products and moments:
`test_reduction_bounds.py`); exact where the result is; gradients. Mutant: Horner's rule without
compensation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels.fold_bounds import fold_bound
from mcf.kernels.formats import BF16, FORMATS, FP16, FP32, FP64, Format, format_of
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.sums import cancelling, exact_dot, exact_sum, ill_conditioned_dot, values

pytestmark = pytest.mark.usefixtures("on_torch")


F64 = torch.float64


formats = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


def parts(x: Tensor) -> tuple[Tensor, ...]:
    return x.components if isinstance(x, mcf.MCFTensor) else (x,)


def value(x: Tensor) -> Fraction:
    return sum(values([c.reshape(1) for c in parts(x)]), Fraction(0))


def excess(result: Tensor, exact: Fraction, size: Fraction, length: int) -> Fraction:
    fmt = format_of(result.dtype)
    bound = fold_bound(fmt, len(parts(result)), length)
    return abs(value(result) - exact) / (bound.error(exact, size) + fmt.min_subnormal)


@pytest.mark.parametrize("condition", [1e20, 1e100])
def test_reproducible_results_are_the_nearest(condition: float) -> None:
    x, y = ill_conditioned_dot(200, condition, 7)
    exact, _ = exact_dot([x], [y])
    assert mcf.dot(x, y, reproducible=True).item() == float(exact)
    pair = mcf.dot(x, y, terms=2, reproducible=True)
    assert abs(value(pair) - exact) <= FP64.u**2 * abs(exact)


@formats
def test_sums_of_plain_tensors_round_once(fmt: Format) -> None:
    x = cancelling(fmt, 1, (4, 9, 5), 0)[0]
    for dim in (None, 0, 1, -1, (0, 2), (1, 2)):
        result = mcf.sum(x, dim)
        assert result.dtype is fmt.dtype
        assert result.shape == x.double().sum(dim).shape
        # Nearly always the nearest number: the fold errs by 2**-106 of the absolute values.
        assert_same_bits(result, mcf.sum(x, dim, reproducible=True))
        kept = mcf.sum(x, dim, keepdim=True)
        assert kept.shape == x.double().sum(dim, keepdim=True).shape
        assert_same_bits(kept.reshape(result.shape), result)


def test_terms_and_kinds_of_results() -> None:
    x = torch.ones(3, dtype=torch.float32)
    assert type(mcf.sum(x)) is Tensor
    for call in (mcf.sum, mcf.norm, lambda t, **k: mcf.dot(t, t, **k)):
        for reproducible in (False, True):
            pair = call(x, terms=2, reproducible=reproducible)
            assert isinstance(pair, mcf.MCFTensor)
            assert (pair.terms, pair.dtype) == (2, torch.float32)
    y = mcf.tensor([1.0, 2.0], terms=3, dtype=F64)
    assert mcf.sum(y).terms == 3
    assert type(mcf.sum(y, terms=1)) is mcf.MCFTensor


def test_layout_does_not_matter() -> None:
    x = cancelling(FP64, 1, (300, 40), 0)[0]
    strided = x.mT.contiguous().mT
    for dim in (None, 0, 1):
        assert_all_same_bits(
            mcf.sum(strided, dim, terms=2).components, mcf.sum(x, dim, terms=2).components
        )
    assert_same_bits(mcf.sum(x[::3, 1::2]), mcf.sum(x[::3, 1::2].clone()))
    assert_same_bits(mcf.sum(x[:1].expand(7, 40)), mcf.sum(x[:1].repeat(7, 1)))


def test_no_elements_and_no_dimensions() -> None:
    x = torch.ones(0, 3, dtype=F64)
    assert mcf.sum(x).item() == 0
    assert mcf.sum(x, 0).tolist() == [0.0] * 3
    assert mcf.sum(x, 1).shape == (0,)
    assert mcf.dot(x[:, 0], x[:, 0]).item() == 0
    assert mcf.norm(x).item() == 0
    assert math.isnan(mcf.mean(x).item())
    one = torch.tensor(3.0, dtype=F64)
    for call in (mcf.sum, mcf.mean, mcf.norm):
        assert call(one).item() == 3.0
        assert call(one, dim=0).item() == 3.0


@pytest.mark.sampled
@pytest.mark.parametrize("reproducible", [False, True])
@formats
def test_norms(fmt: Format, reproducible: bool) -> None:
    x = cancelling(fmt, 1, (50,), 0)[0]
    squares = sum((v * v for v in values([x])), Fraction(0))
    root = mcf.norm(x, terms=3, reproducible=reproducible)
    got = value(root)
    # |root**2 - squares| <= 2 root |error|; the root is a few u**3 off, or a subnormal of fp16.
    allowed = 16 * fmt.u**3 * got + fmt.min_subnormal
    assert abs(got * got - squares) <= 2 * got * allowed
    one = exact_sum([x])[1]
    assert excess(mcf.norm(x, 1, reproducible=reproducible), one, one, 50) <= 1
    assert mcf.norm(x, math.inf).item() == x.double().abs().max().item()
    assert mcf.norm(x, -math.inf).item() == x.double().abs().min().item()


@pytest.mark.parametrize("scale", [1e-300, 1e300, 5e-324])
def test_norms_neither_overflow_nor_underflow(scale: float) -> None:
    x = torch.tensor([3.0, 4.0, 0.0], dtype=F64) * scale
    assert mcf.norm(x).item() == (torch.tensor(5.0, dtype=F64) * scale).item()
    assert mcf.norm(mcf.from_components((x, 0 * x))).components[0].item() == 5 * scale


def test_special_norms() -> None:
    for special, expected in ((math.inf, math.inf), (-math.inf, math.inf), (math.nan, math.nan)):
        x = torch.tensor([1.0, special, 2.0], dtype=F64)
        for p in (1, 2, math.inf):
            assert_same_bits(mcf.norm(x, p), torch.tensor(expected, dtype=F64), f"{p}")


def test_moments_are_those_of_torch() -> None:
    tensor = mcf.from_components(cancelling(FP64, 2, (30,), 1))
    for name in ("mean", "var", "std"):
        ours, theirs = (getattr(module, name)(tensor) for module in (mcf, torch))
        assert_all_same_bits(theirs.components, ours.components)


@formats
def test_products_and_running_sums(fmt: Format) -> None:
    draw = torch.Generator().manual_seed(0)
    x = (1 + torch.rand(2, 13, generator=draw, dtype=F64) / 4).to(fmt.dtype)
    pair = mcf.from_components((x, torch.zeros_like(x)))
    for row in range(2):
        exact = math.prod(values([x[row]]), start=Fraction(1))
        got = value(torch.prod(pair, 1)[row])
        # 12 multiplications of error 5u^2 and, in narrow formats, the last rounding.
        assert abs(got - exact) <= 60 * fmt.u**2 * abs(exact) + fmt.min_subnormal
        running = torch.cumsum(pair, 1)[row]
        total = Fraction(0)
        for k, v in enumerate(values([x[row]])):
            total += v
            error = abs(sum(values([c[k : k + 1] for c in running.components])) - total)
            assert error <= 16 * fmt.u**2 * total + fmt.min_subnormal
    assert torch.prod(pair[:, :0], 1).components[0].tolist() == [1.0, 1.0]
    assert torch.cumsum(pair[:, :0], 1).shape == (2, 0)


def gradient(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(call(x), x)
    return g


@pytest.mark.parametrize("reproducible", [False, True])
def test_gradients_of_plain_tensors(reproducible: bool) -> None:
    x = torch.linspace(-1, 2, 7, dtype=F64)
    y = torch.linspace(3, 4, 7, dtype=F64)
    options: Any = {"reproducible": reproducible}
    assert torch.equal(gradient(lambda t: mcf.dot(t, y, **options), x), y)
    assert torch.equal(gradient(lambda t: mcf.dot(t, t, **options), x), 2 * x)
    ones = torch.ones_like(x)
    assert torch.equal(gradient(lambda t: mcf.sum(t, **options), x), ones)
    assert torch.equal(gradient(lambda t: mcf.mean(t, **options), x), ones / 7)
    assert torch.equal(gradient(lambda t: mcf.sum(t, 0, terms=2, **options), x), ones)
    expected = x / mcf.norm(x)
    # One rounding for the share and one for the product.
    difference = gradient(lambda t: mcf.norm(t, **options), x) - expected
    assert difference.abs().max() <= 2.0**-51
    assert torch.equal(gradient(lambda t: mcf.norm(t, **options), 0 * x), 0 * x)


def test_polyval_is_as_accurate_as_in_twice_the_precision() -> None:
    # (x - 1)**7, expanded: its value near 1 is all cancellation.
    c = torch.tensor([(-1.0) ** k * math.comb(7, k) for k in range(8)], dtype=F64)
    x = 1 + torch.linspace(-1, 1, 41, dtype=F64) * 2.0**-6
    n, u = 7, FP64.u

    def broken(result: Tensor) -> int:
        count = 0
        for point, got in zip(values([x]), values([result]), strict=True):
            exact = (point - 1) ** 7
            size = (point + 1) ** 7
            count += abs(got - exact) > u * abs(exact) + (2 * n * u) ** 2 * 2 * size
        return count

    assert broken(mcf.polyval(c, x)) == 0
    horner = torch.zeros_like(x)
    for k in c:
        horner = horner * x + k
    assert broken(horner) > 0
    pair = mcf.polyval(c, mcf.from_components((x, 0 * x)))
    assert broken(pair.components[0]) == 0


def test_polyval_shapes_and_refusals() -> None:
    x = torch.ones(2, 3)
    assert mcf.polyval([1, 2, 3], x).tolist() == [[6.0] * 3] * 2
    assert mcf.polyval(torch.ones(4, 3), x).shape == (2, 3)
    assert mcf.polyval([5.0], x).tolist() == [[5.0] * 3] * 2
    assert mcf.polyval([torch.inf, 0.0], x).tolist() == [[torch.inf] * 3] * 2
    with pytest.raises(ValueError, match="at least one coefficient"):
        mcf.polyval([], x)
    with pytest.raises(TypeError, match="x must be a tensor, got float"):
        mcf.polyval([1.0], 2.0)
    with pytest.raises(RuntimeError, match="requires grad"):
        mcf.polyval([1.0, 2.0], x.clone().requires_grad_())


def test_refusals() -> None:
    x = torch.ones(3, dtype=F64)
    with pytest.raises(TypeError, match=r"sum: x has dtype torch.int64"):
        mcf.sum(torch.ones(3, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"norm: x must be a tensor, got list"):
        mcf.norm([1.0])
    with pytest.raises(ValueError, match=r"sum: terms must be an int from 1 to 4 or None, got 5"):
        mcf.sum(x, terms=5)
    with pytest.raises(IndexError, match=r"range of \[-1, 0\], but got 2"):
        mcf.sum(x, 2)
    with pytest.raises(RuntimeError, match="more than once"):
        mcf.sum(torch.ones(2, 2), (0, -2))
    with pytest.raises(ValueError, match=r"vectors of one length, got shapes \[3\] and \[2\]"):
        mcf.dot(x, x[:2])
    with pytest.raises(TypeError, match=r"y has dtype torch.float32 and x has torch.float64"):
        mcf.dot(x, x.float())
    with pytest.raises(ValueError, match="p must be 0, 1, 2, inf or -inf, got 3"):
        mcf.norm(x, 3)
    with pytest.raises(RuntimeError, match=r"var: x requires grad"):
        mcf.var(x.clone().requires_grad_())


def test_formats_named() -> None:
    # The formats whose sums run in float64 registers keep their own dtype.
    for fmt in (BF16, FP16, FP32):
        assert mcf.dot(torch.ones(2, dtype=fmt.dtype), torch.ones(2, dtype=fmt.dtype)).dtype is (
            fmt.dtype
        )
