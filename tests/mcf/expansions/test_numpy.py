"""NumPy's functions of expansion tensors: as many digits as torch's, or an error, never an array.

What they compute is compared with NumPy's own on float64 arrays, to 2^-40; that no digit is lost on
the way with torch's function on the same expansions, bit for bit: each number has digits that
float64 has not.

Caught mutants: a result of the leading components; NumPy's axes, counts and medians taken for
torch's; operands exchanged; a function that NumPy computes by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.expansions.interchange import numpy_functions, numpy_ufuncs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

ARRAY = np.array([[0.5, -1.25, 3.0], [0.75, 2.0, -0.375]])
TAIL = torch.tensor([[1.0, 0, -1], [1, 1, -1]], dtype=torch.float64) * 2.0**-60


def expansion(array: Any = ARRAY) -> mcf.MCFTensor:
    """The array's numbers and a little more or less."""
    plain = torch.from_numpy(np.array(array, dtype=np.float64))
    return mcf.tensor(plain, 2) + TAIL.flatten()[: plain.numel()].reshape(plain.shape)


def same(got: Any, want: Any, tolerance: float = 2.0**-40) -> None:
    """Tensors, expansions where NumPy has floats, close to what NumPy has."""
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            same(x, y, tolerance)
        return
    if isinstance(want, (int, bool, str)) and not isinstance(want, np.generic):
        assert got == want
        return
    want = np.asarray(want)
    assert isinstance(got, torch.Tensor) or np.ndim(want) == 0
    if want.dtype.kind == "f":
        assert isinstance(got, mcf.MCFTensor)
        found = got.detach().to_numpy()
    else:
        found = np.asarray(got)
    assert found.shape == want.shape
    assert np.allclose(found, want, rtol=tolerance, atol=tolerance, equal_nan=True)


POSITIVE = np.abs(ARRAY) / 4
SQUARE = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
VECTOR = ARRAY.ravel()

