"""Exact: the launches of the CPU's executor have the bits of the torch executor.

One table of calls stands for all cached launches: arithmetic, selections, sums, moments, order,
softmax, products. Each call is made on numbers that tie, cancel and reach the ends of the range, in
several layouts, and twice, since the second call uses the launch that the first one cached.
Functions of many numbers are in `test_fused_formulas.py`; derivatives are in the survey.

Caught mutants: a signature without the shape, the terms, the executor or `keepdim`; a number's zero
without its sign; results in the memory of an operand or of an earlier result; the index of another
operand where shapes differ; a mean that is a sum, a variance over the count, a root that is not
scaled back; the last of equal extremes; rows taken for columns; a tie in a second component taken
for its own key; a selection with < in place of <=; a softmax without its largest number.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.expansions.launch import calls, elementwise
from mcf.kernels import operations
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

pytest.importorskip("numba", reason="needs Numba")

F64 = torch.float64
F = torch.nn.functional
# Two matrices, one square and one with more rows than columns.
CALLS: dict[str, Callable[[Any, Any], list[Any]]] = {
    "arithmetic": lambda x, y: [x + y, x - y, x * y, x / y, x * x, x + x[:, :1], y[0] * x],
    "numbers": lambda x, y: [
        x + 3, x * 0.1, 0.1 - x, x + 0.0, x + -0.0, x * (2**60 + 1), x / 3, x - math.inf,
        x * math.nan, x + 1e-300, 0.0 * x, -0.0 + x,
    ],
    "shapes": lambda x, y: [
        x + y[0], y[:, :1] * x, x - y[-1, -1], x[:, None] * y, x[0, 0] + y, x[:0] * y[0],
        torch.where((x < y)[:, :1], x, y[0]), x < y[0],
    ],
    "formats": lambda x, y: [
        x + y.to(terms=1), x.to(terms=1) * y, x.to(torch.float32) * y, x - y.to(F64),
        x.to(terms=1) < y, x < y.to(torch.float32), x * y.components[0],
    ],
    "comparisons": lambda x, y: [x < y, x <= y, x > y, x >= y, x == y, x != y, x < 0.1, x == x],
    "roots": lambda x, y: [x.sqrt(), x.rsqrt(), y.reciprocal()],
    "selections": lambda x, y: [
        torch.maximum(x, y), torch.fmin(x, y), torch.where(x < y, x, y), x.abs(),
        torch.copysign(x, y), x.clamp(-0.5, 2.0), x.masked_fill(x > y, 0.25),
        torch.maximum(x, y.to(terms=1)),
    ],
    "more selections": lambda x, y: [
        torch.minimum(x, y), torch.fmax(x, y), torch.clamp(x, y, y.flip(0)), x.clamp_min(0.1),
        torch.where(x < 1, 2**60 + 1, x), torch.clamp(x, -0.0, 1e300), x.clamp_max(math.nan),
    ],
    "functions": lambda x, y: [x.floor(), x[0, 0].floor(), x.neg(), y.trunc()],
    "exponentials": lambda x, y: [x.exp(), x.sin()],
    "formulas": lambda x, y: [
        torch.addcmul(x, y, y, value=0.1), torch.addcdiv(x, y, x, value=0.1), 2 / x, x**-1,
        torch.lerp(x, y, 0.1), torch.lerp(x, y, x[0]), torch.add(x, y, alpha=0.1), x.frac(),
    ],
    "sums": lambda x, y: [
        x.sum(), x.sum(0), x.sum(0, True), x.sum(1, True), x.sum(()), x.sum((0, 1), True),
        x.mean(), x.mean(-1), x.mean(-1, True), x.mean(0, True), x[0, 0].mean(),
        x[:0].sum(0), x.trace(),
    ],
    "products": lambda x, y: [
        x @ y.mT, x @ y[0], y[0] @ x.mT, torch.dot(x[0], y[-1]), torch.addmm(x[:, :1], x, y.mT),
        F.linear(x, y), F.linear(x, y, y[:, 0]), torch.stack([x, y]) @ y.mT,
    ],
    "moments": lambda x, y: [
        x.var(correction=0), x.var(None, correction=1.5), x.std(correction=0), x.norm(),
        x.std((0, 1), keepdim=True, correction=0.5), x.std(0, correction=0),
        torch.var_mean(x, correction=0)[0], torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        x.norm(dim=0), x.norm(dim=0, keepdim=True), x.var(1, correction=12),
        x[0, 0].std(correction=0),
    ],
    "order": lambda x, y: [*x.sort(1), *x.sort(0, True), x.argsort(1, True)],
    "extremes": lambda x, y: [
        x.amax(), x.amin(()), x.amax(1, True), *x.max(0), *x.max(0, True),
        *x.min(1, True), x.amax(0), x.amax(0, True), x.max(), x.min(),
    ],
    "running sums": lambda x, y: [x.cumsum(0), x.cumsum(1), x.prod(1, True), x.prod(), x.prod(0)],
    "more order": lambda x, y: [
        *x.topk(x.shape[1], 1), *x.topk(1, 0, largest=False), *x.kthvalue(1, 0), *x.median(1),
        x.median(), x.argmax(), x.argmin(1, True), *x.cummax(0), *x.cummin(1), x.cumprod(0),
    ],
    "softmax": lambda x, y: [
        x.softmax(0), x.softmax(dim=-1), torch.log_softmax(x, 1), torch.logsumexp(x, 0),
        torch.logsumexp(x, 1, True), torch.logsumexp(x, (0, 1)), x[0, 0].softmax(0),
    ],
}  # fmt: skip
CACHED = (
    "arithmetic", "selections", "sums", "products", "moments", "order", "running sums", "softmax",
)  # fmt: skip
# Each call is a loop to compile: the others are functions of the same launches.
OFTEN = (*CACHED, "numbers", "shapes", "comparisons", "roots", "extremes", "formulas", "functions")
FORMATS = [(dtype, terms) for dtype in (F64, torch.float32, torch.bfloat16, torch.float16)
           for terms in (1, 2, 3, 4)]  # fmt: skip


def _ties(dtype: torch.dtype) -> list[list[float]]:
    """Return numbers whose order a second or a later component decides, and the ends."""
    u = torch.finfo(dtype).eps / 2
    return [
        [1.0, u, -u * u, 0.0], [1 + 2 * u, -u, -u * u, 0.0], [1.0, u, u * u, 0.0],
        [1 + 2 * u, -u, u * u, 0.0], [1.0, u / 2, 0.0, 0.0], [1.0, u, 0.0, 0.0],
        [1 + 2 * u, -u, 0.0, 0.0], [math.inf, 0.0, 0.0, 0.0], [-math.inf, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0], [-0.0, 0.0, 0.0, 0.0], [-1.0, -u, 0.0, 0.0],
    ]  # fmt: skip


def _pairs(dtype: torch.dtype, terms: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield a name and two 5 x 12 matrices."""
    flat = hard(dtype, terms, 120, terms)

    def both(parts: Any) -> tuple[Any, Any]:
        whole = mcf.MCFTensor([c.reshape(10, 12).clone() for c in parts])
        return whole[:5].clone(), whole[5:].clone()

    x, y = both(flat)
    yield "hard", x, y
    yield "transposed", x.mT[:5], y.mT[:5]
    yield "of other strides", x.mT.contiguous().mT, y.mT.contiguous().mT
    yield "stepped", x[:, ::2], y[:, 1::2]
    yield "one element", x[:1, :1], y[-1:, :1]
    rows = torch.tensor(_ties(dtype), dtype=F64).to(dtype)
    tied = mcf.MCFTensor([rows[:, k].repeat(5, 1).contiguous() for k in range(terms)])
    yield "tied", tied, torch.cat([tied[:, 5:], tied[:, :5]], 1)
    finite = torch.cat([tied[:, :7], tied[:, 9:]], 1).contiguous()
    yield "tied and finite", finite, finite.flip(1)
    with_nan = x.clone()
    with_nan[1, 3] = with_nan[4] = math.nan
    yield "with nan", with_nan, tied
    yield "usual", *both([c.clamp(-(2.0**8), 2.0**8) for c in flat])
    least = 2.0 ** (-1000 if dtype is F64 else -100 if dtype is not torch.float16 else -12)
    yield "small", *both([c.clamp(-1, 1) * least for c in flat])
    yield "zero", *both([c.clamp(-1, 1) * 0 for c in flat])


