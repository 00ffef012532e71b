"""Results of torch's functions on expansions, compared with torch and with each other.

The cases are torch's own sample inputs (`every_function`). A call is described by `Facts`, which
must be those of the same call on float64 tensors, and by the bits of its results, which must not
depend on the executor, on the number of the call, on gradients, modes, transforms or layouts.
`python -m tests.mcf.expansions.function_calls --help` runs the survey and prints its failures.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import mcf
from tests.helpers.bits import bits
from tests.mcf.expansions import every_function as functions

# Formats of the samples, in turn.
FORMS = ((torch.float64, 2), (torch.float32, 2), (torch.bfloat16, 3))
SIZES = (0, 1, 2, 3, 7, 8, 31, 33, 255, 1023, 1025)
# The calls of which facts are compared, and how many have their bits compared. Fast paths of the
# CPU's executor engage at the second call.
COMPARED = (1, 2, 10)
CALLS = {"torch": 2, "numba": 10, "triton": 2}
# Functions of which torch's tangents and gradients take another part of a matrix for the whole, or
# which choose signs and phases.
MATRICES = re.compile(r"linalg\.|cholesky|svd|lu|qr|ormqr|geqrf|logdet|triangular|pinv|orgqr")
ERRORS = (RuntimeError, ValueError, IndexError, NotImplementedError, TypeError, AssertionError)


# A function's name (a pattern), what a failure says of it (a pattern), and why it is right so.
EXPECTED = (
    (
        r"(nn\.functional\.(batch|instance)|native_batch|_native_batch)_norm.*",
        "version of argument . is 1, torch's is 0",
        "torch counts no change of running statistics",
    ),
    (
        r"dot|vdot|inner|tensordot|matmul|__rmatmul__|addbmm|addr|nn\.functional\.cross_entropy",
        r"vmap, .* bits of result",
        "torch makes other sums of products of it under vmap (docs/semantics.md)",
    ),
    (
        r"(tensor_|unsafe_|h|v|d)?split.*|(unsafe_)?chunk|narrow|reshape_as|atleast_.d"
        r"|broadcast_tensors|linalg\.diagonal|meshgrid\..*",
        "inference_mode.* (requires_grad|is_view_of_an_argument) of result .* is False",
        "torch says of views in inference mode that they require gradients; none is recorded",
    ),
    (
        r"as_strided.*|resize_",
        "transposed|stepped|jvp, .* tangent",
        "its result depends on the layout, and elements may overlap",
    ),
    (
        r"tensordot",
        r"(vjp|jvp), .* bits of result",
        "torch orders contracted dimensions by strides (docs/semantics.md)",
    ),
    (
        r"addbmm",
        r"in place, .* cannot be written into a tensor of shape",
        "torch gives the target another shape",
    ),
    (
        r"_?native_batch_norm(_legit)?",
        "out=, ",
        "the out= of operators behind batch norm has other names, and is not there",
    ),
    (
        r"linspace.tensor_overload",
        "vmap, ",
        "a vmap over a count of results",
    ),
    (
        r"__rdiv__|nn\.functional\.(binary_cross_entropy_with_logits|multilabel_soft_margin_loss"
        r"|tanhshrink|cosine_embedding_loss|gaussian_nll_loss|rms_norm)",
        r"(vjp|jvp|vmap), .* bits of result",
        "torch takes it apart into other steps (docs/semantics.md)",
    ),
    (
        r"nn\.functional\.cosine_embedding_loss",
        r"(vjp|jvp), .* (gradient \d|tangent) is off by",
        "torch.func runs torch's formula, which adds 1e-12 to both squares (docs/numerics.md)",
    ),
    (
        r"logcumsumexp",
        r"vjp, .* gradient 0 is off by",
        "torch's own derivative has a difference of exponentials that cancels",
    ),
    (
        r"_softmax_backward_data",
        r"jvp, .* part . is torch.float64 and torch.(float32|bfloat16)",
        "torch's sample names float64 as the dtype of its operands",
    ),
    (
        r"cholesky|lu_unpack",
        r"must be batches of square matrices, but they are 0 by|list index out of range",
        "sizes that are no matrix, or not that of the pivots, which torch takes if it is 0",
    ),
    (
        r"(svd|pca)_lowrank",
        r"dtype of result . is torch.float32, torch's is of operands",
        "torch refuses 16-bit formats, and computes in float32 up to there",
    ),
    (
        r".*",
        r"(vjp|jvp|vmap|inference_mode), .*(Unsupported dtype BFloat16|got BFloat16"
        r"|types other than float and double|Low precision dtypes not supported)",
        "there torch refuses 16-bit formats before expansions are asked (docs/semantics.md)",
    ),
    (
        r"(masked\.)?log_softmax.*",
        r"vmap, .* bits of result",
        "of one number 0 - 0 and -0: a sign of zero",
    ),
    (
        r"max_pool2d_with_indices_backward",
        "inference_mode|dispatch mode",
        "torch's sample differentiates within the call",
    ),
)


class Result(NamedTuple):
    """A result of a call, apart from its numbers."""

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    is_leaf: bool = False
    is_view_of_an_argument: bool = False
    is_argument: int | None = None
    shares_memory_with_arguments: tuple[int, ...] = ()
    shares_memory_with_results: tuple[int, ...] = ()


class Argument(NamedTuple):
    """A tensor argument after a call."""

    requires_grad: bool
    is_leaf: bool
    version: int
    shape: tuple[int, ...]


class Facts(NamedTuple):
    """All that a caller sees of a call, apart from numbers."""

    results: tuple[Any, ...]
    arguments: tuple[Argument, ...]


class Call(NamedTuple):
    """A call that was made: facts, bits of its results, bits of gradients."""

    facts: Facts
    numbers: list[Tensor]
    gradients: list[list[Tensor] | None]


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Mode(NamedTuple):
    """How calls are made: below which context, on operands that require gradients or not."""

    context: Callable[[], contextlib.AbstractContextManager[Any]]
    grad: bool


MODES = {
    "plain": Mode(contextlib.nullcontext, False),
    "grad": Mode(contextlib.nullcontext, True),
    "no_grad": Mode(torch.no_grad, True),
    "inference_mode": Mode(torch.inference_mode, True),
    "function mode": Mode(_FunctionMode, False),
    "dispatch mode": Mode(_DispatchMode, True),
}
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "stepped": lambda x: x.unsqueeze(-1).expand(*x.shape, 2).contiguous()[..., 0],
}


TENSORS = (Tensor, mcf.MCFComplexTensor)


def _leaves(x: Any) -> list[Any]:
    return tree_flatten(x, is_leaf=lambda y: isinstance(y, mcf.MCFComplexTensor))[0]


def _parts(x: Any) -> list[Tensor]:
    """Return the plain tensors that hold a tensor's numbers."""
    x = x.detach()
    if isinstance(x, mcf.MCFComplexTensor):
        return [*_parts(x.real), *_parts(x.imag)]
    return list(x.components) if isinstance(x, mcf.MCFTensor) else [x]


