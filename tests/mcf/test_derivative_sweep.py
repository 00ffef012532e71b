"""Values and derivatives at every scale, see `tests.helpers.derivative_sweep`.

At every change each function is tried at some sizes, of one format; the rest is slow. A result that
is known to be wrong somewhere is in `KNOWN`, with the reason, and has to be wrong there. Caught
mutants: derivatives of the first component alone, torch's formulas in the components' own range.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.dispatch.registry import FUNCTIONS
from tests.helpers.everyday import everyday

sweep = pytest.importorskip("tests.helpers.derivative_sweep")
cases = sweep.every_function

# Values; the executors have the same bits by other tests. torch's samples call what it deprecates.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

FORMATS = ("bf16", "fp16", "fp32", "fp64")
# Registered functions that the sweep does not name, and why.
NOT_SWEPT: dict[str, str] = {
    **dict.fromkeys(
        ("__float__", "__set__", "__setitem__", "apply_", "backward", "bincount", "copy_", "grad",
         "is_nonzero", "new", "new_tensor", "clone", "zero_"),
        "no function of numbers, or a copy",
    ),
    **dict.fromkeys(
        ("max", "min", "norm", "mm", "copy"),
        "a form on lists of a function that is swept",
    ),
    **dict.fromkeys(
        [f"{kind}_polynomial_{letter}" for kind, letters in (
            ("chebyshev", "tuvw"), ("shifted_chebyshev", "tuvw"), ("hermite", ("h", "he")),
            ("laguerre", "l"), ("legendre", "p")) for letter in letters],
        "no derivative, as in torch",
    ),
    **dict.fromkeys(
        ("fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices", "rrelu"),
        "random",
    ),
    **dict.fromkeys(
        [f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d",
                                         "bilinear2d", "bicubic2d", "trilinear3d")]
        + [f"_upsample_nearest_exact{d}d" for d in (1, 2, 3)],
        "interpolate",
    ),
    **dict.fromkeys(("affine_grid_generator", "grid_sampler"), "affine_grid and grid_sample"),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), "max_pool2d, 3d"),
    "_threshold": "threshold",
    "log_sigmoid": "logsigmoid",
    "multigammaln": "mvlgamma",
    "expit": "sigmoid",
    **dict.fromkeys(("gammainc", "gammaincc", "igamma", "igammac"), "sums of many operations"),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sgn", "sign"), "constant in pieces"),
}  # fmt: skip
# Results that are wrong somewhere: functions, results, formats, and why that is left.
_LEFT: tuple[tuple[str, str, str, str], ...] = (
    ("prod, cumprod", "value", "fp64",
     "a product of the first factors leaves the range, as in torch"),
    ("lu_solve", "value", "fp16, bf16, fp32",
     "L of torch's sample is no factor with pivots: partial solutions leave the range"),
    ("lu_solve", "derivative 1", "bf16, fp32", "as its value; L has no condition to speak of"),
    ("lu_solve", "derivative 0", "fp32", "as its value"),
    ("linalg.lu_solve", "derivative 0, derivative 1", "bf16, fp32", "as lu_solve"),
    ("ormqr", "value", "fp16, bf16, fp32",
     "tau of torch's sample makes no reflections, and products of three leave the range"),
    ("linalg.householder_product", "value", "bf16, fp32", "as ormqr"),
    ("linalg.lstsq, linalg.lstsq.grad_oriented", "derivative 0", "bf16, fp32",
     "torch's formula multiplies pseudoinverses and residuals at the ends of the range"),
    ("masked.std", "value, derivative 0", "fp16, bf16, fp32",
     "torch.masked squares numbers as they are"),
    ("masked.var", "value", "fp16, bf16, fp32", "as masked.std"),
    ("native_group_norm", "derivative 0", "fp16, bf16, fp32",
     "with gradients of mean and scale too, torch's formula squares numbers as they are"),
    ("native_group_norm", "derivative 1", "fp32", "as its derivative 0"),
    ("native_layer_norm", "derivative 0, derivative 1", "fp32", "as native_group_norm"),
    ("nn.functional.linear_cross_entropy", "value, derivative 0, derivative 1", "bf16, fp32",
     "products of weights and inputs leave the range"),
    ("nn.functional.linear_cross_entropy.chunked_none", "value, derivative 0, derivative 1",
     "fp16, bf16, fp32", "as linear_cross_entropy"),
    ("nn.functional.linear_cross_entropy.chunked", "derivative 0, derivative 1",
     "fp16, bf16, fp32", "as linear_cross_entropy"),
    ("nn.functional.linear_cross_entropy.chunked", "value", "fp16", "as linear_cross_entropy"),
    ("linalg.svd, svd", "derivative 0", "fp16, bf16, fp32",
     "torch's formula divides by differences of squares of singular values"),
    ("linalg.pinv.singular", "value, derivative 0, derivative 1", "fp16, fp32",
     "of a product, which leaves the range, or whose pseudoinverse does"),
    ("linalg.pinv.singular", "value", "bf16", "as of fp32"),
    ("cholesky_inverse", "value", "fp16",
     "other elements of the inverse leave the range, and these are sums with them"),
    ("nn.functional.triplet_margin_loss, nn.functional.triplet_margin_with_distance_loss",
     "value, derivative 0", "bf16, fp32",
     "a difference of distances to an anchor that is far from both cancels"),
    ("nn.functional.hinge_embedding_loss", "value", "bf16, fp32",
     "targets of the sweep are neither 1 nor -1: both terms are added up, and cancel"),
    ("nn.functional.gaussian_nll_loss", "derivative 2", "fp32",
     "quotients by squares of variances have no room for two components"),
    ("nn.functional.ctc_loss", "derivative 0", "fp16, bf16, fp32",
     "exponentials of differences of sums of logarithms, whose errors are relative to the sums"),
)  # fmt: skip
# They have to be wrong there.
KNOWN: dict[tuple[str, str, str], str] = {
    (name, result, fmt): why
    for names, results, formats, why in _LEFT
    for name in names.split(", ")
    for result in results.split(", ")
    for fmt in formats.split(", ")
}


def _plain_name(function: Any) -> str:
    """The name without what stands for a form of the same function."""
    name: str = function.__name__
    if name.startswith("_foreach_"):
        name = name.removeprefix("_foreach_")
    for room in ("special_", "linalg_", "fft_"):
        name = name.removeprefix(room)
    return name.removesuffix("_") if not name.endswith("__") else name


def test_sweep_registry_every_function_is_named() -> None:
    named = {n.split(".")[-1] for n in sweep.OTHERS} | NOT_SWEPT.keys()
    named |= {n.removesuffix("_") for n in named}
    for op in cases.functions():
        for name in (op.name, *(alias.name for alias in op.aliases)):
            named.add(name.split(".")[-1])
            named.add(name.split(".")[-1].removeprefix("special_").removeprefix("linalg_"))
    missing = {_plain_name(f) for f in FUNCTIONS} - named
    assert not missing, f"not in the sweep: {sorted(missing)}"


def test_sweep_table_names_are_functions_of_torch_or_forms_of_them() -> None:
    names = {cases.name_of(op) for op in cases.functions()}
    for name in sweep.ELEMENTWISE:
        stem = name if name in names else name.rpartition("_")[0]
        assert name in names or stem in names | {"pow_of", "pow", "special.zeta"}, name


def _check(tally: Any, known: set[str]) -> None:
    failures = [each for each in tally.failures if each.result not in known]
    assert not failures, "\n" + "\n".join(sweep.table(failures))
    assert {each.result for each in tally.failures} == known


def _results_known_to_be_wrong(name: str, fmt: str) -> set[str]:
    return {result for n, result, f in KNOWN if (n, f) == (name, fmt)}


@pytest.mark.parametrize("name", sweep.ELEMENTWISE)
def test_elementwise_at_some_scales_is_within_the_bound(name: str) -> None:
    function = sweep.ELEMENTWISE[name]
    tally = sweep.elementwise(function, sweep.FORMATS["fp32"], 2, every=8 * function.operands**2)
    if function.operands == 1:
        tally.take(sweep.second_derivatives(function, sweep.FORMATS["fp64"], 2))
    assert tally.tried > 0
    _check(tally, _results_known_to_be_wrong(name, "fp32"))


@pytest.mark.slow
@pytest.mark.parametrize("form", [("fp64", 3), ("fp64", 1), ("fp32", 3), ("bf16", 2)])
@pytest.mark.parametrize("name", [n for n, f in sweep.ELEMENTWISE.items() if f.operands == 1])
def test_second_derivatives_are_within_the_bound(name: str, form: tuple[str, int]) -> None:
    tally = sweep.second_derivatives(sweep.ELEMENTWISE[name], sweep.FORMATS[form[0]], form[1])
    _check(tally, set())


SAMPLED = [n for n in sweep.sampled_names() if n not in sweep.ELEMENTWISE]
# Functions of squares and of sums, which leave the range on the way.
SQUARED = {
    *(f"nn.functional.{name}" for name in (
        "layer_norm", "rms_norm", "batch_norm", "instance_norm", "group_norm", "normalize",
        "cosine_similarity", "cosine_embedding_loss", "avg_pool1d", "pdist", "pairwise_distance",
    )),
    "linalg.vector_norm", "linalg.norm", "linalg.matrix_norm", "norm", "norm.fro", "dist", "cdist",
    "renorm", "lp_pool1d", "lp_pool2d", "_weight_norm", "addmm", "addmv", "addbmm", "baddbmm",
    "addr", "linalg.lstsq", "std", "var",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fmt"),
    everyday(
        [(name, fmt) for name in SAMPLED for fmt in ("fp32", "fp16")],
        lambda name, fmt: name in SQUARED or (SAMPLED.index(name) % 6 == 0 and fmt == "fp32"),
    ),
)
def test_samples_at_three_scales_are_within_the_bound(name: str, fmt: str) -> None:
    tally = sweep.sampled(name, sweep.sampled_names()[name], sweep.FORMATS[fmt], 2, few=True)
    failures = {each.result for each in tally.failures}
    known = _results_known_to_be_wrong(name, fmt)
    assert failures <= known, "\n" + "\n".join(sweep.table(tally.failures))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", sweep.ELEMENTWISE)
def test_elementwise_at_every_scale_is_within_the_bound(name: str, fmt: str) -> None:
    tally = sweep.Tally()
    for terms in (1, 2, 3):
        tally.take(sweep.elementwise(sweep.ELEMENTWISE[name], sweep.FORMATS[fmt], terms))
    assert tally.tried > 0
    _check(tally, _results_known_to_be_wrong(name, fmt))


# Three seconds each, and sixteen hundred.
@pytest.mark.slow
@pytest.mark.sampled(slow=8)
@pytest.mark.parametrize("fmt", FORMATS[:3])
@pytest.mark.parametrize("name", sweep.sampled_names())
def test_samples_at_every_scale_are_within_the_bound(name: str, fmt: str) -> None:
    tally = sweep.Tally()
    for terms in (1, 2):
        tally.take(sweep.sampled(name, sweep.sampled_names()[name], sweep.FORMATS[fmt], terms))
    _check(tally, _results_known_to_be_wrong(name, fmt))


def test_bound_of_derivatives_is_there_for_every_function() -> None:
    for name in sweep.ELEMENTWISE:
        known = sweep.bound_name(name)
        if known:
            guarantee = mcf.bound(known, 2, torch.float32, derivative=True)
            assert 0 < guarantee.relative < 2.0**-35, name
    with pytest.raises(ValueError, match="no bound for the derivative of 'floor'"):
        mcf.bound("floor", derivative=True)


@pytest.mark.sampled(every=40)
@pytest.mark.parametrize(
    "name", [n for n in sweep.ELEMENTWISE if sweep.bound_name(n) not in ("", "add", "sub", "neg")]
)
def test_bound_of_derivatives_rejects_those_of_the_first_component(name: str) -> None:
    function = sweep.ELEMENTWISE[name]

    def shorter(*x: Any) -> Any:
        return function.of(*(v.to(torch.float32, terms=1) for v in x)).to(torch.float32, terms=2)

    tally = sweep.elementwise(function, sweep.FORMATS["fp32"], 2, shorter)
    assert any(each.result.startswith("derivative") for each in tally.failures)


class _Naive(torch.autograd.Function):
    """A function with torch's derivative in the components' own range."""

    @staticmethod
    def forward(ctx: Any, name: str, *x: Any) -> Any:
        ctx.name = name
        ctx.save_for_backward(*x)
        return sweep.ELEMENTWISE[name].of(*(v.detach() for v in x))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x = ctx.saved_tensors
        if ctx.name == "atan2":
            square = x[0] * x[0] + x[1] * x[1]
            return None, grad * x[1] / square, -grad * x[0] / square
        if ctx.name == "addcdiv":
            return None, grad, 0.5 * grad / x[2], -0.5 * grad * x[1] / (x[2] * x[2])
        product = x[0] * x[1] * x[2]
        return None, *(grad * product / v for v in x)


@pytest.mark.parametrize("name", ["atan2", "addcdiv", "prod"])
def test_sweep_rejects_derivatives_that_leave_the_range(name: str) -> None:
    tally = sweep.elementwise(
        sweep.ELEMENTWISE[name], sweep.FORMATS["fp32"], 2, lambda *x: _Naive.apply(name, *x)
    )
    kinds = {each.kind for each in tally.failures if each.result.startswith("derivative")}
    assert kinds & {"nan", "infinite", "zero"}


def test_judge_wrong_results_are_told_apart() -> None:
    fp16, one = sweep.FORMATS["fp16"], sweep.Fraction(1)
    for got, kind in (
        (float("nan"), "nan"), (float("inf"), "infinite"), (0 * one, "zero"),
        (one + one / 2**10, "inexact"), (one, ""), (one + one / 2**21, ""),
    ):  # fmt: skip
        assert sweep.judge(got, sweep.arb(1), fp16, 2, (16.0, 4.0))[0] == kind
