"""The complex expansion tensor: two expansion tensors of one shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from mcf.expansions.conversion import promote, reformat
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import functorch
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.promotion import result_format
from mcf.expansions.tensor import MCFTensor

Function = TypeVar("Function", bound=Callable[..., Any])

# Implementations by the `__name__` of PyTorch's functions: exp, linalg_solve, fft_fft.
FUNCTIONS: dict[str, Callable[..., Any]] = {}


def implements(*names: str) -> Callable[[Function], Function]:
    """Register a function as the implementation of PyTorch functions and methods of these names."""

    def register(function: Function) -> Function:
        if function.__name__ == "<lambda>":
            # Python's messages about arguments name the function.
            function.__name__ = function.__qualname__ = names[0]
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def method(name: str, function: Any) -> None:
    """Set a member of the tensor type, from a module that imports the type."""
    setattr(MCFComplexTensor, name, function)


class MCFComplexTensor:
    """Complex numbers x + iy whose parts are expansions: `MCFTensor`s of one shape and format.

    Create one by `mcf.complex`, `mcf.complex_tensor` or PyTorch's functions with complex results.
    PyTorch's functions accept it, as `torch.exp(z)` or `z.exp()`; unsupported ones raise
    `UnsupportedError`. It is not a `torch.Tensor`: its memory is that of its parts, and it has no
    complex dtype, since PyTorch has none for bfloat16. `dtype` is that of the components, as for an
    `MCFTensor`. Where a real tensor is required (`isinstance`, `nn.Parameter`, `torch.compile`),
    pass its parts; for `torch.func` it is a tree of them.

    Autograd is that of the parts, so that gradients follow PyTorch's convention: that of a real L
    is dL/dx + i dL/dy, and a holomorphic f multiplies by the conjugate of f'.

    Attributes:
        real: the real part; it shares memory with the tensor.
        imag: the imaginary part, of the same kind.
    """

    __array_ufunc__ = None
    # Real expansion tensors leave functions of both types to this type.
    takes_precedence = True

    real: MCFTensor
    imag: MCFTensor

    def __init__(self, real: MCFTensor, imag: MCFTensor) -> None:
        """Combine two parts, whose memory the tensor shares; `mcf.complex` converts.

        Raises:
            TypeError: for a part that is not an `MCFTensor`, for different dtypes, terms or
                devices.
            ValueError: for parts of different shapes.
        """
        if functorch() is not None:
            # The tensors of a transform have the type of plain ones, so they cannot be checked.
            self.real, self.imag = real, imag
            return
        for name, part in (("real", real), ("imag", imag)):
            if not isinstance(part, MCFTensor):
                raise TypeError(
                    f"{name} must be an mcf.MCFTensor, got {type(part).__name__} "
                    "(mcf.complex converts)"
                )
        for what in ("dtype", "terms", "device"):
            if getattr(real, what) != getattr(imag, what):
                raise TypeError(
                    f"imag has {what} {getattr(imag, what)}, real has {getattr(real, what)}; both "
                    "must have the same (mcf.complex converts)"
                )
        if real.shape != imag.shape:
            raise ValueError(
                f"imag has shape {list(imag.shape)}, real has {list(real.shape)}; both must have "
                "the same (mcf.complex broadcasts)"
            )
        self.real, self.imag = real, imag

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        function = FUNCTIONS.get(name)
        if function is None:
            raise unsupported(name)
        if kwargs and kwargs.get("out") is not None:
            raise UnsupportedError(
                f"torch.{name.replace('_', '.', 1) if name.startswith(('linalg', 'fft')) else name}"
                "(out=) is not supported on complex expansion tensors; use copy_"
            )
        return function(*args, **{k: v for k, v in (kwargs or {}).items() if k != "out"})

    def __getattr__(self, name: str) -> Any:
        function = None if name.startswith("__") else FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(
                f"complex expansion tensors have no {name!r}; z.real and z.imag are mcf.MCFTensors"
            )

        def method(*args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

        method.__name__ = name
        return method

    def __reduce__(self) -> Any:
        return type(self), (self.real, self.imag)

    if TYPE_CHECKING:
        # Defined in the modules that register them.
        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __rpow__(self, other: Any) -> Any: ...
        def __matmul__(self, other: Any) -> Any: ...
        def __rmatmul__(self, other: Any) -> Any: ...
        def __neg__(self) -> Any: ...
        def __pos__(self) -> Any: ...
        def __abs__(self) -> MCFTensor: ...
        def __complex__(self) -> complex: ...
        def __len__(self) -> int: ...
        def __iter__(self) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...

    @property
    def shape(self) -> torch.Size:
        """The shape of both parts."""
        return self.real.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the components."""
        return self.real.dtype

    @property
    def device(self) -> torch.device:
        """The device of the components."""
        return self.real.device

    @property
    def terms(self) -> int:
        """The number of components of each part, 1 to 4."""
        return self.real.terms

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.real.ndim

    @property
    def requires_grad(self) -> bool:
        """Whether autograd records operations on a part."""
        return self.real.requires_grad or self.imag.requires_grad

    @property
    def is_leaf(self) -> bool:
        """Whether no part was computed from a tensor that requires grad."""
        return self.real.is_leaf and self.imag.is_leaf

    @property
    def itemsize(self) -> int:
        """Bytes of one element: of all components of both parts."""
        return 2 * self.real.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return 2 * self.real.nbytes

    @property
    def grad(self) -> MCFComplexTensor | None:
        """dL/dx + i dL/dy, accumulated in the parts by `backward`; None before."""
        found: MCFComplexTensor | None = gradient((self.real.grad, self.imag.grad))
        return found

    @grad.setter
    def grad(self, value: MCFComplexTensor | None) -> None:
        self.real.grad = None if value is None else value.real
        self.imag.grad = None if value is None else value.imag


