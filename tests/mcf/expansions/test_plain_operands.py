"""Numbers and plain tensors beside expansions: nothing of them is rounded on the way.

Each function takes expansions of three components and plain tensors of their dtype, with full
mantissas, by turns, and numbers that no float has exactly, 0.1 as the float64 that Python makes of
it. Values and derivatives are compared with the same function of four float64 components, and the
result has the format that promotion promises.

72 bits are computed to more than 58 here; a constant, a weight or a difference in double precision
is off by 2^-57 or more of one operand in some element, one in the plain format by 2^-25.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mcf
from tests.helpers import assert_alike

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

F64 = torch.float64


def numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    """Between 1/4 and 1, with all bits of a float64."""
    draw = torch.Generator().manual_seed(seed)
    high = torch.randint(2**50, 2**52, shape, generator=draw, dtype=torch.int64)
    return high.to(F64) * 2.0**-52


A, B, C = (numbers((5,), k) for k in (1, 2, 3))
M, N, K = (numbers((4, 5), k) for k in (4, 5, 6))
CLASSES, SIGNS = torch.tensor([1, 0, 4, 2]), torch.tensor([1, -1, 1, -1, 1])

Case = tuple[Callable[..., Any], list[Tensor]]
# Functions of numbers and tensors; where arguments have a sign or a size it is by exact scaling.
CASES: dict[str, Case] = {
    "x ** .3": (lambda x: x**0.3, [A]),
    "torch.pow": (lambda x: torch.pow(x, 0.3), [A]),
    "x ** y": (lambda x, y: x**y, [A, B]),
    ".3 ** x": (lambda x: 0.3**x, [A]),
    "lerp": (torch.lerp, [A, B, C]),
    "lerp .1": (lambda x, y: torch.lerp(x, y, 0.1), [A, B]),
    "atan2": (torch.atan2, [A, B]),
    "hypot": (torch.hypot, [A, B]),
    "xlogy": (torch.xlogy, [A, B]),
    "xlogy .1": (lambda x: torch.xlogy(x, 0.1), [A]),
    "xlog1py": (torch.special.xlog1py, [A, B]),
    "logaddexp": (torch.logaddexp, [A, B]),
    "logaddexp2": (torch.logaddexp2, [A, B]),
    "addcmul": (lambda x, a, b: torch.addcmul(x, a, b, value=0.1), [A, B, C]),
    "addcdiv": (lambda x, a, b: torch.addcdiv(x, a, b, value=0.1), [A, B, C]),
    "add": (lambda x, y: torch.add(x, y, alpha=0.1), [A, B]),
    "sub": (lambda x, y: torch.sub(x, y, alpha=0.1), [A, B]),
    "rsub": (lambda x: torch.rsub(x, 0.1, alpha=0.3), [A]),
    "addmm": (
        lambda x, a, b: torch.addmm(x, a, b.t(), beta=0.1, alpha=0.3),
        [numbers((4, 4), 7), M, N],
    ),
    "addmv": (lambda x, a, b: torch.addmv(x, a, b, beta=0.1, alpha=0.3), [A[:4], M, A]),
    "addr": (lambda x, a, b: torch.addr(x, a, b, beta=0.1, alpha=0.3), [numbers((5, 5), 7), A, B]),
    "selu": (lambda x: F.selu(-x), [A]),
    "selu above": (F.selu, [A]),
    "elu": (lambda x: F.elu(-x, 0.1), [A]),
    "celu": (lambda x: F.celu(-x, 0.1), [A]),
    "leaky_relu": (lambda x: F.leaky_relu(-x, 0.1), [A]),
    "prelu": (lambda x, w: F.prelu(-x, w[:1]), [A, B]),
    "softshrink": (lambda x: F.softshrink(x, 0.3), [A]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.3), [A]),
    "threshold": (lambda x: F.threshold(x, 0.3, 0.1) * x, [A]),
    "softplus": (lambda x: F.softplus(x, 0.3), [A]),
    "hardtanh": (lambda x: F.hardtanh(x, 0.1, 0.3) * x, [A]),
    "clamp": (lambda x: x.clamp(0.3, 0.7) * x, [A]),
    "heaviside": (lambda x, v: torch.heaviside(0 * x.detach(), v.detach()) * x, [A, B]),
    "where": (lambda x: torch.where(x > 0.5, x, 0.1) * x, [A]),
    "masked_fill": (lambda x: x.masked_fill(x > 0.5, 0.1) * x, [A]),
    "pad": (lambda x: F.pad(x, (1, 1), value=0.1), [A]),
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1), [M]),
    "cross_entropy weighted": (
        lambda x, w: F.cross_entropy(x, CLASSES, w.detach(), label_smoothing=0.1),
        [M, A],
    ),
    "cross_entropy of probabilities": (
        lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1),
        [M, N, A],
    ),
    "nll_loss": (lambda x, w: F.nll_loss(x, CLASSES, w.detach()), [M, A]),
    "gaussian_nll_loss": (lambda x, t, v: F.gaussian_nll_loss(x, t, v, True, 0.5), [A, B, C]),
    "gaussian_nll_loss sum": (
        lambda x, t, v: F.gaussian_nll_loss(x, t, v, True, reduction="sum"),
        [A, B, C],
    ),
    "poisson_nll_loss": (lambda x, t: F.poisson_nll_loss(x, t * 4, full=True), [A, B]),
    "poisson_nll_loss of rates": (lambda x, t: F.poisson_nll_loss(x, t * 4, False, True), [A, B]),
    "binary_cross_entropy": (F.binary_cross_entropy, [A, B, C]),
    "binary_cross_entropy_with_logits": (
        lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=w),
        [A, B, C],
    ),
    "kl_div": (lambda x, t: F.kl_div(x, t, reduction="batchmean"), [M, N]),
    "kl_div of logarithms": (
        lambda x, t: F.kl_div(x, t, reduction="sum", log_target=True),
        [M, N],
    ),
    "mse_loss": (F.mse_loss, [A, B]),
    "huber_loss": (lambda x, t: F.huber_loss(x, t, delta=0.1), [A, B]),
    "smooth_l1_loss": (lambda x, t: F.smooth_l1_loss(x, t, beta=0.1), [A, B]),
    "cosine_similarity": (F.cosine_similarity, [M, N]),
    "cosine_embedding_loss": (
        lambda x, y: F.cosine_embedding_loss(x, y, SIGNS[:4], 0.1),
        [M, N],
    ),
    "pairwise_distance": (F.pairwise_distance, [M, N]),
    "triplet_margin_loss": (lambda x, y, z: F.triplet_margin_loss(x, y, z, 3.3), [M, N, K]),
    "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, SIGNS, 0.3), [A, B]),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, SIGNS, 1.3), [A]),
    "multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss, [M, N]),
    "soft_margin_loss": (F.soft_margin_loss, [A, B]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b, 0.1), [M, A, B]),
    "mcf layer_norm": (lambda x, w: mcf.nn.functional.layer_norm(x, (5,), w, eps=0.1), [M, A]),
    "group_norm": (lambda x, w, b: F.group_norm(x[:, :4], 2, w[:4], b[:4], 0.1), [M, A, B]),
    "ldexp": (torch.ldexp, [A, B]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w, 0.1), [M, A]),
    "normalize": (lambda x: F.normalize(x, eps=0.1), [M]),
    "attention": (F.scaled_dot_product_attention, [M, N, K]),
    "attention scaled": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.1),
        [M, N, K],
    ),
    "avg_pool1d": (lambda x: F.avg_pool1d(x[None], 3, 1, 1, count_include_pad=False), [M]),
    "trapezoid": (torch.trapezoid, [A, B]),
    "cumulative_trapezoid": (torch.cumulative_trapezoid, [A, B]),
    "gradient": (lambda x: torch.gradient(x, spacing=0.1, edge_order=2)[0], [A]),
    "cov": (lambda x, w: torch.cov(x, aweights=w.detach()), [M, A]),
    "quantile": (lambda x: torch.quantile(x, 0.1), [A]),
    "remainder": (lambda x: torch.remainder(x, 0.1), [A]),
    "logit": (lambda x: torch.logit(x / 2, 0.1), [A]),
    "cdist": (lambda x, y: torch.cdist(x, y, p=3.0), [M, N]),
}


def variants(given: list[Tensor], dtype: torch.dtype, which: int) -> tuple[list[Any], list[Any]]:
    """The arguments, those of the bits set as expansions; and all of them in full precision."""
    ours, full = [], []
    for k, a in enumerate(given):
        low = numbers(tuple(a.shape), 100 + k) * 2.0**-56
        x: Any = mcf.from_components([a, low]).to(dtype, terms=3) if which >> k & 1 else a.to(dtype)
        ours.append(x.detach().requires_grad_())
        full.append(mcf.tensor(x.detach(), 4, F64, requires_grad=True))
    return ours, full


def near(x: Any, y: Any, bits: int) -> bool:
    difference = (x.detach().to(F64, terms=4) - y.detach()).abs().max()
    return bool(difference <= y.detach().abs().max() * 2.0**-bits)


def checked(name: str, dtype: torch.dtype, bits: int, which: int) -> None:
    function, given = CASES[name]
    ours, full = variants(given, dtype, which)
    got, want = function(*ours), function(*full)
    assert isinstance(got, mcf.MCFTensor)
    assert (got.dtype, got.terms) == (dtype, 3)
    assert near(got, want, bits)
    grads = torch.autograd.grad(got.sum(), ours, allow_unused=True)
    wanted = torch.autograd.grad(want.sum(), full, allow_unused=True)
    for x, y in zip(grads, wanted, strict=True):
        # That of a plain operand is rounded to its dtype.
        if isinstance(x, mcf.MCFTensor):
            assert (x.dtype, x.terms) == (dtype, 3)
            assert near(x, y, bits)


@pytest.mark.sampled(every=40)
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_have_all_components(name: str) -> None:
    count = len(CASES[name][1])
    for which in sorted({1, 2**count - 2 or 1}):
        checked(name, torch.float32, 58, which)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_mix_of_operands_in_every_format(name: str) -> None:
    """24 bits in bfloat16, less the 8 of a sum of rounded derivatives that cancel."""
    for which in range(1, 2 ** len(CASES[name][1])):
        checked(name, torch.float32, 58, which)
        checked(name, torch.bfloat16, 14, which)


# As torch, `heaviside` refuses two dtypes.
MIXED = [name for name, (_, given) in CASES.items() if len(given) > 1 and name != "heaviside"]
MIXED_TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "div reversed": lambda x, y: y / x,
    "matmul": lambda x, y: x @ y.mT,
    "cat": lambda x, y: torch.cat([x, y]) * x.sum(),
    "where": lambda x, y: torch.where(x > y, x, y) * x,
    "solve": lambda x, y: torch.linalg.solve(x[:, :4] + 3 * torch.eye(4), y),
    "maximum": lambda x, y: torch.maximum(x, y) / x,
    "scatter_reduce": lambda x, y: y.scatter_reduce(0, torch.tensor([[1, 2, 1, 2, 0]]), x, "prod"),
}


@pytest.mark.sampled(every=12, slow=1)
@pytest.mark.parametrize("name", MIXED)
def test_narrower_expansions_are_taken_exactly(name: str) -> None:
    """float32 pairs have 48 bits: a step in their format would leave half of the 106 bits."""
    function, given = CASES[name]
    ours = [mcf.tensor(a, 2, torch.float32 if k else F64) for k, a in enumerate(given)]
    got = function(*ours)
    assert (got.dtype, got.terms) == (F64, 2)
    assert near(got, function(*(mcf.tensor(x, 4, F64) for x in ours)), 95)


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_narrower_expansions_are_normalised_in_the_wider_format(executor: str) -> None:
    """The components of a float32 pair overlap in float64: a product was off by 2^-80."""
    x, y = mcf.tensor(M, 2), mcf.tensor(N, 2, torch.float32)
    with mcf.executor(executor):
        for name, function in MIXED_TENSORS.items():
            want = function(*(mcf.tensor(v, 4, F64) for v in (x, y)))
            assert near(function(x, y), want, 95), name


def test_16_bit_formats_keep_their_format() -> None:
    """Mutants: torch's default dtype, for a count, a step or a weight of 1."""
    for dtype in (torch.bfloat16, torch.float16):
        x = mcf.tensor(M, 2, dtype)
        weight = mcf.tensor(A, 2, dtype)
        for y in (
            F.softshrink(x, 0.1),
            torch.heaviside(x, x),
            torch.heaviside(x, x.to_plain()),
            F.cross_entropy(x, CLASSES, weight),
            F.cross_entropy(x, CLASSES, weight.to_plain()),
            F.nll_loss(x, CLASSES, weight, reduction="none"),
            F.avg_pool1d(x[None], 3, 1, 1, count_include_pad=False),
            F.dropout(x, 0.1),
        ):
            assert (y.dtype, y.terms) == (dtype, 2)


