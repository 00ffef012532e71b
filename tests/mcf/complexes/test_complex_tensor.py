"""The complex expansion tensor as torch's: conversions, shapes, operands, autograd, errors."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import mcf
from tests.helpers.complexes import numbers
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64


def plain(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.complex(bell(shape, seed), bell(shape, seed + 100))


def held(z: torch.Tensor, **options: Any) -> Any:
    """A complex128 tensor as expansions, exactly."""
    return mcf.complex_tensor(z, 2, F64, **options)


def same(x: Any, y: Any) -> None:
    """The same shape and values."""
    assert torch.equal(x, y), (x, y)


def test_numbers_are_exact() -> None:
    third = "1/3-2.5e-1j"
    z = mcf.complex_tensor([third, 2 - 1j, "-j", "0.1", 3, "(1e-3+5e+2j)", mpmath.mpc(1, "0.1")], 3)
    tenth = mcf.tensor("0.1", 3)
    same(z.real, mcf.tensor(["1/3", 2, 0, "0.1", 3, "1e-3", 1], 3))
    imaginary = mcf.tensor(["-0.25", -1, -1, 0, 0, 500, mpmath.mpf("0.1")], 3)
    same(z.imag, imaginary)
    assert z[3].to_fractions() == (tenth.to_fractions(), 0)
    assert (z.terms, z.dtype, z.shape) == (3, torch.float32, (7,))
    for text in ("1+2", "1+2k", "j+j+j", "1+", ""):
        with pytest.raises(ValueError, match="cannot parse the string"):
            mcf.complex_tensor(text)


def test_what_is_printed_reads_back() -> None:
    z = numbers(F64, 2, 2, 3)
    text = repr(z).removeprefix("MCFComplexTensor(").split("terms")[0]
    same(mcf.complex_tensor(text.rstrip(", \n"), 2, F64), z)
    assert repr(mcf.complex_tensor([0.5, -2j])) == (
        "MCFComplexTensor([0.5+0.j, -0.-2.j], terms=2, dtype=torch.float32)"
    )
    assert repr(z[:0]) == "MCFComplexTensor([], size=(0, 3), terms=2, dtype=torch.float64)"


def test_plain_tensors_are_exact_and_rounded_once() -> None:
    t = plain(5)
    z = held(t)
    assert torch.equal(z.to_plain(), t)
    assert torch.equal(held(t.conj()).to_plain(), t.conj())
    assert (z.numpy() == t.numpy()).all()
    assert (mcf.complex_tensor(t.numpy(), 2, F64).to_plain() == t).all()
    # float32 rounds to nearest, once; three of its components hold a float64.
    three = mcf.complex_tensor(t, 3)
    assert torch.equal(three.to_plain(torch.complex128), t)
    assert torch.equal(three.to_plain(torch.complex64), t.to(torch.complex64))
    assert three.to(torch.complex128).dtype is F64
    with pytest.raises(TypeError, match="dtype must be torch"):
        mcf.complex_tensor(t, 2, torch.bfloat16).to_plain()
    with pytest.raises(ValueError, match="numpy"):
        (z / 3).numpy()
    assert z.tolist() == t.tolist()
    assert complex(z[0]) == t[0].item()


VIEWS: dict[str, Callable[[Any], Any]] = {
    "index": lambda z: z[1, ..., None],
    "slice": lambda z: z[:, 1:],
    "reshape": lambda z: z.reshape(3, -1),
    "permute": lambda z: torch.permute(z, (1, 0)),
    "mT": lambda z: z.mT,
    "mH": lambda z: z.mH,
    "cat": lambda z: torch.cat([z, z], 1),
    "stack": lambda z: torch.stack((z, z)),
    "split": lambda z: z.split(2, dim=1)[1],
    "flip": lambda z: torch.flip(z, (0,)),
    "roll": lambda z: z.roll(1, 1),
    "where": lambda z: torch.where(torch.tensor([[True], [False]]), z, 2.0),
    "gather": lambda z: z.gather(1, torch.tensor([[0], [2]])),
    "triu": lambda z: z.triu(),
    "diagonal": lambda z: torch.diagonal(z),
    "conj": lambda z: torch.conj(z),
    "sum": lambda z: z.sum(1) - torch.sum(z),
    "expand": lambda z: z[0].expand(4, 3),
}


@pytest.mark.parametrize("name", VIEWS)
def test_shapes(name: str) -> None:
    # Small whole numbers: sums are exact.
    t = torch.complex(torch.arange(6.0).reshape(2, 3), -torch.arange(6.0).reshape(2, 3) - 7).to(
        torch.complex128
    )
    assert torch.equal(VIEWS[name](held(t)).to_plain(), VIEWS[name](t))


def test_views_share_memory_and_are_written_to() -> None:
    t = plain(2, 3)
    z = held(t)
    z[0] = 1 - 2j
    z[1, :2] = held(t[0, :2])
    z.T[2] += 1
    t2 = t.clone()
    t2[0] = 1 - 2j
    t2[1, :2] = t[0, :2]
    t2.T[2] += 1
    assert torch.equal(z.to_plain(), t2)
    x = mcf.tensor([[1, 2], [3, 4]])
    w = torch.view_as_complex(x)
    w *= 2
    assert x.tolist() == [[2, 4], [6, 8]]
    same(torch.view_as_real(w), x)
    with pytest.raises(RuntimeError, match="memories of their own"):
        torch.view_as_real(z)


def test_operands() -> None:
    """Real expansions, plain tensors of both kinds, arrays and numbers stand on either side."""
    t, x = plain(3), mcf.tensor([1, 2, 3], 2, F64)
    z, r = held(t), x.to_plain()
    for other, theirs in (
        (x, r), (t, t), (2, 2), (1 - 2j, 1 - 2j), (t.numpy(), t), (Fraction(1, 2), 0.5),
        (mpmath.mpc(1, 2), 1 + 2j),
    ):  # fmt: skip
        near = dict(rtol=1e-14, atol=1e-14)
        assert torch.allclose((z + other).to_plain(), t + theirs, **near)
        assert torch.allclose((other - z).to_plain(), theirs - t, **near)
        assert torch.allclose((z * other).to_plain(), t * theirs, **near)
        assert torch.allclose((other / z).to_plain(), theirs / t, **near)
        assert torch.allclose((z / other).to_plain(), t / theirs, **near)
    assert torch.equal((x * 1j).to_plain(), r * 1j)
    assert torch.equal((1j - x).to_plain(), 1j - r)
    assert torch.equal((x + t).to_plain(), r + t)
    assert bool((x == held(r + 0j)).all())
    assert (x * 1j).terms == 2
    assert (mcf.complex(x, 0) == 2).tolist() == (x == 2 + 0j).tolist() == [False, True, False]
    assert torch.equal(mcf.sub(z, x) + mcf.div(z, z), z - x + z / z)
    assert torch.equal(mcf.exp(z), torch.exp(z))
    with pytest.raises(TypeError, match="the result is complex"):
        x += 1j
    assert (mcf.complex(x, 1) ** 2).tolist() == [2j, 3 + 4j, 8 + 6j]
    assert torch.allclose((z**-3).to_plain(), t**-3)
    assert torch.allclose((z**0.5).to_plain(), t**0.5)
    assert torch.allclose((x**1j).to_plain(), r**1j)
    assert (held(t * 0) ** 0.5).tolist() == [0, 0, 0]
    with pytest.raises(TypeError):
        z + "1"  # type: ignore[operator]


def test_infinities_and_nan() -> None:
    """What the pages say of Annex G: zeros and infinities of divisors, real arguments."""
    inf, nan = float("inf"), float("nan")
    z = mcf.complex_tensor([1 + 1j, -2j, 0, 1])
    over = z / mcf.complex_tensor([0, 0, 0, complex(inf, nan)])
    assert over.real.isinf().tolist() == [True, False, False, False]
    assert torch.isnan(over).tolist() == [False, True, True, False]
    assert over[3].item() == 0
    e = torch.exp(mcf.complex_tensor([inf, -inf, complex(-inf, 1)]))
    assert e.tolist() == [inf, 0, 0]
    roots = torch.sqrt(mcf.complex(mcf.tensor([-4.0, -4.0, 0.0]), mcf.tensor([0.0, -0.0, -0.0])))
    assert roots.tolist() == [2j, -2j, 0]
    assert torch.log(mcf.complex_tensor([0, complex(-inf, 1)])).real.tolist() == [-inf, inf]
    assert torch.tanh(mcf.complex_tensor([800 + 1j, complex(-inf, 2)])).real.tolist() == [1, -1]
    assert torch.isfinite(mcf.complex_tensor([nan, 1j * inf, 1])).tolist() == [False, False, True]


DIFFERENTIABLE: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(torch, name) for name in
       ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan",
        "asinh", "acosh", "atanh", "abs", "angle", "sgn",
        "reciprocal", "conj", "real", "square", "prod")},
    # One part of a result alone.
    "exp_real": lambda z: torch.exp(z).real,
    "div_imag": lambda z: (1 / z).imag,
    "mul": lambda z: z * z.flip(0),
    "div": lambda z: z / (z.flip(0) + 2),
    "power": lambda z: z**3,
    "matmul": lambda z: z.reshape(2, 2) @ z.reshape(2, 2).mH,
    "polar": lambda z: torch.polar(abs(z), z.angle() * 2),
}  # fmt: skip


# Two of a kind: the others' derivatives are each other.
ALIKE = {
    "acos",
    "asinh",
    "acosh",
    "atanh",
    "sin",
    "cos",
    "cosh",
    "tan",
    "tanh",
    "exp_real",
    "square",
    "reciprocal",
    "power",
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "name",
    everyday(DIFFERENTIABLE, lambda n: n not in ALIKE),
)
def test_gradients_follow_the_convention_of_torch(name: str) -> None:
    """Conjugate Wirtinger, against torch's own in float64; 2^-40 leaves room for its errors."""
    t = plain(4).requires_grad_()
    z = held(t.detach(), requires_grad=True)
    function = DIFFERENTIABLE[name]
    theirs, ours = function(t), function(z)
    g = plain(*theirs.shape, seed=7)
    g = g if theirs.is_complex() else g.real.contiguous()
    [want] = torch.autograd.grad(theirs, t, g, create_graph=True)
    mine = held(g) if theirs.is_complex() else mcf.tensor(g, 2, F64)
    [got] = torch.autograd.grad(ours, z, mine, create_graph=True)
    assert torch.allclose(got.detach().to_plain(), want, rtol=2.0**-40, atol=2.0**-40)
    if want.requires_grad and name != "sgn":
        want.abs().sum().backward()
        abs(got).sum().backward()
        assert torch.allclose(z.grad.to_plain(), t.grad, rtol=2.0**-36, atol=2.0**-36)


