"""Properties of a complex expansion tensor, its parts, and autograd's functions of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from mcf.complexes.tensor import MCFComplexTensor, implements, made, method, pair
from mcf.expansions.dispatch.recorded import functorch
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.tensor import MCFTensor, wrap


@implements("real")
def real(z: MCFComplexTensor) -> MCFTensor:
    """Return the real part, which shares z's memory."""
    return z.real


@implements("imag")
def imag(z: MCFComplexTensor) -> MCFTensor:
    """Return the imaginary part, which shares z's memory."""
    return z.imag


@implements("conj", "conj_physical")
def conj(z: MCFComplexTensor) -> MCFComplexTensor:
    """Return x - iy, a copy of z."""
    return MCFComplexTensor(z.real.clone(), -z.imag)  # type: ignore[arg-type]


@implements("resolve_conj", "resolve_neg")
def resolved(z: MCFComplexTensor) -> MCFComplexTensor:
    """Return z, which is never a lazy conjugate."""
    return z


class _Abs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Tensor:
        ctx.save_for_backward(x, y)
        return torch.hypot(x.detach(), y.detach())

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        zero = (x == 0) & (y == 0)
        size = torch.hypot(torch.where(zero, 1.0, x), y)
        return grad * (x / size), grad * (y / size)


@implements("abs", "absolute", "__abs__")
def absolute(z: MCFComplexTensor) -> MCFTensor:
    """Return sqrt(x^2 + y^2) with the error of `hypot`; the derivative is z / |z|, and 0 at 0."""
    recorded = torch.is_grad_enabled() and z.requires_grad and functorch() is None
    result: Any = _Abs.apply(z.real, z.imag) if recorded else torch.hypot(z.real, z.imag)  # type: ignore[no-untyped-call]
    return result  # type: ignore[no-any-return]


@implements("angle")
def angle(z: MCFComplexTensor) -> Tensor:
    """Return the argument in [-pi, pi] with the error of `atan2`; the sign of a zero y counts."""
    return torch.atan2(z.imag, z.real)


@implements("sgn")
def sgn(z: MCFComplexTensor) -> MCFComplexTensor:
    """Return z / |z|, and 0 at 0."""
    size = absolute(z)
    found: MCFComplexTensor = z / torch.where(size == 0, 1.0, size)
    return found


method("__abs__", absolute)


@implements("is_complex")
def is_complex(z: Any) -> bool:
    """Return True."""
    return True


@implements("is_floating_point")
def is_floating_point(z: Any) -> bool:
    """Return False: complex dtypes do not count as floating point, as in PyTorch."""
    return False


@implements("dim", "ndimension")
def dim(z: MCFComplexTensor) -> int:
    """Return the number of dimensions."""
    return z.real.dim()


@implements("numel", "nelement")
def numel(z: MCFComplexTensor) -> int:
    """Return the number of elements."""
    return z.real.numel()


@implements("size")
def size(z: MCFComplexTensor, dim: int | None = None) -> Any:
    """Return the shape, or the size of one dimension."""
    return z.shape if dim is None else z.shape[dim]


@implements("stride")
def stride(z: MCFComplexTensor) -> Any:
    """Return the strides of the real part."""
    return z.real.stride()


@implements("is_contiguous")
def is_contiguous(z: MCFComplexTensor) -> bool:
    """Return whether both parts are contiguous."""
    return z.real.is_contiguous() and z.imag.is_contiguous()


@implements("element_size")
def element_size(z: MCFComplexTensor) -> int:
    """Return the bytes of one element."""
    return z.itemsize


@implements("isnan")
def isnan(z: MCFComplexTensor) -> Tensor:
    """Return where a part is NaN."""
    return torch.isnan(z.real) | torch.isnan(z.imag)


@implements("isinf")
def isinf(z: MCFComplexTensor) -> Tensor:
    """Return where a part is infinite."""
    return torch.isinf(z.real) | torch.isinf(z.imag)


@implements("isfinite")
def isfinite(z: MCFComplexTensor) -> Tensor:
    """Return where both parts are finite."""
    return torch.isfinite(z.real) & torch.isfinite(z.imag)


@implements("isreal")
def isreal(z: MCFComplexTensor) -> Tensor:
    """Return where the imaginary part is 0."""
    return z.imag == 0


@implements("equal")
def equal(x: Any, y: Any) -> bool:
    """Return whether two tensors have the same shape and values."""
    return bool(x.shape == y.shape and (x == y).all())


