"""Exact: decompositions of small matrices in one call have the bits of operations on tensors.

Caught mutants: eigenvalues from the largest down; the other triangle; U and V^T in each other's
place for tall matrices; sweeps in expansions left out; a value not multiplied by the power of two;
an element whose first component is 0 taken for 0; a look left out.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from mcf.kernels import operations
from mcf.kernels.decomposition import DONE, LEFT
from mcf.kernels.numba.loops.matrices import decomposition
from mcf.linalg import orthogonal_rows, spectral
from mcf.linalg.parts import Components, each, padded, transpose
from tests.helpers.everyday import everyday
from tests.mcf.linalg.test_loops import F64, ROWS, components

INF, NAN = float("inf"), float("nan")


def same(found: Any, wanted: Any) -> None:
    for x, y in zip(found, wanted, strict=True):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, y)
            continue
        assert (x is None) == (y is None)
        for p, q in zip(x or (), y or (), strict=True):
            assert p.shape == q.shape
            assert torch.equal(p.contiguous().view(torch.int64), q.contiguous().view(torch.int64))


def compared(a: Components) -> None:
    """Both decompositions, of either triangle, with vectors and without."""
    if a[0].shape[-1] == a[0].shape[-2]:
        for upper in (False, True):
            same(spectral.eigh(a, upper), spectral._eigh(a, upper))
    for full, vectors in ((False, True), (True, True), (False, False)):
        same(spectral.svd(a, full, vectors), spectral._svd(a, full, vectors))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the matrices of all calls ended as."""
    found: list[int] = []
    real = decomposition.Decomposer.__call__

    def call(*given: Any) -> Any:
        states = real(*given)
        found.extend(states)
        return states

    monkeypatch.setattr(decomposition.Decomposer, "__call__", call)
    return found


SHAPES = [(1, 1), (2, 2), (3, 3), (3, 4), (5, 3), (2, 3, 3), (7, 7)]
MORE = [(2, 2, 4, 4), (12, 9), (33, 33), (20, 36), (48, 48), (3, 17, 17)]


@pytest.mark.parametrize(
    ("terms", "shape"),
    everyday(
        itertools.product((1, 2, 3, 4), [*SHAPES, *MORE]), lambda k, s: k == 2 and s in SHAPES
    ),
)
def test_shapes(terms: int, shape: tuple[int, ...], ends: list[int]) -> None:
    compared(components(F64, terms, *shape))
    assert set(ends) == {DONE}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_formats(dtype: torch.dtype, ends: list[int]) -> None:
    compared(components(dtype, 2, 4, 4))
    assert set(ends) == {DONE}


def plain(rows: list[list[float]], terms: int = 2) -> Components:
    leading = torch.tensor(rows, dtype=F64)
    return (leading, *(torch.zeros_like(leading) for _ in range(terms - 1)))


