"""Explain the bits of a result: operators, kernels, order of additions, bounds."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import linecache
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcf.bounds import bound
from mcf.expansions.dispatch import registry as dispatch
from mcf.expansions.tensor import MCFTensor
from mcf.kernels import fold as folds
from mcf.kernels import registry
from mcf.kernels.bind import PRIMITIVE_NAMES, Algorithm
from mcf.kernels.bounds import Guarantee
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.executor import Executor
from mcf.kernels.fold import Fold

_ROOT = Path(folds.__file__).parents[1]
# Operators of torch whose bound has another name.
_BOUNDS = {"mm": "matmul", "bmm": "matmul", "linalg_vector_norm": "norm"}


@dataclasses.dataclass
class Kernel:
    """A kernel that an executor ran.

    Attributes:
        method: the executor's method, such as "run" or "fold".
        declaration: the declaration of the kernel, such as an `Elementwise` or a `Fold`.
        operands: formats and shapes of the tensors.
        length: the last dimension of the first tensor.
        executor: the name of the executor.
    """

    method: str
    declaration: Any
    operands: str
    length: int
    executor: str

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return str(getattr(self.declaration, "name", type(self.declaration).__name__))

    def algorithms(self) -> dict[str, Algorithm]:
        """Return the algorithms that define the kernel's bits, by their part in it."""
        spec = self.declaration
        if isinstance(spec, Elementwise):
            return {"function": spec.function}
        if isinstance(spec, Fold):
            return {"term": spec.term, "merge": spec.merge, "combine": spec.combine}
        fields = dataclasses.fields(spec) if dataclasses.is_dataclass(spec) else ()
        found = {f.name: getattr(spec, f.name) for f in fields}
        return {name: value for name, value in found.items() if inspect.isfunction(value)}


@dataclasses.dataclass
class Step:
    """An operator on expansion tensors, and the kernels of its implementation.

    Attributes:
        operator: the operator, such as "aten.sum.default"; "plain tensors" of kernels before any.
        arguments: its arguments, tensors as format and shape.
        where: the file and line of its implementation.
        kernels: the kernels, in the order in which they ran.
        bound: the answer of `mcf.bound`, or None where it has none for the operator.
    """

    operator: str
    arguments: str
    where: str
    kernels: list[Kernel] = dataclasses.field(default_factory=list)
    bound: Guarantee | None = None


