"""Test that default devices and dtypes and autocast change no bit, and operands on two devices.

The device "meta" stands for a second device. Caught mutant: products in bfloat16 under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import mcf
from mcf.reductions.modular import multiply
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.defaults import DEFAULTS, default
from tests.helpers.draws import bell

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")


def floored(x: Any) -> Any:
    return torch.div(x, 3, rounding_mode="floor")


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x + 1, 2 * x - x / 3, x * x, x**3, x**0.3, 1.5 / x, -x.abs()),
    "plain operands": lambda x: (x + x.components[0], x * torch.ones_like(x.components[0]), x == x),
    "roots": lambda x: (x.sqrt(), x.rsqrt(), torch.hypot(x, x), x.square(), x.reciprocal()),
    "reductions": lambda x: (x.sum(), x.mean(0), x.var(), x.prod(0), x.norm(), x.cumsum(0)),
    "orders": lambda x: (x.max(), x.sort(0), x.median(), x.quantile(0.3), x.nanmedian()),
    "exponentials": lambda x: (x.exp(), x.expm1(), x.log(), x.log1p(), torch.exp2(x), x.log2()),
    "circular": lambda x: (x.sin(), x.cos(), x.tan(), x.atan(), torch.atan2(x, x), (x * 1e8).sin()),
    "hyperbolic": lambda x: (x.sinh(), x.tanh(), x.asinh(), torch.sigmoid(x)),
    "special": lambda x: (x.erf(), x.erfc(), torch.logsumexp(x, 0), torch.softmax(x, 0)),
    "rounding": lambda x: (x.floor(), x.round(), torch.fmod(x, 0.3), floored(x)),
    "neighbours": lambda x: (torch.nextafter(x, x + 1), torch.ldexp(x, (x > 1).long())),
    "products": lambda x: (x @ x.T, torch.einsum("ij,ij->i", x, x), torch.dot(x[0], x[0])),
    "places": lambda x: (x[:, [1, 0]], torch.where(x > 1, x, 0.0), x.clamp(0.5, 1.5)),
    "filled": lambda x: (torch.full_like(x, 0.1), x.new_tensor([0.1]), x.masked_fill(x > 1, 0.1)),
    "text": lambda x: str(x),
    "losses": lambda x: (F.gelu(x), F.layer_norm(x, (3,)), F.mse_loss(x, x + 1)),
    "linear algebra": lambda x: torch.linalg.det(x[:, :2] @ x[:, 1:].T),
}  # fmt: skip


def given(dtype: torch.dtype) -> Any:
    """An expansion on the CPU, whose components all matter."""
    high = torch.tensor([[0.5, 1.25, 3.0], [1.0, 0.75, 2.5]], dtype=dtype, device="cpu")
    return mcf.from_components((high, high * torch.finfo(dtype).eps / 8))


def results(name: str, dtype: torch.dtype) -> list[Any]:
    x = given(dtype)
    found = OPERATIONS[name](x)
    leaves = pytree.tree_leaves(found)
    assert leaves
    return [c for t in leaves for c in (t.components if isinstance(t, mcf.MCFTensor) else (t,))]


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(("device", "standard"), DEFAULTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str, dtype: torch.dtype, device: str, standard: torch.dtype) -> None:
    # First, since tables are made when they are needed.
    with default(torch.device(device), standard):
        found = results(name, dtype)
    expected = results(name, dtype)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        if isinstance(b, Tensor):
            assert_same_bits(a, b, f"{name} {k}")
        else:
            assert a == b


@pytest.mark.parametrize(("device", "standard"), DEFAULTS, ids=str)
def test_derivatives(device: str, standard: torch.dtype) -> None:
    def gradients() -> Any:
        x = given(torch.bfloat16).requires_grad_()
        (x.exp().sum() + (x @ x.T).norm() + (x**0.3).prod()).backward()
        return x.grad.components

    expected = gradients()
    with default(torch.device(device), standard):
        found = gradients()
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize(("device", "standard"), DEFAULTS, ids=str)
def test_plain_tensors(device: str, standard: torch.dtype) -> None:
    def sums() -> tuple[Any, ...]:
        x = torch.arange(1, 10, dtype=torch.float32, device="cpu")
        pair = mcf.two_sum(x, x / 3)
        return (*pair, *mcf.sum(x, terms=2).components, mcf.dot(x, x), mcf.norm(x / 3))

    expected = sums()
    with default(torch.device(device), standard):
        found = sums()
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a, b)


W = mcf.randn(4, 4, terms=2)
PLAIN = bell((4, 4), 0, torch.float32)

CASES: dict[str, Callable[[Any], Any]] = {
    "mm": lambda w: w @ w,
    "mixed product": lambda w: PLAIN @ w,
    "linear": lambda w: F.linear(PLAIN, w),
    "einsum": lambda w: torch.einsum("ij,jk->ik", w, w),
    "softmax": lambda w: torch.softmax(w, 0),
    "power": lambda w: w.abs() ** 2.5,
    "sum": lambda w: w.sum(),
    "accurate sum": lambda w: mcf.sum(w * 3),
    "fma": lambda w: mcf.fma(w, w, w),
    "solve": lambda w: torch.linalg.solve(w, w + 1),
    "layer_norm": lambda w: F.layer_norm(w, (4,)),
    "attention": lambda w: mcf.nn.functional.attention(w, w, w),
    "gradient": lambda w: torch.autograd.grad((w @ w).sum(), w)[0],
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    w = W.detach().clone().requires_grad_()
    want = CASES[name](w).detach()
    with torch.autocast("cpu", dtype=dtype):
        got = CASES[name](w).detach()
    assert (got.dtype, got.terms) == (want.dtype, want.terms)
    assert_all_same_bits(got.components, want.components)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_residues_in_floats_are_left_alone(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on processors without units for int8; the sums were rounded to 16 bits."""
    monkeypatch.setattr(multiply, "_units", lambda device: False)
    x = mcf.arange(1, 301, terms=2, dtype=torch.float64).reshape(3, 100) / 7
    want = mcf.matmul(x, x.mT, reproducible=True)
    with torch.autocast("cpu", dtype=dtype):
        got = mcf.matmul(x, x.mT, reproducible=True)
    assert_all_same_bits(got.components, want.components)


