"""Every function's results have torch's shapes, gradients and memory, and one set of bits.

Each function of `torch.testing`'s list runs on torch's own samples: on each executor, at the first,
second and later calls, with and without gradients. A fast path that begins at the second call, or
where nothing is recorded, is one of them. Caught mutants, in the last tests: a path that skips
autograd, one that returns its argument, one with another algorithm.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf

cases = pytest.importorskip("tests.mcf.tensor.every_function")

from tests.mcf.tensor.result_facts import Call, differences, form_differences  # noqa: E402
from tests.mcf.tensor.test_every_function import OPS, REFUSED  # noqa: E402

# torch's own samples call what torch has deprecated, and variances of one element.
pytestmark = pytest.mark.filterwarnings("ignore")

# Functions whose results have other facts than torch's, with the reason.
APART = {
    "histogram": "torch records it and has no derivative; here the counts are constants",
    "linspace.tensor_overload": "ends that require gradients are refused",
}


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
            found = differences(call, other, calls, executors)
            return found + form_differences(op, call, executors)

        seen = cases.attempt(run)
        if not isinstance(seen, str):
            found += [f"{name}, sample {number}: {line}" for line in seen]
    return found


NAMES = sorted(OPS.keys() - REFUSED - cases.RANDOM - APART.keys())


# Functions with a fault of each sort in the past, and some that compile nothing long.
FEW = ("amax", "cummax", "linalg.householder_product", "tensordot")


@pytest.mark.parametrize("name", FEW)
def test_few_functions_have_torchs_facts_and_one_set_of_bits(name: str) -> None:
    found = survey(name, 4, 3, ("torch", "numba"))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("name", NAMES[::48])
def test_some_functions_have_torchs_facts_on_the_torch_executor(name: str) -> None:
    found = survey(name, 2, 2, ("torch",))
    assert not found, "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_function_has_torchs_facts_and_one_set_of_bits(name: str) -> None:
    found = survey(name, 6, 3, ("torch", "numba"))
    assert not found, "\n".join(found[:20])


def _mutant(monkeypatch: pytest.MonkeyPatch, name: str, replaced: Any) -> list[str]:
    """Return the differences that the survey finds in a function that a mutant replaces."""

    class Mutant:
        inplace_variant, supports_out = None, False

        def __call__(self, *given: Any, **options: Any) -> Any:
            if not isinstance(given[0], mcf.MCFTensor):
                return OPS[name](*given, **options)
            return replaced(*given, **options)

        def __getattr__(self, attribute: str) -> Any:
            return getattr(OPS[name], attribute)

    op = OPS[name]
    monkeypatch.setitem(OPS, name, Mutant())
    assert op is not OPS[name]
    found = []
    for sample in cases.samples(op, 3):
        ours, plain = cases.both(sample, torch.float64, 2)
        found += differences(Call(OPS[name], ours), Call(op, plain), 2, ("torch",))
    return found


def test_a_mutant_that_skips_autograd_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _mutant(monkeypatch, "exp", lambda x: torch.exp(x.detach()))
    assert any("requires_grad=False, torch True" in line for line in found)


def test_a_mutant_that_returns_its_argument_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _mutant(monkeypatch, "positive", lambda x: x.view(x.shape))
    assert any("argument=None, torch 0" in line for line in found)
    found = _mutant(monkeypatch, "clone", lambda x, **options: x)
    assert any("argument=0, torch None" in line for line in found)


def test_a_mutant_with_another_algorithm_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(x: Any) -> Any:
        return torch.exp(x) if x.requires_grad else torch.exp(x / 2).square()

    found = _mutant(monkeypatch, "exp", other)
    assert any("other bits than the first call" in line for line in found)
