"""The norm of all gradients: exact to its bound, and the same bits for any order and layout.

Mutants these tests catch: a float64 sum instead of integers (order, `test_same_bits_*`), HIGH or
LOW smaller than stated (`test_bound`), the exponent taken from the first tensor only
(`test_wide_range`), no carry from the low to the high sums (`test_carry`).
"""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.step.gradient_scaling import NonFiniteGradientError
from mcf.optim.step.norm import HIGH, LOW, finite, total_norm
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, FULL, Case, cases
from tests.optim.helpers import (
    assert_same,
    force,
    give,
    parameter,
    parameters,
    random,
    refuses,
    scaler,
    steps,
    stored,
    without_gradients,
)

pytestmark = pytest.mark.usefixtures("on_torch")


DTYPES = [BF16, FP16, FP32, FP64]


def exact_square(tensors: list[Tensor]) -> Fraction:
    return sum(
        (Fraction(x) ** 2 for t in tensors for x in t.double().flatten().tolist()), Fraction(0)
    )


def norm(*tensors: Tensor) -> Tensor:
    return total_norm([(t,) for t in tensors])


def assert_within(found: Tensor, square: Fraction, count: int) -> None:
    bound = Fraction(count, 2 ** (HIGH + LOW)) + Fraction(1, 2**51)
    got = Fraction(found.item())
    assert (got / (1 + bound)) ** 2 <= square <= (got * (1 + bound)) ** 2, (
        float(got),
        float(square),
    )


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
def test_bound(dtype: torch.dtype, scale: float) -> None:
    tensors = [random((300, 70), dtype, 1, scale), random(5, dtype, 2, scale), random((), dtype, 3)]
    assert_within(norm(*tensors), exact_square(tensors), sum(t.numel() for t in tensors))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_for_any_order_and_layout(dtype: torch.dtype) -> None:
    x = random((200, 300), dtype, 1)
    expected = norm(x)
    generator = torch.Generator().manual_seed(0)
    shuffled = x.flatten()[torch.randperm(x.numel(), generator=generator)]
    padded = torch.full((400, 300), 7.0, dtype=dtype)
    padded[::2] = x
    for other in (
        [x.t()],
        [shuffled],
        list(x.unbind(0)),
        list(x.flatten().split(7777)),
        [padded[::2]],
    ):
        assert_same_bits(norm(*other), expected)
    # A float64 sum is not: else this test would say nothing.
    if dtype != BF16:
        a, b = (t.double().square().cumsum(0)[-1] for t in (x.flatten(), shuffled))
        assert a != b


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 2.0**-14, 1e4])
def test_the_compiled_loop_has_the_same_bits(dtype: torch.dtype, scale: float) -> None:
    # Numbers of very different sizes, some below what counts, some subnormal.
    x = random(40000, dtype, 1, scale)
    x[::3] = (x[::3].double() * 2.0**-13).to(dtype)
    x[::7] = (x[::7].double() * 2.0**-40).to(dtype)
    expected = norm(x, x[:5])
    with mcf.executor("numba"):
        assert_same_bits(norm(x, x[:5]), expected)
    assert_within(expected, exact_square([x, x[:5]]), 40005)


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_norm_of_a_wide_range_is_within_its_bound(executor: str) -> None:
    for dtype, big, small in ((BF16, 3e38, 1e-38), (FP32, 1e38, 1e-45), (FP64, 1e308, 1e-300)):
        for values in ([big, small], [small, big], [small, small, 0.0], [big] * 5):
            t = torch.tensor(values, dtype=dtype)
            parts = list(t.unbind())
            with mcf.executor(executor):
                found = norm(*parts)
            if dtype == FP64 and values.count(big) > 1:
                assert norm(t).isinf()
            else:
                assert_within(found, exact_square(parts), len(parts))


def test_carry() -> None:
    # Squares just below a multiple of 2**-HIGH: the low sums run over many times.
    x = torch.full((1 << 18,), math.sqrt(0.25 + 2.0**-30 - 2.0**-50), dtype=FP64)
    tensors = [x] * 8
    square = Fraction(x[0].item()) ** 2 * len(tensors) * len(x)
    assert_within(norm(*tensors), square, len(tensors) * len(x))


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_not_finite(dtype: torch.dtype, bad: float) -> None:
    x = random((40, 50), dtype, 1)
    assert finite((x,))
    x[3, 4] = bad
    assert not finite((x,))
    assert not finite((torch.zeros(40, 50, dtype=dtype), x))
    found = norm(torch.ones(3, dtype=dtype), x)
    assert found.isnan() if math.isnan(bad) else found == torch.inf


