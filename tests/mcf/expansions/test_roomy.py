"""Proven bound: what leaves the range of float16 on the way costs the results nothing.

Norms, means of windows, attention and p-norms round once from components of float32: their results
are within u^2 of themselves, or half of the smallest number. Caught mutants: the components left as
they are, where squares of 300 are infinite and those of .003 have three bits; eps of float16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.expansions import MCFTensor

pytestmark = pytest.mark.usefixtures("on_torch")
F16 = torch.float16

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,), eps=1e-5),
    "batch_norm": lambda x: F.batch_norm(x.mT, None, None, training=True),
    "instance_norm": F.instance_norm,
    "group_norm": lambda x: F.group_norm(x, 1),
    "weights": lambda x: F.group_norm(x, 2, x[0, :, 0] / 64, x[0, :, 1] / 128),
}


def numbers(scale: float) -> MCFTensor:
    values = [[[300, -200, 100, -101], [301, 7, -299, 5]]]
    x: Any = mcf.tensor(values, terms=2, dtype=F16)
    return x * scale  # type: ignore[no-any-return]


def wide(x: Any) -> Any:
    return x.to(torch.float64, terms=2)


def near(found: Any, wanted: Any, units: float = 1.0) -> None:
    assert found.dtype is F16
    assert found.terms == 2
    gap = (wide(found) - wanted).abs()
    # Half of the smallest number, and what float32 rounds before.
    assert bool((gap <= wanted.abs() * (units * 2.0**-22) + units * 2.0**-25 * 1.001).all())


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-17])
def test_norms(name: str, scale: float) -> None:
    x = numbers(scale)
    wanted = FUNCTIONS[name](wide(x))
    for _ in range(3):  # Once more is by what was written down.
        near(FUNCTIONS[name](x), wanted)


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16, torch.float32, torch.float64])
def test_default_eps_is_torchs(dtype: torch.dtype) -> None:
    """That of float32 for 16-bit formats. Mutant: that of the components, 65,536 times as large."""
    plain = torch.tensor([0.0078125, 0.015625], dtype=dtype)
    found: Any = F.rms_norm(mcf.tensor(plain, 2), (2,))
    wanted = F.rms_norm(plain, (2,))
    torch.testing.assert_close(found.to_plain(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("plain", [False, True])
def test_running_statistics(plain: bool) -> None:
    """A variance times its count is beyond the range, the statistics are not."""
    x: Any = mcf.tensor([[8.0 * k] for k in range(-40, 40)], terms=2, dtype=F16)
    kept: Any = [torch.zeros(1, dtype=F16), torch.ones(1, dtype=F16)]
    if not plain:
        kept = [mcf.tensor(t, terms=2, dtype=F16) for t in kept]
    F.batch_norm(x, *kept, training=True, momentum=0.5)
    variance = (wide(x).var() + 1) / 2
    assert abs(float(kept[1]) / float(variance) - 1) <= (2.0**-11 if plain else 2.0**-22)
    near(F.batch_norm(x, *kept), F.batch_norm(wide(x), *kept))


def test_means_of_windows() -> None:
    x: Any = mcf.tensor([[[30000.0 + 16 * k for k in range(9)]]], terms=2, dtype=F16)
    for args in ((9,), (3, 2, 1), (4, 2, 1, True, False)):
        near(F.avg_pool1d(x, *args), F.avg_pool1d(wide(x), *args))


@pytest.mark.parametrize("p", [0.25, -0.5])
def test_norms_by_powers(p: float) -> None:
    """Powers of small numbers, and 1 / p, have more bits than float16 has places."""
    x: Any = mcf.tensor([[2.0**-20, 3.0, 2.0**-9], [300.0, 0.25, 2.0**-7 * 5]], terms=2, dtype=F16)
    x = x * mcf.tensor("1.001", terms=2, dtype=F16)
    near(torch.linalg.vector_norm(x, p, 1), torch.linalg.vector_norm(wide(x), p, 1))
    near(torch.cdist(x, x[:1] * 0, abs(p)), torch.cdist(wide(x), wide(x[:1] * 0), abs(p)))


def test_attention() -> None:
    q, k, v = (numbers(s) for s in (1.0, 0.5, 0.25))
    near(*(F.scaled_dot_product_attention(f(q), f(k), f(v)) for f in (lambda x: x, wide)))
    mask: Any = numbers(0.125)[:, :, :2]
    found = F.scaled_dot_product_attention(q / 32, k / 32, v, attn_mask=mask)
    near(found, F.scaled_dot_product_attention(wide(q / 32), wide(k / 32), wide(v), wide(mask)))
    # The root of 3 has all digits of the wide components: the result is rounded once.
    x: Any = mcf.tensor([["0.3", "1.1", "-0.7"], ["0.9", "-1.3", "0.1"]], 2, F16)
    found = F.scaled_dot_product_attention(x, x, x)
    want: Any = F.scaled_dot_product_attention(wide(x), wide(x), wide(x)).to(F16)
    assert all(map(torch.equal, found.components, want.components))


def test_derivative_of_a_pseudoinverse_has_the_rank_of_its_value() -> None:
    """Mutant: the tolerance of float32, by which a rounded product has full rank."""
    a: Any = mcf.tensor([[0.3, 1.1], [-0.7, 0.9], [1.3, 0.1]], terms=1, dtype=F16)
    product = a @ a.mT
    x = product.clone().requires_grad_()
    torch.linalg.pinv(x).sum().backward()
    y = wide(product).requires_grad_()
    torch.linalg.pinv(y, rtol=3 * 2.0**-10).sum().backward()
    assert bool(((wide(x.grad) - y.grad).abs() <= y.grad.abs().max() * 2.0**-9).all())


def test_wider_operands_decide_the_format() -> None:
    x, weight = numbers(1.0), torch.ones(4)
    for found in (F.layer_norm(x, (4,), weight), F.rms_norm(x, (4,), weight)):
        assert found.dtype is torch.float32
    kept = torch.zeros(2), torch.ones(2)
    assert F.batch_norm(x, *kept).dtype is torch.float32
    assert F.batch_norm(x, *kept, training=True).dtype is F16


def test_in_place_operations_on_results() -> None:
    """Caught mutant: results that are views of an argument, which autograd refuses to change."""
    x = mcf.tensor([1.0, 4.0], dtype=F16, requires_grad=True)
    torch.sqrt(x).mul_(2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.5]
    one = mcf.tensor([1.0, 2.0], terms=1, requires_grad=True)
    mcf.polyval([1.0, 2.0, 3.0], one).mul_(2).sum().backward()
    assert one.grad is not None
    assert one.grad.tolist() == [8.0, 12.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "avg_pool1d"])
def test_derivatives(name: str) -> None:
    """Of backward; and of torch.func, whose kept 1 / sqrt(var + eps) is of float16."""

    def f(x: Any) -> Any:
        y = F.avg_pool1d(x * 200, 4) if name == "avg_pool1d" else FUNCTIONS[name](x)
        return y[0, 0, 0] * 64

    x = numbers(1.0)
    given = [x.clone().requires_grad_(), wide(x).requires_grad_()]
    for t in given:
        f(t).backward()
    near(given[0].grad, given[1].grad)
    if name == "group_norm":
        return  # Transforms take torch's derivative apart into operations on float16.
    # 1 / sqrt(var), .005, has 16 bits, and counts 64 / 2^11 here.
    found: Any = torch.func.grad(f)(x)
    assert bool(((wide(found) - given[1].grad).abs() <= 2.0**-20).all())
