"""Exact: `mcf.exp(x)` and its like are torch's functions of tensors and ours of component tuples.

Caught mutants: a function under another's name; a plain tensor's result of more than one rounding;
a derivative that is lost.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf import elementary
from tests.helpers import assert_all_same_bits, assert_same_bits

# Of values; that executors have the same bits other tests say.
pytestmark = pytest.mark.usefixtures("on_torch")

ONE = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "atanh", "sigmoid", "erf", "erfc", "floor", "ceil", "round",
    "trunc", "acosh",
)  # fmt: skip
TWO = ("atan2", "pow", "hypot", "fmod", "remainder")
LAST = ("softmax", "log_softmax", "logsumexp")
S = torch.special
# Functions of torch that have another name, or several.
OTHERS: dict[str, tuple[Any, ...]] = {
    "normal_cdf": (S.ndtr,),
    "gelu": (torch.nn.functional.gelu,),
    "gelu_tanh": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"),),
    "lgamma": (torch.lgamma, S.gammaln, Tensor.lgamma),
    "digamma": (torch.digamma, S.digamma, S.psi, lambda x: torch.polygamma(0, x)),
    "trigamma": (lambda x: torch.polygamma(1, x), lambda x: S.polygamma(1, x),
                 lambda x: x.polygamma(1)),
    "i0": (torch.i0, S.i0, S.modified_bessel_i0, Tensor.i0),
    "i0e": (S.i0e,), "i1": (S.i1, S.modified_bessel_i1), "i1e": (S.i1e,),
    "k0": (S.modified_bessel_k0,), "k0e": (S.scaled_modified_bessel_k0,),
    "k1": (S.modified_bessel_k1,), "k1e": (S.scaled_modified_bessel_k1,),
    "j0": (S.bessel_j0,), "j1": (S.bessel_j1,), "y0": (S.bessel_y0,), "y1": (S.bessel_y1,),
    "spherical_bessel_j0": (S.spherical_bessel_j0,),
    "airy_ai": (S.airy_ai,),
    "erfinv": (torch.erfinv, S.erfinv, Tensor.erfinv),
    "erfcx": (S.erfcx,), "log_ndtr": (S.log_ndtr,), "ndtri": (S.ndtri,),
}  # fmt: skip


def _arguments(name: str) -> list[Tensor]:
    """Expansions inside the range of a function."""
    parts = ["0.3", "0.7", "0.1"] if name != "acosh" else ["1.3", "2.7", "1.1"]
    x = mcf.tensor(parts, dtype=torch.float64)
    return [x, mcf.tensor(["1.7", "0.6", "2.9"], dtype=torch.float64)][: 1 + (name in TWO)]


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("name", [*ONE, *TWO, *LAST, *OTHERS])
def test_tensors_and_tuples(name: str) -> None:
    ours, arguments = getattr(mcf, name), _arguments(name)
    rest = (0,) if name in LAST else ()
    expected = ours(*arguments, *rest)
    for theirs in OTHERS.get(name) or (getattr(torch, name),):
        got = theirs(*arguments, *rest)
        assert_all_same_bits(got.components, expected.components, name)
    tuples: Any = [x.components for x in arguments]
    result = ours(*tuples, *rest)
    assert isinstance(result, tuple)
    assert_all_same_bits(result, expected.components, name)
    assert_all_same_bits(result, getattr(elementary, name)(*tuples, *rest), name)
    assert ours.__doc__


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["exp", "log", "pow", "softmax", "normal_pdf", "round"])
def test_plain_tensors(name: str) -> None:
    ours = getattr(mcf, name)
    plain = [x.to_plain(torch.float32) for x in _arguments(name)]
    rest = (0,) if name in LAST else ()
    expected = getattr(elementary, name)(*((x,) for x in plain), *rest)
    got = ours(*plain, *rest)
    assert type(got) is Tensor
    assert_same_bits(got, expected[0], name)


def test_derivatives() -> None:
    x = mcf.tensor(["0.3", "0.7"], requires_grad=True)
    mcf.exp(x).sum().backward()
    assert_all_same_bits(x.grad.components, mcf.exp(x.detach()).components, "of an expansion")
    density = mcf.tensor(["0.3", "0.7"], requires_grad=True)
    mcf.normal_cdf(density).sum().backward()
    slope = mcf.normal_pdf(density.detach())
    assert_all_same_bits(density.grad.components, slope.components, "of ours")
    plain = torch.tensor([0.3, 0.7], requires_grad=True)
    mcf.exp(plain).sum().backward()
    assert_same_bits(plain.grad, mcf.exp(plain.detach()), "of a plain tensor")


def test_mixed() -> None:
    x, plain = mcf.tensor(["0.3"], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    assert_all_same_bits(mcf.pow(x, plain).components, (x**plain).components, "tensors")
    assert_all_same_bits(mcf.pow(x, 2).components, (x * x).components, "a number")
    pair = (torch.tensor([0.5]), torch.tensor([0.0]))
    expected = elementary.hypot(pair, (torch.tensor([2.0]),))
    assert_all_same_bits(mcf.hypot(pair, torch.tensor([2.0])), expected, "a tuple and a tensor")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0.5,), TypeError, "exp needs a tensor or a tuple of 1 to 4 components, got float"),
        ((torch.ones(2, dtype=torch.int32),), TypeError, "exp has dtype torch.int32"),
        (((torch.ones(2), 1.0),), TypeError, "exp: argument 0 must be a tuple of 1 to 4 tensors"),
        (((),), ValueError, "exp: argument 0 must have 1 to 4 components, got 0"),
    ],
)
def test_refusals(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mcf.exp(*arguments)


def test_refuses_a_tuple_beside_an_expansion() -> None:
    with pytest.raises(TypeError, match="pow: cannot combine a tuple of components with"):
        mcf.pow(mcf.ones(2), (torch.ones(2),))


def test_elementary_functions_know_their_arguments() -> None:
    pair = (torch.ones(2), torch.zeros(2))
    with pytest.raises(TypeError, match="exp: too many positional arguments"):
        elementary.exp(pair, pair)
    assert_all_same_bits(elementary.atan2(x=pair, y=pair), elementary.atan2(pair, pair), "by name")