@pytest.mark.parametrize(
    "tensors",
    [[], [torch.zeros(0)], [torch.zeros(3), torch.zeros(2)]],
    ids=["none", "empty", "zero"],
)
def test_nothing(tensors: list[Any]) -> None:
    assert norm(*tensors) == 0
    assert norm(*tensors).dtype == FP64


# -- clipping --------------------------------------------------------------------------------------


def given(make: Any, dtype: torch.dtype, scale: float = 1.0, **options: Any) -> Any:
    """An optimizer of two tensors with gradients."""
    params = [parameter((30, 7), dtype, 1), parameter(11, dtype, 2)]
    optimizer = make(params, 0.25, **options)
    for k, p in enumerate(params):
        p.grad = (random(p.shape, FP64, 10 + k) * scale).to(dtype)
    return optimizer


@on_each_executor
@pytest.mark.parametrize("make", [AdamW, SGD])
def test_float32_is_a_step_on_clipped_gradients(make: Any, executor: str) -> None:
    # Bit for bit: the coefficient from the exact norm, rounded once, times each gradient.
    limit = 0.75
    optimizer, reference = given(make, FP32, max_grad_norm=limit), given(make, FP32)
    square = exact_square([p.grad for p in parameters(reference)])
    scaled = math.isqrt(square.numerator * 2**160 // square.denominator)
    coefficient = float(Fraction(limit) / (Fraction(scaled, 2**80) + Fraction(1e-6)))
    for p in parameters(reference):
        p.grad *= torch.tensor(coefficient)
    with mcf.executor(executor):
        optimizer.step()
        reference.step()
    assert_same(without_gradients(stored(optimizer)), without_gradients(stored(reference)))


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64], ids=str)
def test_gradients_below_the_limit_change_nothing(dtype: torch.dtype) -> None:
    mine, theirs = given(AdamW, dtype, max_grad_norm=1e3), given(AdamW, dtype)
    before = [p.grad.clone() for p in parameters(mine)]
    for each in (mine, theirs):
        each.step()
    assert_same(stored(mine), stored(theirs))
    for p, g in zip(parameters(mine), before, strict=True):
        assert_same_bits(p.grad, g, "gradients are not written")
    assert theirs.grad_norm is None


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_norm_of_scaled_gradients_is_unscaled(case: Case) -> None:
    # fp16 above its subnormal numbers, so that scaling by 4 is exact.
    results = []
    for scale in (1.0, 4.0):
        optimizer = given(AdamW, case.dtype, scale, max_grad_norm=0.5, eps=1e-4,
                          **case.options())  # fmt: skip
        for p in parameters(optimizer):
            p.grad = torch.where(p.grad.abs() < 2.0**-8, 0.0, p.grad).to(case.dtype)
        scaler(scale).step(optimizer)
        results.append((optimizer.grad_norm, without_gradients(stored(optimizer))))
    norms = [norm for norm, _ in results]
    assert norms[0] == norms[1]
    assert_same(results[0][1], results[1][1])


def test_it_may_change_and_is_copied() -> None:
    optimizer = given(AdamW, BF16, max_grad_norm=0.5, nonfinite="skip")
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert (other.max_grad_norm, other.nonfinite) == (0.5, "skip")
    optimizer.max_grad_norm = None
    free = given(AdamW, BF16)
    for each in (optimizer, free):
        each.step()
    assert_same(stored(optimizer), stored(free))
    optimizer.max_grad_norm = -1.0
    refuses(optimizer, ValueError, r"max_grad_norm: -1\.0; allowed")


BAD_OPTIONS = [
    ("max_grad_norm", 0.0, ValueError, r"0\.0; allowed is a number in \(0, inf\)"),
    ("max_grad_norm", math.nan, ValueError, "nan; allowed"),
    ("max_grad_norm", math.inf, ValueError, "inf; allowed"),
    ("max_grad_norm", "1", TypeError, "must be a number or None, got str"),
    ("max_grad_norm", True, TypeError, "got bool"),
    ("nonfinite", "ignore", ValueError, "one of 'torch', 'skip', 'raise', got 'ignore'"),
    ("nonfinite", None, ValueError, "must be one of"),
]


@pytest.mark.parametrize(("name", "value", "error", "words"), BAD_OPTIONS)
def test_refused(name: str, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"{name}.*{words}"):
        AdamW([parameter(3, BF16)], **{name: value})


NOT_FINITE = [torch.inf, -torch.inf, torch.nan]