CALLS: dict[str, list[Callable[[Any, Any], Any]]] = {
    name: [
        lambda f, x: f(x),
        lambda f, x: f(x, axis=0),
        lambda f, x: f(x, 1),
        lambda f, x: f(x, axis=-1, keepdims=True),
        lambda f, x: f(x, keepdims=True),
        *([] if name in ("argmax", "argmin") else [lambda f, x: f(x, axis=(0, 1))]),
    ]
    for name in (
        "sum", "mean", "nansum", "nanmean", "max", "min", "amax", "amin", "ptp", "prod", "all",
        "any", "count_nonzero", "var", "std", "argmax", "argmin",
    )
} | {
    name: [lambda f, x: f(x)]
    for name in (
        "ravel", "fliplr", "flipud", "triu", "trace", "copy", "atleast_1d", "shape", "ndim",
        "nonzero", "linalg.pinv", "real", "sinc", "isposinf", "isneginf", "nan_to_num",
        "zeros_like", "ones_like", "iscomplexobj", "isrealobj",
    )
} | {
    name: [lambda f, x: f(SQUARE + 0 * x[:1])]
    for name in ("linalg.inv", "linalg.det", "linalg.cholesky", "linalg.eigvalsh")
} | {
    "var": [lambda f, x: f(x), lambda f, x: f(x, axis=0, ddof=1)],
    "std": [lambda f, x: f(x), lambda f, x: f(x, axis=1, ddof=1, keepdims=True)],
    "cumsum": [lambda f, x: f(x), lambda f, x: f(x, axis=0), lambda f, x: f(x, 1)],
    "cumprod": [lambda f, x: f(x), lambda f, x: f(x, axis=0)],
    "median": [lambda f, x: f(x), lambda f, x: f(x, axis=0), lambda f, x: f(x, keepdims=True)],
    "nanmedian": [lambda f, x: f(x, axis=1)],
    "quantile": [lambda f, x: f(x, 0.25), lambda f, x: f(x, [0.25, 0.5], axis=1, keepdims=True)],
    "nanquantile": [lambda f, x: f(x, 0.75, axis=0)],
    "sort": [lambda f, x: f(x), lambda f, x: f(x, axis=0), lambda f, x: f(x, axis=None)],
    "argsort": [lambda f, x: f(x), lambda f, x: f(x, axis=0)],
    "unique": [lambda f, x: f(x), lambda f, x: f(x, return_counts=True)],
    "clip": [lambda f, x: f(x, -0.5, 1), lambda f, x: f(x, None, 1)],
    "round": [lambda f, x: f(x * 1.29), lambda f, x: f(x * 1.29, 1)],
    "where": [lambda f, x: f(ARRAY > 0, x, 0), lambda f, x: f(x > 0, 1, x)],
    "isclose": [lambda f, x: f(x, ARRAY)],
    "allclose": [lambda f, x: f(x, ARRAY)],
    "dot": [lambda f, x: f(x, x.T), lambda f, x: f(x, 2), lambda f, x: f(ARRAY[0], x.T)],
    "einsum": [lambda f, x: f("ij,kj->ik", x, ARRAY)],
    "linalg.norm": [lambda f, x: f(x), lambda f, x: f(x, axis=1), lambda f, x: f(x, 1, 0, True)],
    "reshape": [lambda f, x: f(x, (3, 2)), lambda f, x: f(x, -1)],
    "swapaxes": [lambda f, x: f(x, 0, 1)],
    "moveaxis": [lambda f, x: f(x, 0, 1)],
    "squeeze": [lambda f, x: f(x[:1]), lambda f, x: f(x[:, :1], axis=1)],
    "broadcast_to": [lambda f, x: f(x, (2, 2, 3))],
    "flip": [lambda f, x: f(x), lambda f, x: f(x, 1), lambda f, x: f(x, axis=(0, 1))],
    "rot90": [lambda f, x: f(x), lambda f, x: f(x, 2)],
    "roll": [lambda f, x: f(x, 1), lambda f, x: f(x, 1, axis=1)],
    "tril": [lambda f, x: f(x), lambda f, x: f(x, 1)],
    "diag": [lambda f, x: f(x), lambda f, x: f(x[0])],
    "diagonal": [lambda f, x: f(x, 1)],
    "vstack": [lambda f, x: f([x, x])],
    "hstack": [lambda f, x: f((x, x))],
    "dstack": [lambda f, x: f([x, x])],
    "column_stack": [lambda f, x: f([x, x])],
    "concatenate": [lambda f, x: f([x, ARRAY]), lambda f, x: f([x, x], axis=None)],
    "stack": [lambda f, x: f([x, x], axis=1), lambda f, x: f([ARRAY, x])],
    "split": [lambda f, x: f(x, 3, axis=1), lambda f, x: f(x, [1])],
    "tile": [lambda f, x: f(x, 2), lambda f, x: f(x, (2, 1))],
    "repeat": [lambda f, x: f(x, 2), lambda f, x: f(x, [1, 2], axis=0)],
    "take": [lambda f, x: f(x, [0, 4]), lambda f, x: f(x, [[0, -1]], axis=1)],
    "expand_dims": [lambda f, x: f(x, 1), lambda f, x: f(x, (0, -1))],
    "transpose": [lambda f, x: f(x), lambda f, x: f(x, (1, 0))],
    "meshgrid": [lambda f, x: f(x[0], x[1]), lambda f, x: f(x[0], x[1], indexing="ij")],
    "size": [lambda f, x: f(x), lambda f, x: f(x, 1)],
    "kron": [lambda f, x: f(x, x)],
    "outer": [lambda f, x: f(x, ARRAY)],
    "inner": [lambda f, x: f(x, x)],
    "vdot": [lambda f, x: f(x, x)],
    "cross": [lambda f, x: f(x, ARRAY)],
    "tensordot": [lambda f, x: f(x, x), lambda f, x: f(x, x, ([0], [0]))],
    "linalg.solve": [lambda f, x: f(SQUARE + 0 * x[:1], SQUARE)],
    "linalg.matrix_power": [lambda f, x: f(SQUARE + 0 * x[:1], 3)],
    "linalg.slogdet": [lambda f, x: tuple(f(SQUARE + 0 * x[:1]))],
    "linalg.multi_dot": [lambda f, x: f([x, x.T, x])],
    "searchsorted": [
        lambda f, x: f(np.sort(VECTOR), x[0] + 0.1),
        lambda f, x: f(x[0, :1], VECTOR + 0.1),
    ],
    "full_like": [lambda f, x: f(x, 0.5)],
    "diff": [lambda f, x: f(x), lambda f, x: f(x, axis=0), lambda f, x: f(x, 2)],
    "trapezoid": [lambda f, x: f(x), lambda f, x: f(x, dx=0.5), lambda f, x: f(x, ARRAY, axis=0)],
    "array_equal": [lambda f, x: f(x, x), lambda f, x: f(x, x[:1])],
}  # fmt: skip
# Other names of these; texts; factors whose signs are free; and what raises by design.
ELSEWHERE = {
    "around", "permute_dims", "matrix_transpose", "concat", "array_split", "array_repr",
    "array_str", "array2string", "linalg.qr", "linalg.eigh", "linalg.svd", "empty_like",
    "result_type", "common_type", "can_cast", "min_scalar_type",
}  # fmt: skip


