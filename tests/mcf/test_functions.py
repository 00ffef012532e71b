"""The functions of `mcf` on tensors: what they take, what they return, what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mcf
from tests.helpers import assert_all_same_bits, assert_same_bits

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
# Components of each argument.
ARGUMENTS: dict[str, dict[str, int]] = {
    "two_sum": {"a": 1, "b": 1},
    "fast_two_sum": {"a": 1, "b": 1},
    "split": {"a": 1},
    "two_prod": {"a": 1, "b": 1},
    "grow": {"x": 2, "a": 1},
    "scale": {"x": 2, "a": 1},
    "add": {"x": 2, "y": 2},
    "mul": {"x": 2, "y": 2},
    "renormalize": {"x": 2},
}
ARITHMETIC = {"grow", "scale", "add", "mul"}
by_function = pytest.mark.parametrize("name", ARGUMENTS)


def call(name: str, make: Callable[[str], Tensor]) -> tuple[Tensor, Tensor]:
    """Call a function with the tensors that `make` gives for each component's name."""
    arguments = []
    for argument, terms in ARGUMENTS[name].items():
        if terms == 1:
            arguments.append(make(argument))
        else:
            arguments.append(tuple(make(f"{argument}[{k}]") for k in range(terms)))
    return getattr(mcf, name)(*arguments)


def component_names(name: str) -> list[str]:
    return [
        argument if terms == 1 else f"{argument}[{k}]"
        for argument, terms in ARGUMENTS[name].items()
        for k in range(terms)
    ]


def test_every_function_is_here() -> None:
    assert all(callable(getattr(mcf, name)) for name in ARGUMENTS)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@by_function
def test_two_new_tensors_of_the_dtype(name: str, dtype: torch.dtype) -> None:
    given: list[Tensor] = []

    def make(_: str) -> Tensor:
        given.append(torch.ones(2, 3, dtype=dtype))
        return given[-1]

    result = call(name, make)
    assert isinstance(result, tuple)
    assert len(result) == 2
    for r in result:
        assert (r.dtype, r.shape, r.device) == (dtype, (2, 3), given[0].device)
    assert not {r.data_ptr() for r in result} & {t.data_ptr() for t in given}
    assert all(torch.equal(t, torch.ones(2, 3, dtype=dtype)) for t in given)


def test_known_values() -> None:
    one, tiny = torch.tensor(1.0), torch.tensor(2.0**-30)
    assert [t.item() for t in mcf.two_sum(tiny, one)] == [1.0, 2.0**-30]
    assert [t.item() for t in mcf.fast_two_sum(one, tiny)] == [1.0, 2.0**-30]
    assert [t.item() for t in mcf.renormalize((tiny, one))] == [1.0, 2.0**-30]
    x = torch.tensor(1 + 2.0**-12)
    assert [t.item() for t in mcf.two_prod(x, x)] == [1 + 2.0**-11, 2.0**-24]
    assert [t.item() for t in mcf.split(torch.tensor(1 + 2.0**-23))] == [1.0, 2.0**-23]
    pair = (one, tiny)
    assert [t.item() for t in mcf.grow(pair, -one)] == [2.0**-30, 0.0]
    assert [t.item() for t in mcf.add(pair, (-one, tiny))] == [2.0**-29, 0.0]
    assert [t.item() for t in mcf.scale(pair, torch.tensor(3.0))] == [3.0, 3 * 2.0**-30]
    # (1 + 2**-30)**2 = 1 + 2**-29 + 2**-60
    assert [t.item() for t in mcf.mul(pair, pair)] == [1.0, 2.0**-29]


def test_a_list_is_as_good_as_a_tuple() -> None:
    x = [torch.ones(3), torch.zeros(3)]
    assert_all_same_bits(mcf.grow(x, torch.ones(3)), mcf.grow(tuple(x), torch.ones(3)))


@by_function
def test_nan_gives_nan(name: str) -> None:
    first, second = call(name, lambda _: torch.tensor([torch.nan]))
    assert first.isnan().all()
    # Of arithmetic it stands alone, as in an expansion tensor.
    assert second.isnan().all() if name not in ARITHMETIC else (second == 0).all()


def test_infinity() -> None:
    inf, one = torch.tensor([torch.inf]), torch.tensor([1.0])
    s, e = mcf.two_sum(inf, one)
    assert_same_bits(s, inf)
    assert e.isnan().all()
    assert mcf.two_prod(-inf, one)[0].item() == -torch.inf
    assert mcf.two_sum(inf, -inf)[0].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signs_of_zeros(dtype: torch.dtype) -> None:
    zero = torch.tensor([0.0], dtype=dtype)
    # As torch: -0 + -0 = -0, any other sum of zeros is +0, products of zeros multiply the signs.
    for a, b in itertools.product((zero, -zero), repeat=2):
        assert_same_bits(mcf.two_sum(a, b)[0], a + b)
        assert_same_bits(mcf.two_prod(a, b)[0], a * b)


