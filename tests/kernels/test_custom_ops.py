"""The operations are opaque to `torch.compile`: compiled code gives the bits of eager code.

The last test shows what happens without: the same formula in plain torch, compiled, loses its
error term.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format
from mcf.kernels.operators import TRANSFORMS, Operation
from tests.helpers import assert_all_same_bits, count_different
from tests.helpers.adversarial import Draw
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday

FORMATS = [BF16, FP16, FP32, FP64]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
by_operation = pytest.mark.parametrize("operation", TRANSFORMS, ids=lambda o: o.name)
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(c) for c in ("c++", "g++", "clang++")),
    reason="inductor needs a C++ compiler",
)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def components(fmt: Format, count: int, *shape: int) -> list[Tensor]:
    draw = Draw(fmt, seed=5)
    size = torch.Size(shape).numel()
    parts = [draw.numbers(draw.exponents(size, -10, 10)) for _ in range(count)]
    return [draw.tensor(x).reshape(shape) for x in parts]


def operator(operation: Operation) -> torch._ops.OpOverload:
    return getattr(torch.ops.mcf, operation.name).default


def terms(operation: Operation) -> int:
    return sum(operation.components or ())


@pytest.mark.sampled(every=9)
@by_operation
def test_opcheck(operation: Operation) -> None:
    for fmt, shape in ((BF16, (5, 3)), (FP64, ())):
        given = components(fmt, terms(operation), *shape)
        torch.library.opcheck(operator(operation), given)
        torch.library.opcheck(operator(operation), [t.mT if t.ndim == 2 else t for t in given])


@pytest.mark.sampled(every=4)
@by_operation
@by_format
def test_fake_tensors_have_the_shape_and_dtype_of_real_ones(
    operation: Operation, fmt: Format
) -> None:
    given = components(fmt, terms(operation), 4, 6)
    given = [t.T for t in given]
    real = operator(operation)(*given)
    with FakeTensorMode() as mode:
        fake = operator(operation)(*(mode.from_tensor(t) for t in given))
    meta = operator(operation)(*(t.to("meta") for t in given))
    for r, f, m in zip(real, fake, meta, strict=True):
        assert f.shape == m.shape == r.shape
        assert f.dtype == m.dtype == r.dtype
        assert f.stride() == m.stride() == r.stride()


def chain(w: Tensor, lo: Tensor, update: Tensor) -> tuple[Tensor, ...]:
    """Every operation once, between operations that a compiler would like to fuse them with."""
    x = mcf.grow((w, lo), update * 2)
    y = mcf.mul(x, mcf.renormalize((x[0] + 1, lo)))
    y = mcf.add(mcf.scale(y, update), mcf.two_sum(y[0] * 3, update))
    h, l = mcf.split(y[0])  # noqa: E741
    p = mcf.two_prod(h, l + update)
    return *y, *p, *mcf.fast_two_sum(p[0], lo)


def chain_arguments(fmt: Format) -> list[Tensor]:
    w, update = components(fmt, 2, 33, 65)
    return [w, (w.double() * float(fmt.u) / 3).to(fmt.dtype), update]


# What is compiled here is the same for each executor, and differs by format in its dtypes.
@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    ("executor", "fmt"),
    everyday(
        itertools.product(("torch", "numba"), FORMATS),
        lambda e, f: f in ((BF16, FP64) if e == "torch" else (BF16, FP16, FP32)),
        id=lambda e, f: f"{e}-{f.name}",
    ),
)
def test_compiled_is_eager(executor: str, fmt: Format) -> None:
    given = chain_arguments(fmt)
    with mcf.executor(executor):
        compiled = torch.compile(chain, fullgraph=True, backend="aot_eager")
        assert_all_same_bits(compiled(*given), chain(*given))
        transposed = [t.T for t in given]
        assert_all_same_bits(compiled(*transposed), chain(*transposed))


# A C++ compiler for each; what inductor could do to 16-bit numbers it does to bf16.
@pytest.mark.sampled(every=2)
@needs_compiler
@pytest.mark.parametrize(
    "fmt",
    everyday(FORMATS, lambda f: f not in (FP16, FP32)),
    ids=lambda f: f.name,
)
def test_compiled_by_inductor_is_eager(fmt: Format) -> None:
    given = chain_arguments(fmt)

    # No torch operation between: inductor keeps those in float32, which is torch's business.
    def only_ours(w: Tensor, lo: Tensor, update: Tensor) -> tuple[Tensor, ...]:
        x = mcf.grow((w, lo), update)
        y = mcf.add(mcf.mul(x, x), mcf.two_prod(w, update))
        return *x, *y, *mcf.scale(mcf.renormalize(y), w)

    compiled = torch.compile(only_ours, fullgraph=True)
    assert_all_same_bits(compiled(*given), only_ours(*given))


def plain_grow(hi: Tensor, lo: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    s = hi + a
    t = s - hi
    e = (hi - (s - t)) + (a - t)
    lo = lo + e
    r = s + lo
    return r, lo - (r - s)


# It takes inductor's headers twenty seconds, and no change to this library can fail it.
@needs_compiler
@pytest.mark.slow
def test_plain_torch_compiled_loses_the_error_term() -> None:
    hi, a = (bell(4096, k, torch.float32) for k in range(2))
    hi, lo, a = hi.bfloat16(), torch.zeros(4096).bfloat16(), (a * 1e-3).bfloat16()
    eager = plain_grow(hi, lo, a)
    assert_all_same_bits(mcf.grow((hi, lo), a), eager)
    _, compiled_lo = torch.compile(plain_grow, fullgraph=True)(hi, lo, a)
    assert count_different(eager[1], lo) > 3900
    # 99 % of the low words come out as zero.
    assert (compiled_lo == 0).float().mean() > 0.9


@pytest.mark.slow
def test_dynamic_shapes() -> None:
    compiled = torch.compile(chain, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (1, 2, 7, 300):
        given = [t[:rows] for t in chain_arguments(BF16)]
        assert_all_same_bits(compiled(*given), chain(*given))


def test_errors_inside_a_compiled_function() -> None:
    compiled = torch.compile(lambda a, b: mcf.two_sum(a, b), backend="aot_eager")
    with pytest.raises(TypeError, match=r"two_sum: b has dtype torch\.float32 and a has"):
        compiled(torch.ones(2).bfloat16(), torch.ones(2))
