"""Integers as limbs and residues, and back: the elementwise steps of products by residues.

`mcf.reductions.modular` says what they are for. Numbers are integers in float64 registers; every
step but the ones that say so is exact.
"""

from __future__ import annotations

import functools
from types import FunctionType

from mcf.kernels.algorithms.families import written
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


def power(e):
    """2**e of an integer in a register, -1022 <= e <= 1023, made from its bits."""
    return from_bits64((long(e) + whole(1023)) << whole(52))


def scaled(x, e):
    """x 2**e for |e| <= 2044: exact where no result is subnormal, rounded twice at most."""
    half = floor(rn(const(0.5) * e))
    return rn(rn(x * power(half)) * power(rn(e - half)))


def centred(x, m, inverse):
    """x mod m in [-m / 2, m / 2), for |x| < 2**48 and m <= 2**16; `inverse` is 1 / m rounded.

    x / m is at least 1 / (2 m) away from every half integer where m is odd, and its rounding error
    is smaller; where m is a power of two there is none.
    """
    return rn(x - rn(m * floor(rn(rn(x * inverse) + const(0.5)))))


_NAMES = {
    f.__name__: f
    for f in (
        rn, linear, where, const, whole, floor, floating, absolute, invert, rint, long, bits64,
        from_bits64, centred, power, scaled, two_sum,
    )
}  # fmt: skip


@functools.cache
def residues(count: int, group: int, digits: int) -> FunctionType:
    """The algorithm (l0, ...) -> the number of `count` limbs modulo several m: r0, r1, ...

    Of each m the scalars are m, 1 / m and the weights of the limbs modulo m or, with two digits,
    modulo m**2. Two digits r and s of each are r + m s modulo m**2, both in [-m / 2, m / 2).
    """
    lines: list[str] = []
    emit = lines.append
    for g in range(group):
        emit(f"z = rn(l0 * w{g}_0)")
        for k in range(1, count):
            emit(f"z = linear(l{k}, w{g}_{k}, z)")
        emit(f"q = floor(rn(rn(z * i{g}) + const(0.5)))")
        emit(f"r{g} = rn(z - rn(m{g} * q))")
        if digits == 2:
            emit(f"s{g} = centred(q, m{g}, i{g})")
    results = [f"{name}{g}" for name in "rs"[:digits] for g in range(group)]
    emit(f"return {', '.join(results)},")
    scalars = [f"{x}{g}" for g in range(group) for x in ("m", "i")] + _weights(group, count)
    return written(
        f"residues{count}_{digits}x{group}",
        ", ".join([*(f"l{k}" for k in range(count)), *scalars]),
        lines,
        f"Residues of a number in {count} limbs.",
        **_NAMES,
    )


@functools.cache
def gathered(count: int, group: int, digits: int) -> FunctionType:
    """The algorithm (r0, ..., g0, ..., f) -> g0, ..., f: the parts of several residues added.

    Of each modulus M the scalars are a, the inverse of the other moduli modulo M, n = -M, 1 / M,
    and the digits that y = r a mod M counts: g_k gains y times digit k, f gains y / M. With two
    digits the residue is r + b s, b**2 = M. |r|, |s| < 2**31.

    y may be M / 2 of either sign: both have the residue.
    """
    lines: list[str] = []
    emit = lines.append
    for t in range(group):
        emit(f"v = rn(r{t} * a{t})")
        if digits == 2:
            emit(f"high = rn(b{t} * centred(s{t}, b{t}, c{t}))")
            emit(f"v = linear(high, a{t}, v)")
        emit(f"y = linear(rint(rn(v * i{t})), n{t}, v)")
        for k in range(count):
            emit(f"g{k} = linear(y, w{t}_{k}, g{k})")
        emit(f"f = rn(f + rn(y * i{t}))")
    emit(f"return {', '.join(f'g{k}' for k in range(count))}, f")
    names = [f"{name}{t}" for name in "rs"[:digits] for t in range(group)]
    kinds = ("a", "n", "i", "b", "c") if digits == 2 else ("a", "n", "i")
    scalars = [f"{x}{t}" for t in range(group) for x in kinds] + _weights(group, count)
    return written(
        f"gathered{count}_{digits}x{group}",
        ", ".join([*names, *(f"g{k}" for k in range(count)), "f", *scalars]),
        lines,
        f"Residues added to {count} digits.",
        **_NAMES,
    )


