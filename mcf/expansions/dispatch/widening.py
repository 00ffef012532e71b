"""Widen operands of functions that would round them or leave the range of their format.

x * y with a plain y takes y exactly. But `torch.addcmul(x, a, b)` multiplies two plain tensors, and
the derivative of `torch.lerp` has 1 - weight: both would be rounded in the plain format. So would a
bound of `torch.clamp`, which torch converts to a number if the other bound is a number. Such plain
operands are promoted, and so are expansions of a narrower format: `torch.cov` adds up its weights.

A square of a float16 overflows from 2^8 on and underflows below 2^-12. A sum of four numbers may
overflow from 2^14 on. The default eps of norms, 1e-5, has only 8 bits in float16. So norms, means
of windows and attention of float16 expansions use as many float32 components and round once. Torch
does the same for plain float16 tensors.

One kernel computes the values of functions in `ROOMY_DERIVATIVES`; only their derivatives leave the
range. The derivatives are computed with float32 components and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from mcf.expansions.conversion import reformat
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import _duals, differentiated
from mcf.expansions.promotion import result_format
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import FP16

# Functions whose values and derivatives contain such operations. Batch and instance norm are not
# among them: they write to their running means.
_VALUES = {
    "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "baddbmm", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "cdist", "corrcoef", "cosine_embedding_loss",
    "cosine_similarity", "cov", "cross_entropy", "cumulative_trapezoid", "dist",
    "gaussian_nll_loss", "group_norm", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "layer_norm", "ldexp", "lerp", "logaddexp", "logaddexp2", "margin_ranking_loss", "mse_loss",
    "multi_head_attention_forward", "multi_margin_loss", "multilabel_soft_margin_loss", "nll_loss",
    "pairwise_distance", "poisson_nll_loss", "rms_norm", "scaled_dot_product_attention",
    "smooth_l1_loss", "soft_margin_loss", "trapezoid", "trapz", "triplet_margin_loss", "xlog1py",
    "xlogy",
}  # fmt: skip
# Functions whose derivatives contain them, and whose values take plain operands exactly.
_DERIVATIVES = {
    "__pow__", "__rpow__", "arctan2", "atan2", "copysign", "float_power", "fmod", "hypot", "pow",
    "remainder",
}  # fmt: skip
# Functions of two bounds.
_BOUNDED = {"clamp", "clip"}


def named(names: set[str]) -> dict[Any, str]:
    """Return the functions of these names and their in-place forms, with the name of each."""
    namespaces = (
        torch, torch.functional, torch.nn.functional, torch.special, torch.linalg, torch._C._nn,
        torch._C.TensorBase, Tensor,
    )  # fmt: skip
    found = {}
    for function in (
        f for namespace in namespaces for f in vars(namespace).values() if callable(f)
    ):
        name = getattr(function, "__name__", "")
        name = name.removeprefix("special_").removeprefix("linalg_")
        in_place = name.endswith("_") and not name.endswith("__")
        name = name.removesuffix("_") if in_place else name
        if name in names:
            found[function] = name
    return found


# Functions -> whether also their values need promoted operands.
WIDENED = {f: name in _VALUES for f, name in named(_VALUES | _DERIVATIVES).items()}
BOUNDED = frozenset(named(_BOUNDED))


# Types of arguments that need no conversion.
_AS_THEY_ARE = frozenset({MCFTensor, int, float, bool, str, type(None)})


def widened(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a function in `WIDENED`, with narrower tensors promoted."""
    if not WIDENED[func] and not torch.is_grad_enabled():
        return args, kwargs
    # As in PyTorch, the target of `out=` does not decide the format of the computation.
    given = [*args, *(v for k, v in kwargs.items() if k != "out")]
    # `dtype` and `is_floating_point` of an expansion would call `__torch_function__`.
    formats = {x.__dict__["_c0"].dtype for x in given if isinstance(x, MCFTensor)}
    if not formats or (len(formats) == 1 and _AS_THEY_ARE.issuperset(map(type, given))):
        return args, kwargs
    floats = [
        x
        for x in given
        if isinstance(x, MCFTensor) or (isinstance(x, Tensor) and x.is_floating_point())
    ]
    if len(formats) == 1 and all(isinstance(x, MCFTensor) for x in floats):
        return args, kwargs
    dtype, terms = result_format(*floats)

    def wide(x: Any) -> Any:
        if isinstance(x, MCFTensor):
            # Next to a wider plain tensor an expansion, and its gradient, keep their range.
            return x if len(formats) == 1 or x.dtype is dtype else reformat(x, dtype, terms)
        plain = isinstance(x, Tensor) and x.is_floating_point()
        return reformat(x, dtype, terms) if plain else x

    name = func.__name__
    in_place = name.endswith("_") and not name.endswith("__")
    first = args[:1] if in_place else tuple(map(wide, args[:1]))
    rest = {k: v if k == "out" else wide(v) for k, v in kwargs.items()}
    return (*first, *map(wide, args[1:])), rest


