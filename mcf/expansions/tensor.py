"""Define the expansion tensor: a torch tensor whose elements are sums of 1 to 4 floats."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.expansions.components import FIXED, MAX_TERMS, NAMES, check_components, check_dict
from mcf.expansions.dispatch import registry
from mcf.expansions.dispatch.scalars import Numbers
from mcf.expansions.dispatch.traced import check_followed, followed, skipped, traced_components
from mcf.expansions.interchange.exports import Exports
from mcf.kernels.components import Components as Components

# Getters of the components from a tensor's `__dict__`, by number of components.
COMPONENTS: dict[int, Callable[[dict[str, Any]], Components]] = {
    1: lambda own: (own["_c0"],),
    **{terms: itemgetter(*NAMES[:terms]) for terms in range(2, MAX_TERMS + 1)},
}


@functools.cache
def _operators() -> str:
    """Return a hash of our operators' names, since graphs cached by another version call others."""
    names = (n for n in torch._C._dispatch_get_all_op_names() if n.startswith("mcf::"))
    return hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:16]


class MCFTensor(Numbers, Exports, torch.Tensor):  # type: ignore[override]
    """A tensor of expansions x = c[0] + c[1] + ..., 1 to 4 components, largest first.

    Create one by `mcf.tensor`, `mcf.from_components` or a factory. It has a torch tensor's shape,
    device, layout, autograd and methods; `dtype` is that of the components. An unsupported function
    raises `UnsupportedError`, which names it.

    The type imports no operation. Modules with operators, conversions, pickling, printing and
    implementations of torch functions import the type, and register with it
    (`mcf.expansions.dispatch.registry`, `method`).

    Attributes:
        components: the tuple of component tensors, which share memory with the tensor.
        terms: the number of components.
    """

    _terms: int

    @staticmethod
    def __new__(cls, components: Sequence[Tensor], requires_grad: bool = False) -> MCFTensor:
        """Create the tensor of normalised components, whose memory it shares.

        `mcf.from_components` normalises, broadcasts and has a derivative. This constructor does not
        check that |x[k + 1]| <= ulp(x[k]) / 2. Of unnormalised components, such as (1, 2), some
        functions (`abs`, `amax`, `exp`, `norm`) use the first and some (comparisons, `sort`,
        conversions, printing) the sum.

        Args:
            cls: this type or a subclass.
            components: 1 to 4 plain dense tensors of one dtype (bfloat16, float16, float32,
                float64), device, shape and strides.
            requires_grad: whether autograd records operations on the tensor.

        Raises:
            TypeError: for other types, dtypes or layouts, mixed dtypes or devices.
            ValueError: for another number of components, mixed shapes or strides, components
                that overlap in memory or require grad.
        """
        if not isinstance(requires_grad, bool):
            raise TypeError(f"requires_grad must be a bool, got {type(requires_grad).__name__}")
        # Aliases, so that resizing the input tensors does not affect this one.
        own = [torch.ops.aten.alias.default(c) for c in check_components(components)]
        return maker()(own, requires_grad=requires_grad, cls=cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED:
            raise AttributeError(
                f"{name} of an expansion tensor cannot be set; write to x.components, or set x.data"
            )
        # torch.utils.swap_tensors and files set all attributes at once.
        super().__setattr__(name, check_dict(value) if name == "__dict__" else value)

    @property
    def components(self) -> Components:
        """The components, largest first: plain tensors that share memory with this one.

        They are detached from autograd's graph. Writes to them must leave them normalised.
        """
        if torch.compiler.is_dynamo_compiling() or (_dispatch_modes() and followed([self])):
            return traced_components(self)
        own = self.__dict__
        return COMPONENTS[own["_terms"]](own)

    @property
    def terms(self) -> int:
        """The number of components, 1 to 4."""
        return self._terms

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return list(NAMES[: self._terms]), self._terms

    def _stable_hash_for_caching(self) -> str:
        # torch's cache of compiled graphs knows the tensor by this text alone. All components have
        # the layout of the first.
        first = self._c0  # type: ignore[attr-defined]
        return (
            f"mcf.MCFTensor {_operators()} {self._terms} {self.dtype} {self.device} "
            f"{tuple(self.shape)} {tuple(self.stride())} {first.storage_offset()} "
            f"{self.requires_grad} {self.is_leaf} {first.is_inference()}"
        )

    @staticmethod
    def __tensor_unflatten__(
        inner_tensors: dict[str, Tensor], meta: int, outer_size: Any, outer_stride: Any
    ) -> MCFTensor:
        components = [inner_tensors[name] for name in NAMES[:meta]]
        sizes = [*outer_size, *outer_stride, *(n for c in components for n in c.shape)]
        # Symbolic sizes have no values to compare.
        if all(type(n) is int for n in sizes):
            check_components(components, "inner_tensors")
            if tuple(outer_size) != tuple(components[0].shape):
                raise ValueError(
                    f"outer_size is {list(outer_size)}, the components have shape "
                    f"{list(components[0].shape)}"
                )
        return maker()(components, outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if _dispatch_modes() and func is not _component:
            check_followed(func, (args, kwargs))
        implementation = registry.OPERATORS.get(func)
        if implementation is None:
            return registry.run(func, args, kwargs or {})
        return implementation(*args, **kwargs) if kwargs else implementation(*args)

    if TYPE_CHECKING:
        # Defined in `mcf.expansions.conversion`.
        def to(self, *args: Any, terms: int | None = None, **kwargs: Any) -> Any:
            """Convert as `torch.Tensor.to`, also to another number of components."""

        def to_plain(self, dtype: torch.dtype | None = None) -> Tensor:
            """Convert to one plain tensor of a dtype (by default that of the components)."""


skipped(MCFTensor.__torch_dispatch__.__func__)  # type: ignore[attr-defined]


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of another module a method of the tensor, under its own name."""
    setattr(MCFTensor, function.__name__, function)
    return function


_wrapper = torch.Tensor._make_wrapper_subclass
_dispatch_modes = torch._C._len_torch_dispatch_stack
_component = torch.ops.mcf.component.default


def made(
    components: Sequence[Tensor],
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    requires_grad: bool = False,
    cls: type[MCFTensor] = MCFTensor,
) -> MCFTensor:
    """Create the tensor of components of one layout, dtype and device."""
    first = components[0]
    tensor: MCFTensor = _wrapper(
        cls,
        first.size() if size is None else size,
        strides=first.stride() if stride is None else stride,
        storage_offset=first.storage_offset(),
        dtype=first.dtype,
        device=first.device,
        requires_grad=requires_grad,
    )
    hold(tensor.__dict__, components)
    return tensor


def hold(own: dict[str, Any], components: Sequence[Tensor]) -> None:
    """Write components into a tensor's `__dict__`; two, the usual number, by a faster path."""
    if len(components) == 2:
        own["_terms"] = 2
        own["_c0"], own["_c1"] = components
    else:
        own["_terms"] = len(components)
        own.update(zip(NAMES, components, strict=False))


def fresh(
    components: Sequence[Tensor], size: torch.Size, dtype: torch.dtype, device: torch.device
) -> MCFTensor:
    """Create the tensor of new, contiguous components of known size, dtype and device.

    This is faster than `made`, which reads them from the first component.
    """
    tensor: MCFTensor = _wrapper(MCFTensor, size, dtype=dtype, device=device)
    hold(tensor.__dict__, components)
    return tensor


_made_untraced = torch._disable_dynamo(made)  # type: ignore[attr-defined]


def maker() -> Callable[..., MCFTensor]:
    """Return `made`, or under torch.compile a version that it does not trace."""
    # Outside torch.compile `_made_untraced` would import torch._dynamo, about 1 s of work.
    return _made_untraced if torch.compiler.is_compiling() else made


def broadcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Expand plain tensors to one shape."""
    return tuple(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def wrap(components: Sequence[Tensor]) -> MCFTensor:
    """Create the tensor that shares normalised components of one dtype, device and shape."""
    stride = components[0].stride()
    for c in components[1:]:
        if c.stride() != stride:
            # The tensor's strides are its components' strides: views rely on it.
            components = [c.contiguous() for c in components]
            break
    return maker()(components)
