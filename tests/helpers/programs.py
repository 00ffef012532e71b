"""The kernels that `mcf.fused` makes of programs for Triton, which are not run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import mcf
from mcf.kernels.elementwise import Elementwise
from tests.helpers.steps import bodies, step


@contextmanager
def noted(run: bool = False) -> Iterator[list[Any]]:
    """What is made of stages here, in order: kernels, None for none.

    Args:
        run: whether those kernels run in Triton's interpreter; else their operators do.
    """
    # `mcf.fused` is a function, and hides what is below it from `import`.
    graphs = sys.modules["mcf.fusion.backend"]
    kernel_of = graphs.kernel_of  # type: ignore[attr-defined]
    made: list[Any] = []

    def kernel(*arguments: Any) -> Any:
        made.append(kernel_of(*arguments))
        return made[-1] if run or made[-1] is None else lambda given: None

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch, mcf.executor("triton"):
        patch.setattr(graphs, "kernel_of", kernel)
        yield made


def _declared(call: Callable[[], Any]) -> list[Elementwise]:
    with noted() as made:
        call()
    return [kernel.spec for kernel in made if kernel is not None]


def step_kernels(terms: int, dtype: torch.dtype) -> list[Elementwise]:
    """Those of a step of three bodies."""
    x, v = bodies(terms, dtype)
    return _declared(lambda: torch.compile(step, backend=mcf.fused)(x, v))


def derivative_kernels(terms: int, dtype: torch.dtype) -> list[Elementwise]:
    """Those of a step that keeps what its derivatives need, and of these."""
    x, v = (t.requires_grad_() for t in bodies(terms, dtype))

    def call() -> None:
        results = torch.compile(step, backend=mcf.fused)(x, v)
        torch.autograd.backward(results, [torch.ones_like(r) for r in results])

    return _declared(call)
