"""Convert integers to limbs and residues and back, for matrix products by residues.

These are the elementwise steps of `mcf.reductions.modular`. Numbers are integers in float64
registers; every step is exact unless its docstring says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms.primitives import (
    ONE,
    ZERO,
    absolute,
    bits64,
    const,
    floating,
    floor,
    from_bits64,
    invert,
    linear,
    long,
    rint,
    rn,
    where,
    whole,
)
from mcf.kernels.algorithms.transforms import two_sum
from mcf.kernels.statements import recorded


def power(e):
    """Return 2**e for an integer e in a register, -1022 <= e <= 1023, made from its bits."""
    return from_bits64((long(e) + whole(1023)) << whole(52))


def scaled(x, e):
    """Return x 2**e for |e| <= 2044: exact if no result is subnormal, rounded at most twice."""
    half = floor(rn(const(0.5) * e))
    return rn(rn(x * power(half)) * power(rn(e - half)))


def centred(x, m, inverse):
    """Return x mod m in [-m / 2, m / 2), for |x| < 2**48, m <= 2**16; `inverse` is RN(1 / m).

    For odd m, x / m is at least 1 / (2 m) away from every half integer, and its rounding error is
    smaller. For a power of two there is no rounding error.
    """
    return rn(x - rn(m * floor(rn(rn(x * inverse) + const(0.5)))))


def _recorded(name: str, names: Sequence[str], form: Callable[..., Any], doc: str) -> FunctionType:
    """Return an algorithm of single registers; `form` takes them by name."""
    return recorded(
        name,
        lambda *given: form(dict(zip(names, given, strict=True))),
        dict.fromkeys(names, 0),
        doc,
    )


@functools.cache
def residues(count: int, group: int, digits: int) -> FunctionType:
    """Return the algorithm (l0, ...) -> r0, r1, ...: a number of `count` limbs modulo several m.

    For each m the scalars are m, 1 / m and the weights of the limbs modulo m or, with two digits,
    modulo m**2. Two digits r and s per m represent r + m s modulo m**2, both in [-m / 2, m / 2).
    """

    def form(x: Any) -> Any:
        low, high = [], []
        for g in range(group):
            z = rn(x["l0"] * x[f"w{g}_0"])
            for k in range(1, count):
                z = linear(x[f"l{k}"], x[f"w{g}_{k}"], z)
            q = floor(rn(rn(z * x[f"i{g}"]) + const(0.5)))
            low.append(rn(z - rn(x[f"m{g}"] * q)))
            if digits == 2:
                high.append(centred(q, x[f"m{g}"], x[f"i{g}"]))
        return (*low, *high)

    scalars = [f"{x}{g}" for g in range(group) for x in ("m", "i")] + _weights(group, count)
    return _recorded(
        f"residues{count}_{digits}x{group}",
        [*(f"l{k}" for k in range(count)), *scalars],
        form,
        f"Residues of a number in {count} limbs.",
    )


@functools.cache
def gathered(count: int, group: int, digits: int) -> FunctionType:
    """Return the algorithm (r0, ..., g0, ..., f) -> g0, ..., f that adds residues' contributions.

    For each modulus M the scalars are a (the inverse of the product of the other moduli, modulo M),
    n = -M, 1 / M and the digits of the weight of y = r a mod M: g_k gains y times digit k, and f
    gains y / M. With two digits the residue is r + b s, b**2 = M. |r|, |s| < 2**31.

    y may be M / 2 with either sign: both have the same residue.
    """

    def form(x: Any) -> Any:
        g, f = [x[f"g{k}"] for k in range(count)], x["f"]
        for t in range(group):
            v = rn(x[f"r{t}"] * x[f"a{t}"])
            if digits == 2:
                high = rn(x[f"b{t}"] * centred(x[f"s{t}"], x[f"b{t}"], x[f"c{t}"]))
                v = linear(high, x[f"a{t}"], v)
            y = linear(rint(rn(v * x[f"i{t}"])), x[f"n{t}"], v)
            g = [linear(y, x[f"w{t}_{k}"], g[k]) for k in range(count)]
            f = rn(f + rn(y * x[f"i{t}"]))
        return (*g, f)

    names = [f"{name}{t}" for name in "rs"[:digits] for t in range(group)]
    kinds = ("a", "n", "i", "b", "c") if digits == 2 else ("a", "n", "i")
    scalars = [f"{x}{t}" for t in range(group) for x in kinds] + _weights(group, count)
    return _recorded(
        f"gathered{count}_{digits}x{group}",
        [*names, *(f"g{k}" for k in range(count)), "f", *scalars],
        form,
        f"Residues added to {count} digits.",
    )


def _weights(group: int, count: int) -> list[str]:
    return [f"w{g}_{k}" for g in range(group) for k in range(count)]


@functools.cache
def limbs(terms: int, count: int, width: int) -> FunctionType:
    """Return the algorithm (c0, ..., e) -> limbs of the integer nearest to sum c 2**e, a rest.

    Each component is rounded to an integer separately; limb l of the sum counts 2**(width l). The
    rest bounds the sum of the absolute values of the rounding errors, apart from its own rounding
    errors.
    """

    def form(x: Any) -> Any:
        half = floor(rn(const(0.5) * x["e"]))
        first, second = power(half), power(rn(x["e"] - half))
        found, rest = [None] * count, None
        for c in range(terms):
            r = rn(rn(x[f"c{c}"] * first) * second)
            # Scaling may have rounded or lost so small a number.
            tiny = (absolute(r) < const(2.0**-900)) & invert(x[f"c{c}"] == ZERO)
            for k in reversed(range(count)):
                q = rint(rn(r * const(2.0 ** (-width * k))))
                r = rn(r - rn(q * const(2.0 ** (width * k))))
                found[k] = q if c == 0 else rn(found[k] + q)
            left = where(tiny, const(2.0**-890), absolute(r))
            rest = left if c == 0 else rn(rest + left)
        return (*found, rest)

    names = [*(f"c{c}" for c in range(terms)), "e"]
    doc = f"The limbs of {terms} components, and what is left."
    return _recorded(f"limbs{terms}to{count}", names, form, doc)


def _digits(x: Any, count: int, width: int, terms: int) -> tuple[list[Any], Any]:
    """Return g - Q m, numbers in digits, as registers h0, h1, ..., and a bound of the rest.

    h0 is the leading digit. The number is their sum times 2**(width (count - 1)). `terms` + 1
    sweeps leave the leading components in front, and the bound is one of the sum of the absolute
    values after them, apart from its own rounding errors.
    """
    quotient = rint(x["f"])
    g = [rn(x[f"g{k}"] - rn(quotient * x[f"m{k}"])) for k in range(count)]
    for k in range(count - 1):
        carry = rint(rn(g[k] * const(2.0**-width)))
        g[k] = rn(g[k] - rn(carry * const(2.0**width)))
        g[k + 1] = rn(g[k + 1] + carry)
    h = [rn(g[count - 1 - k] * const(2.0 ** (-width * k))) for k in range(count)]
    for j in range(min(terms + 1, count - 1)):
        for i in reversed(range(j, count - 1)):
            h[i], h[i + 1] = two_sum(h[i], h[i + 1])
    for i in range(terms):
        h[i], h[i + 1] = two_sum(h[i], h[i + 1])
    rest: Any = ZERO
    for k in range(terms + 1, count):
        rest = rn(rest + absolute(h[k]))
    return h, rest


@functools.cache
def rounded_wide(count: int, width: int, terms: int) -> FunctionType:
    """Return the algorithm (g0, ..., f, m0, ..., e, error) -> x0, ..., ok: float64 components.

    Let v = (sum of g_k 2**(width k) - RN(f) sum of m_k 2**(width k)) 2**(e - width (count - 1)).
    `ok` is 1 only if every number within error 2**e of v has the same nearest expansion x, all of
    it in the normal range; else 0.

    Let y_j bound |s - x0 - ... - xj| for all such numbers s. Then x_j is the rounding of s less the
    components before it if x_j + y_j and x_j - y_j both round to x_j: y_j is rounded up, so it is
    strictly less than half the gap to the next number. Otherwise s must be known to be x0 + ... +
    xj + d exactly, with x_j + d rounding to x_j; then it may be a tie.
    """

    def form(given: Any) -> Any:
        h, rest = _digits(given, count, width, terms)
        e = given["e"]
        below = rn(rn(rest * const(1 + 2.0**-40)) + given["error"])
        good = below == below
        found = []
        for j in reversed(range(terms)):
            x, d = h[j], h[j + 1]
            bound = rn(rn(below + absolute(d)) * const(1 + 2.0**-50))
            clear = (rn(x + bound) == x) & (rn(x - bound) == x)
            good = good & (clear | ((below == ZERO) & (rn(x + d) == x)))
            below = bound
            place = floating((bits64(x) >> whole(52)) & whole(2047))
            place = rn(rn(place - const(1023.0)) + e)
            inside = (place < const(1023.0)) & (place > const(-1023.0))
            good = good & (inside | (x == ZERO))
            # Adding 0 turns -0 into +0.
            found.append(rn(scaled(where(inside, x, ZERO), where(inside, e, ZERO)) + ZERO))
        return (*found[::-1], where(good, ONE, ZERO))

    return _rounding("wide", count, terms, form)


@functools.cache
def rounded_narrow(
    count: int, width: int, terms: int, p: int, emin: int, emax: int
) -> FunctionType:
    """Return the algorithm of `rounded_wide` for components of p <= 24 bits, possibly subnormal.

    A component is h0 rounded to a multiple of q, the gap of the numbers as large as h0. The
    distance of s may be up to half of q, or a quarter of q towards zero from a power of two.
    """
    held = 3
    largest = float((2 - 2.0 ** (1 - p)) * 2.0**emax)

    def form(given: Any) -> Any:
        h, rest = _digits(given, count, width, held - 1)
        unit = power(given["e"])
        h0, h1, h2 = (rn(digit * unit) for digit in h[:held])
        bound = rn(rn(rn(rest * const(1 + 2.0**-40)) + given["error"]) * unit)
        good = bound == bound
        found = []
        for j in range(terms):
            leading = from_bits64(bits64(h0) & whole(0x7FF0000000000000))
            usual = leading > const(2.0**emin)
            leading = where(usual, leading, const(2.0**emin))
            q = rn(leading * const(2.0 ** (1 - p)))
            inverse = from_bits64(whole(2046 << 52) - bits64(leading))
            inverse = rn(inverse * const(2.0 ** (p - 1)))
            x = rn(q * rint(rn(h0 * inverse)))
            d0, d1 = two_sum(rn(h0 - x), h1)
            d1, d2 = two_sum(d1, h2)
            d0, d1 = two_sum(d0, d1)
            smallest = usual & (absolute(x) == leading)
            narrow = smallest & invert((d0 > ZERO) & (x > ZERO) | (d0 < ZERO) & (x < ZERO))
            gap = rn(q * where(narrow, const(0.25), const(0.5)))
            off = rn(rn(absolute(d0) + absolute(d1)) + absolute(d2))
            clear = rn(rn(off + bound) * const(1 + 2.0**-40)) < gap
            good = good & (clear | ((bound == ZERO) & (h1 == ZERO) & (h2 == ZERO)))
            # A number that underflows keeps its sign, which has to be certain; a zero is +0.
            around = rn(rn(rn(absolute(d1) + absolute(d2)) + bound) * const(1 + 2.0**-40))
            signed = (bound == ZERO) | (absolute(d0) > around)
            good = good & (signed | invert(x == ZERO))
            found.append(where(h0 == ZERO, ZERO, x))
            h0, h1, h2 = d0, d1, d2
            if j == 0:
                good = good & (absolute(x) <= const(largest))
                found[0] = where(absolute(x) <= const(largest), found[0], ZERO)
        return (*found, where(good, ONE, ZERO))

    return _rounding(f"narrow{p}_{-emin}", count, terms, form)


def _rounding(kind: str, count: int, terms: int, form: Callable[..., Any]) -> FunctionType:
    names = [*(f"g{k}" for k in range(count)), "f", "e", "error", *(f"m{k}" for k in range(count))]
    doc = f"{count} digits as {terms} components, and whether that is certain."
    return _recorded(f"rounded_{kind}_{count}to{terms}", names, form, doc)
