"""Made-up training of optimizers, snapshots of them, and what they refuse."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.helpers import assert_same_bits
from tests.helpers.draws import bell
from tests.optim.arithmetics import FP64


def random(shape: Sequence[int] | int, dtype: torch.dtype, seed: int, scale: float = 1.0) -> Tensor:
    """Seeded numbers around zero, the same before rounding for every dtype."""
    return (bell(shape, seed) * scale).to(dtype)


def parameter(shape: Sequence[int] | int, dtype: torch.dtype, seed: int = 0) -> Parameter:
    """A parameter of seeded numbers."""
    return Parameter(random(shape, dtype, seed))


def steps(optimizer: torch.optim.Optimizer, count: int, seed: int = 1, scale: float = 0.1) -> None:
    """Steps on seeded gradients, each parameter's own."""
    for t in range(count):
        for k, p in enumerate(parameters(optimizer)):
            p.grad = random(p.shape, p.dtype, seed + 1000 * t + k, scale)
        optimizer.step()


def give_gradients(optimizer: torch.optim.Optimizer, t: int) -> None:
    """Set seeded gradients of a step, each parameter's own."""
    for k, p in enumerate(parameters(optimizer)):
        p.grad = random(p.shape, p.dtype, 100 * t + k, 0.1)


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """All parameters, in order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def stored(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies of all parameters, gradients and states, by name."""
    found = {}
    for k, p in enumerate(parameters(optimizer)):
        found[f"{k}.param"] = p.detach().clone()
        if p.grad is not None and p.grad.layout is torch.strided:
            found[f"{k}.grad"] = p.grad.clone()
        for name, value in optimizer.state.get(p, {}).items():
            found[f"{k}.{name}"] = value.clone()
    return found


class Given(Parameter):
    """A parameter that takes any gradient."""

    @property
    def grad(self) -> Any:
        return self.__dict__.get("given")

    @grad.setter
    def grad(self, value: Any) -> None:
        self.__dict__["given"] = value


def force(p: Tensor, g: Tensor) -> None:
    """Set a gradient that torch may refuse."""
    p.__class__ = Given
    p.grad = g


def give(p: Tensor, g: Tensor) -> None:
    """Set a gradient of any dtype; before torch 2.10 a plain parameter takes only its own."""
    if hasattr(p, "grad_dtype"):
        p.grad_dtype = g.dtype
        p.grad = g
    else:
        force(p, g)


def without_gradients(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a result of `stored` without gradients."""
    return {name: t for name, t in found.items() if not name.endswith(".grad")}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], what: str = "") -> None:
    """Fail where two results of `stored` differ in a name or in any bit."""
    assert actual.keys() == expected.keys(), what
    for name, tensor in expected.items():
        assert_same_bits(actual[name], tensor, f"{what} {name}")


def value(optimizer: LowPrecisionOptimizer, p: Tensor) -> Tensor:
    """The number a parameter stores: the exact sum of its components, in float64."""
    total = torch.zeros(p.shape, dtype=FP64)
    for component in optimizer.master_weight(p, exact=True):
        total += component.detach().double()
    return total


def second_moment(optimizer: torch.optim.Optimizer, p: Tensor) -> Tensor:
    """The number a second moment stores, in float64."""
    state = optimizer.state[p]
    return state["exp_avg_sq"].double() + (
        state["exp_avg_sq_lo"].double() if "exp_avg_sq_lo" in state else 0.0
    )


def refuses(optimizer: Any, error: Any, words: str) -> BaseException:
    """Fail unless step() raises with these words and no bit, state or count is different after."""
    before = stored(optimizer)
    with pytest.raises(error, match=words) as found:
        optimizer.step()
    assert_same(stored(optimizer), before)
    return found.value


def copy_weights(target: torch.optim.Optimizer, source: torch.optim.Optimizer) -> None:
    """Give an optimizer's parameters the values of another's."""
    for p, q in zip(parameters(target), parameters(source), strict=True):
        p.data.copy_(q.data)


def through_file(state: Any) -> Any:
    """Save and load an object as checkpoints are."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def scaler(scale: float = 2.0**10, **options: Any) -> GradScaler:
    """A GradScaler whose scale is there from the start."""
    made = GradScaler("cpu", init_scale=scale, **options)
    made.scale(torch.zeros(1))
    return made


class _Seen(TorchDispatchMode):
    """Sees operators alone, so that kernels are not called otherwise."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def in_full(optimizer: Any) -> Any:
    """Return the optimizer with each step checked in full and made by the opaque operator."""
    take = optimizer._take

    def taken(steps: Any, request: Any) -> None:
        steps.forget()
        with _Seen():
            take(steps, request)
        assert steps._repeat is None

    optimizer._take = taken
    return optimizer