X = mcf.tensor([0.5, 2.0], terms=2)
FAR = X.to("meta")
ONE = mcf.tensor("0.1", terms=2)
SPARSE = torch.tensor([0.0, 1.0]).to_sparse()

Pair = Callable[[Any, Any], Any]
PAIRED: dict[str, Pair] = {
    "add": lambda x, y: x + y,
    "power": lambda x, y: x**y,
    "less": lambda x, y: x < y,
    "equal": lambda x, y: x == y,
    "unequal": lambda x, y: x != y,
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "remainder": lambda x, y: x % y,
    "where": lambda x, y: torch.where(torch.ones(2, dtype=torch.bool, device=x.device), x, y),
    "lerp": lambda x, y: torch.lerp(x, x, y),
    "in place": lambda x, y: x.clone().mul_(y),
    "fma": lambda x, y: mcf.fma(x, y, x),
}
each = pytest.mark.parametrize("name", PAIRED)


@each
def test_no_dimensions_come_along(name: str) -> None:
    for one in (ONE, ONE.to_plain()):
        assert PAIRED[name](FAR, one).device.type == "meta"


@each
def test_dimensions_do_not(name: str) -> None:
    # A TypeError would make `==` say False, and `<` say that there is none.
    with pytest.raises(RuntimeError, match="device"):
        PAIRED[name](X, FAR)


def test_results_are_not_moved() -> None:
    for write in (
        lambda: torch.add(X, X, out=FAR.clone()),
        lambda: torch.log(X, out=FAR.clone()),
        lambda: ONE.clone().mul_(FAR[0]),
    ):
        with pytest.raises(RuntimeError, match="moved silently"):
            write()


@pytest.mark.parametrize("name", ["add", "equal", "less"])
def test_sparse_operands_are_named(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"sparse_coo; .*to_dense"):
        PAIRED[name](X, SPARSE)
