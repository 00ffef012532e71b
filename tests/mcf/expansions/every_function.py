"""Every function of torch's own list, on expansions and on float64 tensors of the same values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import mcf
from tests.helpers import hypothesis_profile

with hypothesis_profile.kept():
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

RIGHT, REFUSED = "right", "refused"

# Their results are random or not filled: only the type is compared.
RANDOM = {
    "bernoulli", "cauchy", "empty_like", "exponential", "geometric", "log_normal", "multinomial",
    "new_empty", "new_empty_strided", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "normal", "normal.in_place", "rand_like",
    "randn_like", "randint", "randint_like", "uniform", "pca_lowrank", "svd_lowrank",
}  # fmt: skip

# Right, and not what torch has in float64.
OTHERWISE = {
    "bfloat16": "an expansion of the format, rounded to it",
    "half": "an expansion of the format, rounded to it",
    "float": "an expansion of the format, rounded to it",
    "linalg.eig": "in another order, vectors with another phase",
    "linalg.eigvals": "in another order",
    "linalg.eigh": "eigenvectors have another sign",
    "linalg.svd": "singular vectors have another sign",
    "svd": "singular vectors have another sign",
    **dict.fromkeys(
        (
            "polygamma.polygamma_n_0",
            "polygamma.polygamma_n_1",
            "polygamma.polygamma_n_2",
            "polygamma.polygamma_n_3",
            "polygamma.polygamma_n_4",
            "special.polygamma.special_polygamma_n_0",
        ),
        "infinite at poles, where torch has large numbers",
    ),
    **dict.fromkeys(
        ("special.bessel_j0", "special.bessel_j1", "special.bessel_y0", "special.bessel_y1"),
        "torch's float64 is off by 1e-7 near zeros",
    ),
    "special.airy_ai": "torch's float64 is off by 1e-6 and more below -2",
    "special.ndtr": "torch's loses digits far below zero",
    "nn.functional.rms_norm": "the default eps is not that of float64",
    "nn.functional.softplus": "there is no threshold: the value is accurate everywhere",
}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def functions() -> list[Any]:
    """Those that take float32 and float64 and whose arguments have such tensors, one of a name."""
    both = {torch.float32, torch.float64}
    no_tensor = ("arange", "linspace", "logspace", "randn", "randint", "ones", "zeros", "full",
                 "eye", "empty", "empty_strided", "empty_permuted", "scalar_tensor")  # fmt: skip
    found = {
        name_of(op): op
        for op in op_db
        if both <= op.supported_dtypes("cpu")
        and name_of(op) not in no_tensor
        and not op.name.startswith(("signal.", "jiterator"))
        and not (op.name.endswith("triton_optimized") or op.variant_test_name == "triton_optimized")
    }
    return list(found.values())


def samples(op: Any, count: int) -> Iterator[Any]:
    """Some of torch's sample inputs, spread over its list, with random low digits."""
    # torch seeds before each sample, and for every kind of device that is not there keeps the stack
    # from which it was asked; and looks in the stack, and for it in the sources of all modules, for
    # a test case of unittest: most of the time that samples take.
    with (
        mock.patch.object(torch, "manual_seed", torch.default_generator.manual_seed),
        mock.patch.object(common_utils, "extract_test_fn", return_value=None, create=True),
    ):
        torch.manual_seed(0)
        found = op.sample_inputs("cpu", torch.float64, requires_grad=False)
        # Of a few functions one sample is large, and the others say the same.
        given = [s for s in itertools.islice(found, 41) if _size(s) < 1 << 16]
    yield from given[:: max(1, len(given) // count)][:count]


def _size(sample: Any) -> int:
    given = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return sum(x.numel() for x in given if isinstance(x, Tensor))


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout is torch.strided


def both(sample: Any, dtype: torch.dtype, terms: int) -> tuple[Any, Any]:
    """The arguments as expansions, and as float64 tensors of the same values."""
    given = (sample.input, list(sample.args), dict(sample.kwargs))

    def expansion(x: Any) -> Any:
        return mcf.tensor(x.detach(), terms, dtype) if _is_float(x) else x

    ours = tree_map(expansion, given)
    plain = tree_map(
        lambda x: x.to_plain(torch.float64) if isinstance(x, mcf.MCFTensor) else x, ours
    )
    return ours, plain


def floats(x: Any) -> list[Any]:
    return [y for y in tree_flatten(x)[0] if _is_float(y)]


def attempt(function: Callable[[], Any]) -> Any:
    """The result, or REFUSED: an error that says that expansions are not supported."""
    try:
        return function()
    except mcf.UnsupportedError:
        return REFUSED
    except TypeError as error:
        if "expansion tensor" in str(error):
            return REFUSED
        raise


def compare(name: str, got: Any, want: Any, tolerance: float) -> None:
    """Raise unless all results are of the same kind, shape and, up to the tolerance, value."""
    ours = tree_flatten(got, is_leaf=lambda x: isinstance(x, mcf.MCFComplexTensor))[0]
    plain = tree_flatten(want)[0]
    assert len(ours) == len(plain), name
    for x, y in zip(ours, plain, strict=True):
        if not isinstance(y, Tensor):
            exact = isinstance(y, float) and name not in RANDOM
            assert abs(x - y) <= tolerance * max(1, abs(y)) if exact else x == y, name
        elif y.is_complex():
            assert isinstance(x, mcf.MCFComplexTensor), name
            compare(name, [x.real, x.imag], [y.real, y.imag], tolerance)
        elif not y.is_floating_point() or name.startswith("masked.arg"):
            assert x.shape == y.shape if name in RANDOM else torch.equal(x, y.to(x.dtype)), name
        else:
            # No plain tensor, which would be the leading component.
            assert isinstance(x, mcf.MCFTensor), name
            assert x.shape == y.shape, name
            if name not in RANDOM | OTHERWISE.keys():
                close(name, x.detach().to_plain(torch.float64), y.detach(), tolerance, x.dtype)


def close(name: str, x: Tensor, y: Tensor, tolerance: float, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max / 2
    inside = y.isfinite() & (y.abs() < largest)
    same = (x == y) | (x.isnan() & y.isnan()) | (y.abs() >= largest)
    assert torch.where(inside, x.isfinite(), same).all(), name
    if inside.any():
        size = y[inside].abs().max().clamp_min(1e-3)
        assert ((x - y)[inside].abs().max() / size).item() <= tolerance, name
