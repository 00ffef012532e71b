"""Apply functions to each part: linear ones of PyTorch, and our own with a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.complexes.tensor import MCFComplexTensor, implements, method, pair, parts
from mcf.expansions.tensor import wrap


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
        return made.apply(*lanes), (0, 0)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(back),
        "vmap": staticmethod(vmap),
    }
    made: Any = type(name, (torch.autograd.Function,), members)
    return made


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


def _getitem(z: MCFComplexTensor, key: Any) -> MCFComplexTensor:
    """Return z[key], a view where PyTorch returns one."""
    return pair(z.real[key], z.imag[key])


def _setitem(z: MCFComplexTensor, key: Any, value: Any) -> None:
    """Set z[key] = value; a real value sets the imaginary part to 0."""
    found = parts(value)
    if found is None:
        raise TypeError(
            f"z[...] = value: value must be a tensor or a number, got {type(value).__name__}"
        )
    z.real[key] = found[0]
    z.imag[key] = 0.0 if found[1] is None else found[1]


def _len(z: MCFComplexTensor) -> int:
    return len(z.real)


method("__getitem__", _getitem)
method("__setitem__", _setitem)
method("__len__", _len)
method("__iter__", lambda z: iter(z.unbind(0)))
for _name, _call in {
    "T": lambda z: pair(z.real.T, z.imag.T),
    "mT": lambda z: pair(z.real.mT, z.imag.mT),
    "H": lambda z: pair(z.real.T, -z.imag.T),
    "mH": lambda z: pair(z.real.mT, -z.imag.mT),
}.items():
    method(_name, property(_call))
implements("adjoint")(lambda z: pair(z.real.mT, -z.imag.mT))


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


@implements("zero_")
def zero_(z: MCFComplexTensor) -> MCFComplexTensor:
    """Set all elements to 0."""
    return copy_(z, 0.0)


@implements("fill_")
def fill_(z: MCFComplexTensor, value: Any) -> MCFComplexTensor:
    """Set all elements to a number."""
    return copy_(z, value)


@implements("ones_like")
def ones_like(z: MCFComplexTensor) -> MCFComplexTensor:
    """Return 1 + 0i in the shape and format of z."""
    return MCFComplexTensor(torch.ones_like(z.real), torch.zeros_like(z.real))  # type: ignore[arg-type]


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
