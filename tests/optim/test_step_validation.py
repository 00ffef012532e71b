"""What a step refuses, before it touches any parameter or state.

Each mistake is made on the last of several parameters, and all bits before and after are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import AdamW
from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.helpers import assert_same_bits
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    assert_same,
    parameter,
    parameters,
    steps,
    stored,
)

pytestmark = pytest.mark.usefixtures("on_torch")


def assert_nothing_changes(
    optimizer: LowPrecisionOptimizer, error: type[Exception], words: str
) -> None:
    """step() raises with these words, and no bit, state or count is different after."""
    before = stored(optimizer)
    with pytest.raises(error, match=words):
        optimizer.step()
    assert_same(stored(optimizer), before)


def with_gradients(stepped: bool) -> tuple[AdamW, Tensor]:
    """Two groups, all with gradients and maybe states; and the last parameter."""
    first, second, last = parameter(3, BF16, 1), parameter((2, 2), FP32, 2), parameter(4, BF16, 3)
    optimizer = AdamW([{"params": [first, second]}, {"params": [parameter(5, BF16), last]}])
    if stepped:
        steps(optimizer, 2)
    for p in parameters(optimizer):
        p.grad = torch.ones_like(p)
    return optimizer, last


# torch refuses most of these when they are assigned; `Given` lets them pass, as wrappers may.
GRADIENTS: list[tuple[str, Callable[[Tensor], None], type[Exception], str]] = [
    ("sparse", lambda p: setattr(p, "grad", torch.ones(4, dtype=BF16).to_sparse()), TypeError,
     "grad has layout torch.sparse_coo; sparse gradients are not supported"),
    ("dtype", lambda p: give_gradient(p, torch.ones(4, dtype=FP16)), TypeError,
     "grad has dtype torch.float16; allowed is its parameter's, torch.bfloat16 or torch.float32"),
    ("double", lambda p: give_gradient(p, torch.ones(4, dtype=FP64)), TypeError,
     "grad has dtype torch.float64; allowed is its parameter's, torch.bfloat16 or torch.float32"),
    ("shape", lambda p: give_gradient(p, torch.ones(2, 2, dtype=BF16)), ValueError,
     r"grad has shape torch.Size\(\[2, 2\]\); allowed is its parameter's, torch.Size\(\[4\]\)"),
    ("complex", lambda p: give_gradient(p, torch.ones(4, dtype=torch.complex64)), TypeError,
     "grad has dtype torch.complex64; allowed"),
    ("integer", lambda p: give_gradient(p, torch.ones(4, dtype=torch.int64)), TypeError,
     "grad has dtype torch.int64; allowed"),
    ("device", lambda p: give_gradient(p, torch.ones(4, dtype=BF16, device="meta")), TypeError,
     "grad has device meta; allowed is its parameter's, cpu"),
]  # fmt: skip


class Given(Parameter):
    """A parameter that takes any gradient."""

    @property
    def grad(self) -> Any:
        return self.__dict__.get("given")

    @grad.setter
    def grad(self, value: Any) -> None:
        self.__dict__["given"] = value


def give_gradient(p: Tensor, g: Tensor) -> None:
    p.__class__ = Given
    p.grad = g


@pytest.mark.sampled
@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize(
    ("what", "spoil", "error", "words"), GRADIENTS, ids=[r[0] for r in GRADIENTS]
)
def test_gradient(
    what: str, spoil: Callable[[Tensor], None], error: type[Exception], words: str, stepped: bool
) -> None:
    optimizer, last = with_gradients(stepped)
    spoil(last)
    where = r"params\[1\] of param_groups\[1\]\."
    before = stored(optimizer)
    before.pop("3.grad", None)
    with pytest.raises(error, match=where + words):
        optimizer.step()
    after = stored(optimizer)
    after.pop("3.grad", None)
    assert_same(after, before)


def test_sparse_gradients_raise_as_in_torch() -> None:
    # torch raises RuntimeError; ours is that as well.
    optimizer, last = with_gradients(False)
    last.grad = torch.ones(4, dtype=BF16).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


CHANGES: list[tuple[str, Callable[[Tensor], Any], str]] = [
    # float32 parameters have no low words at all.
    ("wider", lambda p: p.data.to(FP32), "its rule, precision and dtype need"),
    ("other", lambda p: p.data.to(FP16), "dtype torch.float16"),
    ("longer", lambda p: torch.ones(6, dtype=BF16), r"shape \[6\]"),
    ("reshaped", lambda p: p.data.view(2, 2), r"shape \[2, 2\]"),
]


@pytest.mark.parametrize(("change", "words"), [r[1:] for r in CHANGES], ids=[r[0] for r in CHANGES])
def test_parameter_changed_after_its_state_was_made(
    change: Callable[[Tensor], Any], words: str
) -> None:
    optimizer, last = with_gradients(True)
    last.grad = None
    last.data = change(last)
    last.grad = torch.ones_like(last)
    message = rf"params\[1\] of param_groups\[1\].*{words}"
    assert_nothing_changes(optimizer, ValueError, message)


def test_state_on_another_device() -> None:
    # As after model.to(device) with states made before.
    optimizer, last = with_gradients(True)
    before = stored(optimizer)
    kept = optimizer.state[last]["exp_avg"]
    optimizer.state[last]["exp_avg"] = kept.to("meta")
    words = r"state 'exp_avg' of params\[1\] of param_groups\[1\] is on the meta device"
    with pytest.raises(TypeError, match=words):
        optimizer.step()
    optimizer.state[last]["exp_avg"] = kept
    assert_same(stored(optimizer), before)


def test_executor_that_cannot_run_here() -> None:
    first, last = parameter(3, BF16), Parameter(torch.zeros(4, dtype=BF16, device="meta"))
    optimizer = AdamW([first, last])
    for p in (first, last):
        p.grad = torch.ones_like(p)
    before = first.detach().clone()
    with mcf.executor("numba"), pytest.raises(ValueError, match="'numba' runs on CPU tensors"):
        optimizer.step()
    assert_same_bits(first, before)
    assert not optimizer.state


def test_parameter_that_became_expanded() -> None:
    optimizer, last = with_gradients(True)
    last.data = torch.ones(1, dtype=BF16).expand(4)
    assert_nothing_changes(optimizer, ValueError, r"params\[1\] of param_groups\[1\] is expanded")


def test_nothing_is_made_for_earlier_parameters() -> None:
    optimizer, last = with_gradients(False)
    last.grad = torch.ones(4, dtype=BF16).to_sparse()
    with pytest.raises(TypeError):
        optimizer.step()
    assert not any(optimizer.state.get(p) for p in parameters(optimizer))


def test_closure_runs_before_the_checks() -> None:
    optimizer, last = with_gradients(True)
    last.grad = torch.ones(4, dtype=BF16).to_sparse()

    def closure() -> float:
        last.grad = torch.ones(4, dtype=BF16)
        return 1.0

    assert optimizer.step(closure) == 1.0
    assert optimizer.state[last]["step"].item() == 3