@pytest.mark.sampled
@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_nothing_changes(policy: str, clip: float | None, bad: float) -> None:
    for count in (0, 2):
        optimizer = given(AdamW, BF16, max_grad_norm=clip, nonfinite=policy)
        if count:
            steps(optimizer, count)
        last = list(parameters(optimizer))[1]
        last.grad[4] = bad
        before = stored(optimizer)
        if policy == "skip":
            optimizer.step()
        else:
            with pytest.raises(
                NonFiniteGradientError, match=r"params\[1\] of param_groups\[0\]\.grad holds an inf"
            ):
                optimizer.step()
        assert_same(stored(optimizer), before)
        last.grad[4] = 0.5
        optimizer.step()
        assert optimizer.state[last]["step"].item() == count + 1


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_as_torch(clip: float | None, bad: float) -> None:
    # By default as torch: with clipping, an infinity makes all other gradients 0 and a NaN makes
    # all of them NaN, since the coefficient is 0 or NaN.
    results = []
    for mine in (True, False):
        options = {"max_grad_norm": clip} if mine else {}
        optimizer = given(SGD, FP32, **options)
        last = list(parameters(optimizer))[1]
        last.grad[4] = bad
        if clip is not None and not mine:
            torch.nn.utils.clip_grad_norm_(parameters(optimizer), clip)
        optimizer.step()
        results.append(without_gradients(stored(optimizer)))
    assert_same(*results)


def test_a_scaler_comes_first() -> None:
    # Where a GradScaler found an infinity the step is skipped, as it must be to find a scale.
    optimizer = given(AdamW, BF16, nonfinite="raise", fused=True)
    next(parameters(optimizer)).grad[0, 0] = torch.inf
    before = stored(optimizer)
    scaler().step(optimizer)
    assert_same(stored(optimizer), before)


def test_several_groups_have_one_norm() -> None:
    def make(groups: bool) -> AdamW:
        p, q = Parameter(torch.ones(3)), Parameter(torch.ones(4, dtype=BF16))
        p.grad, q.grad = torch.full_like(p, 3.0), torch.full_like(q, 2.0)
        split = [{"params": [p]}, {"params": [q], "lr": 1e-3}]
        return AdamW(split if groups else [p, q], 1e-3, max_grad_norm=1.0)  # type: ignore[arg-type]

    one, two = make(False), make(True)
    for each in (one, two):
        each.step()
    assert_same(stored(two), stored(one))
    assert one.grad_norm.item() == math.sqrt(27 + 16)


# -- forms -----------------------------------------------------------------------------------------


OPTIMIZERS = [
    c
    for c in vars(mcf.optim).values()
    if isinstance(c, type) and issubclass(c, LowPrecisionOptimizer)
]
# A matrix, which every optimizer takes.
N = (20, 10)


def run(make: Any, p: Parameter, gradients: list[torch.Tensor], **options: Any) -> Any:
    """States after one step for each gradient."""
    optimizer = make([p], 1e-2, **options)
    for g in gradients:
        give(p, g)
        optimizer.step()
        assert p.grad is g
    return without_gradients(stored(optimizer))


def gradients(dtype: torch.dtype, seed: int = 1) -> list[torch.Tensor]:
    return [random(N, dtype, seed + t) for t in range(3)]


@pytest.mark.sampled
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [FP32, FP64], ids=str)
def test_value_as_torch(make: Any, dtype: torch.dtype) -> None:
    limit = 0.3
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.3, -0.3], dtype=dtype)
    given = gradients(dtype)
    given[1].view(-1)[:6] = special
    p = parameter(N, dtype)
    mine = run(make, Parameter(p.detach().clone()), given, max_grad_value=limit)
    clipped = []
    for g in given:
        q = Parameter(torch.zeros_like(g))
        q.grad = g.clone()
        torch.nn.utils.clip_grad_value_([q], limit)
        clipped.append(q.grad)
    assert_same(mine, run(make, p, clipped))


@pytest.mark.sampled(every=3)
@on_each_executor
@pytest.mark.parametrize("case", cases(("plus",), (BF16,)), ids=str)
def test_value_on_each_executor(case: Case, executor: str) -> None:
    # With float32 registers the limit is a float32, as if the gradient had been one; in strict
    # arithmetic it is rounded as the gradients are, and then as torch's clip_grad_value_ has it.
    limit = 0.3
    given = gradients(case.dtype)
    kind = case.dtype if case.strict else FP32
    clipped = [g.to(kind).clamp(-limit, limit) for g in given]
    options = {"eps": 1e-4, **case.options()}
    with mcf.executor(executor):
        mine = run(AdamW, parameter(N, case.dtype), given, max_grad_value=limit, **options)
        assert_same(mine, run(AdamW, parameter(N, case.dtype), clipped, **options))