def test_counts_are_not_rounded() -> None:
    """Mutant: 300 ones added up in bfloat16 are 256."""
    x = mcf.zeros(300, 2, dtype=torch.bfloat16) - 3
    target = torch.zeros(300, dtype=torch.int64)
    assert F.nll_loss(x, target).to_fractions() == 3
    ones = mcf.ones(1, 1, 17, 17, dtype=torch.bfloat16)
    pooled = F.avg_pool2d(ones, 17, 17, 0, count_include_pad=False)
    assert pooled.to_fractions() == [[[[1]]]]


def test_dropout_divides_by_the_exact_rest() -> None:
    x = mcf.ones(64, terms=4, dtype=F64, requires_grad=True)
    y = F.dropout(x, 0.1)
    y.sum().backward()
    kept = y != 0
    product = y[kept] * (1 - mcf.tensor(0.1, 4, F64))
    assert ((product - 1).abs() < 2.0**-200).all()
    assert torch.equal(x.grad, y.detach())


def test_old_arguments_of_losses_are_heeded() -> None:
    """torch's size_average and reduce; they were ignored."""
    x, y = mcf.tensor(A), mcf.tensor(B)
    with pytest.warns(UserWarning, match="deprecated"):
        assert torch.equal(F.l1_loss(x, y, size_average=False), F.l1_loss(x, y, reduction="sum"))
    with pytest.warns(UserWarning, match="deprecated"):
        assert F.kl_div(x, y, reduce=False).shape == x.shape


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["pow", "fmod", "copysign", "float_power"])
@pytest.mark.usefixtures("on_torch")
def test_plain_operands_of_values_are_taken_as_expansions_are(name: str) -> None:
    """Where nothing is recorded they are not made expansions first; the bits are the same."""
    function = getattr(torch, name)
    top = torch.arange(1.0, 13, dtype=torch.float64) / 7
    x = mcf.MCFTensor([top, torch.full_like(top, 2.0**-60)])
    y = torch.arange(-3.0, 9, dtype=torch.float64) / 2
    for a, b in ((x, y), (y.abs() + 0.25, x)):
        plain = function(a, b)
        leaf = x.detach().clone().requires_grad_()
        recorded = function(*(leaf if v is x else v for v in (a, b)))
        assert recorded.requires_grad or name == "copysign"
        assert_alike(plain, recorded.detach(), name)