SPECIAL: dict[str, list[list[float]]] = ROWS | {
    "one zero": [[0.0]],
    "negative zeros": [[-0.0, 0.0], [-0.0, -0.0]],
    "identity": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "negative": [[-1.0, 0.0], [0.0, -1.0]],
    "rank one": [[1.0] * 4] * 4,
    "exchanged": [[0.0, 1.0], [1.0, 0.0]],
    "large": [[2.0**1023, 2.0**1022], [2.0**1022, 2.0**1020]],
    "small": [[2.0**-1022, 2.0**-1030], [2.0**-1030, 2.0**-1040]],
    "subnormal": [[2.0**-1060, 2.0**-1070], [2.0**-1070, 2.0**-1065]],
    "wide": [[2.0**300, 1.0], [1.0, 2.0**-300]],
    "nearly parallel": [[1.0, 1.0], [1.0, 1.0 + 2.0**-52]],
}
BROKEN = {
    "infinite": [[INF, 1.0], [1.0, 2.0]],
    "not a number": [[1.0, NAN], [NAN, 2.0]],
    "of one triangle": [[1.0, 3.0], [NAN, 2.0]],
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", [*SPECIAL, *BROKEN])
def test_special_values(name: str) -> None:
    """Those that the loop leaves as well, alone and beside others."""
    a = plain({**SPECIAL, **BROKEN}[name])
    if name in SPECIAL:
        compared(a)
    n = len(a[0])
    beside = components(F64, 2, n, n)
    both = tuple(torch.stack(pair) for pair in zip(beside, a, beside, strict=True))
    found = spectral.eigh(both)
    for k, each_ in enumerate((beside, a, beside)):
        alone = spectral._eigh(each_, False)
        assert bool(found[2][k]) == bool(alone[2])
        if alone[2]:
            same([each(lambda c, k=k: c[k], x) for x in found[:2]], alone[:2])  # type: ignore[misc]


def test_what_is_left(ends: list[int]) -> None:
    """Numbers that are not the nearest expansions of their sums, ends of the range."""
    odd = plain([[1.0, 2.0], [2.0, 5.0]])
    odd[1][0, 0] = 1.0
    for a in (odd, plain(SPECIAL["subnormal"]), plain(BROKEN["infinite"])):
        spectral.eigh(a)
    assert set(ends) == {LEFT}


def test_numbers_below_a_zero_are_not_dropped(ends: list[int]) -> None:
    """Not an expansion as operations return them, but one that components can make."""
    a = plain([[1.0, 0.0], [0.0, 1.0]])
    a[1][0, 1] = a[1][1, 0] = 2.0**-90
    compared(a)
    assert set(ends) == {LEFT}


def few(name: str) -> tuple[bool, Components]:
    """Which decomposition, and matrices of which rotations leave more and less."""
    g = torch.Generator().manual_seed(1)

    def whole_numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-1024, 1024, (20, *shape), generator=g).double()

    if name == "deficient":
        return False, padded((whole_numbers(5, 2) @ whole_numbers(2, 6),), 2)
    a = whole_numbers(5, 5) * 2.0**-90
    a = torch.eye(5, dtype=F64), a.tril() + a.tril(-1).mT
    return True, operations.renormalize(a, 2)


# Of which some of these matrices have more, and some less.
BETWEEN = {
    "deficient": {"own": 2, "off": 2, "cosine": 3, "drift": 0.25},
    "close": {"own": 3, "off": 2, "cosine": 4, "mixed": 3},
}