def _storages(x: Any) -> set[int]:
    if isinstance(x, Tensor) and x.layout is not torch.strided:
        return set()
    return {part.untyped_storage()._cdata for part in _parts(x)}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of torch with one of its sample inputs, as expansions of some form.

    Args:
        op: an entry of torch's list.
        number: of the sample.
        form: dtype and terms of the expansions.
        sample: input, args and kwargs. Their float64 tensors become expansions.
    """

    op: Any
    number: int
    form: tuple[torch.dtype, int]
    sample: Any

    def __str__(self) -> str:
        dtype, terms = self.form
        return f"{functions.name_of(self.op)} sample {self.number} ({str(dtype)[6:]} x {terms})"

    def arguments(
        self, plain: torch.dtype | None, grad: bool, layout: Callable[[Any], Any] | None = None
    ) -> Any:
        """Return new operands: plain tensors of a dtype, or else expansions of such values."""
        made: dict[int, Any] = {}
        dtype, terms = self.form

        def new(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if id(x) in made:
                return made[id(x)]
            if not functions._is_float(x):
                out = x.detach().clone()
            else:
                out = _with_low_digits(x, dtype, terms)
                out = out.to_plain(plain).clone() if plain else out
                out = out if layout is None else layout(out).detach()
                if grad:
                    out.requires_grad_()
            made[id(x)] = out
            return out

        return tree_map(new, self.sample)


def _with_low_digits(x: Tensor, dtype: torch.dtype, terms: int) -> mcf.MCFTensor:
    """Return x as an expansion whose last components are not zero, unless x is a whole number.

    A number becomes smaller by less than 2^-24 of it, so that domains keep it, and equal numbers
    stay equal.
    """
    x = x.detach().clone(memory_format=torch.contiguous_format)
    if dtype is not torch.float64:
        return mcf.tensor(x, terms, dtype)
    share = (x.abs() * (1000 * math.pi)).frac().nan_to_num() * 2.0**-55
    low = torch.where((x == x.round()) | ~x.isfinite(), 0, -x * share)
    return mcf.MCFTensor([x, low])


def cases(count: int = 10**6, ops: Sequence[Any] | None = None) -> Iterator[Case]:
    """Yield the samples of all functions, at most `count` of each."""
    for op in functions.functions() if ops is None else ops:
        for number, sample in enumerate(functions.samples(op, count)):
            given = (sample.input, list(sample.args), dict(sample.kwargs))
            case = Case(op, number, FORMS[number % len(FORMS)], given)
            if functions.floats(given):
                yield case


def _facts(results: Any, arguments: list[Any], versions: list[int], dtype: torch.dtype) -> Facts:
    given = [_storages(x) for x in arguments]
    flat = _leaves(results)
    own = [_storages(r) if isinstance(r, TENSORS) else set() for r in flat]
    told: list[Any] = []
    for k, r in enumerate(flat):
        if not isinstance(r, TENSORS):
            told.append(type(r).__name__)
        elif isinstance(r, mcf.MCFComplexTensor) or r.is_complex():
            # A complex expansion is no tensor of torch: it holds two.
            told.append(Result(tuple(r.shape), "complex", r.requires_grad))
        else:
            argument = next((n for n, x in enumerate(arguments) if x is r), None)
            told.append(
                Result(
                    tuple(r.shape),
                    "of operands" if r.dtype is dtype else str(r.dtype),
                    r.requires_grad,
                    r.is_leaf,
                    r._is_view() and any(s & own[k] for s in given) and argument is None,
                    argument,
                    tuple(n for n, s in enumerate(given) if s & own[k]),
                    tuple(n for n, s in enumerate(own) if n != k and s & own[k]),
                )
            )
    after = tuple(
        Argument(x.requires_grad, x.is_leaf, _version(x) - v, tuple(x.shape))
        for x, v in zip(arguments, versions, strict=True)
    )
    return Facts(tuple(told), after)


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def _numbers(results: Any) -> list[Tensor]:
    return [part for r in _leaves(results) if isinstance(r, TENSORS) for part in _parts(r)]


def _weights(r: Any) -> Any:
    """Return small numbers of r's shape and format, with a few bits each; sums do not cancel."""
    plain = ((torch.arange(r.numel()) * 7 % 13 + 1) / 8).view(r.shape)
    return mcf.tensor(plain, len(r.components), r.dtype) if isinstance(r, mcf.MCFTensor) else plain