def test_clipping_is_of_unscaled_gradients() -> None:
    given = gradients(FP32)
    expected = run(AdamW, parameter(N, FP32), given, max_grad_value=0.3)
    p = parameter(N, FP32)
    optimizer = AdamW([p], 1e-2, max_grad_value=0.3)
    amp = scaler(8.0)
    for g in given:
        p.grad = g * 8
        amp.step(optimizer)
        amp.update()
    assert_same(without_gradients(stored(optimizer)), expected)


def test_both_kinds_of_clipping_are_refused() -> None:
    with pytest.raises(ValueError, match="both given; allowed is one of them"):
        AdamW([parameter(3, BF16)], max_grad_norm=1.0, max_grad_value=1.0)


@pytest.mark.sampled
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_the_dtype_alone_changes_nothing(make: Any, dtype: torch.dtype) -> None:
    given = gradients(dtype)
    narrow = run(make, parameter(N, dtype), given)
    assert_same(run(make, parameter(N, dtype), [g.float() for g in given]), narrow)


@pytest.mark.sampled(every=3)
@on_each_executor
@pytest.mark.parametrize("case", cases(("plus",)), ids=str)
def test_on_each_executor(case: Case, executor: str) -> None:
    # Steps on float32 gradients with NaNs of any payload: the bits of the reference.
    given = gradients(FP32)
    given[1].view(-1)[:4] = (
        torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7F800000]).to(torch.int32).view(FP32)
    )
    options = {"eps": 1e-4, **case.options()}
    expected = run(AdamW, parameter(N, case.dtype), given, **options)
    with mcf.executor(executor):
        assert_same(run(AdamW, parameter(N, case.dtype), given, **options), expected)


@pytest.mark.parametrize("make", [AdamW, SGD])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_float32_gradients_are_not_rounded(make: Any, dtype: torch.dtype) -> None:
    # The master weight of a 16-bit parameter is a float32 parameter of the same value.
    given = gradients(FP32)
    start = parameter(N, dtype)
    wide = run(make, Parameter(start.detach().float()), given)
    mine = run(make, start, given, precision="master")
    assert_same_bits(mine["0.master_param"], wide["0.param"])
    rounded = run(make, parameter(N, dtype), [g.to(dtype) for g in given], precision="master")
    assert (rounded["0.master_param"] != wide["0.param"]).any()


@pytest.mark.parametrize("case", FULL, ids=str)
def test_wider_parameters_take_their_own_dtype(case: Case) -> None:
    p = parameter(3, case.dtype)
    optimizer = AdamW([p])
    force(p, torch.ones(3, dtype=BF16))
    with pytest.raises(TypeError, match=r"allowed is its parameter's, torch\.float\d\d$"):
        optimizer.step()


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch >= 2.10: p.grad_dtype")
def test_autograd_accumulates_in_float32() -> None:
    # 256 micro-batches of gradient 1 and one of 2**-8: bfloat16 stops, float32 does not.
    found = {}
    for dtype in (BF16, FP32):
        layer = nn.Linear(1, 1, bias=False).to(BF16)
        p = layer.weight
        p.grad_dtype = dtype
        optimizer = SGD([p], 1.0, precision="master")
        start = p.item()
        for x in [256.0] + [0.5] * 64:
            layer(torch.full((1, 1), x, dtype=BF16)).sum().backward()
        optimizer.step()
        assert p.grad.dtype == dtype
        found[dtype] = start - optimizer.state[p]["master_param"].item()
    assert abs(found[FP32] - 288) < 1e-4
    assert abs(found[BF16] - 256) < 1e-4


def test_groups_of_mixed_gradients() -> None:
    def make(together: bool) -> list[Any]:
        params = [parameter(N, BF16, k) for k in range(3)]
        kinds = [BF16, FP32, BF16]
        lists = [params] if together else [[p] for p in params]
        optimizers = [AdamW(some, 1e-2) for some in lists]
        for p, kind, k in zip(params, kinds, range(3), strict=True):
            give(p, random(N, kind, 10 + k))
        for optimizer in optimizers:
            optimizer.step()
        return [p.detach() for o in optimizers for p in parameters(o)]

    for a, b in zip(make(True), make(False), strict=True):
        assert_same_bits(a, b)
