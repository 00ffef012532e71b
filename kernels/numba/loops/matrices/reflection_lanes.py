"""Generated source of reflections of a batch of small matrices, one matrix per lane.

The steps are those of `reflection_text`, with all columns of a matrix; V and T are not returned and
stay in scratch memory. Each step reads one kind of memory and writes another, except for the number
that it updates. `m` has R, V and x by rows and T by columns; `v` has x, v and products; `s` partial
sums; `t` the divisor of x, and tau; `e` the size of x and whether it is flat; `f` powers of two.
"""

from __future__ import annotations

from mcf.kernels.numba.loops.matrices.lane_text import LaneText, wide
from mcf.kernels.reflection import Reflection

WORDS = (
    *("bases", "shares", "parts", "batch", "rows", "columns", "width", "wanted"),
    *("m_size", "v_size"),
)


def operands(spec: Reflection) -> dict[str, int]:
    """Return component counts in the order of `bases`: R and Q, then scratch memory."""
    return {**dict.fromkeys("aqmvt", spec.terms), "s": spec.fold.state, "e": 1, "f": 1}


def sizes(rows: int, columns: int) -> dict[str, int]:
    """Return the numbers per component of a thread's scratch memory, by operand letter."""
    width = min(rows, columns)
    counts = {"m": rows * (columns + width + 1) + width * width, "v": 2 * (rows + width) + 1}
    counts |= {"t": 2, "s": 1, "e": 2, "f": 2}
    return {kind: wide() * count for kind, count in counts.items()}


def source(spec: Reflection) -> str:
    """Return the kernel, which replaces a block of matrices by their R, and computes their Q."""
    parts, pad = spec.parts, wide()
    text = LaneText(WORDS, ("bases", "shares"), operands(spec), pad)
    _steps(text, spec)
    d = text.own
    text.opened(d)
    text.add(
        d,
        # Strides between rows of R, of V and T, and between numbers.
        f"line, side, one = {pad} * columns, {pad} * width, {pad}",
        "r = arrival * m_size",
        "u = r + rows * line",
        "b = u + rows * side",
        "x_row = b + width * side",
        "z = arrival * v_size",
        "v = z + rows * one",
        "g = v + rows * one",
        "h = g + width * one",
        "w = h + width * one",
        "s = arrival * one",
        "t = 2 * s",
    )
    text.taken(d, "rows * columns", "store_m(at_m, r + {}, load_a(at_a, {}))")
    text.add(
        d,
        # Beyond their diagonals V and T keep the zeros that the memory was initialised with.
        "for j in range(width):",
    )
    _column(text, d + 1, parts)
    text.add(d + 1, "if wanted > 0 or columns > width:")
    _block(text, d + 2, parts)
    _others(text, d, parts)
    text.given(d, "rows * columns", "store_a(at_a, {}, load_m(at_m, r + {}))")
    return text.text()


def _column(text: LaneText, depth: int, parts: int) -> None:
    """Compute the reflection of column j, and apply it to that column and those on its right."""
    text.add(
        depth,
        text.each("opened"),
        "for i in range(j, rows):",
        f"    {text.each('size', r='r + i * line + j * one')}",
        text.each("powers"),
        "for i in range(rows - j):",
        f"    {text.each('brought', r='r + (j + i) * line + j * one', z='z + i * one')}",
        "    if i > 0:",
        f"        {text.each('flattened', z='z + i * one')}",
        f"    {text.each('kept', z='z + i * one', m='x_row + i * one')}",
    )
    text.dot(depth, "vm", "rows - j", ("z", "one"), ("x_row", "one"), -1, parts)
    text.add(
        depth,
        text.each("reflected"),
        "if j > 0:",
        f"    {text.each('filled', z='v + (j - 1) * one', number='ZEROS')}",
        text.each("filled", z="v + j * one", number="ONES"),
        "for i in range(1, rows - j):",
        f"    {text.each('divided', x='x_row + i * one', z='v + (j + i) * one')}",
        "for i in range(j, rows):",
        f"    {text.each('kept', z='v + i * one', m='u + i * side + j * one')}",
        "for k in range(j, width):",
    )
    right = "r + j * line + k * one", "line"
    text.dot(depth + 1, "vm", "rows - j", ("v + j * one", "one"), right, -1, parts)
    text.add(
        depth + 1,
        text.each("turned_product"),
        # Elements below the diagonal are not read.
        "for i in range(j, j + 1 if k == j else rows):",
        f"    {text.each('updated', r='r + i * line + k * one', z='v + i * one')}",
    )


def _block(text: LaneText, depth: int, parts: int) -> None:
    """Compute column j of T."""
    text.add(depth, "for k in range(j):")
    text.dot(depth + 1, "vm", "rows", ("v", "one"), ("u + k * one", "side"), -1, parts)
    text.add(depth + 1, text.each("overlap", z="g + k * one"))
    text.add(depth, "for i in range(j):")
    text.dot(depth + 1, "vm", "j", ("g", "one"), ("b + i * one", "side"), 1, parts)
    text.add(depth + 1, text.each("entry", m="b + j * side + i * one"))
    text.add(depth, text.each("last", m="b + j * side + j * one"))


