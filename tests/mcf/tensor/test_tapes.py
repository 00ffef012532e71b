"""Exact: functions by their steps have the bits and the errors of torch's way.

Caught mutants: a result that the next call writes to; a constant that follows from the operands; a
number that decides what is done, not looked at again; an operand's copy that is not made again;
two calls at a time in one memory.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.tensor import tapes
from mcf.tensor.tape_steps import ChangedError, checked
from tests.helpers import assert_all_same_bits

_FLOAT64 = torch.float64
_CLASSES = torch.tensor([1, 0, 2])
_SIGNS = torch.tensor([1.0, -1.0, 1.0] * 4, dtype=_FLOAT64).reshape(3, 4)

# A function of two tensors [3, 4], of numbers in (0, 1) where `True` stands beside it.
CASES: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "angle": (lambda x, y: torch.angle(x), False),
    "batch_norm": (lambda x, y: F.batch_norm(x, y[0] * 0, y[0] * y[0] + 1, y[1], y[2]), False),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy(x, y), True),
    "bce_with_logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y), False),
    "celu": (lambda x, y: F.celu(x, 0.7), False),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y), False),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, _CLASSES), False),
    "cross_entropy_of": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), False),
    "deg2rad": (lambda x, y: torch.deg2rad(x), False),
    "elu": (lambda x, y: F.elu(x, 0.7), False),
    "entr": (lambda x, y: torch.special.entr(x), False),
    "exp2": (lambda x, y: torch.exp2(x), False),
    "float_power": (lambda x, y: torch.float_power(x, 3), False),
    "gaussian_nll_loss": (lambda x, y: F.gaussian_nll_loss(x, y, y * y), False),
    "glu": (lambda x, y: F.glu(x), False),
    "group_norm": (lambda x, y: F.group_norm(x.reshape(1, 4, 3), 2, y[0], y[1]), False),
    "hardshrink": (lambda x, y: F.hardshrink(x), False),
    "hardsigmoid": (lambda x, y: F.hardsigmoid(x), False),
    "hardswish": (lambda x, y: F.hardswish(x), False),
    "hardtanh": (lambda x, y: F.hardtanh(x), False),
    "heaviside": (lambda x, y: torch.heaviside(x, y), False),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, delta=0.5), False),
    "kl_div": (lambda x, y: F.kl_div(x, y, reduction="batchmean"), True),
    "l1_loss": (lambda x, y: F.l1_loss(x, y, reduction="sum"), False),
    "layer_norm": (lambda x, y: F.layer_norm(x, [4], y[0], y[1]), False),
    "ldexp": (lambda x, y: torch.ldexp(x, _CLASSES[:, None]), False),
    "leaky_relu": (lambda x, y: F.leaky_relu(x), False),
    "logaddexp2": (lambda x, y: torch.logaddexp2(x, y), False),
    "logit": (lambda x, y: torch.logit(x), True),
    "logit_eps": (lambda x, y: x.logit(0.25), True),
    "logsigmoid": (lambda x, y: F.logsigmoid(x), False),
    "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, _SIGNS), False),
    "mish": (lambda x, y: F.mish(x), False),
    "mse_loss": (lambda x, y: F.mse_loss(x, y), False),
    "nll_loss": (lambda x, y: F.nll_loss(x, _CLASSES, ignore_index=2), False),
    "normalize": (lambda x, y: F.normalize(x), False),
    "poisson_nll_loss": (lambda x, y: F.poisson_nll_loss(x, y, full=True), True),
    "prelu": (lambda x, y: F.prelu(x, y[0]), False),
    "rad2deg": (lambda x, y: x.rad2deg(), False),
    "relu6": (lambda x, y: F.relu6(x), False),
    "rms_norm": (lambda x, y: F.rms_norm(x, (4,)), False),
    "selu": (lambda x, y: F.selu(x), False),
    "silu": (lambda x, y: F.silu(x), False),
    "sinc": (lambda x, y: torch.sinc(x), False),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), False),
    "soft_margin_loss": (lambda x, y: F.soft_margin_loss(x, _SIGNS), False),
    "softmin": (lambda x, y: F.softmin(x, 1), False),
    "softplus": (lambda x, y: F.softplus(x, 2.0), False),
    "softshrink": (lambda x, y: F.softshrink(x, 0.3), False),
    "softsign": (lambda x, y: F.softsign(x), False),
    "tanhshrink": (lambda x, y: F.tanhshrink(x), False),
    "threshold": (lambda x, y: F.threshold(x, 0.1, -0.0), False),
    "triplet_margin_loss": (lambda x, y: F.triplet_margin_loss(x, y, y * y), False),
    "addr": (lambda x, y: torch.addr(x, y.view(12)[:3], y[0]), False),
    "block_diag": (lambda x, y: torch.block_diag(x, y), False),
    "cartesian_prod": (lambda x, y: torch.cartesian_prod(x[0], y[0]), False),
    "copysign": (lambda x, y: torch.copysign(x, y), False),
    "corrcoef": (lambda x, y: torch.corrcoef(x), False),
    "cov": (lambda x, y: torch.cov(x, correction=0), False),
    "dist": (lambda x, y: torch.dist(x, y), False),
    "gradient": (lambda x, y: torch.gradient(x, dim=0), False),
    "kron": (lambda x, y: torch.kron(x, y), False),
    "logcumsumexp": (lambda x, y: torch.logcumsumexp(x, 1), False),
    "logical_and": (lambda x, y: torch.logical_and(x, y), False),
    "logical_or": (lambda x, y: x.logical_or(y), False),
    "matrix_norm": (lambda x, y: torch.linalg.matrix_norm(x), False),
    "nanmean": (lambda x, y: torch.nanmean(x, 0), False),
    "nansum": (lambda x, y: x.nansum(), False),
    "quantile": (lambda x, y: torch.quantile(x, 0.3, dim=1), False),
    "quantile_of_all": (lambda x, y: torch.quantile(x, 0.5), False),
    "relu": (lambda x, y: F.relu(x), False),
    "renorm": (lambda x, y: torch.renorm(x, 2, 0, 10.0), False),
    "std_mean": (lambda x, y: torch.std_mean(x, 1), False),
    "trapezoid": (lambda x, y: torch.trapezoid(x, dim=0), False),
    "trapezoid_at": (lambda x, y: torch.trapezoid(x, y), False),
    "vander": (lambda x, y: torch.vander(x[0], 3), False),
    "var_mean": (lambda x, y: torch.var_mean(x), False),
    "vecdot": (lambda x, y: torch.linalg.vecdot(x, y), False),
    "xlog1py": (lambda x, y: torch.special.xlog1py(x, y), False),
    "xlogy": (lambda x, y: torch.xlogy(x, y), False),
}
SPECIAL = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 5e-324, 1e308, 1.0, -1.0, 0.5, -3.0, 2.0)


def _numbers(seed: int, inside: bool, terms: int = 2, dtype: torch.dtype = _FLOAT64) -> Any:
    """Numbers [3, 4] whose lower components are not zero."""
    made = torch.Generator().manual_seed(seed)
    bits = 53 if dtype is _FLOAT64 else 24
    whole = torch.randint(1, 2**20, (terms, 12), generator=made)
    parts = [w.to(dtype) * 2.0 ** (-20 - (bits + 1) * k) for k, w in enumerate(whole)]
    if not inside:
        signs = torch.randint(0, 2, (12,), generator=made) * 16 - 8
        parts = [c * signs for c in parts]
    return mcf.MCFTensor([c.to(dtype).reshape(3, 4) for c in parts])


def _as_torch(function: Any, *operands: Any) -> Any:
    """The result, or the error's type and text, of torch's way."""
    with mock.patch.object(tapes, "_looked_at", return_value=False):
        return _said(function, *operands)


def _said(function: Any, *operands: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*operands)
        except Exception as error:
            return type(error), str(error)


def _kept() -> int:
    return sum(type(t) is tapes.Tape for t in tapes._tapes.values())


def _compare(got: Any, expected: Any, name: str) -> None:
    assert type(got) is type(expected), name
    if isinstance(got, mcf.MCFTensor):
        assert got.stride() == expected.stride(), name
        assert_all_same_bits(got.components, expected.components, name)
    elif isinstance(got, torch.Tensor):
        assert_all_same_bits([got], [expected], name)
    elif isinstance(got, (tuple, list)) and isinstance(got[0], torch.Tensor):
        for one, other in zip(got, expected, strict=True):
            _compare(one, other, name)
    else:
        assert got == expected, name


def _check(name: str, terms: int = 2, dtype: torch.dtype = _FLOAT64) -> None:
    function, inside = CASES[name]
    tapes._tapes.clear()
    results = []
    for seed in range(5):
        x, y = (_numbers(seed + k, inside, terms, dtype) for k in (0, 100))
        if seed == 3:
            x = _special(x)
        if seed == 4:
            y = _special(y)
        results.append((_said(function, x, y), _as_torch(function, x, y)))
    for k, (got, expected) in enumerate(results):
        _compare(got, expected, f"{name} {k}")
    assert _kept() > 0, f"{name} has no steps"


def _special(x: Any) -> Any:
    first = torch.tensor(SPECIAL, dtype=x.dtype).reshape(3, 4)
    zero = torch.zeros_like(first)
    return mcf.MCFTensor([first, *(zero.clone() for _ in x.components[1:])])


EVERY_DAY = ("nll_loss", "layer_norm")


@pytest.mark.parametrize("name", EVERY_DAY)
def test_steps_have_the_bits_of_the_function(name: str) -> None:
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_all_steps_have_the_bits_of_the_function(name: str) -> None:
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["softplus", "logit", "elu", "huber_loss"])
def test_steps_of_other_formats(name: str, dtype: torch.dtype, terms: int) -> None:
    _check(name, terms, dtype)


def test_results_and_operands_are_the_callers() -> None:
    tapes._tapes.clear()
    x, y = _numbers(1, False), _numbers(2, False)
    before = [c.clone() for c in x.components]
    results = [F.softshrink(x, 0.3) for _ in range(4)]
    assert _kept() == 1
    others = F.softshrink(y, 0.3)
    for each in results:
        assert_all_same_bits(each.components, _as_torch(F.softshrink, x, 0.3).components, "x")
    assert_all_same_bits(others.components, _as_torch(F.softshrink, y, 0.3).components, "y")
    assert_all_same_bits(x.components, before, "operand")
    results[0].zero_()
    assert torch.equal(results[1], results[2])
    assert not torch.equal(F.softshrink(x, 0.3), results[0])


def test_arguments_that_look_alike_are_told_apart() -> None:
    tapes._tapes.clear()
    x = _numbers(1, False)
    for value in (0.0, -0.0, 0, False, 1, True, 1.0) * 3:
        got = F.threshold(x, 0.1, value)
        _compare(got, _as_torch(F.threshold, x, 0.1, value), f"{value!r}")
    with torch.inference_mode():
        inside = F.threshold(x, 0.1, 1.0)
    assert inside.is_inference()
    assert not F.threshold(x, 0.1, 1.0).is_inference()


def test_what_somebody_sees_has_no_steps() -> None:
    tapes._tapes.clear()
    x = _numbers(1, True)
    expected = F.silu(x)
    known = x.clone().requires_grad_()
    out = F.silu(known)
    [slope] = torch.autograd.grad(out.sum(), known)
    assert out.requires_grad
    assert slope.shape == x.shape
    mapped = torch.func.vmap(F.silu)(x)
    assert_all_same_bits(mapped.components, expected.components, "vmap")
    _, tangent = torch.func.jvp(F.silu, (x,), (torch.ones_like(x),))
    assert torch.equal(tangent, slope)
    strided = F.silu(x.t())
    assert_all_same_bits(strided.t().components, expected.components, "transposed")
    with mcf.executor("torch"):
        for _ in range(3):
            assert_all_same_bits(F.silu(x).components, expected.components, "torch")
    assert _kept() == 0
    changed = x.clone()
    for _ in range(3):
        assert F.hardtanh(changed, inplace=True) is changed


def test_numbers_that_decide_are_looked_at_again() -> None:
    tapes._tapes.clear()
    x, y = _numbers(1, True), _numbers(2, True)
    for _ in range(3):
        F.binary_cross_entropy(x, y)
    assert _kept() == 1
    with pytest.raises(RuntimeError, match="must be in"):
        F.binary_cross_entropy(x + 1, y)
    with pytest.raises(ValueError, match="input's shape"):
        F.binary_cross_entropy(x, y[:2])
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of bounds"):
            F.nll_loss(x, torch.tensor([1, 0, 7]))


def test_threads_do_not_share_a_call() -> None:
    tapes._tapes.clear()
    inputs = [_numbers(seed, False) for seed in range(4)]
    expected = [_as_torch(F.mish, x) for x in inputs]
    for _ in range(2):
        F.mish(inputs[0])
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(50):
            if not torch.equal(F.mish(inputs[k]), expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    [tape] = [t for key, t in tapes._tapes.items() if key[0] is F.mish]
    tape._free.clear()  # As while another call has it.
    assert tape.run(inputs[0].components) is NotImplemented
    assert torch.equal(F.mish(inputs[1]), expected[1])


def test_what_python_reads_is_no_step() -> None:
    tapes._tapes.clear()
    x, y = _numbers(1, True), _numbers(2, True)

    def read(x: Any) -> Any:
        return x * x.components[0].reshape(-1).tolist()[0]

    direct = tapes.taped(read)
    assert [direct(x) for _ in range(3)] == [NotImplemented] * 3
    assert direct(y) is NotImplemented
    assert _kept() == 0


def test_launches_and_programs_say_whether_results_are_of_use() -> None:
    for found in (None, (0.0,), True):
        checked(found)
    for found in ((1.0,), False):
        with pytest.raises(ChangedError):
            checked(found)
