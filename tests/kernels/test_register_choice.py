"""The choice of registers: who makes it, what it changes, and that float32's are float32 alone.

*Exact*: the bits of operations that do not depend on it (`test_fold.py` has those of folds), and
of compiled programs and derivatives, which follow the choice of when they run. No tensor of float64
is made on the torch executor, and Triton's kernels have no instruction on float64: the mutants are
the same under the other choice.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mcf
from mcf import elementary, reductions
from mcf.kernels import operations, register_choice
from mcf.kernels.formats import BF16, FP32, FP64, Format
from mcf.kernels.torch.registers import _fms_by_dekker
from mcf.reductions.products import matmul
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.sums import Components, cancelling


def test_the_choice() -> None:
    assert mcf.get_registers() == "auto"
    with mcf.registers("float32"):
        assert mcf.get_registers() == "float32"
        with mcf.registers("auto"):
            assert register_choice.chosen(torch.device("cpu")) is FP64
        with pytest.raises(RuntimeError, match="inside"), mcf.registers("float64"):
            raise RuntimeError("inside")
        assert register_choice.chosen(torch.device("cpu")) is FP32
        assert register_choice.registers_for(FP64, torch.device("cpu")) is FP64
    for name in ("fp32", "", None):
        allowed = "registers must be one of 'auto', 'float64', 'float32', got"
        with pytest.raises(ValueError, match=allowed):
            mcf.set_registers(name)  # type: ignore[arg-type]
    assert mcf.get_registers() == "auto"


def test_auto_is_float32_only_where_float64_does_not_exist() -> None:
    assert register_choice.chosen(torch.device("mps")) is FP32
    # Slow float64 is float64: bits do not depend on a processor's speed.
    assert register_choice.chosen(torch.device("cuda")) is FP64
    with mcf.registers("float64"):
        assert register_choice.chosen(torch.device("mps")) is FP64


def test_the_choice_is_of_all_threads() -> None:
    found = []
    with mcf.registers("float32"):
        thread = threading.Thread(target=lambda: found.append(mcf.get_registers()))
        thread.start()
        thread.join()
    assert found == ["float32"]


def patterns(count: int) -> tuple[Tensor, Tensor]:
    """Float32 numbers of all bit patterns, and pairs whose products are near the smallest."""
    draws = torch.Generator().manual_seed(5)
    a, b = torch.randint(-(2**31), 2**31, (2, count), generator=draws).to(torch.int32)
    a, b = a.view(torch.float32), b.view(torch.float32)
    exponents = torch.randint(-148, 10, (count,), generator=draws)
    below = -exponents - torch.randint(90, 155, (count,), generator=draws)
    mantissas = (torch.randint(2**23, 2**24, (2, count), generator=draws) * 2.0**-23).float()
    c = operations.ldexp((mantissas[0],), exponents)[0]
    d = operations.ldexp((mantissas[1],), below)[0]
    return torch.cat([a, c, c]), torch.cat([b, d, -d])


def test_the_error_of_a_product_without_float64() -> None:
    a, b = patterns(10_000)
    c = a * b
    usable = a.isfinite() & b.isfinite()
    a, b, c = a[usable], b[usable], c[usable]
    exact = (a.double() * b.double() - c.double()).float()
    assert_same_bits(_fms_by_dekker(FP32, a, b, c), exact)
    # Mutant: Dekker's product as it stands, without its scaling.
    tx, ty = 4097 * a, 4097 * b
    xh, yh = tx - (tx - a), ty - (ty - b)
    plain = (a - xh) * (b - yh) - (((c - xh * yh) - (a - xh) * yh) - xh * (b - yh))
    assert not torch.equal(plain.view(torch.int32), exact.view(torch.int32))


def _elementwise(x: Components, y: Components) -> list[Tensor]:
    found = []
    for name in ("add", "sub", "mul", "div"):
        found += getattr(operations, name)(x, y)
    for name in ("square", "sqrt", "reciprocal", "rsqrt"):
        found += getattr(operations, name)(operations.abs(x))
    found += [*operations.fma(x, y, x), *operations.ldexp(x, -130), *operations.ldexp(x, 200)]
    return [*found, operations.lt(x, y), operations.compare(x, y), *operations.renormalize(x)]


@pytest.mark.parametrize("executor", ["torch", pytest.param("numba", marks=pytest.mark.slow)])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_operations_of_elements_do_not_depend_on_it(executor: str, terms: int) -> None:
    x, y = cancelling(FP32, terms, (200,), 1), cancelling(FP32, terms, (200,), 2)
    with mcf.executor(executor):
        expected = _elementwise(x, y)
        with mcf.registers("float32"):
            assert_all_same_bits(_elementwise(x, y), expected)


# What is computed in float32 registers alone, of expansions of two components and 16-bit numbers.
COVERED: dict[str, Callable[[Components, Components], Any]] = {
    "elements": _elementwise,
    "sum": lambda x, y: reductions.sum(x),
    "dot": lambda x, y: reductions.dot(x, y),
    "mean": lambda x, y: reductions.mean(x),
    "var": lambda x, y: reductions.var(x),
    "std": lambda x, y: reductions.std(x),
    "norm": lambda x, y: reductions.norm(x),
    "softmax": lambda x, y: elementary.softmax(x, 0),
    "log_softmax": lambda x, y: elementary.log_softmax(x, 0),
    "logsumexp": lambda x, y: elementary.logsumexp(x, 0),
    "cumsum": lambda x, y: reductions.cumsum(x, 0),
    "cumprod": lambda x, y: reductions.cumprod(x, 0),
    "prod": lambda x, y: reductions.prod(x),
    "matmul": lambda x, y: matmul(tuple(c[None] for c in x), tuple(c[:, None] for c in y)),
    "polyval": lambda x, y: mcf.polyval([*x], y[0]),
}


class Made(TorchDispatchMode):
    """Notes which dtypes results have, of operators inside the library's own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "mcf":
            with self:
                key = torch._C.DispatchKey.CompositeExplicitAutograd
                return func._op_dk(key, *args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.dtypes |= {t.dtype for t in tree_leaves(out) if isinstance(t, Tensor)}
        return out


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", COVERED)
@pytest.mark.parametrize(
    ("fmt", "terms"),
    [(FP32, 2), pytest.param(BF16, 1, marks=pytest.mark.slow)],
    ids=lambda c: getattr(c, "name", c),
)
def test_no_tensor_of_float64_is_made(name: str, fmt: Format, terms: int, on_torch: None) -> None:
    x, y = cancelling(fmt, terms, (20,), 1), cancelling(fmt, terms, (20,), 2)
    with mcf.registers("float32"):
        # Tables are made on the host, once.
        COVERED[name](x, y)
        with Made() as made:
            COVERED[name](x, y)
    assert torch.float32 in made.dtypes
    assert torch.float64 not in made.dtypes
    with Made() as made:
        COVERED[name](x, y)
    # bf16 has float32 registers for operations of elements under both choices.
    assert (torch.float64 in made.dtypes) == ((name, fmt) != ("elements", BF16))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        pytest.param("polygamma_5", lambda x: torch.polygamma(5, x), marks=pytest.mark.slow),
        ("a decomposition", lambda x: torch.linalg.eigvalsh(x.reshape(2, 2))),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_has_no_form_says_so(name: str, call: Any, on_torch: None) -> None:
    x = mcf.tensor([1.0, 2.0, 2.0, 4.0], 2)
    said = f"{name} of fp32 .* chosen by mcf.set_registers; use mcf.registers\\('float64'\\)"
    with mcf.registers("float32"), pytest.raises(NotImplementedError, match=said):
        call(x)
    with mcf.registers("float32"):
        call(x.to(torch.float64))
    call(x)


def dots(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x @ y, x.std(), x.cumsum(0)]


def components(found: list[Tensor]) -> list[Tensor]:
    return [c for t in found for c in t.components]  # type: ignore[attr-defined]


def test_compiled_programs_follow_the_choice() -> None:
    # The lowest bits differ between the choices.
    x, y = (mcf.from_components(cancelling(FP32, 2, (300,), seed)) for seed in (1, 2))
    with mcf.executor("torch"):
        wide = components(dots(x, y))
        with mcf.registers("float32"):
            narrow = components(dots(x, y))
        assert any(not torch.equal(a, b) for a, b in zip(wide, narrow, strict=True))
        compiled = torch.compile(dots, fullgraph=True, backend="aot_eager")
        assert_all_same_bits(components(compiled(x, y)), wide)
        with mcf.registers("float32"):
            assert_all_same_bits(components(compiled(x, y)), narrow)
        assert_all_same_bits(components(compiled(x, y)), wide)


def test_derivatives_follow_the_choice_of_when_they_run(on_torch: None) -> None:
    a = mcf.from_components(cancelling(FP32, 2, (40, 300), 1))
    b = mcf.from_components(cancelling(FP32, 2, (300, 5), 2)).requires_grad_()
    weight = mcf.from_components(cancelling(FP32, 2, (40, 5), 3))
    (a @ b).backward(weight)
    with mcf.registers("float32"):
        narrow = a.mT @ weight
    wide = a.mT @ weight
    assert_all_same_bits(b.grad.components, wide.components)
    b.grad, product = None, a @ b
    with mcf.registers("float32"):
        product.backward(weight)
    assert_all_same_bits(b.grad.components, narrow.components)
    assert not torch.equal(narrow.components[1], wide.components[1])


def test_plans_and_copies_have_no_choice() -> None:
    x, y = (mcf.from_components(cancelling(FP32, 2, (50,), seed)) for seed in (1, 2))
    expected = (x * y).components
    with mcf.registers("float32"):
        # By the plan of before, and by one that is made now and kept.
        assert_all_same_bits((x * y).components, expected)
        kept = (x / y).components
        for t in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
            assert_all_same_bits(t.components, x.components)
    assert_all_same_bits((x / y).components, kept)