def _parts(found: list[Any]) -> list[Tensor]:
    return [c for r in found for c in getattr(r, "components", (r,))]


@pytest.fixture
def no_launches() -> None:
    calls._calls.clear()


CASES = everyday(
    [(name, "numba", *form) for name in CALLS for form in FORMATS],
    lambda name, executor, *form: (
        (name in OFTEN and form == (F64, 2)) or (name == "order" and form == (torch.float32, 2))
    ),
)
CASES += [
    pytest.param(name, "triton", *form, marks=[pytest.mark.slow, *EXECUTORS[2].marks])
    for name in ("arithmetic", "comparisons", "selections")
    for form in ((F64, 2), (torch.bfloat16, 2))
]


@pytest.mark.usefixtures("no_launches")
@pytest.mark.parametrize(("name", "executor", "dtype", "terms"), CASES)
def test_launch_of_any_numbers_has_the_bits_of_the_torch_executor(
    name: str, executor: str, dtype: torch.dtype, terms: int
) -> None:
    call = CALLS[name]
    for kind, x, y in _pairs(dtype, terms):
        before = [c.clone() for c in (*x.components, *y.components)]
        with mcf.executor("torch"):
            want = call(x, y)
        with mcf.executor(executor):
            first = call(x, y)
            other = call(y, x) if kind == "hard" else []
            found = [first, call(x, y)]
        for results in found:
            for r, w in zip(results, want, strict=True):
                assert (type(r), r.dtype, r.shape) == (type(w), w.dtype, w.shape), (name, kind)
            assert_all_same_bits(_parts(results), _parts(want), f"{name} {kind}")
        assert_all_same_bits([*x.components, *y.components], before, "operands")
        kept = [c for results in (*found, other) for c in _parts(results) if c.numel()]
        assert len({c.data_ptr() for c in kept}) == len(kept), "results share memory"