def unsupported(name: str) -> UnsupportedError:
    """Return the error for a PyTorch function that complex expansion tensors do not support."""
    return UnsupportedError(
        f"torch.{name} is not supported on mcf.MCFComplexTensor; z.real and z.imag are its parts, "
        "z.to_plain() rounds to a plain complex tensor"
    )


def pair(x: Any, y: Any) -> MCFComplexTensor:
    """Return the complex tensor of two real tensors, at least one an expansion, in one format.

    Both are broadcast; a part that already fits is not copied.
    """
    if type(x) is MCFTensor and type(y) is MCFTensor and x._terms == y._terms:
        # Reading plain components is faster, but impossible while compiling.
        compiling = torch.compiler.is_compiling()
        a, b = (x, y) if compiling else (x.components[0], y.components[0])
        if a.dtype is b.dtype and a.shape == b.shape and a.device == b.device:
            return made(x, y)
    x, y = formatted(x, y)
    if x.shape != y.shape:
        x, y = (v.clone() for v in torch.broadcast_tensors(x, y))  # type: ignore[no-untyped-call]
    return MCFComplexTensor(x, y)


def gradient(grads: Sequence[Any]) -> Any:
    """Return the complex gradient of two parts, one of which may be None (zero); None for both."""
    x, y = grads
    if x is None and y is None:
        return None
    x = torch.zeros_like(y) if x is None else x
    return pair(x, torch.zeros_like(x) if y is None else y)


def made(x: MCFTensor, y: MCFTensor) -> MCFComplexTensor:
    """Return the complex tensor of parts that are known to fit."""
    z = object.__new__(MCFComplexTensor)
    z.real, z.imag = x, y
    return z


def formatted(*values: Any) -> list[Any]:
    """Return real numbers and tensors, at least one of expansions, as expansions of one format.

    Numbers become the nearest expansion. A value that already fits is not copied.
    """
    if functorch() is not None:
        like = next(v for v in values if isinstance(v, Tensor))
        return [v if isinstance(v, Tensor) else torch.zeros_like(like) + v for v in values]
    dtype, terms = result_format(*values)
    device = next(v.device for v in values if isinstance(v, MCFTensor))
    found = []
    for v in values:
        if isinstance(v, Tensor) and v.is_floating_point():
            found.append(reformat(promote(v), dtype, terms))
        else:
            found.append(tensor(v, terms, dtype, device))
    return found


def parts(value: Any) -> tuple[Any, Any] | None:
    """Return real and imaginary part of an operand; the latter is None for a real one.

    Numbers stay numbers. Return None if the value is not an operand.
    """
    if isinstance(value, MCFComplexTensor):
        return value.real, value.imag
    if isinstance(value, Tensor):
        if not value.is_complex():
            return value, None
        value = value.resolve_conj()
        return value.real, value.imag
    if hasattr(value, "_mpc_"):
        return value.real, value.imag
    if hasattr(value, "dtype") and hasattr(value, "__array__"):
        if value.dtype.kind == "c":
            if not value.ndim:
                return value.real.item(), value.imag.item()
            array = torch.from_numpy(value)
            return array.real, array.imag
        return (value, None) if value.dtype.kind in "biufO" else None
    if isinstance(value, complex):
        return value.real, value.imag
    if isinstance(value, (int, float)) or hasattr(value, "as_integer_ratio"):
        return value, None
    return (value, None) if hasattr(value, "_mpf_") else None


def untraced(function: Function) -> Function:
    """Return the function such that torch.compile breaks the graph around it.

    It is for functions that need components, which a graph's tensors lack: the bits are the eager
    ones.
    """
    aside = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (aside if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return call  # type: ignore[return-value]
