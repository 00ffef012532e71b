"""Complex expansions in modules, optimizers, compiled functions and loaders of torch."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mcf
import mcf.optim
from tests.helpers.complexes import numbers
from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64


def components(z: Any) -> list[torch.Tensor]:
    if isinstance(z, mcf.MCFComplexTensor):
        return [*z.real.components, *z.imag.components]
    return list(z.components)


def same_bits(x: Any, y: Any) -> None:
    assert type(x) is type(y)
    for a, b in zip(components(x), components(y), strict=True):
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
# Of where a graph ends; whole graphs are those of arithmetic.
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
# Of complex a and b and real r.
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
    function, plain = COMPOSED[name], R.to(A.dtype) if name != "real" else R
    want = function(A, B, plain)
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
