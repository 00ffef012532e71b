"""How an expansion tensor prints itself."""

from __future__ import annotations

from torch._subclasses.fake_tensor import is_fake

from mcf.convert import export
from mcf.convert.printing import OPTIONS, body, decimal, shortest
from mcf.kernels.formats import format_of
from mcf.tensor.tensor import MCFTensor, method


def text(x: MCFTensor) -> str:
    """`MCFTensor([...], terms=2, dtype=torch.float32)`; `mcf.tensor` reads the brackets back."""
    head = "MCFTensor("
    tail = [f"terms={x.terms}", f"dtype={x.dtype}"]
    if x.device.type != "cpu":
        tail.append(f"device='{x.device}'")
    if x.grad_fn is not None:
        tail.append(f"grad_fn=<{type(x.grad_fn).__name__}>")
    elif x.requires_grad:
        tail.append("requires_grad=True")
    components = x.components
    if components[0].device.type == "meta" or is_fake(components[0]):
        return f"{head}..., size={tuple(x.shape)}, {', '.join(tail)})"
    if x.numel() == 0:
        if x.dim() != 1:
            tail.insert(0, f"size={tuple(x.shape)}")
        return f"{head}[], {', '.join(tail)})"
    fmt = format_of(x.dtype)

    def element(index: tuple[int, ...]) -> str:
        value = export.fractions([c[index] for c in components])[0]
        if OPTIONS.precision is not None:
            return decimal(value, OPTIONS.precision)
        return shortest(value, fmt, x.terms)

    shown = body(tuple(x.shape), element, len(head))
    line = f"{head}{shown}, {', '.join(tail)})"
    last = line.rsplit("\n", 1)[-1]
    if len(last) <= OPTIONS.linewidth:
        return line
    return f"{head}{shown},\n{' ' * len(head)}{', '.join(tail)})"


@method
def __repr__(x: MCFTensor, *, tensor_contents: object = None) -> str:
    return text(x)
