"""Round expansions to another format or number of components: the nearest expansion.

The nearest expansion of a real number v is x0 = RN(v), x1 = RN(v - x0), x2 = RN(v - x0 - x1), ...
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.convert import conversions
from mcf.convert.few import converted_few, visible
from mcf.elementary.working import rare
from mcf.kernels.components import Components as Components
from mcf.kernels.formats import format_of

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def widen(components: Sequence[Tensor], dtype: torch.dtype) -> Components:
    """Return the components in a dtype that holds every number of theirs, exactly."""
    return tuple(c if c.dtype is dtype else c.to(dtype) for c in components)


def convert(components: Sequence[Tensor], dtype: torch.dtype, terms: int) -> Components:
    """Return the nearest expansion of `terms` components of `dtype` to a normalised expansion.

    It is exact if the target holds the value. It is one operator, which `torch.compile` does not
    trace.

    Args:
        components: largest first, each at most half an ulp of the one before; one dtype, device
            and shape.
        dtype: of the new components.
        terms: 1 to 4.

    Returns:
        New contiguous tensors; a value beyond the range gives (inf, 0, ...).
    """
    found = few_converted(components, dtype, terms)
    if found is not None:
        return tuple(found)
    return tuple(torch.ops.mcf.convert(list(components), dtype, terms))


def few_converted(
    components: Sequence[Tensor], dtype: torch.dtype, terms: int
) -> Sequence[Tensor] | None:
    """Convert small CPU tensors; return None if the operator is needed."""
    first = components[0]
    if not visible(first) or not 0 < first.numel() < conversions.FEWEST:
        return None
    if all(map(dense, components)):
        found = conversions.run_few(nearest, components, dtype, terms)
        if found is not None:
            return found
    return converted_few(components, dtype, terms)


def dense(c: Tensor) -> bool:
    """Return whether a tensor's elements are contiguous at its address, without lazy negation."""
    return c.is_contiguous() and not c.is_neg() and not c._is_zerotensor()


def _fake(components: Sequence[Tensor], dtype: torch.dtype, terms: int) -> list[Tensor]:
    like = components[0]
    return [
        torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)
        for _ in range(terms)
    ]


def _convert(components: Sequence[Tensor], dtype: torch.dtype, terms: int) -> list[Tensor]:
    found = conversions.run(nearest, components, dtype, terms)
    if found is not None:
        return found
    made = nearest(components, dtype, terms)
    return [c.clone(memory_format=torch.contiguous_format) for c in made]


def nearest(components: Sequence[Tensor], dtype: torch.dtype, terms: int) -> Components:
    """Round as `convert` does, as a program over tensors; `mcf.convert.conversions` compiles it."""
    source = components[0].dtype
    if len(components) == 2 and terms == 1 and source is dtype and dtype in _INTEGERS:
        # The sum rounds once; zeros, infinities and NaN are taken from the first component.
        first, second = components
        return (torch.where(second == 0, first, first + second),)
    wide = torch.promote_types(source, dtype)
    rest = canonical(widen(components, wide))
    if wide is dtype:
        zero = torch.zeros_like(rest[0])
        out = [rest[k] if k < len(rest) else zero for k in range(terms)]
        if len(rest) <= 2:
            return tuple(out)
    else:
        pair, out = len(rest) == 2, []
        odd = _pair_odd if pair else round_odd
        for k in range(terms):
            x = round_to(odd(rest[0], rest[1]) if len(rest) > 1 else rest[0], dtype)
            out.append(x)
            if k < terms - 1:
                # The difference is exact: x is rest[0] rounded to fewer bits.
                gap = rest[0] - x.to(wide)
                # The gap is 0 or at least the last place of rest[0], and rest[1] is at most half of
                # that. So a shorter sum has the bits of `canonical`.
                rest = _fast_two_sum(gap, rest[1]) if pair else canonical((gap, *rest[1:]))
    finite = out[0].abs() < torch.inf
    # -0 of a low component becomes +0.
    return (out[0], *(torch.where(finite & (x != 0), x, torch.zeros_like(x)) for x in out[1:]))


