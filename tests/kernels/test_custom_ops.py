"""The operations are opaque to `torch.compile`: compiled code gives the bits of eager code."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, operations
from mcf.kernels.operators import COMPARISONS, OPERATIONS, TRANSFORMS, Operation
from tests.helpers import assert_all_same_bits
from tests.helpers.adversarial import Draw
from tests.helpers.everyday import everyday

FORMATS = [BF16, FP16, FP32, FP64]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
by_operation = pytest.mark.parametrize(
    "operation", [*TRANSFORMS, *OPERATIONS, *COMPARISONS], ids=lambda o: o.operator
)
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
    return getattr(torch.ops.mcf, operation.operator).default


def arguments(operation: Operation, fmt: Format, *shape: int) -> list[Any]:
    """Tensors, or lists of three components."""
    if operation.components is not None:
        return components(fmt, sum(operation.components), *shape)
    # NaN would not compare equal, so no root is one of a number below 0.
    lists = [components(fmt, 3, *shape) for _ in operation.arguments]
    return [list(operations.abs(c)) for c in lists]


@pytest.mark.sampled(every=9)
@by_operation
def test_opcheck(operation: Operation) -> None:
    for fmt, shape in ((BF16, (5, 3)), (FP64, ())):
        given = arguments(operation, fmt, *shape)
        torch.library.opcheck(operator(operation), given)
        turned = tree_map(lambda t: t.mT if t.ndim == 2 else t, given)
        torch.library.opcheck(operator(operation), turned)


@pytest.mark.sampled(every=4)
@by_operation
@by_format
def test_fake_tensors_have_the_shape_and_dtype_of_real_ones(
    operation: Operation, fmt: Format
) -> None:
    given = tree_map(lambda t: t.T, arguments(operation, fmt, 4, 6))
    with mcf.executor("torch"):
        real = operator(operation)(*given)
    with FakeTensorMode() as mode:
        fake = operator(operation)(*tree_map(mode.from_tensor, given))
    meta = operator(operation)(*tree_map(lambda t: t.to("meta"), given))
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


def expansions(x: list[Tensor], y: list[Tensor]) -> list[Tensor]:
    """Operations on expansions, and comparisons."""
    z = operations.fma(x, y, operations.div(y, x))
    w = operations.add(z, operations.sqrt(operations.square(x)))
    names = ("lt", "le", "gt", "ge", "eq", "ne", "compare")
    compared = [getattr(operations, name)(x, y) for name in names]
    return [*operations.renormalize((*w, *z), 2), *compared]


def test_compiled_expansions_are_eager() -> None:
    x, y = (components(FP32, 2, 50) for _ in range(2))
    with mcf.executor("torch"):
        compiled = torch.compile(expansions, fullgraph=True, backend="aot_eager")
        assert_all_same_bits(compiled(x, y), expansions(x, y))