def _gradients(results: Any, given: Sequence[Any]) -> list[list[Tensor] | None]:
    ends = [r for r in _leaves(results) if isinstance(r, mcf.MCFTensor) and r.requires_grad]
    if not ends:
        return []
    found = torch.autograd.grad(
        ends, given, [_weights(r.detach()) for r in ends], allow_unused=True
    )
    return [None if g is None else _parts(g) for g in found]


def called(
    case: Case,
    mode: Mode,
    plain: torch.dtype | None = None,
    form: Callable[..., Any] | None = None,
    layout: Callable[[Any], Any] | None = None,
    gradients: bool = False,
) -> Call:
    """Call the function on new operands.

    Args:
        case: the function and its operands.
        mode: context and gradients.
        plain: the dtype if the operands are plain tensors.
        form: what is called in place of the function, for example its in-place method.
        layout: what changes the strides of operands.
        gradients: whether to compute gradients of the results as well.
    """
    given = case.arguments(plain, mode.grad, layout)
    tensors = [x for x in tree_flatten(given)[0] if isinstance(x, Tensor)]
    versions = [_version(x) for x in tensors]
    torch.default_generator.manual_seed(1)
    with mode.context():
        results = (form or case.op)(given[0], *given[1], **given[2])
    facts = _facts(results, tensors, versions, plain or case.form[0])
    found = _gradients(results, functions.floats(given)) if gradients and not plain else []
    return Call(facts, [] if plain else [n.clone() for n in _numbers(results)], found)


