"""Convert integers to limbs and residues and back, for matrix products by residues.

These are the elementwise steps of `mcf.reductions.modular`. Numbers are integers in float64
registers; every step is exact unless its docstring says otherwise.
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


_NAMES = {
    f.__name__: f
    for f in (
        rn, linear, where, const, whole, floor, floating, absolute, invert, rint, long, bits64,
        from_bits64, centred, power, scaled, two_sum,
    )
}  # fmt: skip


@functools.cache
def residues(count: int, group: int, digits: int) -> FunctionType:
    """Return the algorithm (l0, ...) -> r0, r1, ...: a number of `count` limbs modulo several m.

    For each m the scalars are m, 1 / m and the weights of the limbs modulo m or, with two digits,
    modulo m**2. Two digits r and s per m represent r + m s modulo m**2, both in [-m / 2, m / 2).
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
    """Return the algorithm (r0, ..., g0, ..., f) -> g0, ..., f that adds residues' contributions.

    For each modulus M the scalars are a (the inverse of the product of the other moduli, modulo M),
    n = -M, 1 / M and the digits of the weight of y = r a mod M: g_k gains y times digit k, and f
    gains y / M. With two digits the residue is r + b s, b**2 = M. |r|, |s| < 2**31.

    y may be M / 2 with either sign: both have the same residue.
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
    """Return the algorithm (c0, ..., e) -> limbs of the integer nearest to sum c 2**e, a rest.

    Each component is rounded to an integer separately; limb l of the sum counts 2**(width l). The
    rest bounds the sum of the absolute values of the rounding errors, apart from its own rounding
    errors.
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
    """Return statements that compute g - Q m, numbers in digits, as registers h0, h1, ...

    h0 is the leading digit. The number is their sum times 2**(width (count - 1)). Afterwards
    `terms` + 1 sweeps leave the leading components in front, and `rest` bounds the sum of the
    absolute values after them, apart from its own rounding errors.
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
    """Return the algorithm (g0, ..., f, m0, ..., e, error) -> x0, ..., ok: float64 components.

    Let v = (sum of g_k 2**(width k) - RN(f) sum of m_k 2**(width k)) 2**(e - width (count - 1)).
    `ok` is 1 only if every number within error 2**e of v has the same nearest expansion x, all of
    it in the normal range; else 0.

    Let y_j bound |s - x0 - ... - xj| for all such numbers s. Then x_j is the rounding of s less the
    components before it if x_j + y_j and x_j - y_j both round to x_j: y_j is rounded up, so it is
    strictly less than half the gap to the next number. Otherwise s must be known to be x0 + ... +
    xj + d exactly, with x_j + d rounding to x_j; then it may be a tie.
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
        # Adding 0 turns -0 into +0.
        emit(f"x{j} = rn(scaled(where(inside, x, ZERO), where(inside, e, ZERO)) + ZERO)")
    emit("ok = where(good, ONE, ZERO)")
    emit(f"return {', '.join(f'x{j}' for j in range(terms))}, ok")
    return _rounding("wide", count, terms, lines)


@functools.cache
def rounded_narrow(
    count: int, width: int, terms: int, p: int, emin: int, emax: int
) -> FunctionType:
    """Return the algorithm of `rounded_wide` for components of p <= 24 bits, possibly subnormal.

    A component is h0 rounded to a multiple of q, the gap of the numbers as large as h0. The
    distance of s may be up to half of q, or a quarter of q towards zero from a power of two.
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
        # A number that underflows keeps its sign, which has to be certain; a zero is +0.
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
