"""Test operators that move elements, and indices of no dimension or element, against float64.

Numbers need both components; values, gradients and refusals are PyTorch's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from tests.helpers import assert_same_bits
from tests.helpers.draws import bell

pytestmark = [
    pytest.mark.usefixtures("on_torch"),
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta"),
]

INDEX = torch.tensor([[0, 2, 1], [1, 1, 0]])


def data(*shape: int) -> Tensor:
    """Integers of up to 40 bits: two components of float32, all operators below exact on them."""
    g = torch.Generator().manual_seed(len(shape))
    return torch.randint(-(2**40), 2**40, shape, generator=g).double()


def write(name: str, x: Any) -> None:
    y = x[1]
    match name:
        case "slice":
            x[0, 1:] = x[1, 1:] + 1
        case "scalar":
            x[0] = 2**33 + 1
        case "mask":
            x[x > 0] = 9
        case "index":
            x[torch.tensor([0, 2])] = x[1].clone()
        case "add_":
            y.add_(2**35 + 1)
        case "mul_":
            x.t().mul_(3)
        case "copy_":
            x.copy_(x.flip(0).clone())
        case "fill_":
            y.fill_(2**39 - 1)
        case "zero_":
            y.zero_()
        case "masked_fill_":
            x.masked_fill_(x < 0, 2**39 - 1)
        case "scatter_":
            x.scatter_(0, INDEX, x[:2] * 2)
        case "index_add_":
            x.index_add_(0, torch.tensor([0, 0]), x[1:].clone())
        case "neg_":
            y.neg_()
        case "clamp_":
            x.clamp_(-(2**30), 2**30 + 1)
        case "sub_":
            y -= x[0]
        case "t_":
            x[:, :3].t_().add_(1)
        case "squeeze_":
            y.unsqueeze_(0).add_(1)


@pytest.mark.parametrize(
    "name",
    "slice scalar mask index add_ mul_ copy_ fill_ zero_ masked_fill_ scatter_ index_add_ neg_ "
    "clamp_ sub_ t_ squeeze_".split(),
)
def test_writing_through_views_agrees_with_float64(name: str) -> None:
    t = data(3, 4)
    x = mcf.tensor(t)
    write(name, x)
    write(name, t)
    assert_same_bits(x.to_plain(torch.float64), t, name)


def test_a_number_is_written_with_all_its_digits() -> None:
    x = mcf.zeros(3)
    x[0] = 0.1
    x[1] = "0.1"
    x[2:] = [0.1]
    y = torch.where(torch.tensor([True, False, True]), x, 0.1)
    both = {mcf.tensor(v).to_fractions() for v in (0.1, "0.1")}
    assert set(x.to_fractions()) | set(y.to_fractions()) <= both
    assert x.masked_fill(x > 0, 0.1)[0].to_fractions() == mcf.tensor(0.1).to_fractions()
    assert x.new_tensor(["0.1"]).to_fractions() == [mcf.tensor("0.1").to_fractions()]
    assert mcf.zeros(1).fill_(0.1).to_fractions() == [mcf.tensor(0.1).to_fractions()]


def test_promotion_keeps_every_operand() -> None:
    x = mcf.tensor(["0.1"], terms=3, dtype=torch.bfloat16)
    for other, dtype, terms in [
        (torch.ones(1, dtype=torch.float64), torch.float64, 3),
        (torch.ones((), dtype=torch.float32), torch.float32, 3),
        (torch.ones(1, dtype=torch.float16), torch.float32, 3),
        (torch.ones(1, dtype=torch.int64), torch.bfloat16, 3),
        (mcf.ones(1, terms=4), torch.float32, 4),
        (2.0, torch.bfloat16, 3),
    ]:
        for y in (
            x + other,
            other + x,
            torch.cat([x, other]) if getattr(other, "ndim", 0) else x * other,
        ):
            assert (y.dtype, y.terms) == (dtype, terms)
    assert (x * torch.ones(1, dtype=torch.float64)).to_fractions() == x.to_fractions()
    for y in (x + torch.tensor([1j]), torch.add(x, torch.tensor([1j]))):
        assert isinstance(y, mcf.MCFComplexTensor)
        assert y.real.to_fractions() == x.to_fractions()


def test_results_go_into_out_and_plain_tensors_are_not_written_silently() -> None:
    x = mcf.tensor(["0.1", "0.2"])
    out = mcf.zeros(2)
    torch.add(x, x, out=out)
    assert out.to_fractions() == (x + x).to_fractions()
    plain = torch.ones(2)
    with pytest.raises(mcf.UnsupportedError, match=r"torch.add_"):
        plain.add_(x)
    plain.copy_(x)
    assert_same_bits(plain, torch.tensor([0.1, 0.2]))
    plain[0] = x[1]
    assert_same_bits(plain, torch.tensor([0.2, 0.2]))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("write", ["index_put", "scatter", "index_copy"])
def test_repeated_indices_keep_one_value_whole(write: str) -> None:
    """Mutant: a write of each component on its own, whose threads keep different values."""
    values = mcf.from_components([torch.arange(1.0, 200001), torch.arange(1.0, 200001) * 2**-30])
    index = torch.arange(200000) % 8
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    # The mode of all tests writes with one thread.
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(2)
    try:
        for _ in range(10):
            x = mcf.zeros(8)
            if write == "index_put":
                x[index] = values
            elif write == "scatter":
                x = x.scatter(0, index, values)
            else:
                x = x.index_copy(0, index, values)
            high, low = x.components
            assert torch.equal(low, high * 2**-30)
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)


# Each function takes a tensor and an index.
TAKING: dict[str, Callable[..., Any]] = {
    "gather": lambda x, i, s: torch.gather(x, 0, i),
    "take_along_dim": lambda x, i, s: torch.take_along_dim(x, i, 0),
    "take_along_dim of all": lambda x, i, s: torch.take_along_dim(x, i),
    "take": lambda x, i, s: torch.take(x, i),
    "index_select": lambda x, i, s: torch.index_select(x, 0, i),
    "x[i]": lambda x, i, s: x[i],
    "scatter of a number": lambda x, i, s: torch.scatter(x, 0, i, 2.0),
    "index_fill": lambda x, i, s: torch.index_fill(x, 0, i, 2.0),
    "masked_select": lambda x, i, s: torch.masked_select(x, i == 0),
}
# And of a source.
PUTTING: dict[str, Callable[..., Any]] = {
    "scatter": lambda x, i, s: torch.scatter(x, 0, i, s),
    "scatter_add": lambda x, i, s: torch.scatter_add(x, 0, i, s),
    **{
        f"scatter_reduce {r} {own}": lambda x, i, s, r=r, own=own: torch.scatter_reduce(
            x, 0, i, s, r, include_self=own
        )
        for r, own in (("sum", True), ("prod", True), ("mean", False), ("amax", False))
    },
    "index_add": lambda x, i, s: torch.index_add(x, 0, i, s),
    "index_copy": lambda x, i, s: torch.index_copy(x, 0, i, s),
    "index_reduce": lambda x, i, s: torch.index_reduce(x, 0, i, s, "prod"),
    "index_put": lambda x, i, s: torch.index_put(x, (i,), s),
    "index_put accumulated": lambda x, i, s: torch.index_put(x, (i,), s, accumulate=True),
    "put": lambda x, i, s: x.put(i, s),
    "put accumulated": lambda x, i, s: x.put(i, s, True),
    "masked_scatter": lambda x, i, s: torch.masked_scatter(x, i == 0, s),
}
SHAPES, INDICES = ((), (2,), (0,)), ((), (1,), (0,), (2, 0))
SOURCES = ((), (1,), (0,), (2, 0))


def outcome(function: Any, x: Any, index: Any, source: Any) -> Any:
    """The shape, values and gradients, or that an error was raised."""
    x, source = (t.clone().requires_grad_() for t in (x, source))
    try:
        y = function(x, index, source)
    except (RuntimeError, IndexError):
        return "refused"
    weights = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).reshape(y.shape)
    try:
        (y * weights).sum().backward()
    except (RuntimeError, IndexError):
        return "no derivative"
    grads = [None if t.grad is None else (t.grad.shape, t.grad.tolist()) for t in (x, source)]
    return y.shape, y.tolist(), grads


@pytest.mark.parametrize("name", [*TAKING, *PUTTING])
def test_indexing_of_few_dimensions_is_torchs(name: str) -> None:
    sources = SOURCES if name in PUTTING else SOURCES[:1]
    function = {**TAKING, **PUTTING}[name]
    taken = 0
    for shape, i, s in itertools.product(SHAPES, INDICES, sources):
        index = torch.zeros(i, dtype=torch.int64)
        plain = bell(shape, 1), bell(s, 2)
        wanted = outcome(function, plain[0], index, plain[1])
        found = outcome(
            function, *(mcf.tensor(t, 2, torch.float64) if t.is_floating_point() else t
                        for t in (plain[0], index, plain[1])),
        )  # fmt: skip
        # torch refuses some not before the derivative.
        assert found == wanted or wanted == "no derivative", (shape, i, s)
        taken += isinstance(wanted, tuple)
    assert taken >= 3
