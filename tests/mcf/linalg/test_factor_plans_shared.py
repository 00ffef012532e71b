"""Exact: who else looks at factorisations at once, or calls them at the same time.

Caught mutant: scratch memory that another call has.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import mcf
from mcf.tensor import factor_plans
from tests.helpers import assert_alike
from tests.helpers.modes import Seen
from tests.mcf.linalg.test_factor_plans import CALLS, A, flattened, linalg, numbers, positive


@pytest.mark.sampled(every=4)
# Torch has no rule of its own for `lu`.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", CALLS)
def test_what_is_recorded_or_watched_goes_torchs_way(name: str) -> None:
    """A gradient, a mode, torch.func's transforms, forward derivatives; inference is at once."""
    call, a = CALLS[name], positive(A).detach()
    expected = flattened(call(a))
    factor_plans._plans.clear()

    def check(found: list[Any]) -> None:
        for got, want in zip(found, expected, strict=True):
            assert_alike(got.detach().clone(), want.clone(), name)

    leaf = a.clone().requires_grad_()
    found = flattened(call(leaf))
    assert any(x.requires_grad for x in found)
    check(found)
    with torch.no_grad():
        assert not any(x.requires_grad for x in flattened(call(leaf)))
    factor_plans._plans.clear()
    with Seen() as seen:
        check(flattened(call(a)))
    assert seen.seen
    mapped = torch.func.vmap(lambda x: tuple(flattened(call(x))))(torch.stack([a, a]))
    for got, want in zip(mapped, expected, strict=True):
        # Q of mode "r" has no elements.
        assert got.numel() == 0 or torch.equal(got[1], want)
    if name != "qr":  # torch refuses the derivative of mode "r".
        primal, tangent = torch.func.jvp(lambda x: flattened(call(x))[0], (a,), (a,))
        assert torch.equal(primal, expected[0])
        assert tangent.shape == primal.shape
    assert not factor_plans._plans
    with torch.inference_mode():
        check(flattened(call(a)))
    assert factor_plans._plans
    # What was kept in inference mode is used elsewhere.
    check(flattened(call(a)))
    (result,) = flattened(call(a))[:1]
    (result * leaf.sum()).sum().backward()
    with mcf.executor("torch"):
        check(flattened(call(a)))


def test_threads_share_plans() -> None:
    """Each thread has its own operands; the loops run without the interpreter's lock."""
    operands = [positive(numbers(6, 6) * (k + 1)) for k in range(4)]
    expected = [[*map(flattened, (c(a) for c in CALLS.values()))] for a in operands]
    start, wrong = threading.Barrier(len(operands)), []

    def work(k: int) -> None:
        start.wait()
        try:
            for _ in range(4):
                for call, want in zip(CALLS.values(), expected[k], strict=True):
                    for x, y in zip(flattened(call(operands[k])), want, strict=True):
                        assert_alike(x, y, "a thread's")
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(operands))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_results_are_not_written_to_again() -> None:
    """Nor are operands, and a singular matrix says nothing of the next."""
    a = numbers(3, 3)
    before = a.clone()
    first = [flattened(call(a)) for name, call in CALLS.items() if name != "cholesky"]
    kept = [[x.clone() for x in each] for each in first]
    with pytest.raises(linalg.LinAlgError):
        linalg.inv(a * 0)
    for name, call in CALLS.items():
        if name != "cholesky":
            call(a + 1)
    assert_alike(a, before, "an operand")
    for each, was in zip(first, kept, strict=True):
        for x, y in zip(each, was, strict=True):
            assert_alike(x, y, "a result")