def _others(text: LaneText, depth: int, parts: int) -> None:
    """Update columns on the right of the panel, and those of Q: z, V^H z, T V^H z."""
    text.add(
        depth,
        "for k in range(columns - width + wanted):",
        "    of_q = k >= columns - width",
        "    at = k - columns + width",
        "    for i in range(rows):",
        "        if not of_q:",
        f"            {text.each('column', r='r + i * line + (width + k) * one', z='z + i * one')}",
        "        elif i == at:",
        f"            {text.each('filled', z='z + i * one', number='ONES')}",
        "        else:",
        f"            {text.each('filled', z='z + i * one', number='ZEROS')}",
        "    for j in range(width):",
    )
    text.dot(depth + 2, "mv", "rows", ("u + j * one", "side"), ("z", "one"), -1, parts)
    text.add(depth + 2, text.each("settled", z="g + j * one"))
    text.add(
        depth + 1,
        "for j in range(width):",
        "    first, stride, way = b + j * side, one, -1.0",
        "    if of_q:",
        "        first, stride, way = b + j * one, side, 1.0",
    )
    text.dot(depth + 2, "mv", "width", ("first", "stride"), ("g", "one"), "way", parts)
    text.add(depth + 2, text.each("settled", z="h + j * one"))
    text.add(depth + 1, "for j in range(rows):")
    text.dot(depth + 2, "mv", "width", ("u + j * side", "one"), ("h", "one"), 1, parts)
    text.add(depth + 2, text.each("less", z="z + j * one"))
    text.add(
        depth + 1,
        "if of_q:",
        "    for c in range(count):",
        "        here = (base + c) * rows * wanted + at",
        "        for i in range(rows):",
        "            store_q(at_q, here + i * wanted, load_v(at_v, z + i * one + c))",
        "for i in range(0 if of_q else rows):",
        f"    {text.each('kept', z='z + i * one', m='r + i * line + (width + k) * one')}",
    )


def _steps(text: LaneText, spec: Reflection) -> None:
    """Define the operations on one number of all matrices."""
    of_complex, pad = spec.parts == 2, text.pad
    settled = f"settle(load_s(at_s, s + c))[:{spec.terms}]"
    conjugate = "conjugate({})" if of_complex else "{}"
    turned = "turned(load_t(at_t, t + c), -1.0)" if of_complex else "load_t(at_t, t + c)"
    tau = f"t + {pad}"
    start = "store_e(at_e, t + c, (0.0,))", f"store_e(at_e, {tau} + c, (1.0,))"
    text.step("opened", "at_e t", *start)
    text.step(
        "size",
        "at_m at_e r t",
        "largest = load_e(at_e, t + c)[0]",
        "size = magnitude(load_m(at_m, r + c))",
        "store_e(at_e, t + c, (size if (size > largest) | (size != size) else largest,))",
    )
    text.step(
        "powers",
        "at_e at_f t",
        "largest = load_e(at_e, t + c)[0]",
        "exponent = ((bits64(largest) >> 52) & 0x7FF) - 1022",
        "below = ((bits64(largest * 18014398509481984.0) >> 52) & 0x7FF) - 1076",
        "exponent = below if exponent == -1022 else exponent",
        "exponent = 0 if (largest == 0) | (exponent == 1025) else exponent",
        # A power beyond the exponent range is applied as two factors, else as one.
        "main = max(-1022, min(1023, -exponent))",
        "store_f(at_f, t + c, (power(-exponent - main),))",
        f"store_f(at_f, {tau} + c, (power(main),))",
    )
    text.step(
        "brought",
        "at_m at_v at_f r z t",
        f"more, main = load_f(at_f, t + c)[0], load_f(at_f, {tau} + c)[0]",
        "store_v(at_v, z + c, scaled(load_m(at_m, r + c), more, main))",
    )
    text.step(
        "flattened",
        "at_v at_e z t",
        f"flat = load_e(at_e, {tau} + c)[0]",
        "flat = flat if magnitude(load_v(at_v, z + c)) == 0 else 0.0",
        f"store_e(at_e, {tau} + c, (flat,))",
    )
    text.step(
        "reflected",
        "at_v at_s at_e at_t z s t",
        f"flat = load_e(at_e, {tau} + c)[0] != 0",
        f"below, tau = reflector(load_v(at_v, z + c), {settled}, flat)",
        f"store_t(at_t, {tau} + c, below)",
        "store_t(at_t, t + c, tau)",
    )
    text.step(
        "divided",
        "at_m at_t at_v x t z",
        f"store_v(at_v, z + c, quotient(load_m(at_m, x + c), load_t(at_t, {tau} + c)))",
    )
    text.step("filled", "at_v z number", "store_v(at_v, z + c, number)")
    text.step("kept", "at_m at_v m z", "store_m(at_m, m + c, load_v(at_v, z + c))")
    text.step("column", "at_m at_v r z", "store_v(at_v, z + c, load_m(at_m, r + c))")
    text.step("settled", "at_s at_v s z", f"store_v(at_v, z + c, {settled})")
    text.step("overlap", "at_s at_v s z", f"store_v(at_v, z + c, {conjugate.format(settled)})")
    text.step(
        "less",
        "at_s at_v s z",
        f"store_v(at_v, z + c, difference(load_v(at_v, z + c), {settled}))",
    )
    text.step(
        "turned_product",
        "at_s at_t at_v s t w",
        f"store_v(at_v, w + c, product({turned}, {settled}))",
    )
    text.step(
        "updated",
        "at_m at_v r z w",
        "less = update(load_m(at_m, r + c), load_v(at_v, z + c), load_v(at_v, w + c))",
        "store_m(at_m, r + c, less)",
    )
    text.step(
        "entry",
        "at_s at_t at_m s t m",
        f"store_m(at_m, m + c, minus(product(load_t(at_t, t + c), {settled})))",
    )
    text.step("last", "at_t at_m t m", "store_m(at_m, m + c, load_t(at_t, t + c))")
    for left, right in ("vm", "mv"):
        text.dots(left, right, spec.parts)