@dataclasses.dataclass
class Explanation:
    """The path of a call, as `mcf.explain` returns it; `print` shows it.

    Attributes:
        result: the result of the call.
        steps: the operators on expansion tensors, in order.
    """

    result: Any
    steps: list[Step]
    _call: Callable[[], Any] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            given = f"({step.arguments})  {step.where}" if step.where else ""
            lines.append(step.operator + given)
            for kernel, times in _runs(step.kernels):
                again = f"  {times} times" if times > 1 else ""
                lines.append(
                    f"  {kernel.executor} {kernel.method} {kernel.name}: {kernel.operands}{again}"
                )
                for part, algorithm in kernel.algorithms().items():
                    lines.append(f"    {part}: {algorithm.__name__}  {_place(algorithm)}")
            if any(isinstance(kernel.declaration, Fold) for kernel in step.kernels):
                lines.append(f"  order of additions: {_place(folds)}")
                lines += textwrap.indent(_order(), "    ").splitlines()
            if step.bound is not None:
                b = step.bound
                of_terms = f" + {b.of_terms:.3g} T" if b.of_terms else ""
                lines.append(
                    f"  bound: |r - t| <= {b.relative:.3g} |t|{of_terms} + {b.absolute:.3g}  "
                    f"({b.formula}; {b.algorithm}; {b.source})"
                )
        return "\n".join(lines)

    def source(self) -> str:
        """Return the text of the kernels' algorithms and of all algorithms that they call."""
        found: dict[str, str] = {}
        left = [a for s in self.steps for k in s.kernels for a in k.algorithms().values()]
        while left:
            algorithm = left.pop(0)
            place = f"{algorithm.__name__}  {_place(algorithm)}"
            if place not in found:
                found[place] = textwrap.dedent(inspect.getsource(algorithm))
                called = (algorithm.__globals__.get(name) for name in algorithm.__code__.co_names)
                left += [c for c in called if inspect.isfunction(c) and not _primitive(c)]
        return "\n".join(f"# {place}\n{text}" for place, text in found.items())

    def triton(self) -> str:
        """Return the text of the Triton kernels; the call runs again, on executor "triton"."""
        return "\n".join(self._compiled(_listing))

    def ptx(self) -> str:
        """Return the PTX of the Triton kernels, for the GPU of the tensors or for sm_90."""
        return "\n".join(self._compiled(lambda compiled: str(compiled.asm["ptx"])))

    def _compiled(self, text: Callable[[Any], str]) -> list[str]:
        from mcf.kernels.triton.stand_in import gpu_launches

        with registry.executor("triton"), gpu_launches() as found:
            self._call()
        if not found:
            raise ValueError("the call launches no Triton kernel")
        return [*dict.fromkeys(map(text, found))]


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Call a function and return the path to its bits: operators, kernels, order, bounds.

    The operators are observed by a dispatch mode, so each reaches its kernel by the opaque operator
    and not by a cached launch. Both run one declaration and give equal bits.

    Args:
        function: a function of expansion tensors, such as `torch.sum`.
        args: its arguments.
        kwargs: its keyword arguments.

    Returns:
        The path. `str()` is a summary, `source()` the text of the algorithms, `triton()` and
        `ptx()` the code for GPUs, also on a machine without one.

    Raises:
        TypeError: for an object that cannot be called, such as the result of the function.
    """
    if not callable(function):
        raise TypeError(
            f"function must be callable, got {type(function).__name__}: write "
            "mcf.explain(torch.sum, x) or mcf.explain(lambda: x.sum())"
        )

    def call() -> Any:
        return function(*args, **kwargs)

    mode = _Operators()
    with registry.observed(lambda executor: _Observed(executor, mode.note)), mode:
        result = call()
    return Explanation(result, mode.steps, call)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note each operator on expansion tensors, and let their type implement it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []
        self._operands: list[MCFTensor] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [*args, *(kwargs or {}).values()]
        x = next((x for x in tree_leaves(given) if isinstance(x, MCFTensor)), None)
        if x is None:
            return func(*args, **(kwargs or {}))
        found = dispatch.OPERATORS.get(func) or dispatch.ALIASING.get(func)
        place = _place(found) if found is not None else "derived from another operator"
        self.steps.append(Step(str(func), _described(given), place))
        self._operands.append(x)
        return NotImplemented

    def note(self, executor: str, method: str, declaration: Any, tensors: Sequence[Any]) -> None:
        """Note a kernel under the last operator."""
        first = next(x for x in tree_leaves(tensors) if isinstance(x, Tensor))
        length = first.shape[-1] if first.ndim else 1
        kernel = Kernel(method, declaration, _described(tensors), length, executor)
        if not self.steps:
            self.steps.append(Step("plain tensors", "", ""))
        step = self.steps[-1]
        step.kernels.append(kernel)
        if self._operands:
            step.bound = _bound(step.operator, self._operands[-1], step.kernels)


class _Observed:
    """An executor that notes the kernels it runs."""

    def __init__(
        self, executor: Executor, note: Callable[[str, str, Any, Sequence[Any]], None]
    ) -> None:
        self._executor, self._note = executor, note

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._executor, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            if args and dataclasses.is_dataclass(args[0]) and result is not False:
                self._note(self._executor.name, name, args[0], args[1:])
            return result

        return call


def _runs(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, int]]:
    """Yield each kernel and how often it ran with such operands in succession."""
    times = 0
    for k, kernel in enumerate(kernels):
        times += 1
        follower = kernels[k + 1] if k + 1 < len(kernels) else None
        if follower != kernel:
            yield kernel, times
            times = 0


def _described(values: Sequence[Any]) -> str:
    """Return the formats and shapes of tensors, and other values as they print."""
    given = [_format(x) for x in tree_leaves(values) if x is not None]
    groups = [(text, len([*equal])) for text, equal in itertools.groupby(given) if text]
    return ", ".join(text if times == 1 else f"{times} x {text}" for text, times in groups)


def _format(x: Any) -> str:
    if not isinstance(x, Tensor):
        return str(x)
    shown = f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    return f"{shown} of {x.terms} components" if isinstance(x, MCFTensor) else shown


def _primitive(function: Any) -> bool:
    return function.__name__ in PRIMITIVE_NAMES


def _place(thing: Any) -> str:
    """Return the file of a function or module, from the root of the source tree, and the line."""
    code = getattr(inspect.unwrap(thing), "__code__", None) if callable(thing) else None
    name = code.co_filename if code else thing.__file__
    path = Path(name)
    shown = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else name
    return f"{shown}:{code.co_firstlineno}" if code else str(shown)


def _order() -> str:
    """Return the order of additions of a fold, as its module states it."""
    text = folds.__doc__ or ""
    sizes = [f"{name} = {getattr(folds, name)}" for name in ("BLOCK", "LANES", "GROUP", "STEP")]
    return f"{', '.join(sizes)}\n{text[text.index('1. ') :].strip()}"


def _bound(name: str, x: MCFTensor, kernels: Sequence[Kernel]) -> Guarantee | None:
    """Return `mcf.bound` of an operator of torch; None where it has no answer."""
    name = name.split(".")[1].strip("_")
    name = _BOUNDS.get(name, name)
    lengths = [k.length for k in kernels if isinstance(k.declaration, Fold)]
    for count in (None, *lengths[:1]):
        with contextlib.suppress(ValueError):
            return bound(name, x.terms, x.dtype, count=count)
    return None


def _listing(compiled: Any) -> str:
    """Return the Python text of a compiled Triton kernel."""
    return "".join(linecache.getlines(compiled.src.fn.fn.__code__.co_filename))
