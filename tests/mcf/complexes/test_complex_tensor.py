"""The complex expansion tensor as torch's: functions, autograd, modules, loaders, compilers."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mcf
import mcf.optim
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


def parts_of(z: Any) -> list[torch.Tensor]:
    if isinstance(z, mcf.MCFComplexTensor):
        return [*z.real.components, *z.imag.components]
    return list(z.components)


def same_bits(x: Any, y: Any) -> None:
    assert type(x) is type(y)
    for a, b in zip(parts_of(x), parts_of(y), strict=True):
        assert torch.equal(a, b)


def test_a_parameter_is_refused() -> None:
    """A module would not register it, so that it would neither be trained nor saved."""
    z = numbers(F64, 2, 2)
    with pytest.raises(TypeError, match=r"make parameters of z\.real and z\.imag"):
        torch.nn.Parameter(z)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="MCFComplexTensor"):
        torch.nn.Module().register_parameter("w", z)
    for make in (torch.optim.SGD, mcf.optim.AdamW):
        with pytest.raises(TypeError, match="can only optimize Tensors"):
            make([z.clone().requires_grad_()], lr=0.5)


class Rotation(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        z = mcf.complex_tensor([1 + 2j, 3 - 1j], 2, F64)
        self.real, self.imag = (torch.nn.Parameter(v) for v in (z.real, z.imag))
        self.register_buffer("start", z / 3)

    def forward(self, x: Any) -> Any:
        return mcf.MCFComplexTensor(self.real, self.imag) * x + self.start  # type: ignore[arg-type]


def test_a_module_has_parts_as_parameters() -> None:
    """As the message says; a step of gradient descent, and states with a complex buffer."""
    module, x = Rotation(), mcf.complex_tensor([1j, 2], 2, F64)
    before = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
    module(x).abs().square().sum().backward()
    w, b = mcf.MCFComplexTensor(before.real, before.imag).detach(), before.start  # type: ignore[arg-type]
    optimizer.step()
    # dL/dw = 2 (w x + b) conj(x).
    want = w - 0.25 * 2 * (w * x + b) * x.conj()
    found = mcf.MCFComplexTensor(module.real, module.imag).detach()  # type: ignore[arg-type]
    # Two terms of float64: 2^-104; |z|^2 is a root and a square, some units more.
    assert torch.allclose(found, want, rtol=2.0**-96, atol=2.0**-96)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        before.start.zero_()
    before.load_state_dict(torch.load(file, weights_only=True))
    same_bits(before.start, module.start)
    same_bits(before.imag.detach(), module.imag.detach())
    assert module.to(torch.float32).start.dtype is torch.float32


def test_loaders() -> None:
    z, x = numbers(F64, 2, 4), numbers(F64, 2, 4).real
    batches = list(DataLoader(TensorDataset(z, x), batch_size=2))
    same_bits(torch.cat([b[0] for b in batches]), z)
    [batch] = DataLoader([{"z": z[0], "k": 1}, {"z": z[1], "k": 2}], batch_size=2)  # type: ignore[arg-type]
    same_bits(batch["z"], z[:2])


COMPILED: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda z, x: z * z * x + 2j,
    "beside": lambda z, x: z + x * 1j,
    "quotient": lambda z, x: z * z / (z + 1),
    "function": lambda z, x: torch.exp(z) * x,
    "made": lambda z, x: mcf.complex(x, z.imag) - z,
    "matmul": lambda z, x: z.reshape(1, -1) @ x,
    "conjugate": lambda z, x: (z.conj() * z).real,
    # Square, so that turned around it would be another product and no error.
    "real_on_the_right": lambda z, x: (z.reshape(3, 1) * z) @ (x.reshape(3, 1) * x),
    "views": lambda z, x: torch.cat([z[1:], z]) * 2,
}


@pytest.mark.parametrize(
    ("name", "backend"),
    everyday(
        itertools.product(COMPILED, ("eager", "aot_eager", "mcf.fused")), [("product", "aot_eager")]
    ),
)
# Functions at which a graph ends; arithmetic has whole graphs.
@pytest.mark.filterwarnings("ignore:.*Dynamo does not know how to trace:UserWarning")
def test_compiled_functions_have_the_eager_bits(name: str, backend: str) -> None:
    torch._dynamo.reset()
    z, x = numbers(F64, 2, 3, real=2.0), numbers(F64, 2, 3, seed=1).real
    whole = name in ("product", "conjugate", "views")
    chosen: Any = mcf.fused if backend == "mcf.fused" else backend
    run = torch.compile(COMPILED[name], backend=chosen, fullgraph=whole)
    same_bits(run(z, x), COMPILED[name](z, x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Dynamo does not know how to trace:UserWarning")
def test_gradients_of_compiled_functions() -> None:
    torch._dynamo.reset()
    z = numbers(F64, 2, 3).requires_grad_()
    found = []
    for run in (torch.compile(COMPILED["product"], backend="aot_eager"), COMPILED["product"]):
        abs(run(z, z.real)).sum().backward()
        found.append(z.grad)
        z.grad = None
    assert torch.allclose(*found, rtol=2.0**-98)


def test_what_transforms_refuse() -> None:
    z = numbers(F64, 2, 2)
    with pytest.raises(mcf.UnsupportedError, match="Jacobian of complex numbers"):
        torch.func.jacrev(lambda z: z * z)(z)
    jacobian = torch.func.jacrev(lambda z: abs(z) ** 2)(z)
    assert torch.allclose(jacobian, torch.diag(2 * z), rtol=2.0**-96)
    for value in (z, z.real):
        with pytest.raises(mcf.UnsupportedError, match=r"torch\.func\.jvp"):
            torch.func.linearize(lambda v: v * v, value)


def test_format_specifications() -> None:
    z = mcf.complex_tensor(["1/3-2.5j", "-0.5+1e-3j"], 2, F64)
    assert f"{z[0]:.3e}" == "3.333e-01-2.500e+00j"
    assert f"{z:.2f}" == "[ 0.33-2.50j, -0.50+0.00j]"
    assert f"{z[0]:.40f}".startswith("0.3333333333333333333333333333333")
    assert f"{z}" == str(z)
    with pytest.raises(ValueError, match="for a complex number"):
        format(z[0], ">9.3f")


# Small whole numbers: all results are exact, as torch's are.
A = torch.complex(torch.arange(4.0).reshape(2, 2), torch.tensor([[1.0, -2.0], [0.0, 3.0]])).to(
    torch.complex128
)
B = A.flip(0) * (1 - 2j)
R = torch.tensor([[2.0, -1.0], [1.0, 3.0]], dtype=F64)
# Functions of complex a and b and real r.
COMPOSED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "einsum": lambda a, b, r: torch.einsum("ij,jk->ik", a, r),
    "einsum_trace": lambda a, b, r: torch.einsum("ii->", a),
    "einsum_three": lambda a, b, r: torch.einsum("ij,jk,kl->il", a, b, r),
    "einsum_four": lambda a, b, r: torch.einsum("ij,jk,kl,li->i", a, b, a, b),
    "einsum_list": lambda a, b, r: torch.einsum("ij,ij->j", [r, b]),
    "tensordot": lambda a, b, r: torch.tensordot(a, r, 1),
    "tensordot_dims": lambda a, b, r: torch.tensordot(a, b, ([0, -1], [1, 0])),
    "inner": lambda a, b, r: torch.inner(a, b),
    "addmm": lambda a, b, r: torch.addmm(r, a, b, beta=2, alpha=1j),
    "addmm_no_input": lambda a, b, r: torch.addmm(a * float("nan"), a, b, beta=0),
    "addmv": lambda a, b, r: torch.addmv(a[0], b, r[0]),
    "baddbmm": lambda a, b, r: torch.baddbmm(a, a[None], b[None]),
    "addr": lambda a, b, r: torch.addr(a, b[0], r[1]),
    "addcmul": lambda a, b, r: torch.addcmul(a, b, r, value=2),
    "addcdiv": lambda a, b, r: torch.addcdiv(a, b, r * 0 + 2),
    "lerp": lambda a, b, r: torch.lerp(a, b, 0.5),
    "linear": lambda a, b, r: torch.nn.functional.linear(a, b, a[0]),
    "positive": lambda a, b, r: torch.positive(a),
    "real": lambda a, b, r: torch.real(a) + torch.imag(b),
    "rsub": lambda a, b, r: torch.rsub(a, b),
    "mixed_product": lambda a, b, r: (r @ a, torch.mm(b, r), torch.mv(r, a[0]))[2],
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", COMPOSED)
def test_sums_of_products(name: str) -> None:
    if name == "addr" or name == "einsum_list":
        a, b, r = A, mcf.complex_tensor(B, 2, F64), mcf.tensor(R, 2, F64)
    else:
        a, b, r = (
            mcf.complex_tensor(A, 2, F64),
            mcf.complex_tensor(B, 2, F64),
            mcf.tensor(R, 2, F64),
        )
    found = COMPOSED[name](a, b, r).to_plain()
    function, third = COMPOSED[name], R.to(A.dtype) if name != "real" else R
    want = function(A, B, third)
    assert found.shape == want.shape
    # 0 and -0 are equal.
    assert torch.equal(found, want)


def test_einsum_of_real_expansions_and_complex_tensors() -> None:
    r = mcf.tensor(R, 2, F64)
    assert torch.equal(torch.einsum("ij,jk->ik", r, A).to_plain(), R.to(A.dtype) @ A)
    z = mcf.complex_tensor(A, 2, F64)
    assert torch.equal(torch.einsum(r, [0, 1], z, [1, 2]).to_plain(), R.to(A.dtype) @ A)
    with pytest.raises(RuntimeError, match="must be the same"):
        torch.tensordot(numbers(F64, 2, 2, 3), numbers(F64, 2, 2, 3), 1)
    for write in (lambda: torch.full_like(r, 1j), lambda: r.fill_(1j)):
        with pytest.raises(TypeError, match="expansion tensors are real"):
            write()


def test_gradients_and_lanes() -> None:
    z, w = numbers(F64, 2, 3), numbers(F64, 2, 3, seed=1)

    def loss(z: Any) -> Any:
        return abs(torch.exp(z) * w / (z + 2)).sum()

    want = z.clone().requires_grad_()
    loss(want).backward()
    found = torch.func.grad(loss)(z)
    assert isinstance(found, mcf.MCFComplexTensor)
    assert torch.allclose(found, want.grad, rtol=2.0**-98)
    lanes = torch.func.vmap(lambda z, w: torch.sqrt(z) / w - 1j)(z, w)
    assert torch.equal(lanes, torch.sqrt(z) / w - 1j)
    # Functions of parts, which are made complex inside.
    real = torch.func.grad(lambda x: (mcf.complex(x, z.imag) * 2j).imag.sum())(z.real)
    assert bool((real == 2).all())
