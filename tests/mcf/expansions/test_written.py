"""Exact: `out=` and functions in place write the bits of the result, whatever memory is shared.

Caught mutants: a result over an operand that is still to be read; blocks where an operand lies a
little off the target; another format taken for one's own; operands of `gt` not exchanged; a plain
`out` for an expansion.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import calls, elementwise
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

NAMES = ("add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _tensor(*shape: int, seed: int = 1, terms: int = 2, dtype: Any = torch.float64) -> Any:
    count = math.prod(shape)
    flat = hard(dtype, terms, max(8, count), seed)
    return mcf.MCFTensor([c[:count].reshape(shape).clone() for c in flat])


def _same(got: Any, expected: Any, what: str) -> None:
    assert_all_same_bits(got.components, expected.components, what)


@pytest.mark.parametrize("name", everyday(NAMES, NAMES[:3]))
def test_out_of_two(name: str) -> None:
    function = getattr(torch, name)
    x, y = _tensor(24), _tensor(24, seed=2)
    expected = function(x, y)
    targets = {
        "new": torch.empty_like(x),
        "other terms": _tensor(24, terms=3),
        "fewer terms": _tensor(24, terms=1),
        "another dtype": _tensor(24, dtype=torch.float32),
        "not contiguous": _tensor(24, 2)[:, 0],
    }
    for what, out in targets.items():
        assert function(x, y, out=out) is out
        _same(out, _tensor(24, terms=out.terms, dtype=out.dtype).copy_(expected), what)
    for k in range(2):
        both = [x.clone(), y.clone()]
        function(*both, out=both[k])
        _same(both[k], expected, "an operand")
    same = x.clone()
    function(same, same, out=same)
    _same(same, function(x, x), "both operands")


@pytest.mark.slow
def test_out_of_one_and_of_numbers() -> None:
    x, out = _tensor(24).abs(), _tensor(24, seed=3)
    for name in ("sqrt", "reciprocal", "rsqrt", "exp", "neg"):
        getattr(torch, name)(x, out=out)
        _same(out, getattr(torch, name)(x), name)
    torch.mul(x, 0.1, out=out)
    _same(out, x * 0.1, "a number")
    torch.add(x, x, alpha=3, out=out)
    _same(out, torch.add(x, x, alpha=3), "alpha")
    torch.where(x > 1, x, out, out=out)
    torch.clamp(x, 0.5, 2, out=out)
    _same(out, torch.clamp(x, 0.5, 2), "clamp")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", COMPARISONS)
def test_out_of_comparisons(name: str) -> None:
    function = getattr(torch, name)
    x = mcf.MCFTensor([torch.tensor([1.0, 1.0, 2.0, math.nan]), torch.zeros(4)])
    for y in (mcf.MCFTensor([torch.tensor([1.0, 2.0, 1.0, 1.0])]), 1.0, 0.1):
        expected = function(x, y)
        for dtype in (torch.bool, torch.float32, torch.uint8):
            out = torch.empty(4, dtype=dtype)
            assert function(x, y, out=out) is out
            assert torch.equal(out, expected.to(dtype))
        truth = torch.empty(4, 2, dtype=torch.bool)[:, 1]
        assert torch.equal(function(x, y, out=truth), expected)
    with pytest.warns(UserWarning, match=r"had shape \[3\], which does not match .* \[4\]"):
        out = function(x, x, out=torch.empty(3, dtype=torch.bool))
    assert torch.equal(out, function(x, x))


def test_what_out_refuses() -> None:
    x = _tensor(24)
    with pytest.raises(NotImplementedError, match="would round its result to `out`"):
        torch.mul(x, x, out=torch.empty(24, dtype=torch.float64))
    one = _tensor(24, terms=1)
    with pytest.raises(NotImplementedError, match="would round its result to `out`"):
        torch.mul(one, one, out=torch.empty(24, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.mul(x, x, out=_tensor(1).expand(24))
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        torch.mul(x.clone().requires_grad_(), x, out=_tensor(24))
    with pytest.raises(RuntimeError, match="cannot be written"):
        _tensor(1).mul_(x)


SHARED = "some elements of the input tensor and the written-to tensor refer to a single memory"


@pytest.mark.parametrize("shift", [0, 1, 5, 24])
def test_shared_memory(shift: int) -> None:
    """The target begins some elements after an operand in the same memory: torch refuses parts."""
    for place in (slice(0, 24), slice(shift, shift + 24)):
        memory = _tensor(48)
        x, out = memory[place], memory[shift if place.start == 0 else 0 :][:24]
        y, kept = _tensor(24, seed=2), memory.clone()
        calls = (
            lambda x=x, y=y, out=out: torch.mul(x, y, out=out),
            lambda x=x, out=out: out.mul_(x),
        )
        for call, expected in zip(calls, (torch.mul(x, y), out * x), strict=True):
            if 0 < shift < 24:
                for attempt in (
                    call,
                    lambda x=x, out=out: out.sigmoid_().copysign_(x),
                    lambda x=x, y=y, out=out: torch.where(x > 0, x, y, out=out),
                ):
                    with pytest.raises(RuntimeError, match=SHARED):
                        attempt()
                continue
            memory.copy_(kept)
            call()
            _same(out, expected, f"shift {shift}")


def test_a_number_of_the_target_itself() -> None:
    x = _tensor(4)
    expected = x.masked_fill(x > 1, x[0].item())
    _same(x.masked_fill_(x > 1, x[0]), expected, "filled")
    for call in (lambda: x.add_(x[0]), lambda: torch.mul(x, x[:1], out=x)):
        with pytest.raises(RuntimeError, match=SHARED):
            call()
    every_other, next_to_it = x[::2], x[1::2]
    expected = every_other + next_to_it
    _same(every_other.add_(next_to_it), expected, "with gaps")
    square = _tensor(3, 3)
    with pytest.raises(RuntimeError, match=SHARED):
        square.add_(square.T)


@pytest.mark.parametrize("shift", [-5, 1, 7, 24])
def test_memory_shared_with_another_component(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch cannot see, who looks at first components."""
    for few in (False, True):
        monkeypatch.setattr(elementwise, "_KEPT", 1024 if few else 0)
        calls._calls.clear()
        memory, (top, low) = torch.zeros(60, dtype=torch.float64), hard(torch.float64, 2, 24, 1)
        memory[12:36] = low
        x = mcf.MCFTensor([top, memory[12:36]])
        out = mcf.MCFTensor([memory[12 + shift :][:24], torch.zeros(24, dtype=torch.float64)])
        y = _tensor(24, seed=2)
        expected = torch.mul(x, y)
        torch.mul(x, y, out=out)
        _same(out, expected, f"shift {shift}")
    calls._calls.clear()