@pytest.mark.parametrize(
    ("name", "limit", "value"), [(n, *case) for n in BETWEEN for case in BETWEEN[n].items()]
)
def test_what_is_looked_at(
    name: str, limit: str, value: float, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop refuses what operations on tensors refuse; each limit alone, near what is found."""
    limits = orthogonal_rows.LIMITS._replace(**{limit: value})
    for module in (orthogonal_rows, spectral):
        monkeypatch.setattr(module, "LIMITS", limits)
    symmetric, a = few(name)
    wanted = spectral._eigh(a, False) if symmetric else spectral._svd(a, False, False)
    found = spectral.eigh(a) if symmetric else spectral.svd(a, False, False)
    assert 0 < int(wanted[-1].sum()) < 20
    assert [state == DONE for state in ends[-20:]] == wanted[-1].tolist()
    assert torch.equal(found[-1], wanted[-1])


def looked_at(name: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Components, Any]:
    """A matrix, and (X, M) of which this limit says |X| <= limit rows unit |M|."""
    symmetric, a = few(name)
    a, seen = each(lambda c: c[:1], a), []
    # What is compared as if nothing were left: a limit of 0.
    limits = orthogonal_rows.LIMITS._replace(**{limit: 0})
    real = orthogonal_rows.below

    def below(x: Components, factor: float, m: Components, numbers: Any) -> torch.Tensor:
        if factor == 0:
            seen.append((x[0][0], m[0][0]))
        return real(x, factor, m, numbers)

    with monkeypatch.context() as patched:
        patched.setattr(orthogonal_rows, "LIMITS", limits)
        patched.setattr(orthogonal_rows, "below", below)
        spectral._eigh(a, False) if symmetric else spectral._svd(a, False, False)
    return a, seen[-1]


def square(x: torch.Tensor) -> Fraction:
    return sum((Fraction(v) ** 2 for v in x.flatten().tolist()), Fraction(0))


@pytest.mark.parametrize(
    ("name", "limit", "in_one_call"),
    [(n, k, one) for n, k in (("close", "mixed"), ("deficient", "drift")) for one in (True, False)],
)
def test_the_limit_from_which_on_a_matrix_is_held(
    name: str, limit: str, in_one_call: bool, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bisection: no less than what is left, exactly, and no more than a step of each number.

    Caught mutant: numbers counted in whole steps below them, as if these were above; by the loop
    and by operations on tensors.
    """
    a, (left, size) = looked_at(name, limit, monkeypatch)
    symmetric, rows = name == "close", min(a[0].shape[1:])

    def held(words: int) -> bool:
        limits = orthogonal_rows.LIMITS._replace(**{limit: words / 2**20})
        for module in (orthogonal_rows, spectral):
            monkeypatch.setattr(module, "LIMITS", limits)
        if in_one_call:
            spectral.eigh(a) if symmetric else spectral.svd(a, False, False)
            return ends[-1] == DONE
        found = spectral._eigh(a, False) if symmetric else spectral._svd(a, False, False)
        return bool(found[-1].all())

    low, high = 1, int(getattr(orthogonal_rows.LIMITS, limit) * 2**20)
    assert held(high)
    assert not held(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if held(middle) else (middle, high)
    allowed = (Fraction(high, 2**20) * rows * Fraction(2) ** -106) ** 2
    assert square(left) <= allowed * square(size)
    # 64 columns' worth of steps are the limit times 2^k, at most |M|: of r numbers the steps
    # beside are r^(1/2) / 64 columns of it at most; |M| is rounded down by less than 2^-8, all of
    # it by less than a word.
    beside = math.sqrt(left.numel()) / (64 * size.shape[1]) + 2.0**-8 + 1.0 / high
    assert allowed * square(size) <= square(left) * Fraction((1 + 2 * beside) ** 2)


def test_values_without_vectors_of_zeros(ends: list[int]) -> None:
    a = plain([[0.0, 0.0], [0.0, 0.0]])
    same(spectral.svd(a, False, False), spectral._svd(a, False, False))
    assert ends == [DONE]
    compared(a)
    assert LEFT in ends


LAYOUTS: dict[str, Callable[[Components], Components]] = {
    "turned": transpose,
    "expanded": lambda a: each(lambda c: c[0].expand(3, 5, 5), a),
    "spread": lambda a: each(lambda c: c[:, ::2, 1::2], a),
    "each another": lambda a: (a[0], a[1].mT.contiguous().mT),
    "batches turned": lambda a: each(lambda c: c.transpose(0, 2), a),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    compared(LAYOUTS[name](components(F64, 2, 3, 5, 5)))


def test_none() -> None:
    for shape in ((0, 3, 3), (2, 0, 0), (0, 0)):
        compared(components(F64, 2, *shape))
    for shape in ((0, 3), (3, 0)):
        spectral.svd(components(F64, 2, *shape))


def test_threads_share_a_batch() -> None:
    """As many matrices as threads share, on one and on two."""
    a = components(F64, 2, 150, 8, 8)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append((spectral.eigh(a), spectral.svd(a)))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        same(one, two)


def test_calls_at_once_have_memory_of_their_own() -> None:
    first = components(F64, 2, 6, 6)
    operands = [each(lambda c, k=k: c * (k + 1.0), first) for k in range(4)]  # type: ignore[misc]
    wanted = [spectral._eigh(a, False) for a in operands]
    start, wrong = threading.Barrier(len(operands)), []

    def work(k: int) -> None:
        start.wait()
        try:
            for _ in range(50):
                same(spectral.eigh(operands[k]), wanted[k])
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(operands))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sweeps_in_expansions_are_fetched_where_they_are_needed(ends: list[int]) -> None:
    """What corrections leave is finished by the same call, once the loop is there."""
    spectral._prepared.cache_clear()
    a = plain(ROWS["close"])
    same(spectral.eigh(a), spectral._eigh(a, False))
    assert ends[-1] == DONE


def test_larger_matrices_have_no_loop() -> None:
    assert spectral.prepared(True, 2, 1, (49, 49)) is None