@implements("isclose")
def isclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return where |x - y| <= atol + rtol |y|, or both are equal; both NaN with `equal_nan`."""
    near: Tensor = torch.abs(x - y) <= atol + rtol * torch.abs(y)
    near = near & torch.isfinite(x) & torch.isfinite(y) | (x == y)
    if equal_nan:
        near = near | (torch.isnan(x) & torch.isnan(y))
    return near


@implements("allclose")
def allclose(x: Any, y: Any, *tolerances: Any, **options: Any) -> bool:
    """Return whether `isclose` holds everywhere."""
    return bool(isclose(x, y, *tolerances, **options).all())


@implements("requires_grad_")
def requires_grad_(z: MCFComplexTensor, requires_grad: bool = True) -> MCFComplexTensor:
    """Let autograd record operations on both parts."""
    z.real.requires_grad_(requires_grad)
    z.imag.requires_grad_(requires_grad)
    return z


@implements("retain_grad")
def retain_grad(z: MCFComplexTensor) -> None:
    """Keep the gradients of both parts, which are not leaves."""
    for part in (z.real, z.imag):
        if part.requires_grad:
            part.retain_grad()


def _flat(values: Any) -> tuple[list[Any], list[bool]]:
    """Return tensors with parts in place of complex ones, and which were complex."""
    given = [values] if isinstance(values, (Tensor, MCFComplexTensor)) else list(values)
    out: list[Any] = []
    for v in given:
        out += [v.real, v.imag] if isinstance(v, MCFComplexTensor) else [v]
    return out, [isinstance(v, MCFComplexTensor) for v in given]


def _gradients(outputs: Any, grads: Any) -> tuple[list[Any], list[Any] | None]:
    """Return the real outputs and their gradients."""
    flat, complexes = _flat(outputs)
    if grads is None:
        if any(complexes):
            raise RuntimeError("grad can be implicitly created only for real scalar outputs")
        return flat, None
    given = [grads] if isinstance(grads, (Tensor, MCFComplexTensor)) else list(grads)
    out: list[Any] = []
    for g, is_pair in zip(given, complexes, strict=True):
        if not is_pair:
            out.append(g)
        elif isinstance(g, MCFComplexTensor):
            out += [g.real, g.imag]
        else:
            out += [g, torch.zeros_like(g)]
    wanted = [k for k, v in enumerate(flat) if v.requires_grad]
    return [flat[k] for k in wanted], [out[k] for k in wanted]


@implements("backward")
def backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False,
    gradient: Any = None, inputs: Any = None, **kwargs: Any,
) -> None:  # fmt: skip
    """Run `torch.autograd.backward`; the gradient of a complex tensor is dL/dx + i dL/dy."""
    outputs, grads = _gradients(tensors, gradient if grad_tensors is None else grad_tensors)
    inner = None if inputs is None else _flat(inputs)[0]
    torch.autograd.backward(outputs, grads, retain_graph, create_graph, inputs=inner, **kwargs)


@implements("grad")
def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, allow_unused: Any = None,
    **kwargs: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Run `torch.autograd.grad`; the gradient of a complex tensor is dL/dx + i dL/dy."""
    flat, complexes = _flat(inputs)
    real, grads = _gradients(outputs, grad_outputs)
    differentiate: Any = torch.autograd.grad
    found = list(differentiate(real, flat, grads, *args, allow_unused=True, **kwargs))
    out: list[Any] = []
    for is_pair in complexes:
        mine = [found.pop(0) for _ in range(1 + is_pair)]
        if all(g is None for g in mine) and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
        out.append(_completed(mine) if is_pair else mine[0])
    return tuple(out)


def _completed(grads: Sequence[Any]) -> Any:
    """Return a complex gradient from two parts, either of which may be None."""
    x, y = grads
    if x is None and y is None:
        return None
    x = torch.zeros_like(y) if x is None else x
    return pair(x, torch.zeros_like(x) if y is None else y)


def as_complex(x: MCFTensor) -> MCFComplexTensor:
    """Return x[..., 0] + i x[..., 1], which shares x's memory, as `torch.view_as_complex`."""
    if x.dim() == 0 or x.shape[-1] != 2:
        raise RuntimeError(
            f"view_as_complex: the last dimension must have the size 2, got {list(x.shape)}"
        )
    return MCFComplexTensor(x[..., 0], x[..., 1])  # type: ignore[arg-type]


@implements("view_as_real")
def view_as_real(z: MCFComplexTensor) -> MCFTensor:
    """Return the parts in a last dimension of size 2, as a view.

    Raises:
        RuntimeError: if z was not made by `torch.view_as_complex`, so that a copy would be needed:
            `torch.stack((z.real, z.imag), -1)`, which also has a derivative.
    """
    if z.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "view_as_real of a tensor that requires grad; torch.stack((z.real, z.imag), -1) has a "
            "derivative"
        )
    step = 1
    views = []
    for a, b in zip(z.real.components, z.imag.components, strict=True):
        near = b.storage_offset() - a.storage_offset() == step and a.stride() == b.stride()
        if not near or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
            raise RuntimeError(
                "view_as_real: the parts of z lie in memories of their own; "
                "torch.stack((z.real, z.imag), -1) copies them"
            )
        views.append(a.as_strided((*a.shape, 2), (*a.stride(), step)))
    return wrap(views)


# Attributes that PyTorch's modules and transforms read, or must not use on a complex tensor.


def _no_parameter(z: MCFComplexTensor, value: Any) -> NoReturn:
    raise TypeError(
        "torch.nn.Parameter: a complex expansion tensor is no torch.Tensor, so no module would "
        "register it; make parameters of z.real and z.imag, and mcf.MCFComplexTensor(real, imag) "
        "of them in forward"
    )


def _of_parts(parts: Any, context: Any) -> MCFComplexTensor:
    """Rebuild the tensor from the leaves of a tree, of any type that a transform returns."""
    if any(isinstance(v, MCFComplexTensor) for v in parts):
        raise UnsupportedError(
            "a Jacobian of complex numbers with respect to complex ones: jacrev, jacfwd and "
            "hessian take real inputs or real outputs, as torch's do; write the function in "
            "z.real and z.imag"
        )
    return made(*parts)


# `torch.nn.Parameter` sets this attribute of a custom tensor, and returns the tensor.
method("_is_param", property(lambda z: False, _no_parameter))
# Read by a module's `load_state_dict`.
method("is_meta", property(lambda z: z.real.is_meta))
# Arguments and results of torch.func: a tree of its parts.
register_pytree_node(
    MCFComplexTensor,
    lambda z: ([z.real, z.imag], None),
    _of_parts,
    serialized_type_name="mcf.MCFComplexTensor",
)
