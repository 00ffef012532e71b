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

# torch's first samples have whole numbers only; test_composed.py has others. The other's are
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


def test_the_page_lists_every_function() -> None:
    assert not SUPPORTED & REFUSED
    if torch.__version__.startswith(("2.13", "2.14")):
        assert OPS.keys() == (SUPPORTED | REFUSED) - OF_OTHER_VERSIONS