def facts_of_torch(case: Case, mode: Mode, **options: Any) -> Facts | None:
    """Return the facts for plain tensors of the components' dtype, or of float64 if torch has none.

    None if torch refuses the call.
    """
    for dtype in dict.fromkeys((case.form[0], torch.float64)):
        with contextlib.suppress(*ERRORS):
            return called(case, mode, plain=dtype, **options).facts
    return None


def differing_facts(got: Facts, want: Facts) -> Iterator[str]:
    """Describe what differs from torch's facts."""
    if len(got.results) != len(want.results):
        yield f"{len(got.results)} results, torch has {len(want.results)}"
        return
    for what, ours, torchs in (
        ("result", got.results, want.results),
        ("argument", got.arguments, want.arguments),
    ):
        for k, (x, y) in enumerate(zip(ours, torchs, strict=True)):
            if isinstance(x, str) or isinstance(y, str):
                if x != y:
                    yield f"{what} {k} is {x}, torch's {y}"
                continue
            for field in x._fields:
                a, b = getattr(x, field), getattr(y, field)
                if a != b:
                    yield f"{field} of {what} {k} is {a}, torch's is {b}"


def differing_bits(
    got: Sequence[Tensor], want: Sequence[Tensor], what: str = "result"
) -> Iterator[str]:
    """Describe which tensors differ in their bits."""
    if [x.shape for x in got] != [y.shape for y in want]:
        shapes = [[tuple(t.shape) for t in tensors] for tensors in (got, want)]
        yield f"bits of {what}: shapes {shapes[0]} and {shapes[1]}"
        return
    for k, (x, y) in enumerate(zip(got, want, strict=True)):
        if x.dtype != y.dtype:
            yield f"bits of {what}: part {k} is {x.dtype} and {y.dtype}"
        elif x.layout is torch.strided and x.is_complex():
            continue
        elif x.layout is torch.strided and not torch.equal(bits(x), bits(y)):
            count = int((bits(x) != bits(y)).sum())
            yield f"bits of {what}: part {k} differs in {count} of {x.numel()}"


def differing_gradients(
    got: Sequence[list[Tensor] | None], want: Sequence[list[Tensor] | None]
) -> Iterator[str]:
    """Describe which gradients differ. No gradient is a gradient of zeros."""
    for k, (x, y) in enumerate(zip(got, want, strict=True)):
        if x is None or y is None:
            if any(bool((t != 0).any()) for t in x or y or ()):
                yield f"bits of gradient {k}: one is None"
        else:
            # Plain zeros are torch's own.
            if len(x) != len(y):
                if any(bool((t != 0).any()) for t in (*x, *y)):
                    yield f"bits of gradient {k}: {len(x)} and {len(y)} components"
                continue
            # Sums of zeros of both signs have the sign of the order.
            yield from differing_bits([t + 0 for t in x], [t + 0 for t in y], f"gradient {k}")


def distant_gradients(
    got: Sequence[list[Tensor] | None],
    want: Sequence[list[Tensor] | None],
    form: tuple[torch.dtype, int],
) -> Iterator[str]:
    """Describe which gradients differ by more than roundings do.

    Inside torch.func derivatives are torch's formulas, not those of backward (docs/semantics.md):
    they differ in their last bits. Twelve bits are left to conditioning.
    """
    dtype, terms = form
    bound = 2.0**12 * (torch.finfo(dtype).eps / 2) ** terms
    for k, (x, y) in enumerate(zip(got, want, strict=True)):
        zeros = [torch.zeros_like(t) for t in x or y or ()]
        x, y = x or zeros, y or zeros
        # Differences of components first: the numbers themselves have more bits than float64.
        count = max(len(x), len(y))
        pairs = itertools.zip_longest(x, y, fillvalue=torch.zeros(()))
        off = sum(
            (a.double() - b.double() for a, b in itertools.islice(pairs, count)), torch.zeros(())
        )
        off, size = off.abs(), y[0].double().abs().nan_to_num(0, 0, 0) if y else torch.zeros(())
        if not size.numel():
            continue
        if bool((off > bound * max(float(size.max()), 1e-3)).any()):
            yield f"gradient {k} is off by {float((off / max(float(size.max()), 1e-3)).max()):.2g}"


