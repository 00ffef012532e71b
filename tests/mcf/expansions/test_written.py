"""Exact: `out=` and functions in place write the bits of the result, whatever memory is shared.

Sizes, warnings, errors and version counters are torch's. The survey of `test_function_calls.py`
writes to NaN and in place for each function; here are targets of other formats, shapes and memory.

Caught mutants: a result over an operand that is still to be read; another format taken for one's
own; operands of `gt` not exchanged; a plain `out` for an expansion; a write that no version counts;
one of several results written before all targets are checked; the targets' order; one component
resized and the next refused; components of one memory that come to lie on each other.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mcf
from mcf.expansions.launch import calls, elementwise
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

F64 = torch.float64


def _tensor(*shape: int, seed: int = 1, terms: int = 2, dtype: Any = F64) -> Any:
    count = math.prod(shape)
    flat = hard(dtype, terms, max(8, count), seed)
    return mcf.MCFTensor([c[:count].reshape(shape).clone() for c in flat])


def _same(got: Any, expected: Any, what: str = "") -> None:
    assert_all_same_bits(got.components, expected.components, what)


# Functions of three operands of one shape.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: lambda x, a, b, name=name, **out: getattr(torch, name)(x, a, **out)
        for name in ("add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin")
    },
    **{
        name: lambda x, a, b, name=name, **out: getattr(torch, name)(x.abs(), **out)
        for name in ("sqrt", "reciprocal", "rsqrt", "exp", "neg")
    },
    "mul by a number": lambda x, a, b, **out: torch.mul(x, 0.1, **out),
    "add with a factor": lambda x, a, b, **out: torch.add(x, a, alpha=3, **out),
    "clamp": lambda x, a, b, **out: torch.clamp(x, 0.5, 2, **out),
    "where": lambda x, a, b, **out: torch.where(x > a, x, a, **out),
    "lerp": torch.lerp,
    "lerp by a number": lambda x, a, b, **out: torch.lerp(x, a, 0.3, **out),
    "addcmul": torch.addcmul,
    "addcdiv": torch.addcdiv,
}
OFTEN = ("add", "mul", "sub", "neg", "lerp", "addcmul", "addcdiv")


@pytest.mark.parametrize("count", [24, 300])
@pytest.mark.parametrize("name", everyday(FUNCTIONS, OFTEN))
def test_out_of_any_memory_holds_the_result(name: str, count: int) -> None:
    function = FUNCTIONS[name]
    operands = [_tensor(count, seed=k) for k in range(3)]
    expected = function(*operands)
    targets = {
        "new": torch.empty_like(expected),
        "other terms": _tensor(count, terms=3),
        "fewer terms": _tensor(count, terms=1),
        "another dtype": _tensor(count, dtype=torch.float32),
        "not contiguous": _tensor(count, 2)[:, 0],
    }
    for what, out in targets.items():
        before = out._version
        assert function(*operands, out=out) is out
        assert out._version > before
        _same(out, _tensor(count, terms=out.terms, dtype=out.dtype).copy_(expected), what)
    for k in range(3):
        given = [x.clone() for x in operands]
        function(*given, out=given[k])
        _same(given[k], expected, f"operand {k}")
    one = operands[0].clone()
    expected = function(one, one, one)
    function(one, one, one, out=one)
    _same(one, expected, "all of them")


@pytest.mark.parametrize("name", ["addcmul", "atan2", "logaddexp"])
def test_a_wider_target_does_not_change_the_result(name: str) -> None:
    """Caught mutant: operands promoted to the format of `out`."""
    operands = [_tensor(24, seed=k, dtype=torch.float32) for k in range(3)]
    operands = operands if name == "addcmul" else operands[:2]
    function, out = getattr(torch, name), _tensor(24, terms=3)
    expected = out.clone().copy_(function(*operands))
    _same(function(*operands, out=out), expected, name)


SHARED = "some elements of the input tensor and the written-to tensor refer to a single memory"
PARTLY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mul": lambda x, y, out: torch.mul(x, y, out=out),
    "mul_": lambda x, y, out: out.mul_(x),
    "copysign_": lambda x, y, out: out.sigmoid_().copysign_(x),
    "where": lambda x, y, out: torch.where(x > 0, x, y, out=out),
    "lerp": lambda x, y, out: torch.lerp(y, x, 0.3, out=out),
    "addcmul": lambda x, y, out: torch.addcmul(y, y, x, out=out),
    "lerp_": lambda x, y, out: out.lerp_(x, 0.5),
    "addcmul_": lambda x, y, out: out.addcmul_(x, y),
    "pow_": lambda x, y, out: out.pow_(x),
    "atan2_": lambda x, y, out: out.atan2_(x),
}


@pytest.mark.parametrize("count", [24, 300])
@pytest.mark.parametrize("name", PARTLY)
def test_target_that_overlaps_an_operand_in_part_is_refused_as_by_torch(
    name: str, count: int
) -> None:
    for shift in (-1, 1, 5):
        memory, y = _tensor(count + 6), _tensor(count, seed=2)
        first, second = memory[:count], memory[abs(shift) :][:count]
        x, out = (first, second) if shift > 0 else (second, first)
        kept = memory.clone()
        with pytest.raises(RuntimeError, match=SHARED):
            PARTLY[name](x, y, out)
        if "sigmoid" not in name and name != "copysign_":
            _same(memory, kept, "nothing was written")


def test_target_whose_elements_lie_between_those_of_an_operand_is_written() -> None:
    x = _tensor(48)
    for some, others in ((x[::2], x[1::2]), (x[:24], x[24:])):
        expected = some + others
        _same(some.add_(others), expected)
    x = _tensor(4)
    expected = x.masked_fill(x > 1, x[0].item())
    _same(x.masked_fill_(x > 1, x[0]), expected, "filled by an element of its own")
    square = _tensor(3, 3)
    for call in (
        lambda: x.add_(x[0]), lambda: torch.mul(x, x[:1], out=x), lambda: square.add_(square.T)
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=SHARED):
            call()


@pytest.mark.parametrize("shift", [-5, 1, 7, 24])
def test_memory_shared_with_another_component(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch cannot see it: it looks at first components."""
    for few in (False, True):
        monkeypatch.setattr(elementwise, "_KEPT", 1024 if few else 0)
        calls._calls.clear()
        memory, (top, low) = torch.zeros(60, dtype=F64), hard(F64, 2, 24, 1)
        memory[12:36] = low
        x = mcf.MCFTensor([top, memory[12:36]])
        out = mcf.MCFTensor([memory[12 + shift :][:24], torch.zeros(24, dtype=F64)])
        y = _tensor(24, seed=2)
        expected = torch.mul(x, y)
        torch.mul(x, y, out=out)
        _same(out, expected, f"shift {shift}")
    calls._calls.clear()