_library: torch.library.Library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "convert(Tensor[] components, ScalarType dtype, int terms) -> Tensor[]"
)
_library.impl("convert", _convert, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("mcf::convert", _fake, lib=_library)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _fast_two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the TwoSum of a and b, where a is 0 or |a| >= |b|."""
    s = a + b
    return s, b - (s - a)


def _sweep(c: list[Tensor], first: int) -> None:
    """Replace c[first:] by one sweep of TwoSum from the last component upwards.

    It works in place and is exact.
    """
    for k in reversed(range(first, len(c) - 1)):
        c[k], c[k + 1] = _two_sum(c[k], c[k + 1])


def _settle(c: list[Tensor], first: int) -> None:
    """Sweep until each component is the rounded sum of itself and the next; in place, exact.

    Nonzero components move past zeros by one position per sweep. For two components one sweep
    suffices.
    """
    for _ in range(len(c) - first - 1):
        _sweep(c, first)
    if len(c) - first < 3:
        return
    for _ in range(3 * len(c)):
        if not rare(_unsettled(c, first)):
            return
        _sweep(c, first)
    raise AssertionError("sweeps of components do not settle")


def _unsettled(c: Sequence[Tensor], first: int = 0) -> Tensor:
    """Return where a component is not the rounded sum of itself and the next."""
    found = torch.zeros_like(c[0], dtype=torch.bool)
    for k in range(first, len(c) - 1):
        s = c[k] + c[k + 1]
        found = found | ((s != c[k]) & s.isfinite())
    return found


def _ties(c: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Return the neighbour c[k] + 2 c[k + 1], and whether the value is nearer to it than to c[k].

    That is a tie: c[k + 1] is half the gap between the two, and the rest has its sign.
    """
    neighbour = c[k] + 2 * c[k + 1]
    tie = (neighbour - c[k] == 2 * c[k + 1]) & (c[k + 1] * c[k + 2].sign() > 0)
    return neighbour, tie


def canonical(components: Components) -> Components:
    """Return the equal expansion in which each component is the rounded sum of itself and the rest.

    It is exact. A normalised expansion can differ from its canonical form if a component is exactly
    half an ulp of the one before and the following ones break the tie the other way.
    """
    if len(components) == 1:
        return components
    if len(components) == 2:
        return _canonical_pair(*components)
    # Sums of finite components do not overflow if the first is the value rounded; other elements
    # stay.
    finite = components[0].isfinite()
    c = [torch.where(finite, x, torch.zeros_like(x)) for x in components]
    unlike = _unsettled(c)
    for k in range(len(c) - 2):
        unlike = unlike | _ties(c, k)[1]
    # Usually no expansion differs, or all of a kind do.
    if bool(unlike.any()):
        other = _in_order([torch.where(unlike, x, 0.0) for x in c])
        c = [torch.where(unlike, a, b) for a, b in zip(other, c, strict=True)]
    lower = sum(components[2:], components[1])
    overflow = finite & ~(c[0].isfinite() & lower.isfinite())
    c = [torch.where(overflow, torch.zeros_like(x), x) for x in c]
    # NaN and infinities behind a finite component are the sum.
    beyond = torch.where(lower.isfinite(), components[0] * torch.inf, lower)
    c[0] = torch.where(overflow, beyond, c[0])
    keep = ~finite | (c[0] == 0)
    c[0] = torch.where(keep, components[0], c[0])
    return tuple(c)


def _canonical_pair(a: Tensor, b: Tensor) -> Components:
    """Return the canonical form of pairs; the second component of a finite one is never -0."""
    s, e = _two_sum(a, b)
    finite = s.abs() < torch.inf
    # Zeros and values that were not finite stay as they were.
    first = torch.where((a.abs() < torch.inf) & (s != 0), s, a)
    return first, torch.where(finite, e, torch.zeros_like(e))


def _in_order(components: Sequence[Tensor]) -> list[Tensor]:
    """Return the canonical form of finite components."""
    c = [*components]
    _settle(c, 0)
    for k in range(len(c) - 2):
        neighbour, tie = _ties(c, k)
        c[k] = torch.where(tie, neighbour, c[k])
        c[k + 1] = torch.where(tie, -c[k + 1], c[k + 1])
        # c[k] is final; the others may round differently now.
        _settle(c, k + 1)
    return c


def round_odd(x: Tensor, tail: Tensor) -> Tensor:
    """Return x + tail rounded to odd, for |tail| at most half an ulp of x.

    A second rounding to fewer bits (by 2 or more) then equals one rounding of x + tail (Boldo and
    Melquiond 2008, doi:10.1109/TC.2007.70819).
    """
    bits = x.view(_INTEGERS[x.dtype])
    away = ((tail > 0) == (x > 0)) | (x == 0)
    step = torch.where(away, 1, -1).to(bits.dtype)
    inexact = (tail != 0) & x.isfinite() & (bits & 1 == 0)
    return torch.where(inexact, bits + step, bits).view(x.dtype)


def _pair_odd(x: Tensor, tail: Tensor) -> Tensor:
    """Return `round_odd` of a canonical pair, whose tail is 0 next to infinities, NaN and 0."""
    kind = _INTEGERS[x.dtype]
    bits = x.view(kind)
    # -1 for opposite signs: the number below if that is odd, else x itself after setting the last
    # bit.
    below = (bits ^ tail.view(kind)) >> (8 * kind.itemsize - 1)
    return torch.where(tail != 0, (bits + below) | 1, bits).view(x.dtype)


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round a plain tensor once to nearest even in a narrower dtype."""
    if x.dtype is torch.float64 and dtype in (torch.bfloat16, torch.float16):
        found: Tensor = torch.ops.mcf.rounded(x, dtype)
        return found
    return x.to(dtype)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float64 once to a 16-bit dtype; PyTorch's cast rounds through float32, i.e. twice.

    It is one operator, so that recorded formulas contain a single rounding.
    """
    fmt = format_of(dtype)
    # In float64, numbers of the size of this sum have the ulp that the format has at x.
    size = x.abs()
    exponent = (size.view(torch.int64) >> 52).clamp(min=fmt.emin + 1023, max=1900)
    base = (exponent + (53 - fmt.p) << 52).view(torch.float64)
    return torch.copysign((size + base) - base, x).to(dtype)


_library.define("rounded(Tensor x, ScalarType dtype) -> Tensor")  # type: ignore[no-untyped-call]
_library.impl("rounded", _rounded, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(
    "mcf::rounded", lambda x, dtype: torch.empty_like(x, dtype=dtype), lib=_library
)