def test_backward() -> None:
    z = numbers(F64, 2, 3).requires_grad_()
    (abs(z) ** 2).sum().backward()
    assert torch.allclose(z.grad, 2 * z.detach(), rtol=1e-30)
    z.grad = None
    z.backward(held(plain(3)))
    assert torch.equal(z.grad.to_plain(), plain(3))
    z.grad = None
    z.real.sum().backward()
    assert z.grad.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="only for real scalar outputs"):
        z.backward()
    with pytest.raises(RuntimeError, match="allow_unused"):
        torch.autograd.grad(z.real.sum(), numbers(F64, 2, 1).requires_grad_())


def test_copies() -> None:
    z = numbers(F64, 2, 3)
    same(copy.deepcopy(z), z)
    same(pickle.loads(pickle.dumps(z)), z)
    file = io.BytesIO()
    torch.save({"z": z}, file)
    file.seek(0)
    same(torch.load(file, weights_only=True)["z"], z)
    tensors, text = mcf.flatten_state({"z": z, "again": [z, z.real]})
    # Each part is stored once.
    assert sorted(tensors) == [f"z.{part}.c{k}" for part in ("imag", "real") for k in (0, 1)]
    state = mcf.unflatten_state(tensors, text)
    same(state["again"][0], z)
    same(state["again"][1], z.real)
    wrong = text["mcf"].replace('"complex": [', '"complex": [1, ', 1)
    with pytest.raises(ValueError, match="a valid complex"):
        mcf.unflatten_state(tensors, {"mcf": wrong})
    same(torch.utils.data.default_collate([z, z]), torch.stack([z, z]))
    assert (z.nbytes, z.itemsize, z.numel(), len(z)) == (96, 32, 3, 3)


def test_what_is_refused() -> None:
    z, x = numbers(F64, 2, 3), mcf.tensor([1.0])
    with pytest.raises(mcf.UnsupportedError, match="digamma is not supported"):
        torch.digamma(z)
    with pytest.raises(mcf.UnsupportedError, match="out="):
        torch.exp(z, out=z)
    with pytest.raises(TypeError):
        _ = z < z  # type: ignore[operator]
    with pytest.raises(AttributeError, match="complex expansion tensors have no 'digamma'"):
        z.digamma()
    with pytest.raises(TypeError, match="imaginary part"):
        torch.ones(3).copy_(z)
    with pytest.raises(TypeError, match="real must be real"):
        mcf.complex(z, 1)
    with pytest.raises(TypeError, match="imag has dtype"):
        mcf.MCFComplexTensor(z.real, x)
    with pytest.raises(ValueError, match="imag has shape"):
        mcf.MCFComplexTensor(z.real, z.imag[:1])
    with pytest.raises(ValueError, match="terms must be an int from 1 to 4"):
        mcf.complex_tensor(1, 5)
    with pytest.raises(RuntimeError, match="last dimension"):
        torch.view_as_complex(x)
    assert np.asarray(held(plain(2))).dtype == np.complex128
