"""Exact: views are those of torch, component by component: bits, layouts, memory, errors.

Caught mutants: further components of an index of several dimensions as a view of another place; a
view without its base, or where autograd records; what copies taken for a view; an expansion asked
for its number where no operator reaches it; views of one thread found by another; what writes to a
view of several not refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

LIST = [c.reshape(2, 3, 4) for c in hard(torch.float64, 2, 24, 1)]
# The components of the second lie in one array, at other offsets than the first's.
A, B = mcf.MCFTensor(LIST), mcf.MCFTensor(list(torch.stack(LIST).unbind()))
X = A[0, 0]

VIEWED: dict[str, Callable[[Any], Any]] = {
    "numbers": lambda a: [a[1], a[-1, 2], a[1, 0, 3], a[0, -3, -4]],
    "slices": lambda a: [a[1:], a[:, 1:], a[:, ::2], a[..., ::3], a[:1, 1:9, -2:], a[:0], a[:]],
    "mixed": lambda a: [a[1, :, 2:], a[None], a[None, 1, ..., 0], a[...], a[..., None], a[()]],
    "shapes": lambda a: [a.view(-1), a.view(6, 4), a.reshape(4, 6), a.flatten(), a.ravel(),
                         a.transpose(0, 1).reshape(-1), a.flatten(1), a.unflatten(2, (2, 2))],
    "dimensions": lambda a: [a.unsqueeze(0), a[:1].squeeze(), a[:1].squeeze(0), a.permute(2, 0, 1),
                             a.transpose(0, 2), a[0].t(), a[0].T, a.mT, a[0].H, a.mH, a.adjoint(),
                             a.swapaxes(0, 1), a.movedim(0, 2), torch.moveaxis(a, 0, 1)],
    "parts": lambda a: [a.select(1, 2), a.narrow(2, 1, 2), a.diagonal(), a.unfold(2, 2, 1),
                        a.expand(5, 2, 3, 4), a[:, :1].expand(2, 3, 4)],
    "copies": lambda a: [a.mT.reshape(4, 6), a.mT.flatten(), a.transpose(0, 1).ravel(),
                         a[..., ::2].reshape(-1), a[0, 0].ravel(), a[0, 0].flatten()],
    "several": lambda a: [*a.unbind(), *a.unbind(1), *a.split(2, 1), *a.split([1, 3], dim=2),
                          *torch.split(a, 1), *a.chunk(2, -1), *torch.chunk(a, 2), *a[0]],
    "named": lambda a: [*a.unbind(dim=1), *a.split(2, dim=2), *torch.split(a, [1, 1], dim=0),
                        *a.split(split_size=1), a.transpose(dim0=0, dim1=2), a.select(0, index=1),
                        a.flatten(start_dim=1), a.unsqueeze(dim=-1), a.permute(dims=(2, 0, 1)),
                        a[:1].squeeze(dim=0), a.diagonal(dim1=1, dim2=2), a.narrow(2, 1, length=2),
                        a.view(size=(6, 4)), a.reshape(shape=(4, 6)), *a.chunk(chunks=2, dim=-1),
                        torch.movedim(a, source=0, destination=2), torch.unbind(input=a, dim=2)[0],
                        torch.swapaxes(a, axis0=0, axis1=1), torch.unsqueeze(a, axis=0)],
    "as another": lambda a: [a[0, 0].expand_as(a), a.view_as(X.expand(3, 2, 4)), a[:1].expand_as(
        torch.ones(5, 2, 3, 4)), a.expand_as(a), torch.broadcast_to(a[0, 0], (2, 4)),
        a.broadcast_to(5, 2, 3, 4), torch.broadcast_to(a, size=(1, 2, 3, 4))],
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWED)
@pytest.mark.usefixtures("on_torch")
def test_view_of_an_expansion_is_the_view_of_each_component(name: str) -> None:
    """Also by `VIEWS`, which skip the dispatcher, where nothing is recorded."""
    for a in (A, B, A.clone().requires_grad_()):
        found = VIEWED[name](a)
        plain = a.detach().components[0].requires_grad_(a.requires_grad)
        wanted = [VIEWED[name](c) for c in (plain, *a.components[1:])]
        for k, got in enumerate(found):
            want = wanted[0][k]
            assert (got.shape, got.stride()) == (want.shape, want.stride())
            assert (got._is_view(), got.requires_grad) == (want._is_view(), want.requires_grad)
            assert (got._base is a) == (want._base is plain)
            assert (got.grad_fn is None) is (want.grad_fn is None)
            for c, each in zip(got.components, wanted, strict=True):
                assert c.stride() == want.stride()
                assert torch.equal(c, each[k])
                if got._base is a:
                    assert c.data_ptr() == each[k].data_ptr()


@pytest.mark.usefixtures("on_torch")
def test_iteration_is_unbind() -> None:
    class Own(mcf.MCFTensor):
        pass

    leaf = A.clone().requires_grad_()
    for a in (A, B, leaf, A[:0], Own(list(A.components))):
        found, expected = [*a], a.unbind()
        assert len(found) == len(a)
        for got, want in zip(found, expected, strict=True):
            assert_alike(got, want, "iteration")
            assert (type(got), got._base is a) == (type(want), want._base is a)
            assert (got.grad_fn is None) is (want.grad_fn is None)
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(A[0, 0, 0])
    with Seen() as seen:
        first, _ = A
    assert torch.ops.aten.unbind.int in seen.seen
    assert_alike(first, A[0], "a mode")
    mapped = torch.func.vmap(lambda a: torch.stack([*a]))(A)
    assert_alike(mapped, A.clone(), "vmap")


@pytest.mark.usefixtures("on_torch")
def test_views_under_no_grad_and_in_inference_mode() -> None:
    leaf = A.clone().requires_grad_()
    with torch.no_grad():
        views = [leaf[0, 1], leaf.mT, leaf.unbind()[0], leaf.view(-1)]
    for view in views:
        assert view._base is leaf
        # As of plain tensors.
        assert view.requires_grad
    with pytest.raises(RuntimeError, match="no_grad"):
        views[1].mul_(2)
    with pytest.raises(RuntimeError, match="no_grad"):
        views[2].mul_(2)
    with torch.inference_mode():
        kept = A.mT
        own = A.clone().mT
    assert (kept.is_inference(), own.is_inference()) == (False, True)
    assert kept._version == A._version
    assert_alike(kept, A.mT, "kept")


def test_ends_of_slices_that_are_expansions() -> None:
    end = mcf.tensor(2.0, terms=2, dtype=torch.float64)
    plain = torch.tensor(2)
    assert_alike(A[:, :plain], A[:, :2], "a plain end")
    with pytest.raises(TypeError, match="index"):
        A[:end]
    with pytest.raises((TypeError, RuntimeError)):
        A.narrow(0, 0, end)


@pytest.mark.usefixtures("on_torch")
def test_grids_are_views_of_their_operands() -> None:
    a, b, c = A[0, 0].clone(), B[:, 1, 2], X[:1]
    leaf = a.clone().requires_grad_()
    for given in ((a,), (a, X[::2], b), (b, a, c), (X[:0], a), (leaf, a), (a[0], b)):
        for indexing in ("ij", "xy")[: 2 if len(given) == 2 else 1]:
            got = torch.meshgrid(*given, indexing=indexing)
            for k in range(2):
                parts = [x.components[k].detach() for x in given]
                want = torch.meshgrid(*parts, indexing=indexing)
                for one, other in zip(got, want, strict=True):
                    c = one.components[k]
                    assert (c.shape, c.stride(), c.data_ptr()) == (
                        other.shape, other.stride(), other.data_ptr()
                    )  # fmt: skip
                    assert one._base is not None
            assert [g.requires_grad for g in got] == [x.requires_grad for x in given]
    with pytest.raises(RuntimeError, match="dtype"):
        torch.meshgrid(a, mcf.tensor([1.0], terms=2, dtype=torch.float32), indexing="ij")


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "a number": lambda a, x: a[2],
    "numbers": lambda a, x: a[0, 3],
    "too many": lambda a, x: a[0, 0, 0, 0],
    "no length": lambda a, x: a.split(),
    "one more": lambda a, x: a.split(1, 0, 0),
    "a step": lambda a, x: a[:, ::-1],
    "text": lambda a, x: a["0"],
    "a shape": lambda a, x: a.view(5, 5),
    "another shape": lambda a, x: a.mT.view(24),
    "a dimension": lambda a, x: a.unsqueeze(5),
    "a size": lambda a, x: a.expand(4, 3, 4),
    "parts": lambda a, x: a.split([1, 3]),
    "an argument": lambda a, x: a.unbind(0, 1),
    "a name": lambda a, x: a.unbind(d=0),
    "another shape's": lambda a, x: a.expand_as(x),
    "another size's": lambda a, x: a.view_as(x),
    "no tensor's": lambda a, x: a.expand_as(2),
    "a named dimension": lambda a, x: a.unbind(dim=3),
    "a named argument": lambda a, x: a.unbind(dim=[0]),
    "one of two names": lambda a, x: a.transpose(0, dim0=1),
    "a named shape": lambda a, x: a.view(size=(5, 5)),
    "a name of split's": lambda a, x: a.split(1, axis=0),
    "matrices": lambda a, x: a.t(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_view_raises_the_error_of_a_plain_tensor(name: str) -> None:
    with pytest.raises((TypeError, RuntimeError, IndexError, ValueError)) as expected:
        REFUSED[name](A.components[0], X.components[0])
    with pytest.raises(expected.type):
        REFUSED[name](A, X)


@pytest.mark.usefixtures("on_torch")
def test_what_is_written_to_a_view_is_written_to_the_tensor() -> None:
    x = A.clone()
    before = x._version
    for view in (x[1, 2, 3], x[:, 1:, 2], x.unbind(1)[0], x.split(1, 1)[1], x[0, ::2]):
        view.mul_(2)
    assert x._version == before + 5
    factor = torch.ones(2, 3, 4, dtype=torch.float64)
    for place in ((1, 2, 3), (slice(None), slice(1, None), 2), (slice(None), 0), (slice(None), 1)):
        factor[place] *= 2
    factor[0, ::2] *= 2
    assert_alike(x, torch.where(factor == 1, A, A * factor), "written")


@pytest.mark.usefixtures("on_torch")
def test_what_is_recorded_reaches_the_tensor_that_was_viewed() -> None:
    """A view that nobody recorded makes its tensor part of the graph when it is written to."""
    w = mcf.MCFTensor(list(X.components)).requires_grad_()
    x = A.clone()
    view = x[1, 0]
    view.mul_(w)
    assert x.requires_grad
    (gradient,) = torch.autograd.grad(x.sum(), [w])
    assert_alike(gradient, A[1, 0] * torch.ones_like(w), "gradient")
    kept = w * 1
    total = (kept * kept).sum()
    with torch.no_grad():
        kept[None, 1, ...].mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()
    part, *_ = x.unbind()
    with pytest.raises(RuntimeError, match="multiple views"):
        part.mul_(2)
    leaf = A.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        leaf[0, 1].mul_(2)
    leaf[0, 1:].sum().backward()
    expected = torch.zeros(2, 3, 4, dtype=torch.float64)
    expected[0, 1:] = 1
    assert_all_same_bits(leaf.grad.components[:1], [expected], "gradient")


@pytest.mark.usefixtures("on_torch")
def test_modes_transforms_and_other_types_see_views() -> None:
    with Seen() as seen:
        A[0, 1]
    assert torch.ops.aten.select.int in seen.seen
    mapped = torch.func.vmap(lambda a: a[1, 1:] * a.unsqueeze(0)[0, 0, 1:])(A)
    assert_alike(mapped, torch.stack([a[1, 1:] * a[0, 1:] for a in A.unbind()]), "vmap")

    class Own(mcf.MCFTensor):
        pass

    own = Own(list(A.components))
    assert_alike(own[0, 1], Own(list(A[0, 1].components)), "own type")
    expected = A[0, 1]
    # Views of other tensors raised there.
    with torch.inference_mode():
        for x in (A, A.clone()):
            for view in (x[0, 1], x[0].unbind()[1]):
                assert_alike(view, expected, "inference")
                assert view.is_inference() is x.is_inference()


@pytest.mark.slow
def test_compiled_views() -> None:
    compiled = torch.compile(lambda a: a[0, 1] + a[1, :2], backend="eager")
    added = torch.compile(lambda a: sum([x * 2 for x in a]), backend="eager", fullgraph=True)
    for a in (A, A.clone().requires_grad_(), A[:, 1:]):
        assert_alike(compiled(a), a[0, 1] + a[1, :2], "compiled")
        assert_alike(added(a), a[0] * 2 + a[1] * 2, "iteration")


def test_threads_do_not_find_the_views_of_others() -> None:
    tensors = [A[0, :2].clone() for _ in range(4)]
    wrong: list[Any] = []

    def work(x: Any) -> None:
        for k in range(100):
            got = x[k % 2, k % 4]
            if got.components[0].data_ptr() != x.components[0][k % 2, k % 4].data_ptr():
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(x,)) for x in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