def found(name: str) -> Any:
    return operator.attrgetter(name)(np)


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("name", [n for n in CALLS if n != "trapezoid" or hasattr(np, n)])
def test_functions_are_those_of_numpy(name: str) -> None:
    for call in CALLS[name]:
        same(call(found(name), expansion()), call(found(name), ARRAY))


def test_every_function_is_tried_or_said_to_be_elsewhere() -> None:
    listed = {found(n) for n in CALLS.keys() | ELSEWHERE if hasattr(np, n.split(".")[0])
              and (("." in n) or hasattr(np, n))}  # fmt: skip
    assert numpy_functions.FUNCTIONS.keys() <= listed
    x = expansion()
    q, r = np.linalg.qr(x.T)
    same(np.matmul(q, r), ARRAY.T)
    u, s, v = np.linalg.svd(x, full_matrices=False)
    same(u * s @ v, ARRAY)
    values, vectors = np.linalg.eigh(expansion(SQUARE[:2, :2]))
    same(vectors * values @ vectors.mT, SQUARE[:2, :2])
    assert np.array_repr(x) == repr(x)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("ufunc", [*numpy_ufuncs.FUNCTIONS, *numpy_ufuncs.METHODS],
                         ids=lambda u: u.__name__)  # fmt: skip
def test_elementwise_functions_are_those_of_numpy(ufunc: Any) -> None:
    x, array = expansion(POSITIVE), POSITIVE
    if ufunc is np.rint:
        x, array = x * 1.3, array * 1.3
    if ufunc is np.arccosh:
        x, array = x + 1, array + 1
    if ufunc is np.matmul:
        same(ufunc(x, array.T), ufunc(array, array.T))
        same(ufunc(array, x.T), ufunc(array, array.T))
    elif ufunc is np.ldexp:
        same(ufunc(x, 3), ufunc(array, 3))
    elif ufunc.nin == 1:
        same(ufunc(x), ufunc(array))
    else:
        other = array[::-1] + 0.125
        same(ufunc(x, other), ufunc(array, other))
        same(ufunc(other, x), ufunc(other, array))
        same(ufunc(x, 0.3), ufunc(array, 0.3))
        same(ufunc(0.3, x), ufunc(0.3, array))


def test_no_digit_is_lost_on_the_way() -> None:
    """Mutant: an operand that passes through an array."""
    x = expansion()
    for got, want in (
        (np.exp(x), torch.exp(x)),
        (np.add(x, 1), x + 1),
        (1 - np.multiply(2.0, x), 1 - 2 * x),
        (np.sum(x, axis=0), torch.sum(x, 0)),
        (np.cumsum(x, axis=1), torch.cumsum(x, 1)),
        (np.mean(x), torch.mean(x)),
        (np.var(x), torch.var(x, correction=0)),
        (np.std(x, axis=1, ddof=1), torch.std(x, 1)),
        (np.median(x), (x[0, 0] + x[1, 0]) / 2),
        (np.where(ARRAY > 0, x, -x), torch.where(torch.from_numpy(ARRAY > 0), x, -x)),
        (np.stack([x, x], 1), torch.stack([x, x], 1)),
        (np.add.reduce(x), x.sum(0)),
        (np.maximum.reduce(x, axis=None, keepdims=True), x.amax((0, 1), True)),
        (np.multiply.reduce(x, axis=(0, 1)), x.prod(1).prod()),
        (np.add.accumulate(x, 1), x.cumsum(1)),
        (np.multiply.outer(x[0], x[1]), torch.outer(x[0], x[1])),
        (np.subtract.outer(ARRAY[0], x), torch.from_numpy(ARRAY[0])[:, None, None] - x),
    ):
        assert got.to_fractions() == want.to_fractions()
    assert np.add(x, np.longdouble(1)).to_fractions() == (x + 1).to_fractions()
    third = np.array([Fraction(1, 3)] * 3, dtype=object)
    assert (third * x).to_fractions() == (x * mcf.tensor("1/3", 2, torch.float64)).to_fractions()