@pytest.mark.parametrize("name", everyday(("lt", "le", "gt", "ge", "eq", "ne"), ("lt", "ge")))
def test_comparison_with_out_writes_truths_as_numbers(name: str) -> None:
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


# Calls on a 3 x 4 matrix, and calls that are refused.
RESIZED: dict[str, Callable[..., Any]] = {
    "mul": lambda x, **out: torch.mul(x, x, **out),
    "add of a row": lambda x, **out: torch.add(x, x[0], **out),
    "exp": lambda x, **out: torch.exp(x.clamp(-1, 1), **out),
    "neg": lambda x, **out: torch.neg(x, **out),
    "addcmul": lambda x, **out: torch.addcmul(x, x, x, **out),
    "addcdiv": lambda x, **out: torch.addcdiv(x, x, x, **out),
    "lerp": lambda x, **out: torch.lerp(x, x, x, **out),
    "sum": lambda x, **out: torch.sum(x, 0, **out),
    "matmul": lambda x, **out: torch.matmul(x.mT, x, **out),
    "cat": lambda x, **out: torch.cat([x, x], **out),
    "lt": lambda x, **out: torch.lt(x, x[0], **out),
    "where": lambda x, **out: torch.where(x > 0, x, x[0], **out),
}


def _said(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a result, and the warnings up to where torch says where they come from."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        out = call()
    assert all(w.category is UserWarning for w in found)
    return out, [str(w.message).partition(" (Triggered")[0] for w in found]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", RESIZED)
@pytest.mark.usefixtures("on_torch")
def test_out_of_another_shape_is_resized_with_torchs_words(name: str) -> None:
    x = _tensor(3, 4)
    expected = RESIZED[name](x)
    for size in ((0,), (2,), (5, 5), (3, 4, 1), ()):
        plain = torch.empty(size, dtype=RESIZED[name](x.components[0]).dtype)
        like: Any = plain.clone() if name == "lt" else _tensor(*size)
        theirs, words = _said(lambda out=plain: RESIZED[name](x.components[0], out=out))
        before = like._version
        ours, said = _said(lambda out=like: RESIZED[name](x, out=out))
        assert said == words, size
        assert ours is like
        assert like._version > before
        assert ours.shape == theirs.shape == expected.shape
        assert ours.stride() == theirs.stride()
        if name == "lt":
            assert torch.equal(ours, expected)
        else:
            _same(ours, expected, f"{size}")


def test_resized_tensor_is_one_for_what_follows() -> None:
    for x in (_tensor(3), _tensor(5)[1:4]):
        first = [c[:2].clone() for c in x.components]
        assert x.resize_(2, 4) is x
        assert {c.shape for c in x.components} == {x.shape} == {(2, 4)}
        assert [c[0, :2].tolist() for c in x.components] == [c.tolist() for c in first]
        x.fill_(0.1)
        _same(x[1:, ::2], mcf.full((1, 2), 0.1, dtype=F64), "a view")
        _same(copy.deepcopy(x).T, x.T, "a copy")
        leaf = x.requires_grad_()
        (leaf * leaf).sum().backward()
        assert leaf.grad.shape == (2, 4)
        with pytest.raises(RuntimeError, match="cannot resize variables that require grad"):
            leaf.resize_(3)
    y = _tensor(2, 3).resize_as_(_tensor(4, 1, 2, 2), memory_format=torch.channels_last)
    assert (y.shape, y.stride()) == ((4, 1, 2, 2), y.components[1].stride())


def test_all_components_are_resized_or_none() -> None:
    fixed = torch.from_numpy(np.zeros(3))
    apart = mcf.MCFTensor([torch.zeros(3, dtype=F64), fixed])
    one = mcf.MCFTensor(torch.zeros(2, 3, dtype=F64).unbind())
    for x, words in ((apart, "not resizable"), (one, "would overlap")):
        with pytest.raises(RuntimeError, match=words):
            x.resize_(5)
        assert {c.shape for c in x.components} == {x.shape} == {(3,)}
        x.resize_(2)
        assert {c.shape for c in x.components} == {x.shape} == {(2,)}


def test_target_that_torch_or_we_refuse() -> None:
    x, y, leaf = _tensor(24), _tensor(24, seed=2), _tensor(24).requires_grad_()
    for call, match in (
        (lambda: torch.mul(x, x, out=torch.empty(24, dtype=F64)), "would round its result"),
        (lambda: torch.mul(x.to(terms=1), 2, out=torch.empty(24, dtype=F64)), "would round"),
        (lambda: torch.addcmul(x, x, x, out=torch.empty(24, dtype=F64)), "out"),
        (lambda: torch.mul(x, x, out=_tensor(1).expand(24)), "single memory location"),
        (lambda: torch.mul(leaf, x, out=_tensor(24)), "automatic differentiation"),
        (lambda: torch.addcdiv(x, y, y, out=_tensor(24).requires_grad_()), "out="),
        (lambda: torch.lerp(leaf, x, x, out=_tensor(24)), "out="),
        (lambda: _tensor(1).mul_(x), "cannot be written"),
        (lambda: torch.addcmul(x, x, _tensor(4), out=x), "must match the size"),
        (lambda: torch.mm(_tensor(3, 3), _tensor(3), out=_tensor(3)), "mm"),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match=match):
            call()
    with torch.inference_mode():
        made = _tensor(24)
    with pytest.raises(RuntimeError, match="inference"):
        torch.mul(x, x, out=made)
    _same(x, _tensor(24), "nothing was written")


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda o, y: torch.mul(y, 2.0, out=o),
    "mul_": lambda o, y: o.mul_(y),
    "addcmul": lambda o, y: torch.addcmul(y, y, y, out=o),
    "matmul": lambda o, y: torch.matmul(y, y, out=o),
    "setitem": lambda o, y: o.__setitem__(0, 3.0),
    "lerp_": lambda o, y: o.lerp_(y, 0.25),
}