@pytest.mark.usefixtures("no_launches")
@pytest.mark.parametrize("name", CACHED)
def test_launch_of_few_numbers_is_cached_for_its_executor(name: str) -> None:
    """The bits would be right without any."""
    cache = calls._calls
    _, x, y = next(_pairs(F64, 2))
    with mcf.executor("torch"):
        CALLS[name](x, y)
    assert not any(plan is not None for plan in cache.values())
    CALLS[name](x, y)
    made = {key: plan for key, plan in cache.items() if plan is not None}
    assert made
    CALLS[name](x, y)
    assert all(cache[key] is plan for key, plan in made.items())
    CALLS[name](x.to("meta"), y.to("meta"))
    assert {key for key, plan in cache.items() if plan is not None} == made.keys()


@pytest.mark.usefixtures("no_launches")
@pytest.mark.parametrize("name", CACHED)
def test_launch_first_made_in_inference_mode_serves_outside(name: str) -> None:
    _, x, y = next(_pairs(F64, 2))
    with torch.inference_mode():
        inside = CALLS[name](x, y)
    assert all(r.is_inference() for r in inside)
    outside = CALLS[name](x, y)
    assert_all_same_bits(_parts(outside), _parts(inside), name)
    assert not any(t.is_inference() for t in (*outside, *_parts(outside)))


@pytest.mark.parametrize("call", [operator.mul, lambda x, y: x.sum(), lambda x, y: x < y])
def test_launch_shared_by_threads_keeps_their_numbers_apart(call: Any) -> None:
    """Each thread has its own operands; the loop runs without the interpreter's lock."""
    operands = [
        [mcf.MCFTensor(hard(F64, 2, 16_000, k + shift)) for shift in (0, 9)] for k in range(4)
    ]
    expected = [_parts([call(*pair)]) for pair in operands]
    start = threading.Barrier(len(operands))

    def results(pair: Any) -> list[Any]:
        start.wait()
        return [call(*pair) for _ in range(40)]

    with ThreadPoolExecutor(len(operands)) as pool:
        for one, found in zip(expected, pool.map(results, operands), strict=True):
            for each in found:
                assert_all_same_bits(_parts([each]), one, "a thread's result")


@pytest.mark.parametrize("size", [(1, 3), (3, 1), (1,), (1, 100), ()], ids=str)
def test_launch_of_one_element_dimensions_has_the_strides_of_a_new_tensor(size: Any) -> None:
    """An operand with one element in a dimension is contiguous with any stride there."""
    plain = torch.empty(size).stride()
    odd = tuple(7 if n == 1 else s for n, s in zip(size, plain, strict=True))
    count = 7 * max(1, torch.Size(size).numel())
    x = mcf.MCFTensor([c[:count].clone() for c in hard(F64, 2, max(8, count), 1)])
    x = x.as_strided(size, odd)
    for a in (x, x.contiguous(), x):
        for result in (a * a, a + 1, a.sqrt()):
            assert result.stride() == plain
            assert all(c.stride() == plain for c in result.components)
        assert (a < a).stride() == plain