def test_results_go_to_expansions_alone() -> None:
    x, array = expansion(), ARRAY.copy()
    out = mcf.zeros(2, 3, terms=2, dtype=torch.float64)
    assert np.exp(x, out=out) is out
    assert out.to_fractions() == torch.exp(x).to_fractions()
    total = mcf.zeros(3, terms=2, dtype=torch.float64)
    assert np.sum(x, axis=0, out=total) is total
    for call in (
        lambda: np.exp(x, out=array),
        lambda: operator.imul(array, x),
        lambda: np.cumsum(x, axis=0, out=array),
    ):
        with pytest.raises(TypeError, match="out must be an expansion tensor, got ndarray"):
            call()
    assert (array == ARRAY).all()
    for call in (lambda: np.add(ARRAY, 1, out=out), lambda: np.sum(ARRAY, out=out)):
        with pytest.raises(TypeError, match="no argument is"):
            call()


def test_derivatives_go_through() -> None:
    x = expansion().requires_grad_()
    np.sum(np.exp(x) * ARRAY).backward()
    assert x.grad is not None
    want = x.detach().exp() * torch.from_numpy(ARRAY)
    assert x.grad.to_fractions() == want.to_fractions()


def public() -> list[Any]:
    rooms = (np, np.linalg, np.fft)
    functions = [vars(room).get(n) for room in rooms for n in sorted(vars(room))]
    return [f for f in functions if hasattr(f, "_implementation")]


def test_what_is_not_here_is_refused() -> None:
    """Each function of NumPy that asks its arguments' types before it computes."""
    x, refused = expansion(), 0
    for function in public():
        if function in numpy_functions.FUNCTIONS:
            continue
        with pytest.raises(mcf.UnsupportedError, match="to_numpy"):
            x.__array_function__(function, (type(x),), (x,), {})
        refused += 1
    assert refused > 100
    for name in dir(np):
        ufunc = getattr(np, name)
        known = numpy_ufuncs.FUNCTIONS.keys() | numpy_ufuncs.METHODS.keys()
        if not isinstance(ufunc, np.ufunc) or ufunc in known:
            continue
        try:
            got = ufunc(*[abs(x)] * ufunc.nin)
        except (mcf.UnsupportedError, TypeError, NotImplementedError):
            continue
        for result in got if isinstance(got, tuple) else (got,):
            assert isinstance(result, torch.Tensor), name
    for call in (
        lambda: np.convolve(x[0], x[1]),
        lambda: np.sum(x, where=ARRAY > 0),
        lambda: np.sum(x, dtype=np.float32),
        lambda: np.exp(x, where=ARRAY > 0),
        lambda: np.add(x, 1, dtype=np.float32),
        lambda: np.add.at(x, [0], 1),
        lambda: np.cbrt(x),
        lambda: np.unique(x, return_index=True),
    ):
        with pytest.raises((mcf.UnsupportedError, TypeError)):
            call()
    with pytest.raises(TypeError, match="no NumPy type"):
        np.result_type(x, np.float64)


def test_an_array_of_it_has_its_values() -> None:
    x = expansion()
    array = np.asarray(x)
    assert array.dtype == object
    assert array.tolist() == x.to_fractions()
    assert np.asarray(mcf.tensor(ARRAY)).dtype == np.float64
    assert np.array([x[0], x[1]]).tolist() == x.to_fractions()
    for got in (np.asarray(x, dtype=np.float32), x.to_numpy(np.float32)):
        assert (got == ARRAY.astype(np.float32)).all()
    assert x.clone().requires_grad_().to_numpy().dtype == np.float64
    with pytest.raises(RuntimeError, match="requires grad"):
        np.asarray(x.clone().requires_grad_())
    # Rounded to nearest, as an assignment to a plain tensor is.
    into = np.zeros(3)
    into[:] = mcf.tensor(["0.1", "0.2", "0.3"], 3, torch.float64)
    assert into.tolist() == [0.1, 0.2, 0.3]
