"""Calls of every function of torch's list: facts are torch's, bits depend on nothing but numbers.

The cases are torch's samples on expansions (`function_calls`). For each the results' requires_grad,
shape, dtype, identity, shared memory and leaf-ness, and the arguments' versions, are those of the
same call on plain tensors. The bits of results are those of the first call on the torch executor
whatever the executor, the number of the call, gradients, modes, layouts, `out=` and the in-place
form, and inside `torch.func`. Gradients have the same bits at every call and on every executor.

Caught mutants, each seeded below: a fast path that ignores autograd; a function that returns its
argument; one that returns a view; another order of additions on one executor, or from the second
call on; a result of the wrong shape; an in-place form that forgets the version counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers.everyday import everyday

calls = pytest.importorskip("tests.mcf.expansions.function_calls")
functions = calls.functions

# torch's own samples call what torch has deprecated, and variances of one element.
pytestmark = pytest.mark.filterwarnings("ignore")

OPS = {functions.name_of(op): op for op in functions.functions()}


def surveyed(cases: Iterable[Any], *args: Any, **options: Any) -> list[str]:
    """Return unexpected failures of cases."""
    return [
        f"{case} {text}"
        for case in cases
        for text in calls.grouped(calls.failures(case, *args, **options))
        if not calls.is_expected(functions.name_of(case.op), text)
    ]


@pytest.mark.sampled(every=160)
@pytest.mark.parametrize("name", OPS)
def test_call_of_a_sample_is_as_torchs_with_the_same_bits(name: str) -> None:
    assert surveyed(calls.cases(1, [OPS[name]]), ("torch", "numba")) == []


# Functions that torch.func gets as operators of torch's, or that torch takes apart above these.
TRANSFORMED = {
    *(f"nn.functional.{name}" for name in (
        "conv1d", "conv2d", "conv_transpose2d", "layer_norm", "group_norm", "batch_norm",
        "avg_pool2d", "max_pool1d", "max_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
        "interpolate.bilinear", "interpolate.bicubic", "pad.reflect", "pad.replicate",
        "grid_sample", "huber_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy",
        "gelu", "glu", "hardswish", "mish", "hardtanh", "softshrink", "prelu", "selu", "pdist",
        "poisson_nll_loss", "scaled_dot_product_attention", "cross_entropy",
    )),
    "cdist", "special.ndtr", "quantile", "nanquantile", "cov", "std", "var",
}  # fmt: skip
EVERY_TWELFTH = {name for k, name in enumerate(OPS) if k % 12 == 5}


@pytest.mark.parametrize("name", everyday(OPS, TRANSFORMED | EVERY_TWELFTH))
def test_call_on_the_torch_executor_is_as_torchs_with_the_same_bits(name: str) -> None:
    assert surveyed(calls.cases(1, [OPS[name]]), ("torch",), ("plain", "grad")) == []


# Faults of formats other than float64, which the first sample has not: results of another dtype,
# gradients that torch.func did not find, a result that was its argument.
NARROW = {
    "nn.functional.grid_sample": 6, "grid_sampler_2d": 3, "igamma": 3, "igammac": 3,
    "rand_like": 5, "randn_like": 5, "ormqr": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_call_on_components_of_every_format_is_as_torchs(name: str) -> None:
    found = []
    for case in calls.cases(NARROW[name], [OPS[name]]):
        if case.form[0] is not torch.float64 or name == "ormqr":
            modes = ("plain", "grad", "inference_mode")
            more = name not in ("ormqr", "igamma", "igammac")
            found += calls.grouped(calls.failures(case, ("torch",), modes, more=more))
    assert found == []


# The functions in which this survey found faults, with all samples.
@pytest.mark.parametrize(
    "name", ["cummax", "cummin", "aminmax", "tensordot", "linalg.householder_product"]
)
def test_call_with_gradients_is_as_torchs_with_the_same_bits(name: str) -> None:
    found = []
    for case in calls.cases(ops=[OPS[name]]):
        if name == "linalg.householder_product" and case.sample[1][0].numel():
            continue  # Reflections compile for seconds; without any was the fault.
        found += calls.grouped(calls.failures(case, modes=("plain", "grad"), more=False))
    assert found == []


@pytest.mark.slow
@pytest.mark.sampled(slow=4)
@pytest.mark.parametrize("name", OPS)
def test_call_of_every_sample_is_as_torchs_with_the_same_bits(name: str) -> None:
    assert surveyed(calls.cases(ops=[OPS[name]]), ("torch", "numba")) == []


@pytest.mark.slow
@pytest.mark.sampled(slow=8)
@pytest.mark.parametrize("name", OPS)
def test_call_in_the_interpreter_is_as_torchs_with_the_same_bits(name: str) -> None:
    pytest.importorskip("triton")
    assert surveyed(calls.cases(1, [OPS[name]]), ("torch", "triton")) == []


@pytest.mark.slow
@pytest.mark.sampled(slow=4)
@pytest.mark.parametrize("name", OPS)
def test_call_of_operands_of_any_size_has_the_same_bits(name: str) -> None:
    assert surveyed(calls.sized(OPS[name])) == []


class Mutant:
    """A function in place of an entry of torch's list, which is wrong on expansions alone."""

    name = variant_test_name = "mutant"
    supports_autograd, supports_out = True, False
    method_variant = inplace_variant = None

    def __init__(self, right: Callable[..., Any], wrong: Callable[..., Any]) -> None:
        self.right, self.wrong, self.count = right, wrong, 0

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, mcf.MCFTensor):
            return self.right(x)
        self.count += 1
        return self.wrong(x, self.count)


MUTANTS = {
    "no gradient": (torch.exp, lambda x, n: x.detach().exp(), "requires_grad"),
    "its argument": (torch.clone, lambda x, n: x, "is_argument"),
    "a view": (torch.clone, lambda x, n: x.view(x.shape), "shares_memory_with_arguments"),
    "another shape": (torch.exp, lambda x, n: x.exp()[None], "shape"),
    "another dtype": (torch.exp, lambda x, n: x.exp().to(torch.float32), "dtype"),
    "an order of its own from the second call on": (
        lambda x: x.prod(0),
        lambda x, n: (x if n == 1 else x.roll(1, 0)).prod(0),
        "bits of result",
    ),
    "an order of its own with gradients": (
        lambda x: x.prod(0),
        lambda x, n: (x.roll(1, 0) if x.requires_grad else x).prod(0),
        "bits of result",
    ),
    "an order of its own on one executor": (
        lambda x: x.prod(0),
        lambda x, n: (x.roll(1, 0) if mcf.get_executor() == "numba" else x).prod(0),
        "bits of result",
    ),
    "a change of its argument": (torch.exp, lambda x, n: x.mul_(2).exp(), "version"),
    "a gradient of its own": (
        torch.exp,
        lambda x, n: x.exp() * (1 + (x - x.detach())) if n > 20 else x.exp(),
        "gradient",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_survey_of_a_mutant_fails(name: str) -> None:
    right, wrong, told = MUTANTS[name]
    x = torch.arange(1, 32, dtype=torch.float64) / 7
    case = calls.Case(Mutant(right, wrong), 0, (torch.float64, 2), (x, [], {}))
    found = calls.grouped(calls.failures(case, ("torch", "numba"), ("plain", "grad")))
    assert any(told in text for text in found)
    honest = calls.Case(Mutant(right, lambda x, n: right(x)), 0, case.form, case.sample)
    assert calls.grouped(calls.failures(honest, ("torch", "numba"), ("plain", "grad"))) == []