@pytest.mark.parametrize("name", WRITES)
def test_write_is_counted_recorded_and_seen(name: str) -> None:
    """A derivative that needs the old values is refused; modes see the operator."""
    x, y = _tensor(3, 3), _tensor(3, 3, seed=2)
    expected = x.clone()
    WRITES[name](expected, y)
    a, out = _tensor(3, 3).requires_grad_(), x.clone()
    product, before = (a * out).sum(), out._version
    WRITES[name](out, y)
    assert out._version > before
    _same(out, expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    for context in (torch.no_grad(), torch.inference_mode(), Seen()):
        with context:
            target = x.clone()
            WRITES[name](target, y)
        _same(target, expected, str(context))
    if isinstance(context, Seen) and name != "setitem":
        assert any("mcf" in str(f) for f in context.seen)
    if name in ("mul", "addcmul", "matmul"):
        return
    with pytest.raises(RuntimeError, match="leaf"):
        WRITES[name](x.clone().requires_grad_(), y)


def test_write_inside_vmap_writes_each_row() -> None:
    x, y = _tensor(3, 4), _tensor(3, 4, seed=2)
    _same(torch.func.vmap(lambda a, b: a.clone().mul_(b))(x, y), x * y, "mul_")
    with pytest.warns(UserWarning, match="batching rule"):
        got = torch.func.vmap(lambda t, u: t.clone().addcmul_(u, u))(x, y)
    _same(got, torch.addcmul(x, y, y), "addcmul_")


PLACES = [0, -1, slice(1, 3), (1, 2), (slice(None), None, 1), ..., (..., slice(0, 0)), [0, 2]]
PLACES += [torch.tensor([2, 0]), torch.tensor([True, False, True])]


@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
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
    with pytest.raises(IndexError, match="out of"):
        x[3] = 1.0
    leaf = mcf.tensor([1.5, 2.5]).requires_grad_()
    z = leaf * 1
    z[0] = leaf[1] * 5
    z.sum().backward()
    assert leaf.grad.to_plain().tolist() == [0.0, 6.0]


X = mcf.tensor(["0.31", "0.47", "0.22"], dtype=F64)
OTHER = mcf.tensor(["0.7", "1.3", "0.6"], dtype=F64)
# Torch's own derivatives of some have constants of double precision; some it has none of.
IN_PLACE: dict[str, tuple[Any, ...]] = {
    "erf": (), "erfc": (), "erfinv": (), "log2": (), "log10": (), "deg2rad": (), "rad2deg": (),
    "sinc": (), "asinh": (), "exp2": (), "logit": (), "pow": (0.1,), "float_power": (0.1,),
    "lerp": (OTHER, 0.1), "mul": (OTHER,), "addcmul": (OTHER, OTHER),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.usefixtures("on_torch")
def test_function_in_place_has_the_derivative_of_the_function(name: str) -> None:
    function, in_place = getattr(Tensor, name), getattr(Tensor, f"{name}_")
    first, second = X.clone().requires_grad_(), X.clone().requires_grad_()
    wanted = function(first, *IN_PLACE[name])
    target = second.clone()
    found = in_place(target, *IN_PLACE[name])
    assert found is target
    assert_alike(found.detach(), wanted.detach(), name)
    (slope,) = torch.autograd.grad(wanted.sum(), first)
    assert_alike(torch.autograd.grad(found.sum(), second)[0], slope, name)


@pytest.mark.parametrize("function", [F.silu, F.mish, F.hardswish], ids=lambda f: f.__name__)
@pytest.mark.usefixtures("on_torch")
def test_activation_in_place_keeps_what_its_derivative_needs(function: Any) -> None:
    first, second = X.clone().requires_grad_(), X.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(function(first * 1).sum(), first)
    (found,) = torch.autograd.grad(function(second * 1, inplace=True).sum(), second)
    assert_alike(found, wanted, function.__name__)


A: Any = mcf.tensor([["4", "1.1", "0.3"], ["1.1", "3", "-1"], ["0.3", "-1", "5.7"]], 2, F64)
L = torch.linalg
LONG = mcf.tensor([[3 * k * k % 97 - 40 for k in range(20)]] * 2, dtype=F64)
# Functions that torch composes, of several results, and of linear algebra.
COMPOSED: dict[str, Callable[..., Any]] = {
    **{
        name: lambda name=name, **o: getattr(L, name)(A, **o)
        for name in (
            "inv", "det", "cholesky", "eigvalsh", "svdvals", "qr", "eigh", "lu", "lu_factor",
            "slogdet", "inv_ex", "cholesky_ex", "ldl_factor",
            # Torch leaves the target as it is.
            "matrix_rank",
        )
    },
    **{
        name: lambda name=name, of=of, **o: getattr(torch, name)(A, *of, **o)
        for name, of in {
            "inverse": (), "geqrf": (), "frexp": (), "exp2": (), "sort": (0, True), "topk": (2,),
            "kthvalue": (2, 0), "median": (0,), "mode": (0,), "max": (1, True), "cummin": (0,),
            "mm": (A,), "inner": (A,), "mean": ((0, 1), True), "prod": (1,), "amax": (-1,),
            "amin": (0,),
        }.items()
    },
    "solve": lambda **o: L.solve(A, A[:, :2], **o),
    "solve by name": lambda **o: L.solve(A=A, B=A[0], **o),
    "argsort": lambda **o: torch.argsort(A, dim=0, stable=True, **o),
    "svd": lambda **o: L.svd(A[:, :2], full_matrices=False, **o),
    "solve_ex": lambda **o: L.solve_ex(A, A, **o),
    "lstsq": lambda **o: L.lstsq(A[:, :2], A, **o),
    "aminmax": lambda **o: torch.aminmax(A, dim=0, **o),
    "ndtr": lambda **o: torch.special.ndtr(A - 4, **o),
    # As a product with a row it adds up in another order than as a dot product.
    "tensordot": lambda **o: torch.tensordot(LONG / 7, LONG / 11 - 1, 2, **o),
    "matrix_norm": lambda **o: L.matrix_norm(A.bfloat16(), "nuc", **o),
    "lu_unpack": lambda **o: torch.lu_unpack(*L.lu_factor(A), **o),
    # Torch's composition has q as a float32.
    "quantile": lambda **o: torch.quantile(A.to(torch.float32), 0.3, 1, **o),
    "nanquantile": lambda **o: torch.nanquantile(A.to(torch.float16), 0.3, 1, **o),
    "bmm": lambda **o: torch.bmm(A[None], A[None], **o),
    "outer": lambda **o: torch.outer(A[0], A[1], **o),
}  # fmt: skip
DAILY = ("inv", "lu_factor", "sort", "qr", "frexp", "ndtr", "matrix_rank", "quantile",
         "nanquantile", "mm", "mean", "prod", "amax", "inner")  # fmt: skip


def _empty(like: Any, shape: tuple[int, ...] = (0,)) -> Any:
    if isinstance(like, mcf.MCFTensor):
        return torch.full(shape, 7.0, dtype=like.dtype) + 0 * A[0, 0].to(like.dtype)
    return torch.full(shape, 7, dtype=like.dtype)


def _flat(found: Any) -> list[Tensor]:
    each = found if isinstance(found, tuple) else (found,)
    return [c for x in each for c in getattr(x, "components", (x,))]


@pytest.mark.parametrize("name", everyday(COMPOSED, DAILY))
@pytest.mark.usefixtures("on_torch")
def test_out_of_a_composed_function_holds_the_result(name: str) -> None:
    """Empty targets and others of the shape; the very targets are returned."""
    wanted = COMPOSED[name]()
    several = isinstance(wanted, tuple)
    for filled in (False, True):
        shapes = [tuple(w.shape) if filled else (0,) for w in (wanted if several else (wanted,))]
        targets = [*map(_empty, wanted if several else (wanted,), shapes)]
        found = COMPOSED[name](out=tuple(targets) if several else targets[0])
        assert all(a is b for a, b in zip(found if several else (found,), targets, strict=True))
        assert_all_same_bits(_flat(found), _flat(wanted))
    if several:
        assert [k for k in dir(found) if k[0] != "_"] == [k for k in dir(wanted) if k[0] != "_"]


def test_operand_of_a_composed_function_may_be_its_target() -> None:
    own, index = A.clone(), torch.empty(0, dtype=torch.int64)
    torch.sort(own, 0, out=(own, index))
    assert_all_same_bits(_flat((own, index)), _flat(torch.sort(A, 0)))
    for function in (L.inv, lambda x, **o: torch.matmul(x, x, **o)):
        own = A.clone()
        expected = function(own)
        function(own, out=own)
        _same(own, expected)


def test_nothing_is_written_where_one_of_several_targets_is_refused() -> None:
    index, values = torch.zeros(3, 3, dtype=torch.int64), torch.zeros_like(A)
    leaf = A.clone().requires_grad_()
    for error, match, x, out in (
        (mcf.UnsupportedError, "round its result", A, (torch.zeros(3, 3), index)),
        (RuntimeError, "dtype torch.int64, but got torch.int32", A, (values, index.int())),
        (RuntimeError, "an expansion of torch.float64", A, (values, values.clone())),
        (TypeError, "tuple of 2 tensors, got 1", A, (values,)),
        (TypeError, "tuple of 2 tensors, got 3", A, (values, index, index.clone())),
        (TypeError, None, A, values),
        (TypeError, None, A, (values, 3)),
        (RuntimeError, "don't support automatic differentiation", leaf, (values, index)),
    ):
        with pytest.raises(error, match=match):
            torch.sort(x, 0, out=out)
        assert values.count_nonzero() == index.count_nonzero() == 0
    with pytest.raises(TypeError):
        L.inv(A, out=(values,))
    with pytest.raises(torch.linalg.LinAlgError):
        L.inv(A * 0, out=values)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        L.inv(A, out=torch.zeros_like(A).requires_grad_())
    with torch.no_grad():
        found = torch.sort(leaf, 0, out=(torch.zeros_like(A), index))
    assert_all_same_bits(_flat(found), _flat(torch.sort(A, 0)))