@pytest.mark.slow
def test_in_place_in_blocks() -> None:
    x, y = _tensor(40, 60), _tensor(40, 60, seed=2)
    for function, name in ((torch.add, "add_"), (torch.mul, "mul_"), (torch.div, "div_")):
        for other in (y, 0.1, y[0], y[0, 0], y.components[0]):
            target = x.clone()
            assert getattr(target, name)(other) is target
            _same(target, function(x, other), name)
    target = x.clone()
    target += target
    _same(target, x + x, "itself")


def test_versions() -> None:
    """A write is seen by torch, which refuses a derivative that needs old values."""
    x, y = _tensor(24), _tensor(24, seed=2)
    a, out = x.clone().requires_grad_(), y.clone()
    truth = torch.ones(24, dtype=torch.bool)
    for write in (lambda: torch.mul(x, y, out=out), lambda: out.mul_(y)):
        product = (a * out).sum()
        before = out._version
        write()
        assert out._version == before + 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    torch.lt(x, y, out=truth)
    assert truth._version == 1
    with torch.inference_mode():
        inside = x * y
        torch.mul(x, y, out=inside)
        _same(inside.mul_(y), x * y * y, "in inference mode")


def test_derivatives_of_functions_in_place() -> None:
    x, y = _tensor(8), _tensor(8, seed=2)
    slopes = []
    for in_place in (False, True):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        c = a * 2
        c = c.mul_(b).add_(a) if in_place else c * b + a
        slopes.append(torch.autograd.grad(c.sum(), (a, b)))
    for one, other in zip(*slopes, strict=True):
        _same(one, other, "gradient")


def test_functorch_and_modes_write_too() -> None:
    x, y = _tensor(3, 4), _tensor(3, 4, seed=2)
    got = torch.func.vmap(lambda a, b: a.clone().mul_(b))(x, y)
    _same(got, x * y, "vmap")

    mode = Seen()
    target, out = x.clone(), torch.empty_like(x)
    with mode:
        target.mul_(y)
        torch.mul(x, y, out=out)
    assert mode.seen.count(torch.ops.mcf.expansion_mul.default) == 2
    _same(target, x * y, "under a mode")
    _same(out, x * y, "under a mode")