def _weights(group: int, count: int) -> list[str]:
    return [f"w{g}_{k}" for g in range(group) for k in range(count)]


@functools.cache
def limbs(terms: int, count: int, width: int) -> FunctionType:
    """The algorithm (c0, ..., e) -> limbs of the integer nearest to the sum of c 2**e, and a rest.

    Each component is rounded to an integer of its own: limb l of all of them counts 2**(width l).
    The rest is at least the sum of the absolute values of what the roundings left, but for its own
    rounding errors.
    """
    lines = ["half = floor(rn(const(0.5) * e))", "first, second = power(half), power(rn(e - half))"]
    emit = lines.append
    for c in range(terms):
        emit(f"r = rn(rn(c{c} * first) * second)")
        # Scaling may have rounded or lost so small a number.
        emit(f"tiny = (absolute(r) < const({2.0**-900!r})) & invert(c{c} == ZERO)")
        for k in reversed(range(count)):
            emit(f"q = rint(rn(r * const({2.0 ** (-width * k)!r})))")
            emit(f"r = rn(r - rn(q * const({2.0 ** (width * k)!r})))")
            emit(f"l{k} = q" if c == 0 else f"l{k} = rn(l{k} + q)")
        emit(f"left = where(tiny, const({2.0**-890!r}), absolute(r))")
        emit("rest = left" if c == 0 else "rest = rn(rest + left)")
    emit(f"return {', '.join(f'l{k}' for k in range(count))}, rest")
    return written(
        f"limbs{terms}to{count}",
        ", ".join([*(f"c{c}" for c in range(terms)), "e"]),
        lines,
        f"The limbs of {terms} components, and what is left.",
        ZERO=ZERO,
        **_NAMES,
    )


def _digits(count: int, width: int, terms: int) -> list[str]:
    """Statements: the number of digits g, less Q times those of M, as registers h0, h1, ...

    h0 is the leading digit. The number is their sum times 2**(width (count - 1)). Afterwards
    `terms` + 1 sweeps leave the leading components in front, and `rest` is at least the sum of the
    absolute values behind them, but for its own rounding errors.
    """
    lines = ["quotient = rint(f)"]
    emit = lines.append
    for k in range(count):
        emit(f"g{k} = rn(g{k} - rn(quotient * m{k}))")
    for k in range(count - 1):
        emit(f"carry = rint(rn(g{k} * const({2.0**-width!r})))")
        emit(f"g{k} = rn(g{k} - rn(carry * const({2.0**width!r})))")
        emit(f"g{k + 1} = rn(g{k + 1} + carry)")
    for k in range(count):
        emit(f"h{k} = rn(g{count - 1 - k} * const({2.0 ** (-width * k)!r}))")
    for j in range(min(terms + 1, count - 1)):
        for i in reversed(range(j, count - 1)):
            emit(f"h{i}, h{i + 1} = two_sum(h{i}, h{i + 1})")
    for i in range(terms):
        emit(f"h{i}, h{i + 1} = two_sum(h{i}, h{i + 1})")
    emit("rest = ZERO")
    for k in range(terms + 1, count):
        emit(f"rest = rn(rest + absolute(h{k}))")
    return lines


@functools.cache
def rounded_wide(count: int, width: int, terms: int) -> FunctionType:
    """The algorithm (g0, ..., f, m0, ..., e, error) -> x0, ..., ok: float64 components.

    With v = (sum of g_k 2**(width k) - RN(f) sum of m_k 2**(width k)) 2**(e - width (count - 1)),
    `ok` is 1 only where every number within error 2**e of v has the nearest expansion x, all of it
    in the normal range; else 0.

    With y_j at least |s - x0 - ... - xj| for all such numbers s, x_j is the rounding of s less
    those before it if x_j + y_j and x_j - y_j both round to x_j: y_j is rounded up, so that it is
    strictly less than half the gap to the next number. Or s is known to be x0 + ... + xj + d
    exactly, and x_j + d rounds to x_j: a tie is one then.
    """
    lines = _digits(count, width, terms)
    emit = lines.append
    up = f"const({1 + 2.0**-50!r})"
    emit(f"below = rn(rn(rest * const({1 + 2.0**-40!r})) + error)")
    emit("good = below == below")
    for j in reversed(range(terms)):
        emit(f"x, d = h{j}, h{j + 1}")
        emit(f"bound = rn(rn(below + absolute(d)) * {up})")
        emit("clear = (rn(x + bound) == x) & (rn(x - bound) == x)")
        emit("good = good & (clear | ((below == ZERO) & (rn(x + d) == x)))")
        emit("below = bound")
        emit("place = floating((bits64(x) >> whole(52)) & whole(2047))")
        emit("place = rn(rn(place - const(1023.0)) + e)")
        emit("inside = (place < const(1023.0)) & (place > const(-1023.0))")
        emit("good = good & (inside | (x == ZERO))")
        # -0 + 0 is +0.
        emit(f"x{j} = rn(scaled(where(inside, x, ZERO), where(inside, e, ZERO)) + ZERO)")
    emit("ok = where(good, ONE, ZERO)")
    emit(f"return {', '.join(f'x{j}' for j in range(terms))}, ok")
    return _rounding("wide", count, terms, lines)


