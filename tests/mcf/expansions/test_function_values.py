"""Values of every function of torch's list: near torch's, and with the digits of the wider format.

Caught mutants: `cosine_similarity` that does not broadcast first (off by 0.4); promotion that keeps
a narrower format's components, which overlap in the wider one (products off by 2^-80).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import mcf

calls = pytest.importorskip("tests.mcf.expansions.function_calls")
functions = calls.functions

pytestmark = pytest.mark.filterwarnings("ignore")

OPS = {functions.name_of(op): op for op in functions.functions()}
# Functions whose numbers are random, or have signs and phases that are chosen.
CHOSEN = (
    r".*(rand|normal|svd|pca|eig|dropout|rrelu|scaled_dot_product|multi_head_attention|empty"
    r"|multinomial).*|bernoulli.*|cauchy|exponential|geometric|uniform|resize.*"
)
# torch's own are off by 1e-9 and 1e-7; `softplus` has no threshold here; three round to a dtype.
OTHERS = r"special\.(airy_ai|bessel_.*)|nn\.functional\.softplus|float|half|bfloat16"
COMPARED = [name for name in OPS if not re.fullmatch(f"{CHOSEN}|{OTHERS}", name)]
# Relative to the largest number of a result. torch computes in float64.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-6, torch.bfloat16: 2e-2}
# They normalise in the format of their input, since they write to running means.
OWN_FORMAT = r"nn\.functional\.(batch|instance)_norm|_?native_(group|batch)_norm.*"
MIXED = [name for name in OPS if not re.fullmatch(OWN_FORMAT, name)]


def tensors(results: Any) -> list[Any]:
    return [x for x in calls._leaves(results) if isinstance(x, Tensor) and not x.is_complex()]


def distance(x: Any, y: Any) -> float:
    """The largest difference of finite numbers, relative to the largest number."""
    wide = [mcf.tensor(t, 4, torch.float64) for t in (x, y)]
    gap = (wide[0] - wide[1]).abs().to_plain().nan_to_num(0, 0, 0)
    size = wide[1].abs().to_plain().nan_to_num(0, 0, 0)
    # Smaller numbers may underflow in 16 bits.
    return float(gap.max() / size.max().clamp(min=1e-30)) if gap.numel() else 0.0


@pytest.mark.sampled(every=100, slow=1)
@pytest.mark.parametrize("name", COMPARED)
def test_value_of_each_sample_is_near_torchs(name: str) -> None:
    for case in calls.cases(10**6, [OPS[name]]):
        try:
            plain = case.arguments(torch.float64, False)
            want = OPS[name](plain[0], *plain[1], **plain[2])
            given = case.arguments(None, False)
            got = OPS[name](given[0], *given[1], **given[2])
        except calls.ERRORS:
            # Not supported, or wrong input; other tests say which.
            continue
        for x, y in zip(tensors(got), tensors(want), strict=True):
            if x.layout is torch.strided and y.is_floating_point():
                assert x.shape == y.shape
                assert distance(x, y) <= TOLERANCES[case.form[0]], f"{case}: {x} {y}"


def in_two_formats(plain: Any, first: bool, widened: bool) -> Any:
    """Return float64 operands as pairs: all but the first, or that one, of float32 numbers."""
    count = iter(range(10**6))

    def pair(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype is not torch.float64:
            return x
        narrow = (next(count) == 0) == first
        found = mcf.tensor(x, 2, torch.float32 if narrow else torch.float64)
        return found.to(torch.float64) if widened else found

    return tree_map(pair, plain)


@pytest.mark.sampled(every=100, slow=1)
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("first", [False, True])
def test_value_of_two_formats_has_the_digits_of_the_wider(name: str, first: bool) -> None:
    function: Callable[..., Any] = OPS[name]
    for case in calls.cases(1, [function]):
        results = []
        for widened in (False, True):
            torch.default_generator.manual_seed(1)
            try:
                plain = case.arguments(torch.float64, False)
                given = in_two_formats(plain, first, widened)
                results.append(tensors(function(given[0], *given[1], **given[2])))
            except calls.ERRORS:
                # As torch, many functions refuse operands of two dtypes.
                return
        for x, y in zip(*results, strict=True):
            # Results in the format of their own operand have its digits.
            if x.dtype is y.dtype is torch.float64 and x.layout is torch.strided:
                assert distance(x, y) <= 2.0**-92, f"{case}: {x} {y}"