def test_out_counts_as_a_change() -> None:
    """Above autograd as below it: what a derivative kept must not be written over in silence."""
    x: Any = mcf.tensor([1.5, 2.5]).requires_grad_()
    kept: Any = mcf.tensor([2.0, 4.0])
    y = x * kept
    torch.mul(kept.clone(), 2.0, out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="out="):
        torch.mul(x, kept, out=torch.empty_like(kept))
    with torch.inference_mode():
        made: Any = mcf.tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="inference"):
        torch.mul(kept, kept, out=made)
    with pytest.raises(NotImplementedError, match="out"):
        torch.mul(kept, kept, out=torch.empty(2))


PLACES = [0, -1, slice(1, 3), (1, 2), (slice(None), None, 1), ..., (..., slice(0, 0)), [0, 2]]
PLACES += [torch.tensor([2, 0]), torch.tensor([True, False, True])]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_elements_are_set_component_by_component(dtype: torch.dtype) -> None:
    x: Any = mcf.MCFTensor(hard(dtype, 2, 12, 5)).reshape(3, 4)
    one: Any = mcf.tensor("0.1", 2, dtype)
    for place in PLACES:
        for value in (0.1, -0.0, 3, 2**70 + 1, math.inf, math.nan, one, -one.reshape(1, 1)):
            got, expected = x.clone(), x.clone()
            got[place] = value
            held = value if isinstance(value, mcf.MCFTensor) else mcf.tensor(value, 2, dtype)
            for c, part in zip(expected.components, held.components, strict=True):
                c[place] = part
            assert_all_same_bits(got.components, expected.components, str(place))


def test_set_elements_count_as_a_change_and_are_recorded() -> None:
    x: Any = mcf.tensor([1.5, 2.5]).requires_grad_()
    kept: Any = mcf.tensor([2.0, 4.0])
    y = x * kept
    kept[0] = 3.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    z = x * 1
    z[0] = x[1] * 5
    z.sum().backward()
    assert x.grad.to_plain().tolist() == [0.0, 6.0]
    with pytest.raises(RuntimeError, match="leaf"):
        x[0] = 1.0
    with pytest.raises(IndexError, match="out of"):
        kept[2] = 1.0
    assert kept.to_plain().tolist() == [3.0, 4.0]


def test_products_and_reductions_with_out(on_torch: None) -> None:
    a, b = _tensor(3, 4), _tensor(4, 2, seed=2)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (torch.matmul, (a, b)), (torch.mm, (a, b)), (torch.bmm, (a[None], b[None])),
        (torch.outer, (a[0], b[0])), (torch.inner, (a, b.T.contiguous())), (torch.sum, (a, 0)),
        (torch.mean, (a, (0, 1), True)), (torch.prod, (a, 1)), (torch.amax, (a, -1)),
        (torch.amin, (a, 0)),
    ]  # fmt: skip
    for function, given in calls:
        expected = function(*given)
        for out in (torch.empty_like(expected), torch.zeros_like(expected.to(terms=3))):
            before = out._version
            assert function(*given, out=out) is out
            assert out._version > before
            _same(out, expected.to(terms=out.terms), function.__name__)
    square = _tensor(3, 3)
    expected = square @ square
    _same(torch.matmul(square, square, out=square), expected, "an operand")
    with pytest.raises(RuntimeError, match="out"):
        torch.sum(a.clone().requires_grad_(), 0, out=torch.empty_like(a[0]))


def test_room_of_inference_mode_serves_outside() -> None:
    """Of what is written in place, and of operands that are broadcast."""
    calls._calls.clear()
    x, y = _tensor(2, 3), _tensor(3, seed=4)
    with torch.inference_mode():
        inside = x.clone().mul_(0.5), x + y
    w = _tensor(2, 3, seed=5).requires_grad_()
    outside = (w * 1).mul_(0.5), x.clone().mul_(0.5), x + y
    _same(outside[1], inside[0], "in place")
    _same(outside[2], inside[1], "broadcast")
    outside[0].sum().backward()
    assert not w.grad.is_inference()
