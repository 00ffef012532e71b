"""No function of torch falls back to the leading component in silence.

Each function of `torch.testing`'s list runs on expansions of two float32 components, which have
some 48 bits, and on float64 tensors of the same values. The results agree to 2^-38 of the largest
one, or an error says that the function is not supported, and `docs/functions.md` says so, too. The
tolerance leaves ten bits to conditioning; a result of the leading components is off by 2^-24.

Caught mutants: a function of the first component alone; a number read through a float32.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import mcf

cases = pytest.importorskip("tests.mcf.expansions.every_function")

# torch's own samples call what torch has deprecated, and variances of one element.
# Values; the executors have the same bits by other tests.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

PAGE = (Path(__file__).parents[3] / "docs" / "functions.md").read_text()
SUPPORTED, REFUSED = (
    set(re.findall(r"`([^`]+)`", PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]))
    for title in ("Supported", "Refused")
)
OPS = {cases.name_of(op): op for op in cases.functions()}
# On the page and not in this torch.
NEW = {
    "linalg.matrix_sqrth",
    "linalg.polar",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
}
OF_OTHER_VERSIONS = {"cholesky", "qr"} if hasattr(torch.linalg, "polar") else NEW
# What torch's derivative in float64 has wrong or clips, or an ill-conditioned sample.
ROUGH_GRADIENTS = {
    "nn.functional.hardsigmoid": "torch has 1/6 in float32",
    "nn.functional.binary_cross_entropy": "torch clips x (1 - x) at 1e-12",
    "nn.functional.normalize": "a sum that cancels",
    "logcumsumexp": "torch's has a difference of exponentials that cancels",
    "special.entr": "NaN in torch where the value is -inf",
    **dict.fromkeys(
        ("cholesky_solve", "cholesky_inverse"),
        "torch has other numbers than 0 for the half of the factor that is not read",
    ),
}

# torch's first samples have whole numbers only; test_counting.py has others. The other's are
# numbers.
NO_FLOATS = {"logspace.tensor_overload", "normal.number_mean"}


def outcomes(op: Any, count: int, dtype: torch.dtype, terms: int, tolerance: float) -> set[str]:
    name, seen = cases.name_of(op), set()
    for sample in cases.samples(op, count):
        ours, plain = cases.both(sample, dtype, terms)
        if not cases.floats(plain):
            continue
        torch.default_generator.manual_seed(1)
        try:
            want = op(plain[0], *plain[1], **plain[2])
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            continue
        torch.default_generator.manual_seed(1)
        got = cases.attempt(lambda ours=ours: op(ours[0], *ours[1], **ours[2]))
        if isinstance(got, str):
            seen.add(got)
            continue
        cases.compare(name, got, want, tolerance)
        seen.add(cases.RIGHT)
    return seen


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("name", OPS)
def test_right_or_refused(name: str) -> None:
    seen = outcomes(OPS[name], 2, torch.float32, 2, 2.0**-38)
    if name in REFUSED:
        assert seen <= {cases.REFUSED}
    elif name in SUPPORTED and name not in NO_FLOATS:
        assert cases.RIGHT in seen


# Half a second each, and eighteen hundred: asked for is one in four, with the forms in turn.
@pytest.mark.slow
@pytest.mark.sampled(slow=4)
@pytest.mark.parametrize("form", [("bfloat16", 4, -20), ("float64", 3, -44), ("float32", 2, -38)])
@pytest.mark.parametrize("name", sorted(OPS.keys() - REFUSED))
def test_right_or_refused_in_other_formats(name: str, form: tuple[str, int, int]) -> None:
    dtype, terms, exponent = form
    outcomes(OPS[name], 8, getattr(torch, dtype), terms, 2.0**exponent)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPS.keys() - REFUSED))
def test_gradients_are_expansions(name: str) -> None:
    op = OPS[name]
    if not op.supports_autograd or name in cases.RANDOM | cases.OTHERWISE.keys():
        return
    for sample in cases.samples(op, 4):
        ours, plain = cases.both(sample, torch.float32, 2)
        ends = [cases.floats(x) for x in (ours, plain)]
        for x in ends[0] + ends[1]:
            x.requires_grad_()
        try:
            want = [y for y in cases.floats(op(plain[0], *plain[1], **plain[2])) if y.requires_grad]
            weights = [torch.rand(y.shape, dtype=torch.float32) for y in want]
            wanted = torch.autograd.grad(
                want, ends[1], [w.double() for w in weights], allow_unused=True
            )
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            continue
        got = cases.attempt(lambda ours=ours: op(ours[0], *ours[1], **ours[2]))
        if isinstance(got, str) or not want:
            continue
        pairs = [y for y in cases.floats(got) if y.requires_grad]
        given = cases.attempt(
            lambda pairs=pairs, ends=ends, weights=weights: torch.autograd.grad(
                pairs, ends[0], [mcf.tensor(w, 2) for w in weights], allow_unused=True
            )
        )
        if isinstance(given, str):
            continue
        for x, y in zip(given, wanted, strict=True):
            if x is None or y is None:
                # No gradient is a zero.
                assert y is None or not (y != 0).any(), name
                continue
            if not isinstance(x, mcf.MCFTensor):
                # torch's own zeros.
                assert not (x != 0).any(), name
                continue
            if name not in ROUGH_GRADIENTS:
                cases.compare(name, x, y, 2.0**-36)


def test_the_page_lists_every_function() -> None:
    assert not SUPPORTED & REFUSED
    if torch.__version__.startswith(("2.13", "2.14")):
        assert OPS.keys() == (SUPPORTED | REFUSED) - OF_OTHER_VERSIONS


@pytest.mark.slow
def test_methods_and_in_place_forms_have_the_bits_of_the_function() -> None:
    """The first sample of each; a method that rounds would differ."""
    checked = 0
    for name, op in OPS.items():
        if name in REFUSED | cases.RANDOM or not (op.method_variant or op.inplace_variant):
            continue
        sample = next(cases.samples(op, 1), None)
        if sample is None:
            continue
        (x, args, kwargs), _ = cases.both(sample, torch.float32, 2)
        want = cases.attempt(lambda x=x, args=args, kwargs=kwargs, op=op: op(x, *args, **kwargs))
        if not isinstance(want, mcf.MCFTensor) or not isinstance(x, mcf.MCFTensor):
            continue
        forms = [(op.method_variant, x)]
        if (want.shape, want.dtype) == (x.shape, x.dtype):
            forms.append((op.inplace_variant, x.clone()))
        for form, given in forms:
            if form is None:
                continue
            got = cases.attempt(
                lambda form=form, given=given, args=args, kwargs=kwargs: form(
                    given, *args, **kwargs
                )
            )
            if isinstance(got, str):
                continue
            assert isinstance(got, mcf.MCFTensor), name
            same = (got == want) | (got.isnan() & want.isnan())
            assert same.all(), name
            checked += 1
    assert checked > 150