def distant_tangents(
    case: Case, slopes: Sequence[list[Tensor] | None], results: Sequence[Any], tangents: Any
) -> Iterator[str]:
    """Describe a tangent along a quarter of the operands that is not the sum of the gradients.

    The weights of results are those of the gradients; twelve bits are left to conditioning.
    """
    dtype, terms = case.form
    operands = functions.floats(case.arguments(None, False))
    if len({*map(id, operands)}) < len(operands) or MATRICES.match(functions.name_of(case.op)):
        return
    wide = functools.partial(torch.Tensor.to, dtype=torch.float64)
    pairs = [(r, t) for r, t in zip(results, tangents, strict=True) if isinstance(r, mcf.MCFTensor)]
    if any(not isinstance(t, mcf.MCFTensor) or t.dtype is not dtype for _, t in pairs):
        return
    along = [wide(_weights(r.detach())) * wide(t.detach()) for r, t in pairs]
    back = [
        wide(mcf.MCFTensor(list(slope))) * wide(x) / 4
        for slope, x in zip(slopes, operands, strict=True)
        if slope is not None
    ]
    size = sum(float(p.abs().sum()) for p in back)
    off = sum((p.sum() for p in along), mcf.tensor(0, 2, torch.float64))
    off = abs(float(off - sum((p.sum() for p in back), mcf.tensor(0, 2, torch.float64))))
    if math.isfinite(size) and off > 2.0**12 * (torch.finfo(dtype).eps / 2) ** terms * max(
        size, 1e-3
    ):
        yield f"tangent is off by {off / max(size, 1e-3):.2g}"


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, mcf.UnsupportedError) or "expansion tensor" in str(error)


def failures(
    case: Case,
    executors: Sequence[str] = ("torch", "numba"),
    modes: Sequence[str] = tuple(MODES),
    tried: Counter[str] | None = None,
    more: bool = True,
) -> Iterator[tuple[str, str]]:
    """Yield what differs from torch's facts and from the bits of the first plain call."""
    tried = Counter() if tried is None else tried
    uncertain = functions.name_of(case.op) in functions.RANDOM
    want: Call | None = None
    slopes: Any = None
    for name in modes:
        mode = MODES[name]
        if mode.grad and not case.op.supports_autograd:
            continue
        reference = facts_of_torch(case, mode)
        if reference is None:
            tried[f"refused by torch, {name}"] += 1
            continue
        for executor in executors:
            for call in range(1, CALLS[executor] + 1):
                if name not in ("plain", "grad") and call > 2:
                    break
                where = f"{executor}, {name}, call {call}"
                try:
                    with mcf.executor(executor):
                        got = called(case, mode, gradients=name == "grad")
                except Exception as error:
                    if _is_refusal(error):
                        tried[f"refused, {name}"] += 1
                    else:
                        yield where, f"{type(error).__name__}: {str(error).splitlines()[:1]}"
                    break
                tried[f"calls, {executor}, {name}"] += 1
                if call in COMPARED:
                    for text in differing_facts(got.facts, reference):
                        yield where, text
                if want is None:
                    want = got
                elif not uncertain:
                    for text in differing_bits(got.numbers, want.numbers):
                        yield where, text
                if name == "grad":
                    slopes = got.gradients if slopes is None else slopes
                    if len(slopes) == len(got.gradients) and not uncertain:
                        for text in differing_gradients(got.gradients, slopes):
                            yield where, text
    if want is None or not more:
        return
    for executor in executors:
        with mcf.executor(executor):
            for where, found in itertools.chain(
                _layouts(case, want, uncertain, tried),
                _written(case, want, uncertain, tried),
                () if uncertain else _transforms(case, want, slopes, tried),
            ):
                yield f"{executor}, {where}", found


