"""The elementary functions give the same bits on every executor, and in pieces of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mcf.elementary
from mcf.elementary import operator
from mcf.elementary.function_bounds import FUNCTIONS
from mcf.kernels import FP32, FP64, registry
from tests.helpers.elementary import inputs
from tests.helpers.everyday import everyday
from tests.helpers.executors import on_each_executor

# Between them they run every part: tables, series, reduction, quotients, roots.
_FEW = {"log1p", "sin", "acos", "erf"}
_ALL = everyday(FUNCTIONS, _FEW)


def _bits(x: tuple[Tensor, ...]) -> list[Tensor]:
    kinds = {torch.float64: torch.int64, torch.float32: torch.int32}
    return [c.view(kinds[c.dtype]) for c in x]


@pytest.mark.sampled(every=84)
@on_each_executor
@pytest.mark.parametrize("name", _ALL)
def test_executors_agree(name: str, executor: str) -> None:
    function = getattr(mcf.elementary, name)
    for fmt, terms in ((FP64, 2), (FP32, 2)):
        for arguments in inputs(name, fmt, terms, 6, seed=3):
            with registry.executor("torch"):
                expected = function(*arguments)
            with registry.executor(executor):
                found = function(*arguments)
            for a, b in zip(_bits(expected), _bits(found), strict=True):
                assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["sin", "atan2"])
def test_bits_do_not_depend_on_neighbours(
    name: str, monkeypatch: pytest.MonkeyPatch, on_torch: None
) -> None:
    """Steps that are skipped where no element of a piece needs them change nothing else."""
    for arguments in inputs(name, FP64, 2, 40, seed=5):
        together = getattr(mcf.elementary, name)(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(operator, "CHUNK", 3)
            apart = getattr(mcf.elementary, name)(*arguments)
        for a, b in zip(_bits(together), _bits(apart), strict=True):
            assert torch.equal(a, b)


def test_shapes_broadcast_and_may_be_empty() -> None:
    y = (torch.rand(3, 1), torch.zeros(3, 1))
    x = (torch.rand(2), torch.zeros(2))
    hi, lo = mcf.elementary.atan2(y, x)
    assert hi.shape == lo.shape == (3, 2)
    (nothing,) = mcf.elementary.exp((torch.zeros(0, 4),))
    assert nothing.shape == (0, 4)
    strided = torch.rand(4, 6, dtype=torch.float64).t()[::2]
    (a,) = mcf.elementary.exp((strided,))
    (b,) = mcf.elementary.exp((strided.contiguous(),))
    assert torch.equal(a, b)


def test_bad_input_is_refused() -> None:
    x = torch.ones(2)
    with pytest.raises(TypeError, match="argument 0 must be a tuple"):
        mcf.elementary.exp(x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 to 4 components, got 5"):
        mcf.elementary.exp((x,) * 5)
    with pytest.raises(TypeError, match="dtype"):
        mcf.elementary.exp((x, x.double()))
    with pytest.raises(TypeError, match="int64"):
        mcf.elementary.exp((torch.ones(2, dtype=torch.int64),))
    with pytest.raises(ValueError, match="do not broadcast"):
        mcf.elementary.atan2((x,), (torch.ones(3),))
    with pytest.raises(RuntimeError, match="derivative"):
        mcf.elementary.exp((x.requires_grad_(),))


@pytest.mark.slow
def test_one_operator_under_compile() -> None:
    x = (torch.linspace(-3, 3, 7), torch.zeros(7))

    def f(*c: Tensor) -> tuple[Tensor, ...]:
        return mcf.elementary.sin(mcf.elementary.exp(c))

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")(*x)
    for a, b in zip(compiled, f(*x), strict=True):
        assert torch.equal(a, b)