def bounded(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a clamp, with a number promoted if the other bound is an expansion.

    Torch converts a bound without dimensions to a number if autograd does not record it.
    """
    names = ("min", "max")
    given: dict[str, Any] = {k: x for k, x in zip(names, args[1:3], strict=False)}
    found = {**given, **{k: kwargs[k] for k in names if k in kwargs}}
    one = [x for x in found.values() if type(x) is MCFTensor]
    numbers = [k for k, x in found.items() if isinstance(x, int | float)]
    if len(one) != 1 or len(numbers) != 1 or len(args) > 3:
        return args, kwargs
    with torch._C.DisableTorchFunctionSubclass():
        if one[0].dim() or (one[0].requires_grad and torch.is_grad_enabled()):
            return args, kwargs
    x = args[0] if args else kwargs.get("input")
    dtype, terms = result_format(*(v for v in (x, one[0]) if isinstance(v, Tensor)))
    [name] = numbers
    found[name] = tensor(found[name], terms, dtype, one[0].device)
    rest = {k: found.get(k, v) if k not in given else v for k, v in kwargs.items()}
    return (*args[:1], *(found[k] for k in given)), rest


# Functions whose derivatives contain quotients, powers or long products.
_DIVISIONS = {"div", "divide", "true_divide", "__truediv__", "__div__"}
_NAMES = _DIVISIONS | {
    "__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "acosh", "addcdiv", "angle",
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "bessel_j1", "bessel_y1", "cumprod", "erfinv", "gelu",
    "hypot", "i1", "log", "log10", "log1p", "log2", "log_ndtr", "modified_bessel_i1",
    "modified_bessel_k1", "ndtri", "pow", "prod", "reciprocal", "rsqrt", "sinc",
    "spherical_bessel_j0", "sqrt", "tan", "xlog1py", "xlogy",
}  # fmt: skip
# Functions of matrices, whose derivatives are products of several matrices.
_MATRICES = {
    "cholesky_inverse", "cholesky_solve", "householder_product", "inv", "inverse", "lstsq",
    "lu_solve", "matrix_exp", "matrix_power", "orgqr", "pinv", "pinverse", "solve",
    "solve_triangular", "tensorinv", "tensorsolve",
}  # fmt: skip
ROOMY_DERIVATIVES = named(_NAMES | _MATRICES)
_TOLERANCES = {"atol", "rtol", "rcond"}


def roomy(x: Any) -> Any:
    """Return x, converted to float32 components if they are float16."""
    return x.to(torch.float32) if x.dtype is torch.float16 else x


def fitted(result: Any, *given: Any) -> Any:
    """Convert a result to the promoted format of the operands; None operands do not count."""
    dtype, _ = result_format(*(x for x in given if x is not None))
    return result if result.dtype is dtype else result.to(dtype)


class Valued(torch.autograd.Function):
    """Return a value with the derivative of another computation of the same function."""

    @staticmethod
    def forward(ctx: Any, value: Any, computed: Any) -> Any:
        # In-place operations on a view of an argument would be an error.
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, grad


def _is_narrow(x: Any) -> bool:
    # Not `x.dtype`, which above autograd would call `__torch_function__`.
    return isinstance(x, MCFTensor) and x.__dict__["_c0"].dtype is torch.float16


def needs_room(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a function in `ROOMY_DERIVATIVES` needs float32 derivatives.

    It does if autograd records a float16 expansion. Forward-mode derivatives stay in float16.
    """
    flat = [y for x in args for y in (x if isinstance(x, (list, tuple)) else (x,))]
    narrow = [x for x in flat if _is_narrow(x)]
    if not narrow or _duals._current_level >= 0 or not differentiated(narrow):
        return False
    # The derivative of x / number is the number's reciprocal, which stays in range.
    constant = len(args) > 1 and not isinstance(args[1], Tensor)
    return not (constant and ROOMY_DERIVATIVES[func] in _DIVISIONS)


def with_room(
    call: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compute a function in its own format, and its derivatives with float32 components."""
    name = func.__name__
    if name.endswith("_") and not name.endswith("__"):
        # The derivatives need the values that are overwritten.
        target, *rest = args
        own = getattr(Tensor, name.removeprefix("special_").removesuffix("_"))
        return target.copy_(with_room(call, own, (target.clone(), *rest), kwargs))
    with torch.no_grad():
        value = call(func, args, kwargs)

    def wide(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(map(wide, x))
        return x.to(torch.float32) if _is_narrow(x) else x

    if ROOMY_DERIVATIVES[func] == "pinv" and len(args) == 1 and not _TOLERANCES & kwargs.keys():
        # The derivative must use the same rank as the value.
        x = args[0]
        kwargs = kwargs | {"rtol": max(x.shape[-2:]) * 2 * float(FP16.u**x.terms)}
    computed = call(func, tuple(map(wide, args)), {k: wide(v) for k, v in kwargs.items()})

    def valued(x: Any, y: Any) -> Any:
        if not isinstance(y, Tensor) or not y.requires_grad:
            return x
        return Valued.apply(x, y.to(x.dtype))  # type: ignore[no-untyped-call]

    return tree_map(valued, value, computed)
