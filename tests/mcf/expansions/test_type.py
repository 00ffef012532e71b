"""The type itself: arithmetic, gradients, views, in-place operators, what is not supported."""

from __future__ import annotations

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.draws import bell


def test_addition_and_product_are_those_of_the_components() -> None:
    x, y = (mcf.tensor(bell(5, k)) for k in range(2))
    assert_all_same_bits((x + y).components, mcf.add(x.components, y.components), "add")
    assert_all_same_bits((x * y).components, mcf.mul(x.components, y.components), "mul")


def test_gradients_are_expansions() -> None:
    x = mcf.tensor([0.1, 0.2], requires_grad=True)
    (x * x).backward(mcf.tensor([1.0, 1.0]))
    assert isinstance(x.grad, mcf.MCFTensor)
    assert_all_same_bits(x.grad.components, mcf.add(x.components, x.components), "grad")


def test_views_share_memory_and_in_place_operators_write_through_them() -> None:
    x = mcf.tensor([[1.0, 2.0], [3.0, 4.0]])
    x.t()[0].mul_(0.1)
    assert_same_bits(x.components[0], torch.tensor([[0.1, 2.0], [0.3, 4.0]]))
    assert x.components[1][0, 0] != 0


def test_what_is_not_supported_names_the_function() -> None:
    with pytest.raises(mcf.UnsupportedError, match=r"\(aten.bitwise_not.default\)"):
        torch.bitwise_not(mcf.tensor([0.5]))


def test_operators_say_what_is_wrong_with_a_tensor() -> None:
    """Mutant: torch's own methods, of which Python reports unsupported types alone."""
    x, far, imaginary = mcf.ones(2), torch.ones(2, device="meta"), torch.ones(2) * 1j
    for call in (lambda: x + far, lambda: far - x, lambda: x / mcf.ones(2, device="meta")):
        with pytest.raises(RuntimeError, match="on the devices"):
            call()
    with pytest.raises(TypeError, match="complex numbers"):
        torch.maximum(x, imaginary)
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "1"


def test_to_takes_flags_by_position_beside_terms() -> None:
    x = mcf.tensor(["0.1"], 2)
    for y in (x.to("cpu", torch.float64, True, terms=3), x.to(torch.float64, False, True, terms=3)):
        assert (y.dtype, y.terms) == (torch.float64, 3)
        assert y.to_fractions() == x.to_fractions()


def test_swapped_tensors() -> None:
    """As `Module.to` does it, also with a plain tensor."""
    a, b, c = mcf.tensor(["0.1", "0.2"], 3), mcf.tensor(["0.3"], 2), torch.ones(4)
    a.tag = "a"
    expected = [a.components, b.components]
    torch.utils.swap_tensors(a, b)
    assert_all_same_bits(a.components, expected[1])
    assert_all_same_bits(b.components, expected[0])
    assert b.tag == "a"
    torch.utils.swap_tensors(a, c)
    assert_all_same_bits(c.components, expected[1])
    assert c.shape == (1,)
    assert (a == 1).all()
