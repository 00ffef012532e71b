"""Attributes that PyTorch's modules and transforms need, or must not apply to complex tensors."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.utils._pytree import register_pytree_node

from mcf.complexes.tensor import MCFComplexTensor, made, method
from mcf.tensor.registry import UnsupportedError


def _no_parameter(z: MCFComplexTensor, value: Any) -> NoReturn:
    raise TypeError(
        "torch.nn.Parameter: a complex expansion tensor is not a torch.Tensor, so no module would "
        "register it; make parameters of z.real and z.imag, and mcf.MCFComplexTensor(real, imag) "
        "of them in forward"
    )


def _of_parts(parts: Any, context: Any) -> MCFComplexTensor:
    """Return the tensor whose parts are the leaves of a tree, possibly transformed ones."""
    if any(isinstance(v, MCFComplexTensor) for v in parts):
        raise UnsupportedError(
            "a Jacobian of complex numbers with respect to complex ones: jacrev, jacfwd and "
            "hessian take real inputs or real outputs, as torch's do; write the function in "
            "z.real and z.imag"
        )
    return made(*parts)


# `torch.nn.Parameter` sets this on objects that are not plain tensors, and returns them.
method("_is_param", property(lambda z: False, _no_parameter))
# `load_state_dict` of modules reads this.
method("is_meta", property(lambda z: z.real.is_meta))
# Arguments and results of torch.func: the tree of the parts.
register_pytree_node(
    MCFComplexTensor,
    lambda z: ([z.real, z.imag], None),
    _of_parts,
    serialized_type_name="mcf.MCFComplexTensor",
)
