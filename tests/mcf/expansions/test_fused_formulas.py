"""Exact: formulas of many elements in one kernel have the bits of the torch executor.

New results, results written over an operand and results written elsewhere.

Caught mutants: numbers of the formula read before the operands; a number beside a pair taken for a
pair; factors in the order in which they stand; a condition taken for a number; results written over
operands that share memory at other places; elements that a function's kernel lacks left as they
were, or written where others are; closeness by first components without a margin; a result computed
beside its target, which takes as much memory.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.expansions.launch import calls, fused_formulas
from mcf.expansions.launch.fused_formulas import MANY, fused
from mcf.kernels.operators import ADD, LT, MUL, SUB, WHERE
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.mcf.expansions.inputs import hard

pytest.importorskip("numba", reason="needs Numba")

F64 = torch.float64
COUNT = MANY + 77
# Functions of an operand that may be written to, and of two others.
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "isclose": lambda x, y, z: torch.isclose(x, y, 0.2, 2.0**-30),
    "isclose of neighbours": lambda x, y, z: torch.isclose(x, x * (1 + 2.0**-10), 2.0**-10, 0.0),
    "isclose of itself": lambda x, y, z: torch.isclose(x, x),
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.3),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, x, value=0.7),
    "reciprocal": lambda x, y, z: 0.1 / y,
    "heaviside": lambda x, y, z: torch.heaviside(x, y),
    "leaky_relu": lambda x, y, z: F.leaky_relu(x, 0.3),
    "huber": lambda x, y, z: F.huber_loss(x, y, "none", 0.3),
    "smooth_l1": lambda x, y, z: F.smooth_l1_loss(x, y, reduction="none", beta=0.3),
    "mse": lambda x, y, z: F.mse_loss(x, y, reduction="none"),
    "l1": lambda x, y, z: F.l1_loss(x, y, reduction="none"),
    "frexp": lambda x, y, z: torch.frexp(x),
    "add_": lambda x, y, z: x.add_(y),
    "mul_ by a number": lambda x, y, z: x.mul_(0.1),
    "mul_ by one element": lambda x, y, z: x.mul_(y[5]),
    "add_ of itself": lambda x, y, z: x.add_(x),
    "clamp_": lambda x, y, z: x.clamp_(-0.5, 2.0),
    "add_ with a factor": lambda x, y, z: x.add_(y, alpha=0.3),
    "lerp_": lambda x, y, z: x.lerp_(y, 0.3),
    "addcmul_": lambda x, y, z: x.addcmul_(y, z),
    "addcmul_ with a factor": lambda x, y, z: x.addcmul_(y, z, value=-0.3),
    "addcdiv_": lambda x, y, z: x.addcdiv_(y, z, value=-0.3),
    "addcdiv over its last operand": lambda x, y, z: torch.addcdiv(y, z, x, out=x),
    "masked_fill_": lambda x, y, z: x.masked_fill_(y > 1, 0.5),
    "neg_": lambda x, y, z: x.neg_(),
    "atan2_": lambda x, y, z: x.atan2_(y),
    "floor_": lambda x, y, z: x.floor_(),
    "mul of exchanged components": lambda x, y, z: torch.mul(
        mcf.MCFTensor(x.components[::-1]), y, out=x
    ),
    "out= of other terms": lambda x, y, z: torch.lerp(y, z, 0.3, out=x.to(terms=1)),
    "where written": lambda x, y, z: torch.where(x > 1, y, z, out=x),
}  # fmt: skip
# Each compiles a kernel.
OFTEN = (
    "isclose", "isclose of neighbours", "huber", "frexp", "mul_ by a number", "lerp_", "addcdiv_",
    "neg_", "addcdiv over its last operand", "mul of exchanged components",
)  # fmt: skip
FORMATS = [(F64, 2), (F64, 1), (F64, 3), (F64, 4), (torch.float32, 2), (torch.bfloat16, 2),
           (torch.bfloat16, 3), (torch.float16, 1)]  # fmt: skip
CASES = everyday(
    [("numba", name, *form) for name in CALLS for form in FORMATS],
    lambda executor, name, *form: name in OFTEN and form == (F64, 2),
)
CASES += everyday(
    [pytest.param("triton", name, *form, marks=EXECUTORS[2].marks)
     for name in CALLS for form in FORMATS if form[1] < 4],
    lambda executor, name, *form: name == "huber" and form == (F64, 2),
)  # fmt: skip


def _flat(found: Any) -> list[torch.Tensor]:
    if isinstance(found, tuple):
        return [c for x in found for c in _flat(x)]
    return [*found.components] if isinstance(found, mcf.MCFTensor) else [found]


def _operands(dtype: torch.dtype = F64, terms: int = 2, count: int = COUNT) -> list[Any]:
    """Return hard numbers, with ends of the range at the same elements and at others."""
    found = [mcf.MCFTensor(hard(dtype, terms, count, seed)) for seed in (1, 2, 3)]
    ends = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, torch.finfo(dtype).max])
    for k, x in enumerate(found):
        x.components[0][100:136] = (ends.repeat(6) if k else ends.repeat_interleave(6)).to(dtype)
        for c in x.components[1:]:
            c[100:136] = 0.0
    return found


@pytest.mark.parametrize(("executor", "name", "dtype", "terms"), CASES)
def test_formula_of_many_numbers_has_the_bits_of_the_torch_executor(
    executor: str, name: str, dtype: torch.dtype, terms: int
) -> None:
    x, y, z = _operands(dtype, terms)
    own = x.clone()
    with mcf.executor("torch"):
        expected = CALLS[name](own, y, z)
    for _ in range(2):
        target = x.clone()
        with mcf.executor(executor):
            found = CALLS[name](target, y, z)
        assert (found is target) == (expected is own)
        assert_all_same_bits(_flat(found), _flat(expected), name)
        assert_all_same_bits(target.components, own.components, "the operand")


def _limited(o: Any, x: Any, y: Any, most: Any) -> Any:
    d = o(SUB, x, y)
    return o(WHERE, o(LT, d, most), o(MUL, d, 2), d)


@pytest.mark.parametrize("count", [4, MANY])
def test_numbers_of_a_formula_are_those_of_each_operation(count: int) -> None:
    """0.1 is three components of float32, and not the pair next to it."""
    near = mcf.tensor([0.1] * count, dtype=torch.float32, terms=2)
    assert not bool((near == 0.1).any())
    zero = torch.zeros_like(near)
    got = fused_formulas.composed(_limited, near, zero, 0.1)
    expected = _limited(fused_formulas._apply, near, zero, 0.1)
    assert_all_same_bits(got.components, expected.components)
    x = mcf.tensor([3.0] * count, dtype=torch.float32, terms=1)
    y = mcf.tensor(["7.3"] * count, dtype=torch.float32, terms=2)
    for a, b in ((x, y), (y, x)):
        assert_all_same_bits(torch.lerp(a, b, 0.1).components, (a + 0.1 * (b - a)).components)


@pytest.mark.parametrize("count", [1, 100, 1 << 12])
@pytest.mark.parametrize(
    ("dtype", "rtol", "value"),
    [(torch.float32, 1e300, 0.0), (torch.float32, 1e-60, math.inf), (torch.float16, 1e5, 0.0)],
)
def test_isclose_takes_tolerances_beyond_the_format(
    count: int, dtype: torch.dtype, rtol: float, value: float, on_torch: None
) -> None:
    x = mcf.MCFTensor([torch.full((count,), v, dtype=dtype) for v in (value, 0.0)])
    assert bool(torch.isclose(x, x, rtol=rtol, atol=0.0).all())
    assert torch.allclose(x, x, rtol, 0.0)


def _allocated(call: Callable[[], Any]) -> int:
    """Return the bytes that a call allocates of torch's, and of Python's and NumPy's at a time."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    events = profile.events()
    assert events is not None
    found = sum(max(0, e.self_cpu_memory_usage) for e in events)
    tracemalloc.start()
    try:
        call()
        return found + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["add_", "mul_ by a number", "lerp_", "addcdiv_", "neg_"])
