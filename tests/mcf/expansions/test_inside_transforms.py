"""Functions that torch takes apart above its operators are whole inside torch.func.

Second derivatives are those of outside, or an error says what torch would round; values and first
derivatives are in `test_function_calls.py`. Plain tensors have what torch gives them. The inputs
have digits in both components: constants of double precision are off by 1e-17 in each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from tests.helpers import assert_alike

pytestmark = [
    pytest.mark.usefixtures("on_torch"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]

F64 = torch.float64
X = mcf.tensor([["0.3", "-1.7", "2.2", "0.9"], ["0.1", "5", "-9", "0.7"]], dtype=F64)
PLAIN = torch.tensor([0.1, 0.7, 2.3, 0.9], dtype=F64)


def test_second_derivatives_each_way() -> None:
    """Of the normal distribution function -x times the density."""
    x = X[0]
    bent = -x * mcf.normal_pdf(x)
    for outer in (torch.func.jacfwd, torch.func.jacrev):
        for inner in (torch.func.jacfwd, torch.func.jacrev):
            found: Any = outer(inner(torch.special.ndtr))(x[1])
            assert bool((found - bent[1]).abs() <= 2.0**-100)
    hessian: Any = torch.func.hessian(lambda x: torch.special.ndtr(x).sum())(x)
    assert bool(((hessian.diagonal() - bent).abs() <= 2.0**-100).all())


def test_float16_group_norm_leaves_its_range_inside_too() -> None:
    x = (X.reshape(2, 2, 2) * 40).to(torch.float16)

    def total(x: Any) -> Any:
        return (F.group_norm(x, 1) ** 3).sum()

    y = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(y), y)
    assert_alike(torch.func.grad(total)(x), slope, "group_norm")


def test_plain_tensors_go_through_the_transform() -> None:
    """What a transform has beside torch's composition comes first: batching rules and autocast."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4, 5), torch.rand(5)
    classes = torch.randint(0, 5, (3, 4))

    def loss(x: Any, t: Any) -> Any:
        return F.cross_entropy(x, t, weight, label_smoothing=0.1)

    # torch's composition has a mask of each map's own, which its batching rule avoids.
    slopes = torch.func.vmap(torch.func.grad(loss))(x, classes)
    for k in range(3):
        leaf = x[k].clone().requires_grad_()
        loss(leaf, classes[k]).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(slopes[k], leaf.grad)

    def attended(x: Any) -> Any:
        return F.scaled_dot_product_attention(x, x, x)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.func.vjp(attended, x)[0].dtype is torch.bfloat16
        short = x.bfloat16()
        inside = torch.func.vmap(lambda x: torch.quantile(x, 0.3))(short)
        assert torch.equal(inside, torch.quantile(short.reshape(3, -1), 0.3, -1))


def test_plain_tensors_have_what_torch_gives() -> None:
    plain = X.to_plain()
    functions: dict[str, Callable[[Any], Any]] = {
        "ndtr": torch.special.ndtr,
        "quantile": lambda x: torch.quantile(x, torch.tensor([0.1, 0.7], dtype=F64), -1),
        "cov": lambda x: torch.cov(x, aweights=PLAIN),
    }
    for name, function in functions.items():
        rows = torch.stack([plain, plain]) if name == "cov" else plain
        want = torch.stack([*map(function, rows)])
        assert torch.allclose(torch.func.vmap(function)(rows), want, rtol=1e-14)
    slope: Any = torch.func.grad(lambda x: torch.special.ndtr(x).sum())(plain)
    y = plain.clone().requires_grad_()
    torch.special.ndtr(y).sum().backward()
    assert torch.equal(slope, y.grad)


ROWS = X.abs()
ROUNDED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "x ** 0.1": (lambda x: x**0.1, "the exponent 0.1 less 1"),
    "x ** plain": (lambda x: x**PLAIN, "the exponents less 1"),
    "2 ** x": (lambda x: 2.0**x, "the logarithm of the base"),
    "plain ** x": (lambda x: PLAIN**x, "the logarithm of the base"),
    "lerp": (lambda x: torch.lerp(x, x * x, 0.1), "1 less the weight 0.1"),
    "lerp by plain": (lambda x: torch.lerp(x, x * x, PLAIN), "1 less the weights"),
    "addcmul": (lambda x: torch.addcmul(x, x, PLAIN, value=0.1), "times value"),
    "addcdiv": (lambda x: torch.addcdiv(x, x, PLAIN), "quotients"),
    "atan2": (lambda x: torch.atan2(x, PLAIN), "squares"),
    "chebyshev_polynomial_t": (
        lambda x: torch.special.chebyshev_polynomial_t(x, 3),
        "derivative differs",
    ),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_torch_rounds_beside_expansions_says_so(name: str) -> None:
    function, text = ROUNDED[name]
    total = lambda x: function(x).sum()  # noqa: E731
    for run in (torch.func.grad(total), lambda x: torch.func.jvp(total, (x,), (x,))):
        with pytest.raises(mcf.UnsupportedError, match=text):
            run(ROWS)
    assert_alike(torch.func.vmap(function)(ROWS), torch.stack([*map(function, ROWS)]), name)


TAKEN: dict[str, Callable[[Any], Any]] = {
    "x ** 0.5": lambda x: x**0.5,
    "x ** 1.1": lambda x: x**1.1,
    "x ** expansion": lambda x: x ** mcf.tensor("0.1", dtype=F64),
    "expansion ** x": lambda x: mcf.tensor("0.1", dtype=F64) ** x,
    "x ** plain halves": lambda x: x ** torch.tensor([0.5, 1, 2, 3], dtype=F64),
    "lerp": lambda x: torch.lerp(x, x * x, 0.25),
    "addcmul": lambda x: torch.addcmul(x, x, PLAIN, value=0.5),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_exact_is_taken(name: str) -> None:
    function = TAKEN[name]
    x = ROWS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    found: Any = torch.func.grad(lambda x: function(x).sum())(ROWS)
    assert bool(((found - slope).abs() <= 2.0**-99 * slope.abs()).all())


def test_places_of_quantiles_are_no_variables() -> None:
    with pytest.raises(mcf.UnsupportedError, match="q must be a number"):
        torch.func.vmap(lambda q: torch.quantile(X[0], q))(PLAIN[:2])


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantiles_beside_nan(name: str) -> None:
    function, rows = getattr(torch, name), X.clone()
    rows[0, 1] = torch.nan
    found = torch.func.vmap(lambda row: function(row, 0.3))(rows)
    assert_alike(found, function(rows, 0.3, 1), name)
    assert int(found.isnan().sum()) == (name == "quantile")
