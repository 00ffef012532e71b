"""Functions of each part, properties of the tensor, and autograd's functions of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from mcf.complexes.tensor import (
    MCFComplexTensor,
    gradient,
    implements,
    made,
    method,
    pair,
    parts,
)
from mcf.expansions.dispatch.recorded import functorch
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.tensor import MCFTensor, wrap


def halves(out: Any) -> tuple[Any, Any]:
    """Return both parts of a result's components."""
    half = len(out) // 2
    return wrap(out[:half]), wrap(out[half:])


def node(name: str, computed: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Return a function of parts of one shape as a `torch.autograd.Function`.

    Args:
        name: of the type.
        computed: returns both parts of the result from parts that are expansion tensors.
        backward: maps the saved parts and the gradients (None for 0) to the gradients of all
            parts.
    """

    def forward(*given: Any) -> Any:
        return computed(*(v.detach() for v in given))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    def back(ctx: Any, *grads: Any) -> Any:
        return backward(ctx.saved_tensors, grads)

    def vmap(info: Any, dims: Any, *given: Any) -> Any:
        lanes = (
            v.movedim(d, 0) if d is not None else v.expand(info.batch_size, *v.shape)
            for v, d in zip(given, dims, strict=True)
        )
        return kept.apply(*lanes), (0, 0)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(back),
        "vmap": staticmethod(vmap),
    }
    kept: Any = type(name, (torch.autograd.Function,), members)
    return kept


# Views, copies, selections and sums, by the names of PyTorch's functions and methods.
NAMES = """
    view reshape permute transpose swapaxes swapdims movedim moveaxis squeeze unsqueeze flatten
    unflatten ravel expand broadcast_to narrow select unbind split chunk tensor_split hsplit vsplit
    dsplit diagonal diag diag_embed diagflat tril triu flip fliplr flipud roll rot90 repeat tile
    repeat_interleave gather index_select take take_along_dim masked_select t unfold
    clone contiguous detach sum mean cumsum trace diff nansum fft_fftshift fft_ifftshift
    zeros_like empty_like atleast_1d atleast_2d atleast_3d cpu cuda __getitem__ linalg_diagonal
""".split()
# Functions that accept real tensors together with complex ones.
MIXED = """
    cat concat concatenate stack hstack vstack dstack column_stack where index_copy scatter
    select_scatter slice_scatter diagonal_scatter block_diag masked_fill index_fill scatter_add
    index_add masked_scatter
""".split()


def _taken(value: Any, part: int, mixed: bool) -> Any:
    """Return an argument as the function of one part receives it."""
    if isinstance(value, (list, tuple)) and any(_is_operand(v) for v in value):
        return type(value)(_taken(v, part, mixed) for v in value)
    if isinstance(value, MCFComplexTensor):
        return (value.real, value.imag)[part]
    if not mixed or isinstance(value, (bool, int)) or not _is_operand(value):
        return value
    found = parts(value)
    assert found is not None
    if found[1] is not None or part == 0:
        return found[part]
    return torch.zeros_like(value) if isinstance(value, Tensor) else 0.0


def _is_operand(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, (MCFComplexTensor, float, complex))


def _joined(x: Any, y: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return tuple(_joined(a, b) for a, b in zip(x, y, strict=True))
    return pair(x, y)


def _of_torch(name: str, mixed: bool) -> Callable[..., Any]:
    """Return PyTorch's function of a name; methods first, as they accept separate sizes."""
    found: Callable[..., Any]
    for family in ("fft", "linalg"):
        if name.startswith(f"{family}_"):
            found = getattr(getattr(torch, family), name[len(family) + 1 :])
            return found
    owners = (torch, Tensor) if mixed else (Tensor, torch)
    found = next(getattr(owner, name) for owner in owners if hasattr(owner, name))
    return found


def _each(name: str, mixed: bool) -> Callable[..., Any]:
    function = _of_torch(name, mixed)

    def call(*args: Any, **kwargs: Any) -> Any:
        results = []
        for part in (0, 1):
            given = [_taken(v, part, mixed) for v in args]
            named = {k: _taken(v, part, mixed) for k, v in kwargs.items()}
            results.append(function(*given, **named))
        return _joined(*results)

    return call


for _name in NAMES:
    implements(_name)(_each(_name, mixed=False))
for _name in MIXED:
    implements(_name)(_each(_name, mixed=True))


def _setitem(z: MCFComplexTensor, key: Any, value: Any) -> None:
    """Set z[key] = value; a real value sets the imaginary part to 0."""
    found = parts(value)
    if found is None:
        raise TypeError(
            f"z[...] = value: value must be a tensor or a number, got {type(value).__name__}"
        )
    z.real[key] = found[0]
    z.imag[key] = 0.0 if found[1] is None else found[1]


def _adjoint(z: MCFComplexTensor) -> MCFComplexTensor:
    return pair(z.real.mT, -z.imag.mT)


method("__getitem__", lambda z, key: pair(z.real[key], z.imag[key]))
method("__setitem__", _setitem)
method("__len__", lambda z: len(z.real))
method("__iter__", lambda z: iter(z.unbind(0)))
method("T", property(lambda z: pair(z.real.T, z.imag.T)))
method("mT", property(lambda z: pair(z.real.mT, z.imag.mT)))
method("H", property(lambda z: pair(z.real.T, -z.imag.T)))
method("mH", property(_adjoint))
implements("adjoint")(_adjoint)


@implements("copy_")
def copy_(z: MCFComplexTensor, source: Any, non_blocking: bool = False) -> MCFComplexTensor:
    """Write a tensor or number into z, rounded to z's format; a real one with imaginary part 0."""
    if not isinstance(z, MCFComplexTensor):
        raise TypeError(
            "copy_: a complex expansion tensor would lose its imaginary part, or bits; write "
            "x.copy_(z.real) or x.copy_(z.to_plain())"
        )
    found = parts(source)
    if found is None:
        raise TypeError(f"copy_: source must be a tensor, got {type(source).__name__}")
    for mine, theirs in zip((z.real, z.imag), found, strict=True):
        if isinstance(theirs, Tensor):
            mine.copy_(theirs, non_blocking)
        else:
            mine.fill_(0.0 if theirs is None else theirs)
    return z


implements("fill_")(lambda z, value: copy_(z, value))
implements("zero_")(lambda z: copy_(z, 0.0))
implements("ones_like")(lambda z: pair(torch.ones_like(z.real), torch.zeros_like(z.real)))


@implements("view_as", "expand_as", "reshape_as")
def view_as(z: MCFComplexTensor, other: Any) -> MCFComplexTensor:
    """Return z reshaped to the shape of another tensor, or expanded to it."""
    shape = other.shape
    fits = z.real.numel() == shape.numel()
    change = Tensor.reshape if fits else Tensor.expand
    return MCFComplexTensor(change(z.real, shape), change(z.imag, shape))  # type: ignore[arg-type]


@implements("to", "type")
def to(z: MCFComplexTensor, *args: Any, terms: int | None = None, **kwargs: Any) -> Any:
    """Convert as `MCFTensor.to`, both parts; complex32, 64 and 128 mean float16, 32 and 64."""
    given = [v.to_real() if isinstance(v, torch.dtype) and v.is_complex else v for v in args]
    given = [v.real if isinstance(v, MCFComplexTensor) else v for v in given]
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype.is_complex:
        kwargs["dtype"] = dtype.to_real()
    for v in (*given, kwargs.get("dtype")):
        if isinstance(v, torch.dtype) and not v.is_floating_point:
            raise TypeError(f"dtype must be a floating-point or complex one, got {v}")
    return MCFComplexTensor(*(p.to(*given, terms=terms, **kwargs) for p in (z.real, z.imag)))


for _name, _dtype in {
    "double": torch.float64,
    "cdouble": torch.float64,
    "float": torch.float32,
    "cfloat": torch.float32,
    "half": torch.float16,
    "chalf": torch.float16,
    "bfloat16": torch.bfloat16,
}.items():
    implements(_name)(lambda z, _dtype=_dtype: to(z, _dtype))


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

_OF_PARTS: dict[tuple[str, ...], Callable[..., Any]] = {
    ("real",): lambda z: z.real,
    ("imag",): lambda z: z.imag,
    ("conj", "conj_physical"): lambda z: pair(z.real.clone(), -z.imag),
    # The tensor is never a lazy conjugate.
    ("resolve_conj", "resolve_neg", "positive"): lambda z: z,
    ("is_complex",): lambda z: True,
    # Complex dtypes do not count as floating point, as in PyTorch.
    ("is_floating_point",): lambda z: False,
    ("dim", "ndimension"): lambda z: z.real.dim(),
    ("numel", "nelement"): lambda z: z.real.numel(),
    ("size",): lambda z, dim=None: z.shape if dim is None else z.shape[dim],
    ("stride",): lambda z: z.real.stride(),
    ("is_contiguous",): lambda z: z.real.is_contiguous() and z.imag.is_contiguous(),
    ("element_size",): lambda z: z.itemsize,
    ("isnan",): lambda z: torch.isnan(z.real) | torch.isnan(z.imag),
    ("isinf",): lambda z: torch.isinf(z.real) | torch.isinf(z.imag),
    ("isfinite",): lambda z: torch.isfinite(z.real) & torch.isfinite(z.imag),
    ("isreal",): lambda z: z.imag == 0,
    ("equal",): lambda x, y: bool(x.shape == y.shape and (x == y).all()),
    ("allclose",): lambda x, y, *args, **kwargs: bool(torch.isclose(x, y, *args, **kwargs).all()),
}
for _names, _call in _OF_PARTS.items():
    implements(*_names)(_call)


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
        else:
            out += (g.real, g.imag) if isinstance(g, MCFComplexTensor) else (g, torch.zeros_like(g))
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
        out.append(gradient(mine) if is_pair else mine[0])
    return tuple(out)


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
