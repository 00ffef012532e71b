"""Every function's results have torch's shapes, gradients and memory, and one set of bits.

Each function of `torch.testing`'s list runs on torch's own samples: on each executor, at the first,
second and later calls, with and without gradients. A fast path that begins at the second call, or
where nothing is recorded, is one of them. Caught mutants (tests/mcf/tensor/test_fact_mutants.py):
a path that skips autograd, one that returns its argument, one with another order of additions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

cases = pytest.importorskip("tests.mcf.tensor.every_function")

from tests.mcf.tensor.result_facts import Call, differences  # noqa: E402
from tests.mcf.tensor.test_every_function import OPS, REFUSED  # noqa: E402

# torch's own samples call what torch has deprecated, and variances of one element.
pytestmark = pytest.mark.filterwarnings("ignore")

# Functions whose results are another kind than torch's, with the reason.
APART: dict[str, str] = {}


def survey(name: str, count: int, calls: int, executors: tuple[str, ...]) -> list[str]:
    """Return all differences over some samples of a function."""
    op = OPS[name]
    found: list[str] = []
    for number, sample in enumerate(cases.samples(op, count)):
        ours, plain = cases.both(sample, torch.float64, 2)
        if not cases.floats(plain):
            continue
        call, other = Call(op, ours), Call(op, plain)

        def run(call: Call = call, other: Call = other) -> Any:
            return differences(call, other, calls, executors)

        seen = cases.attempt(run)
        if not isinstance(seen, str):
            found += [f"{name}, sample {number}: {line}" for line in seen]
    return found


NAMES = sorted(OPS.keys() - REFUSED - cases.RANDOM - APART.keys())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_function_has_torchs_facts_and_one_set_of_bits(name: str) -> None:
    found = survey(name, 6, 3, ("torch", "numba"))
    assert not found, "\n".join(found[:20])
