"""`torch.compile(backend=mcf.fused)`: one kernel for a step, with the bits of the eager program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import mcf
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday
from tests.helpers.steps import acceleration, bodies, step

SLOW = pytest.mark.slow
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    """torch's own functions are all compiled in one frame, which has a limit."""
    torch._dynamo.reset()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is made of the stages of a graph: kernels, None for none."""
    import sys

    module = sys.modules["mcf.fusion.backend"]
    made: list[Any] = []
    kernel_of = module.kernel_of  # type: ignore[attr-defined]

    def noted(*arguments: Any) -> Any:
        made.append(kernel_of(*arguments))
        return made[-1]

    monkeypatch.setattr(module, "kernel_of", noted)
    return made


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(f, backend=mcf.fused)  # type: ignore[no-any-return]


def expansion(shape: tuple[int, ...], seed: int) -> Any:
    return mcf.from_components((bell(shape, seed), bell(shape, seed + 10) * 2.0**-60))


def same(x: Any, y: Any) -> None:
    """The same bits, shapes and layouts."""
    if isinstance(x, tuple):
        assert len(x) == len(y)
        for a, b in zip(x, y, strict=True):
            same(a, b)
        return
    assert type(x) is type(y)
    assert x.shape == y.shape
    assert x.stride() == y.stride()
    assert x.requires_grad == y.requires_grad
    for a, b in zip(x.components, y.components, strict=True):
        assert torch.equal(a.view(BITS[a.itemsize]), b.view(BITS[b.itemsize]))


@SLOW
@pytest.mark.parametrize("terms", [2, 3, 4])
def test_a_step_is_one_kernel(terms: int, launched: list[Any]) -> None:
    x, v = bodies(terms, torch.float64)
    same(compiled(step)(x, v), step(x, v))
    assert len(launched) == 1
    assert launched[0] is not None


def test_an_acceleration_is_one_kernel(launched: list[Any]) -> None:
    x, _ = bodies(2, torch.float64)
    same(compiled(acceleration)(x), acceleration(x))
    assert len(launched) == 1
    assert launched[0] is not None


def test_systems_are_lanes_of_the_kernel(launched: list[Any]) -> None:
    x, _ = bodies(2, torch.float64, systems=19)
    same(compiled(acceleration)(x), acceleration(x))
    assert len(launched) == 1
    assert launched[0].systems == 19


@SLOW
def test_vmap_with_an_operand_for_all(launched: list[Any]) -> None:
    x, v = bodies(2, torch.float64, systems=5)
    mapped = torch.func.vmap(step, in_dims=(0, None))
    same(compiled(mapped)(x, v[0]), step(x, v[:1].expand(5, 3, 2)))
    assert len(launched) == 1
    assert launched[0].systems == 5


def test_derivatives_are_kernels(launched: list[Any]) -> None:
    def energy(x: Any, v: Any) -> Any:
        return (x * v * x.square().sum(-1, keepdim=True)).sum()

    operands = expansion((2, 2), 1), expansion((2, 2), 2)
    grads = []
    for f in (energy, compiled(energy)):
        x, v = (t.clone().requires_grad_() for t in operands)
        f(x, v).backward()
        grads.append((x.grad, v.grad))
    same(*grads)
    assert None not in launched
    assert len(launched) >= 2


@SLOW
def test_unknown_operators_run_as_they_are(launched: list[Any]) -> None:
    def f(x: Any, y: Any) -> Any:
        ordered = (x * y + x).sort(0)[0]
        return ordered * ordered - y, x.exp() / y

    x, y = expansion((3, 2), 1), expansion((3, 2), 2)
    same(compiled(f)(x, y), f(x, y))
    assert len(launched) == 2
    assert None not in launched


def test_views_mutations_and_what_is_returned() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x + y
        x.mul_(z)
        return x, z[0], y, z.t(), z * 2

    y = bodies(2, torch.float64)[0]
    x, z = y.clone(), y.clone()
    want, got = f(x, y), compiled(f)(z, y)
    same(got, want)
    same(z, x)
    assert got[0] is z
    assert got[2] is y


def test_special_numbers() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * y + x, (x / y).sum(-1), -(x - y), (y * y).rsqrt()

    specials = [float("inf"), -0.0, 0.0, float("nan"), 2.0**-1074, 2.0**1023, 1.0, -1.0]
    first = torch.tensor(specials, dtype=torch.float64)
    rows = torch.stack([first.repeat(8), first.repeat_interleave(8)])
    x, y = (
        mcf.from_components((c.view(32, 2), torch.zeros(32, 2, dtype=torch.float64))) for c in rows
    )
    same(compiled(f)(x, y), f(x, y))


@SLOW
def test_every_shape_has_its_kernel(launched: list[Any]) -> None:
    def f(x: Any, y: float) -> Any:
        return (x * x).sum(-1) + y

    fast = torch.compile(f, backend=mcf.fused, dynamic=True)
    for rows, columns in ((2, 3), (4, 3), (2, 3), (1, 1)):
        x = expansion((rows, columns), 3)
        for number in (0.5, 0.25):
            same(fast(x, number), f(x, number))
    assert launched
    assert None not in launched


@pytest.mark.slow
@pytest.mark.parametrize("scale", everyday([1.0, 2.0**1020, 2.0**-1000], [1.0]))
def test_functions_and_selections(scale: float, launched: list[Any]) -> None:
    """Where a formula lacks a step, as `sin` of 2**1020 does, the operators run."""

    def f(x: Any, y: Any) -> Any:
        z = torch.where(x < y, x.sin(), -y)
        return z.abs() + torch.maximum(x, y), (x @ y.t()).mean(-1)

    x, y = expansion((2, 2), 1) * scale, expansion((2, 2), 2)
    same(compiled(f)(x, y), f(x, y))
    assert len(launched) == 1
    assert launched[0] is not None


@SLOW
def test_what_is_too_long_is_two_kernels(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcf.kernels import registry

    monkeypatch.setattr(type(registry.named("numba")), "longest", 150)

    def f(x: Any, y: Any) -> Any:
        z = (x * y + torch.ones(2, 2, dtype=torch.float64)).sum(-1, keepdim=True)
        return z - x * z, z

    x, y = expansion((2, 2), 1), expansion((2, 2), 2)
    same(compiled(f)(x, y), f(x, y))
    assert len([k for k in launched if k is not None]) >= 2
    assert launched[0] is None


@SLOW
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_formats(dtype: torch.dtype) -> None:
    x, v = bodies(2 if dtype == torch.float32 else 3, dtype)
    same(compiled(step)(x, v), step(x, v))


def test_a_negative_view() -> None:
    """Its memory has the numbers before the sign."""

    def f(x: Any, y: Any) -> Any:
        return (x * y + x).sum(0)

    y = torch.view_as_complex(bell((3, 2), 4)).conj().imag
    assert y.is_neg()
    x = expansion((3,), 1)
    same(compiled(f)(x, y), f(x, y))


def test_the_torch_executor_runs_operators(launched: list[Any]) -> None:
    def f(x: Any, y: Any) -> Any:
        return x * y - y

    x, y = expansion((2, 2), 1), expansion((2, 2), 2)
    with mcf.executor("torch"):
        same(compiled(f)(x, y), f(x, y))
    assert launched == [None]


def test_options_are_refused() -> None:
    with pytest.raises(TypeError, match="no options, got 'fast'"):
        mcf.fused(None, [], fast=True)