def test_in_inference_mode_and_on_detached_parameters() -> None:
    w = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        assert not mcf.two_sum(w, w)[0].requires_grad
    with torch.inference_mode():
        assert mcf.two_sum(w, w)[0].tolist() == [2.0] * 3
    assert mcf.two_sum(w.detach(), torch.ones(3))[0].tolist() == [2.0] * 3


# Refusals: the message names the function, the argument, what was given and what is allowed.


@by_function
@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool], ids=str)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    first = component_names(name)[0]
    allowed = "torch.bfloat16, torch.float16, torch.float32, torch.float64"
    with pytest.raises(TypeError) as caught:
        call(name, lambda _: torch.ones(2).to(dtype))
    assert str(caught.value) == f"{name}: {first} has dtype {dtype}; expected one of {allowed}"


@pytest.mark.parametrize(
    ("name", "odd"),
    [(n, c) for n in ARGUMENTS for c in component_names(n)[1:]],
)
def test_mixed_dtypes(name: str, odd: str) -> None:
    first = component_names(name)[0]
    with pytest.raises(TypeError) as caught:
        call(name, lambda c: torch.ones(2, dtype=torch.float64 if c == odd else torch.float32))
    message = str(caught.value)
    assert message.startswith(f"{name}: {odd} has dtype torch.float64 and {first} has")
    assert "torch.float32" in message


@pytest.mark.parametrize(
    ("name", "odd"),
    [(n, c) for n in ARGUMENTS for c in component_names(n)[1:]],
)
def test_mixed_devices(name: str, odd: str) -> None:
    with pytest.raises(TypeError, match=r"has device meta and .* has cpu"):
        call(name, lambda c: torch.ones(2, device="meta" if c == odd else "cpu"))


@by_function
def test_gradients(name: str) -> None:
    last = component_names(name)[-1]
    with pytest.raises(RuntimeError) as caught:
        call(name, lambda c: torch.ones(2, requires_grad=c == last))
    message = str(caught.value)
    assert message.startswith(f"{name}: {last} requires grad")
    assert "torch.no_grad()" in message


@pytest.mark.parametrize("name", [n for n in ARGUMENTS if len(component_names(n)) > 1])
def test_shapes_that_do_not_broadcast(name: str) -> None:
    last = component_names(name)[-1]
    with pytest.raises(ValueError, match="do not broadcast") as caught:
        call(name, lambda c: torch.ones(3 if c == last else 2))
    message = str(caught.value)
    assert message.startswith(f"{name}: shapes do not broadcast: ")
    assert f"{component_names(name)[0]} [2]" in message
    assert f"{last} [3]" in message


@pytest.mark.parametrize("given", [1.0, None, [1.0, 2.0], "a"])
@pytest.mark.parametrize("name", ["two_sum", "split", "grow"])
def test_not_a_tensor(name: str, given) -> None:
    pair = (torch.ones(2), torch.zeros(2))
    arguments = {"two_sum": (given, pair[0]), "split": (given,), "grow": (pair, given)}[name]
    with pytest.raises(TypeError, match=rf"{name}: a must be a tensor, got {type(given).__name__}"):
        getattr(mcf, name)(*arguments)


@pytest.mark.parametrize("given", [torch.ones(2), torch.ones(2, 3), 1.0, (1.0, 2.0), None])
@pytest.mark.parametrize("name", ["grow", "renormalize"])
def test_not_an_expansion(name: str, given) -> None:
    others = {"grow": (torch.ones(2),), "renormalize": ()}[name]
    with pytest.raises(
        TypeError, match=rf"{name}: x must be a tuple of 2 tensors, .* got {type(given).__name__}"
    ):
        getattr(mcf, name)(given, *others)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("name", ["grow", "renormalize"])
def test_number_of_components(name: str, count: int) -> None:
    given = (torch.ones(2),) * count
    others = {"grow": (torch.ones(2),), "renormalize": ()}[name]
    with pytest.raises(ValueError, match=f"{name}: x must have 2 components, got {count}"):
        getattr(mcf, name)(given, *others)


@pytest.mark.parametrize("given", [1.0, (1.0, 2.0), None, (), (torch.ones(2),) * 5])
@pytest.mark.parametrize("name", ["add", "mul"])
def test_not_components(name: str, given) -> None:
    pair = (torch.ones(2), torch.zeros(2))
    with pytest.raises((TypeError, ValueError), match=rf"{name}: x must (be a tensor|have 1 to 4)"):
        getattr(mcf, name)(given, pair)


def test_sparse_tensors() -> None:
    sparse = torch.ones(3).to_sparse()
    with pytest.raises(TypeError, match=r"two_sum: a has layout torch.sparse_coo; only dense"):
        mcf.two_sum(sparse, sparse)