@functools.cache
def rounded_narrow(
    count: int, width: int, terms: int, p: int, emin: int, emax: int
) -> FunctionType:
    """`rounded_wide` for components of p <= 24 bits, which may be subnormal.

    A component is h0 rounded to a multiple of q, the gap of the numbers as large as h0. Half of
    that is how far s may be, or a quarter towards zero from a power of two.
    """
    held = 3
    lines = _digits(count, width, held - 1)
    emit = lines.append
    emit("unit = power(e)")
    for k in range(held):
        emit(f"h{k} = rn(h{k} * unit)")
    emit(f"bound = rn(rn(rn(rest * const({1 + 2.0**-40!r})) + error) * unit)")
    emit("good = bound == bound")
    for j in range(terms):
        emit("leading = from_bits64(bits64(h0) & whole(0x7FF0000000000000))")
        emit(f"usual = leading > const({2.0**emin!r})")
        emit(f"leading = where(usual, leading, const({2.0**emin!r}))")
        emit(f"q = rn(leading * const({2.0 ** (1 - p)!r}))")
        emit(f"inverse = from_bits64(whole({2046 << 52}) - bits64(leading))")
        emit(f"inverse = rn(inverse * const({2.0 ** (p - 1)!r}))")
        emit("x = rn(q * rint(rn(h0 * inverse)))")
        emit("d0 = rn(h0 - x)")
        emit("d0, d1 = two_sum(d0, h1)")
        emit("d1, d2 = two_sum(d1, h2)")
        emit("d0, d1 = two_sum(d0, d1)")
        away = "(d0 > ZERO) & (x > ZERO) | (d0 < ZERO) & (x < ZERO)"
        emit(f"narrow = usual & (absolute(x) == leading) & invert({away})")
        emit("gap = rn(q * where(narrow, const(0.25), const(0.5)))")
        emit("off = rn(rn(absolute(d0) + absolute(d1)) + absolute(d2))")
        emit(f"clear = rn(rn(off + bound) * const({1 + 2.0**-40!r})) < gap")
        emit("good = good & (clear | ((bound == ZERO) & (h1 == ZERO) & (h2 == ZERO)))")
        # What underflows keeps its sign, which has to be known; a zero is +0.
        emit(f"around = rn(rn(rn(absolute(d1) + absolute(d2)) + bound) * const({1 + 2.0**-40!r}))")
        emit("signed = (bound == ZERO) | (absolute(d0) > around)")
        emit("good = good & (signed | invert(x == ZERO))")
        emit(f"x{j} = where(h0 == ZERO, ZERO, x)")
        for k in range(held):
            emit(f"h{k} = d{k}")
        if j == 0:
            largest = float((2 - 2.0 ** (1 - p)) * 2.0**emax)
            emit(f"good = good & (absolute(x) <= const({largest!r}))")
            emit(f"x0 = where(absolute(x) <= const({largest!r}), x0, ZERO)")
    emit("ok = where(good, ONE, ZERO)")
    emit(f"return {', '.join(f'x{j}' for j in range(terms))}, ok")
    return _rounding(f"narrow{p}_{-emin}", count, terms, lines)


def _rounding(kind: str, count: int, terms: int, lines: list[str]) -> FunctionType:
    names = [*(f"g{k}" for k in range(count)), "f", "e", "error", *(f"m{k}" for k in range(count))]
    return written(
        f"rounded_{kind}_{count}to{terms}",
        ", ".join(names),
        lines,
        f"{count} digits as {terms} components, and whether that is certain.",
        ZERO=ZERO,
        ONE=ONE,
        **_NAMES,
    )