def test_launch_of_plain_operands_reads_their_numbers() -> None:
    """Mutants: a negative view read as it stands in memory; zeros without memory read."""
    x = mcf.MCFTensor([c[:4].clone() for c in hard(F64, 2, 8, 1)])
    plain = torch.arange(1, 5, dtype=F64) / 3
    views = {
        "as it lies": plain,
        "one number": plain[2],
        "a conjugate's part": torch.complex(plain, plain).conj().imag,
        "a negative view": torch._neg_view(plain),
        "zeros without memory": torch._efficientzerotensor((4,), dtype=F64),
        "every other": torch.arange(8, dtype=F64)[::2],
        "a narrower format": plain.to(torch.float32),
        "integers": torch.arange(4),
        "requires grad": plain.clone().requires_grad_(),
    }
    for name, y in views.items():
        same = mcf.MCFTensor([(y.detach().double() + 0.0).resolve_neg()])
        functions = [torch.maximum, torch.fmin, operator.add, operator.sub, operator.mul]
        # A product with such zeros is what torch makes of them.
        none = name == "zeros without memory"
        for function in functions[:3] if none else functions:
            for a, b, c, d in ((x, y, x, same), (y, x, same, x))[: 1 if none else 2]:
                with torch.no_grad():
                    assert_alike(function(a, b), function(c, d), name)
        assert torch.equal(x < y, x < same)
        assert_alike(torch.where(x < 0, y, x).detach(), torch.where(x < 0, same, x), name)


def test_operands_of_many_elements_have_no_cached_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the workspace for operands that are broadcast is used up."""
    _, x, y = next(_pairs(F64, 2))
    want = CALLS["shapes"](x, y)
    monkeypatch.setattr(elementwise, "_KEPT", 4)
    for _ in range(2):
        assert_all_same_bits(_parts(CALLS["shapes"](x, y)), _parts(want), "shapes")


@pytest.mark.usefixtures("no_launches")
def test_cached_launches_are_cleared_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MOST", 3)
    x = mcf.MCFTensor(hard(F64, 2, 8, 1))
    for count in (1, 2, 3, 4, 5):
        some = x[:count].clone()
        want = operations.mul(some.components, some.components)
        assert_all_same_bits((some * some).components, want)
        assert len(calls._calls) <= 3


def test_modes_and_transforms_see_the_operators() -> None:
    _, x, y = next(_pairs(F64, 2))
    x * y, x < y
    with Seen() as mode:
        product, below = x * y, x < y
    names = [str(f) for f in mode.seen if str(f) != "aten.promote_types.default"]
    assert sum("expansion_mul" in n for n in names) == 1
    assert sum("expansion_lt" in n for n in names) == 1
    with Seen() as mode:
        chosen = torch.where(x < y, x, y)
    assert mode.seen.count(torch.ops.aten.where.self) == 2
    mapped = torch.func.vmap(lambda a, b: (a * b, a < b, torch.where(a < b, a, b)))(x, y)
    slope = torch.func.grad(lambda a: (a * a).sum())(x)
    want = [x * y, x < y, torch.where(x < y, x, y)]
    for found in ([product, below, chosen], mapped):
        assert_all_same_bits(_parts(found), _parts(want))
    assert_all_same_bits(slope.components, (x * 2).components, "grad")


def test_selection_compares_numbers_that_the_format_does_not_hold() -> None:
    """They are compared as they are, and then rounded."""
    low, high = torch.tensor([0.1, 0.1, 1.0, -0.0]), torch.tensor([1e-9, 2.0**-33, 0.0, 0.0])
    x = mcf.MCFTensor([low, high])
    for bound in (0.1, -0.0, 2**60 + 1, 1e300, math.nan):
        with mcf.executor("torch"):
            expected = [x.clamp_min(bound), x.clamp_max(bound)]
        for _ in range(2):
            assert_all_same_bits(_parts([x.clamp_min(bound), x.clamp_max(bound)]), _parts(expected))


def test_float16_selection_keeps_the_bits_of_nan() -> None:
    """A register would set a NaN's quiet bit."""
    nan = torch.tensor([0x7D01, 0x3C00], dtype=torch.int16).view(torch.float16)
    x = mcf.MCFTensor([nan, torch.zeros(2, dtype=torch.float16)])
    got = torch.where(torch.tensor([True, True]), x, x)
    assert torch.equal(got.components[0].view(torch.int16), nan.view(torch.int16))


@pytest.mark.slow
def test_launches_of_float32_use_the_registers_that_are_chosen() -> None:
    x = mcf.MCFTensor([torch.ones(3), torch.full((3,), 2.0**-40)])
    x.components[0][1] = 2.0**-24
    wide = _parts([x.sum(), x.mean()])
    with mcf.registers("float32"):
        narrow = _parts([x.sum(), x.mean()])
        with mcf.executor("torch"):
            expected = _parts([x.sum(), x.mean()])
    assert_all_same_bits(narrow, expected)
    assert_all_same_bits(_parts([x.sum(), x.mean()]), wide)