def test_formula_in_place_allocates_no_tensor(name: str) -> None:
    count = 1 << 17
    x, y, z = _operands(count=count)
    assert _allocated(lambda: x.clone()) >= 2 * 8 * count
    CALLS[name](x, y, z)
    assert _allocated(lambda: CALLS[name](x, y, z)) < count


@pytest.mark.parametrize("rare", [[], [0, 7, 700, 701, COUNT - 1], slice(None)], ids=str)
def test_elements_that_a_kernel_lacks_are_computed(
    rare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments of a sine that are reduced by steps of their own."""
    monkeypatch.setattr("mcf.elementary.operator.CHUNK", 1000)
    first = torch.arange(COUNT, dtype=F64) / 8
    x = mcf.MCFTensor([first, torch.zeros_like(first)])
    x.components[0][rare] += 2.0**300
    with mcf.executor("torch"):
        expected = x.sin()
    apart = torch.sin(x, out=torch.empty_like(x))
    assert_all_same_bits(apart.components, expected.components, "apart")
    target = x.clone()
    assert target.sin_() is target
    assert_all_same_bits(target.components, expected.components, "in place")


@pytest.mark.parametrize("shift", [-3, 1])
def test_formula_whose_target_lies_a_little_off_an_operand_has_the_bits(shift: int) -> None:
    """In memory that torch does not look at: that of second components."""
    memory = torch.zeros(COUNT + 6, dtype=F64)
    (top, low), (head, tail), _ = (t.components for t in _operands())
    x, y = mcf.MCFTensor([top, memory[3 : COUNT + 3]]), mcf.MCFTensor([head, tail])
    out = mcf.MCFTensor([torch.zeros_like(top), memory[3 + shift :][:COUNT]])
    for function in (torch.mul, lambda a, b, out: torch.lerp(a, b, 0.3, out=out)):
        x.components[1].copy_(low)
        with mcf.executor("torch"):
            expected = function(x.clone(), y, out=torch.empty_like(y))
        function(x, y, out=out)
        assert_all_same_bits(out.components, expected.components, f"shift {shift}")


def _product_sum(o: Any, x: Any, y: Any, factor: Any) -> Any:
    return o(ADD, o(MUL, factor, x), y)


def test_formula_has_a_kernel_where_one_is_worth_it() -> None:
    """The bits would be right without any. GPUs compile none of four components."""
    x, y, _ = _operands()
    assert isinstance(fused(_product_sum, x, y, 0.3), mcf.MCFTensor)
    for other in (y.to(torch.float32), y[:1], y.reshape(1, -1)):
        assert fused(_product_sum, x, other, 0.3) is None
    with mcf.executor("torch"):
        assert fused(_product_sum, x, y, 0.3) is None
    wide = _operands(F64, 4)
    with mcf.executor("triton"):
        assert fused(_product_sum, wide[0], wide[1], 0.3) is None


class _Emptied(dict[Any, Any]):
    """A table that another thread clears whenever it has been looked at."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found

    def get(self, key: Any, other: Any = None) -> Any:
        found = super().get(key, other)
        self.clear()
        return found


def test_another_thread_may_clear_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_formulas, "_specs", _Emptied())
    monkeypatch.setattr(calls, "_calls", {})
    for shape in ((COUNT,), (2, COUNT)):
        x, y = (torch.ones(shape, dtype=F64) * k for k in (1, 2))
        found = fused(_product_sum, mcf.MCFTensor([x, x * 0.0]), mcf.MCFTensor([y, y * 0.0]), 0.5)
        assert bool((found == 2.5).all())