def _tell(error: Exception) -> Iterator[str]:
    if not _is_refusal(error):
        yield f"{type(error).__name__}: {str(error).splitlines()[:1]}"


def _layouts(
    case: Case, want: Call, uncertain: bool, tried: Counter[str]
) -> Iterator[tuple[str, str]]:
    if uncertain:
        return
    for name, layout in LAYOUTS.items():
        if facts_of_torch(case, MODES["plain"], layout=layout) is None:
            continue
        for call in (1, 2):
            try:
                got = called(case, MODES["plain"], layout=layout)
            except Exception as error:
                for text in _tell(error):
                    yield f"{name}, call {call}", text
                break
            tried[f"calls, {name}"] += 1
            for text in differing_bits(got.numbers, want.numbers):
                yield f"{name}, call {call}", text


def _written(
    case: Case, want: Call, uncertain: bool, tried: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Try `out=` with NaN in it, the method and the in-place method."""

    def into(*args: Any, **kwargs: Any) -> Any:
        like = case.op(*args, **kwargs)
        torch.default_generator.manual_seed(1)
        out = tree_map(_filled, like)
        found = case.op(*args, **kwargs, out=out)
        if isinstance(found, Tensor) and found is not out:
            raise AssertionError("the result is not out")
        return found

    forms = [("out=", into)] if case.op.supports_out else []
    if case.op.method_variant is not None:
        forms.append(("method", case.op.method_variant))
    if case.op.inplace_variant is not None:
        forms.append(("in place", case.op.inplace_variant))
    for name, form in forms:
        reference = facts_of_torch(case, MODES["plain"], form=form)
        if reference is None:
            continue
        for call in (1, 2):
            try:
                got = called(case, MODES["plain"], form=form)
            except Exception as error:
                for text in _tell(error):
                    yield f"{name}, call {call}", text
                break
            tried[f"calls, {name}"] += 1
            for text in differing_facts(got.facts, reference):
                yield f"{name}, call {call}", text
            if not uncertain and len(got.numbers) == len(want.numbers):
                if [*map(_like, got.numbers)] == [*map(_like, want.numbers)]:
                    for text in differing_bits(got.numbers, want.numbers):
                        yield f"{name}, call {call}", text


def _filled(x: Any) -> Any:
    """Return a tensor like x, of NaN where it may be."""
    if not functions._is_float(x):
        return x.clone() if isinstance(x, Tensor) else x
    return torch.full_like(x, math.nan)


def _like(x: Tensor) -> Any:
    return x.dtype, x.shape


def _transforms(
    case: Case, want: Call, slopes: Any, tried: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Try the function inside vjp, jvp and vmap: the bits of results, and vjp's of gradients."""

    def split(plain: Any) -> tuple[Callable[..., Any], list[Any]]:
        given, spec = tree_flatten(case.arguments(plain, False))
        places = [k for k, x in enumerate(given) if functions._is_float(x)]

        def call(*operands: Any) -> Any:
            whole = list(given)
            for k, x in zip(places, operands, strict=True):
                whole[k] = x
            a, b, c = torch.utils._pytree.tree_unflatten(whole, spec)
            torch.default_generator.manual_seed(1)
            return tuple(r for r in _leaves(case.op(a, *b, **c)) if isinstance(r, Tensor))

        return call, [given[k] for k in places]

    def vjp(plain: Any) -> Any:
        function, given = split(plain)
        out, pull = torch.func.vjp(function, *given)
        if plain:
            return out, pull(tuple(torch.zeros_like(r) for r in out))
        weights = tuple(
            _weights(r) if isinstance(r, mcf.MCFTensor) else torch.zeros_like(r) for r in out
        )
        return out, pull(weights)

    def jvp(plain: Any) -> Any:
        function, given = split(plain)
        return torch.func.jvp(function, tuple(given), tuple(x / 4 for x in given))

    def vmap(plain: Any) -> Any:
        function, given = split(plain)
        out = torch.func.vmap(function)(*(torch.stack([x, x]) for x in given))
        return tuple(r[0] for r in out), tuple(r[1] for r in out)

    for name, transform in (("vjp", vjp), ("jvp", jvp), ("vmap", vmap)):
        if name == "vjp" and not slopes:
            continue
        try:
            transform(torch.float64)
        except Exception:
            continue
        for call in (1, 2):
            try:
                out, others = transform(None)
            except Exception as error:
                for text in _tell(error):
                    yield f"{name}, call {call}", text
                break
            tried[f"calls, {name}"] += 1
            for text in differing_bits(_numbers(out), want.numbers):
                yield f"{name}, call {call}", text
            if name == "vmap":
                for text in differing_bits(_numbers(others), want.numbers):
                    yield f"{name}, call {call}", text
            if name == "jvp" and slopes:
                for text in distant_tangents(case, slopes, out, others):
                    yield f"{name}, call {call}", text
            if name == "vjp":
                for text in distant_gradients([_parts(g) for g in others], slopes, case.form):
                    yield f"{name}, call {call}", text


def sized(op: Any, sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Yield cases of vectors and matrices of many sizes for functions that take such operands.

    All float tensors of the function's first sample become tensors of one size: torch decides, on
    float64 tensors, whether it takes these.
    """
    sample = next(functions.samples(op, 1), None)
    if sample is None:
        return
    given = (sample.input, list(sample.args), dict(sample.kwargs))
    floats = functions.floats(given)
    if not floats:
        return
    for number, size in enumerate(sizes):
        shape = (size,) if number % 2 or floats[0].ndim < 2 else (size, 3)
        numbers = itertools.count()

        def other(x: Any, shape: Any = shape, numbers: Any = numbers) -> Any:
            if not functions._is_float(x):
                return x
            count = math.prod(shape)
            values = torch.arange(count, dtype=torch.float64) * 37 % 101 + 1.25 + next(numbers)
            return (values / 103).view(shape)

        case = Case(op, size, FORMS[number % 2], tree_map(other, given))
        yield case


def is_expected(name: str, text: str) -> bool:
    """Whether a failure is a documented difference (`EXPECTED`)."""
    return any(re.fullmatch(of, name) and re.search(what, text) for of, what, _ in EXPECTED)


def grouped(found: Iterator[tuple[str, str]]) -> list[str]:
    """Return a line for each text: where it is said first, and where else."""
    places: dict[str, list[str]] = {}
    for where, text in found:
        places.setdefault(text, []).append(where)
    return [
        f"[{wheres[0]}] {text}" + (f" (and {len(wheres) - 1} other calls)" if wheres[1:] else "")
        for text, wheres in places.items()
    ]


def main() -> None:
    """Run the survey and print failures, one a line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", default="", help="functions whose names contain this")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--count", type=int, default=10**6, help="samples of a function at most")
    parser.add_argument("--executors", nargs="*", default=["torch", "numba"])
    parser.add_argument("--modes", nargs="*", default=[*MODES])
    parser.add_argument("--sizes", action="store_true", help="sizes in place of samples")
    parser.add_argument("--short", action="store_true", help="no layouts, out= and transforms")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode(1)
    tried: Counter[str] = Counter()
    bad, start = 0, time.perf_counter()
    ops = [op for op in functions.functions() if options.only in functions.name_of(op)]
    for op in ops[options.start :: options.step]:
        begun = time.perf_counter()
        try:
            for case in sized(op) if options.sizes else cases(options.count, [op]):
                tried["cases"] += 1
                for text in grouped(
                    failures(case, options.executors, options.modes, tried, not options.short)
                ):
                    if is_expected(functions.name_of(op), text):
                        tried["expected"] += 1
                        continue
                    bad += 1
                    print(case, text, flush=True)
        except Exception:
            print(f"CRASH {functions.name_of(op)}", traceback.format_exc(limit=-3), flush=True)
        tried["functions"] += 1
        took = time.perf_counter() - begun
        if took > 20:
            print(f"# {functions.name_of(op)} took {took:.0f} s", file=sys.stderr, flush=True)
    print(f"# {bad} failures, {time.perf_counter() - start:.0f} s", dict(tried))


if __name__ == "__main__":
    main()
