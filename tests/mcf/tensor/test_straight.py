"""Exact: a function that goes straight to its kernel's plan gives what torch's way gives, and only
where nobody records, looks on or has another type.

Caught mutants: operands of `rsub`, `gt`, `ge` or `where` in the kernel's order taken for the
function's; one operation's name for another's; a number beside a tensor where torch refuses it; a
plain operand of `atan2` as it is; what autograd records, a mode sees, a transform maps or a
subclass stands for computed at once; operands that do not follow each other in memory read as if.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import mcf
from mcf import elementary
from mcf.elementary.fused import Formula
from mcf.kernels import operations
from mcf.tensor import operators, plans, straight, torch_functions
from mcf.tensor.registry import STRAIGHT
from tests.helpers import assert_alike
from tests.helpers.modes import Seen
from tests.mcf.tensor.inputs import hard

X, Y = (mcf.MCFTensor(hard(torch.float64, 2, 24, seed)) for seed in (1, 2))
WHERE = torch.arange(24) % 5 == 0
PLAIN = torch.arange(24, dtype=torch.float64) - 7

CALLS: dict[str, Callable[[], Sequence[Any]]] = {
    "sums": lambda: [X + Y, X.add(Y), torch.add(X, 0.5), 3 + X, X + PLAIN, PLAIN + X],
    "differences": lambda: [X - Y, X - 2, 1 - X, torch.rsub(X, Y), X.sub(PLAIN), PLAIN - X],
    "products": lambda: [X * Y, 0.5 * X, X.multiply(Y), torch.mul(X, PLAIN), X / Y, X / 3],
    "orders": lambda: [X < Y, X > Y, X <= Y, X >= Y, torch.gt(X, 0.5), X.less(Y), 0.5 > X],
    "equalities": lambda: [X == Y, X == X, X != Y, X.not_equal(PLAIN), torch.eq(PLAIN, X)],
    "extremes": lambda: [torch.maximum(X, Y), X.minimum(Y), torch.fmax(X, Y), X.fmin(PLAIN)],
    "choices": lambda: [torch.where(WHERE, X, Y), X.where(WHERE, Y), torch.where(WHERE, X, 0.5)],
    "bounds": lambda: [torch.clamp(X, -0.5, 2), X.clip(0, 1)],
    "signs": lambda: [X.abs(), abs(X), torch.absolute(Y)],
    "roots": lambda: [X.abs().sqrt(), torch.rsqrt(Y.abs()), X.reciprocal()],
}


class _ByOperators:
    """What a plan is asked for, by the operators of the components."""

    broadcasts = False

    def __init__(self, operation: Any) -> None:
        self._operation = operation

    def compute(self, groups: Any) -> list[Tensor]:
        room = elementary if isinstance(self._operation, Formula) else operations
        found = getattr(room, self._operation.name.removeprefix("usual_"))(*groups)
        out = [found] if isinstance(found, Tensor) else [*found]
        self.size, self.dtypes, self.device = out[0].shape, [out[0].dtype], out[0].device
        return out


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operations that are asked for and found; here operators stand for all kernels."""
    names: list[str] = []
    asked = straight.found_above

    def kept(key: Any, operation: Any, groups: Any) -> Any:
        return _ByOperators(operation)

    def found_above(operation: Any, args: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(plans, "_kept", kept)
            found = asked(operation, args)
        if found is not None:
            names.append(operation.name)
        return found

    plans._plans.clear()
    monkeypatch.setattr(straight, "found_above", found_above)
    yield names
    plans._plans.clear()


@pytest.mark.parametrize("name", "sums differences products orders equalities roots".split())
@pytest.mark.usefixtures("on_torch")
def test_each_function_asks_for_its_operation(
    name: str, reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = CALLS[name]()
    assert len(reached) >= len(at_once)
    for room in (torch_functions, operators):
        monkeypatch.setattr(room, "STRAIGHT", {})
    for k, (got, expected) in enumerate(zip(at_once, CALLS[name](), strict=True)):
        assert_alike(got, expected, f"{name} {k}")


# One kernel of each number of operands and kind of result at every change.
@pytest.mark.parametrize(
    "name",
    [
        n if n in ("differences", "orders", "choices") else pytest.param(n, marks=pytest.mark.slow)
        for n in CALLS
    ],
)
def test_kernels_give_what_torchs_way_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a kind that has been met, too.
    CALLS[name]()
    at_once = CALLS[name]()
    for room in (torch_functions, operators):
        monkeypatch.setattr(room, "STRAIGHT", {})
    for table in ("DIRECT", "NAMED"):
        monkeypatch.setattr(torch_functions, table, {})
    for k, (got, expected) in enumerate(zip(at_once, CALLS[name](), strict=True)):
        assert_alike(got, expected, f"{name} {k}")


# Functions of other names than their operation's.
NAMES = {
    "absolute": "abs", "__abs__": "abs", "fix": "trunc", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "subtract": "sub", "rsub": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "less": "lt", "greater": "lt", "gt": "lt", "less_equal": "le", "greater_equal": "le",
    "ge": "le", "not_equal": "ne", "arctan2": "atan2", "clip": "clamp",
    "clamp_min": "maximum", "clamp_max": "minimum", "relu": "maximum",
    "square": "mul",
    "fmod": "usual_fmod", "remainder": "usual_remainder", "floor_divide": "usual_floor_quotient",
}  # fmt: skip


@pytest.mark.usefixtures("on_torch")
def test_functions_ask_for_the_operation_of_their_name(
    reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is computed: selections have no operator, and functions take long.
    monkeypatch.setattr(straight, "_result", lambda *found: NotImplemented)
    x = mcf.MCFTensor([c[2:8].abs() for c in X.components]) * 2.0**-60
    asked = 0
    for function, call in STRAIGHT.items():
        name = getattr(function, "__name__", "")
        # What writes into its argument computes nothing else: `test_straight_in_place.py`.
        if name.startswith("__") or name.endswith("_") or name == "where":
            continue
        # Formulas, `test_straight_formulas.py`, and products.
        if name in ("addcmul", "addcdiv", "lerp", "matmul"):
            continue
        reached.clear()
        for given in ((x,), (x, x), (x, 0), (x, 0, 1)):
            call(given)
        assert reached[:1] == [NAMES.get(name, name)], name
        asked += 1
    assert asked > 90


def _watched(seen: Any) -> None:
    for call in (lambda: X + Y, lambda: X.abs(), lambda: X < 0.5, lambda: X.where(WHERE, Y)):
        with seen():
            call()


@pytest.mark.usefixtures("on_torch")
def test_what_others_see_is_left_to_torch(reached: list[str]) -> None:
    x = X.detach().clone().requires_grad_()
    for out in (x + Y, Y + x, x.abs(), x * PLAIN, 0.5 * x):
        assert out.requires_grad
    weight = PLAIN.clone().requires_grad_()
    assert (X * weight).requires_grad
    assert torch.atan2(X, weight).requires_grad
    _watched(Seen)
    with torch.autograd.forward_ad.dual_level():
        assert not (X + Y).requires_grad
    mapped = torch.func.vmap(lambda a, b: a * b)(X.reshape(4, 6), Y.reshape(4, 6))
    assert reached == []
    with torch.no_grad():
        assert not (x * Y).requires_grad
    assert reached != []
    assert torch.equal(mapped.components[0].flatten(), (X * Y).components[0])


class _Other(mcf.MCFTensor):
    """A type of its own."""


@pytest.mark.usefixtures("on_torch")
def test_other_types_and_arguments_are_left_to_torch(reached: list[str]) -> None:
    other = _Other(X.components)
    for out, expected in ((other + Y, X + Y), (other < Y, X < Y)):
        assert torch.equal(out, expected)
    reached.clear()
    other + Y, Y * other, other.abs()
    for call in (
        lambda: torch.maximum(X, 2.0),
        lambda: torch.hypot(X, 2.0),
        lambda: torch.exp(X, X),
        lambda: torch.mul(X, "2"),
        lambda: X < None,
    ):
        with pytest.raises(TypeError):
            call()  # type: ignore[no-untyped-call]
    assert reached == []
    torch.atan2(X, PLAIN)
    torch.add(X, Y, alpha=2)
    assert "atan2" not in reached


class _Noting(mcf.MCFTensor):
    """A type with something to say about operators."""

    seen = 0

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
        cls.seen += 1
        return super().__torch_dispatch__(*args, **kwargs)


def test_kinds_that_are_known_are_asked_all_the_same() -> None:
    """With a plan for the operands' kind: what one of a new kind is asked elsewhere."""
    a, b = (mcf.MCFTensor([c.reshape(4, 6) for c in z.components]) for z in (X, Y))
    turned = [z.reshape(6, 4) for z in (a, b)]
    expected, _ = a - b, turned[0] - turned[1]
    assert_alike(a.t().contiguous() - b.t().contiguous(), expected.t().contiguous(), "dense")
    assert_alike(a.t() - b.t(), expected.t().contiguous(), "turned")
    for left, right in ((a, b.clone().requires_grad_()), (a.clone().requires_grad_(), b)):
        assert (left - right).requires_grad
    with Seen() as seen:
        assert_alike(a - b, expected, "a mode")
    assert any("sub" in str(name) for name in seen.seen)
    other = _Noting(a.components)
    before = _Noting.seen
    other - b, b - other
    assert _Noting.seen >= before + 2
    mapped = torch.func.vmap(lambda x, y: x - y)(a[None], b[None])
    assert_alike(mapped[0], expected, "mapped")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, b)
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(dual - b).tangent, b)


class _Heard(TorchFunctionMode):
    """A mode that keeps the names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("on_torch")
def test_operators_are_heard_by_modes_of_functions(reached: list[str]) -> None:
    def results() -> list[Any]:
        few = mcf.MCFTensor([c[3:6] for c in X.components])
        return [X + Y, 2 - X, X < Y, X * 0.5, few % 3.0, 2 / X, X**2, X @ Y]

    with _Heard() as mode:
        got = results()
    assert {"remainder", "__rdiv__", "pow", "matmul"} <= {*mode.names}
    assert sum(name in ("add", "rsub", "lt", "mul") for name in mode.names) == 4
    for k, (a, b) in enumerate(zip(got, results(), strict=True)):
        assert_alike(a, b, str(k))


@pytest.mark.usefixtures("on_torch")
def test_autocast_has_no_say() -> None:
    for function in (lambda: X * Y, lambda: X @ Y, lambda: X**2, lambda: 2 / X):
        with torch.autocast("cpu", torch.bfloat16):
            got = function()
        assert_alike(got, function(), "autocast")
