"""The table's bounds follow from the code: derived for the precision of each format, by fractions.

`tests.helpers.propagation` adds up what products lose, `tests.helpers.derivations` puts quotients
and roots together from published bounds of pairs. A step that loses what the algorithm keeps must
come out above the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from mcf.kernels.algorithms import products, short_products
from mcf.kernels.algorithms.primitives import neg, rn
from mcf.kernels.algorithms.products import product4
from mcf.kernels.algorithms.quotients import rest3
from mcf.kernels.algorithms.transforms import two_prod, two_sum
from mcf.kernels.expansion_bounds import expansion_bound
from mcf.kernels.formats import FORMATS, Format
from tests.helpers.derivations import quotient_bound, root_bound
from tests.helpers.propagation import Magnitude, Propagation, product_bound

# Operation, components of each factor, whether the second is a float.
PRODUCTS: dict[tuple[str, int, bool], tuple[Callable[..., Any], tuple[int, ...]]] = {
    ("mul", 3, False): (products.product3, (3, 3)),
    ("mul", 4, False): (products.product4, (4, 4)),
    ("square", 3, False): (short_products.squared3, (3,)),
    ("square", 4, False): (short_products.squared4, (4,)),
    ("mul", 3, True): (short_products.times_float3, (3, 1)),
    ("mul", 4, True): (short_products.times_float4, (4, 1)),
}
# Where Fast2Sum of four components may meet the compensation instead of a larger number, it loses
# up to u of it: twice 2 u * 56 u^4.
FAST = {("mul", 4, False): 224}

pytestmark = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


def relative(operation: str, terms: int, fmt: Format, *, float_second: bool = False) -> Fraction:
    assert fmt.dtype is not None
    return expansion_bound(operation, terms, float_second=float_second).relative(fmt.dtype)


@pytest.mark.sampled(every=18)
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products(case: tuple[str, int, bool], fmt: Format) -> None:
    operation, terms, float_second = case
    algorithm, factors = PRODUCTS[case]
    derived = product_bound(algorithm, fmt.u, *factors)
    derived += FAST.get(case, 0) * fmt.u ** (terms + 1)
    assert derived <= relative(operation, terms, fmt, float_second=float_second)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("terms", [3, 4])
def test_quotients_and_roots(terms: int, fmt: Format) -> None:
    # `pair_times4` has the Fast2Sums of `product4`.
    fast = 2 * FAST["mul", 4, False] * fmt.u**5 if terms == 4 else 0
    assert quotient_bound(fmt.u, terms) + fast <= relative("div", terms, fmt)
    inverse = quotient_bound(fmt.u, terms, inverse=True) + fast
    assert inverse <= relative("reciprocal", terms, fmt)
    assert root_bound(fmt.u, terms) <= relative("sqrt", terms, fmt)


@pytest.mark.parametrize("terms", [2, 3, 4])
def test_inverse_roots(terms: int, fmt: Format) -> None:
    root, inverse = (relative(name, terms, fmt) for name in ("sqrt", "reciprocal"))
    # 1 / (s (1 + d)), rounded.
    assert (1 + inverse) / (1 - root) - 1 <= relative("rsqrt", terms, fmt)
    if terms == 2:
        # The leading component alone; |r1| <= u |r0 + r1|, as RN(r0 + r1) = r0.
        pair = (1 + inverse) / (1 - root) - 1
        assert pair + fmt.u * (1 + pair) / (1 + fmt.u) <= relative("rsqrt", 1, fmt)


@pytest.mark.parametrize("terms", [2, 3, 4])
def test_a_product_and_a_sum(terms: int, fmt: Format) -> None:
    assert fmt.dtype is not None
    row = expansion_bound("fma", terms)
    total, product = relative("add", terms, fmt), relative("mul", terms, fmt)
    assert row.relative(fmt.dtype) == total
    assert product * (1 + total) <= row.relative_to_product(fmt.dtype)


def product4_and_more(x: Any, y: Any) -> Any:
    """The mutant: some of the products are added once more, at the end."""
    a, b0, b1, b2 = product4(x, y)
    c = rn(rn(x[0] * y[3]) + rn(x[3] * y[0]))
    return a, b0, b1, rn(b2 + c)


def rest_without_a_step(x: Any, p: Any) -> Any:
    """The mutant: the second differences are rounded."""
    r0, r1 = rest3(x, p)
    return r0, rn(r1 + rn(x[1] + neg(p[1])))


def times_float4_rounded(x: Any, y: Any) -> Any:
    """The mutant: x2 * y is rounded and its error lost."""
    a, b = two_prod(x[0], y[0])
    c, d = two_prod(x[1], y[0])
    b, c = two_sum(b, c)
    return a, b, rn(c + d), rn(rn(x[2] * y[0]) + rn(x[3] * y[0]))


def test_what_is_lost_is_counted(fmt: Format) -> None:
    u = fmt.u
    limit = relative("mul", 4, fmt, float_second=True)
    assert product_bound(times_float4_rounded, u, 4, 1) > 10 * limit
    more = product_bound(product4_and_more, u, 4, 4, parts=1)
    assert more > product_bound(products.product4, u, 4, 4, parts=1) + u**4
    x, p = ([Magnitude(u**k) for k in range(3)] for _ in "xp")
    x[0] = Magnitude(Fraction(1), after=(6 * u, 30 * u**2))
    right, wrong = (Propagation(f, u, x, p) for f in (rest3, rest_without_a_step))
    assert right.lost < 100 * u**4 < u**2 / 4 < wrong.lost
