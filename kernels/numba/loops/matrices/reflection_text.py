"""Generated source of reflections of a panel, whose rows are vectors in scratch memory.

A loop either reads or writes each of three kinds of memory: `m` has R and V by rows, T by columns
and x; `v` has v, x and a row of results; `s` the partial sums of a row. Rows are padded to whole
vectors, and the padding is ignored.
"""

from __future__ import annotations

from mcf.kernels.numba.loops.matrices import row_folds
from mcf.kernels.numba.loops.matrices.panel_text import PanelText
from mcf.kernels.reflection import Reflection

PAD = 16
WORDS = (
    *("bases", "shares", "parts", "rows", "columns", "start", "width", "length"),
    *("m_size", "v_size", "s_size", "rest", "wanted", "side"),
)


def operands(spec: Reflection) -> dict[str, int]:
    """Return component counts in the order of `bases`: R, Q, V, T, then scratch memory."""
    return {**dict.fromkeys("aqytmv", spec.terms), "s": spec.fold.state}


def source(spec: Reflection) -> str:
    """Return the kernel, which reflects a matrix's panel in place, and computes V and T."""
    text = PanelText(WORDS, ("bases", "shares"), operands(spec), PAD)
    of_complex = spec.parts == 2
    _steps(text, spec)
    d = text.own
    text.add(
        d,
        "height = rows - start",
        "base = item * rows * columns + start * (columns + 1)",
        "r = arrival * m_size",
        "u = r + height * length",
        "b = u + height * length",
        "x_row = b + width * length",
        "v = arrival * v_size",
        "x = v + height + length",
        "g = x + height + length",
        "s = arrival * s_size",
        # Clear the state of an earlier matrix.
        "for i in range(height * length + width * length):",
        "    store_m(at_m, u + i, ZEROS)",
        "for i in range(height):",
        "    store_v(at_v, v + i, ZEROS)",
        "    for k in range(width):",
        "        store_m(at_m, r + i * length + k, load_a(at_a, base + i * columns + k))",
        "for j in range(width):",
    )
    _column(text, d + 1)
    text.add(d + 1, "for phase in range(4 if j > 0 else 2):")
    # n numbers from `given` on times n rows of m from `row` on, conjugated except for the last.
    phases = (
        ("x", "x_row", "height - j", "1", "0", "last = 1"),
        ("v + j", "r + j * length", "height - j", "length", "j", text.whole("j", "width")),
        ("v", "u", "height", "length", "0", text.whole("0", "j")),
        ("g", "b", "j", "length", "0", text.whole("0", "j")),
    )
    for k, (given, row, n, stride, first, last) in enumerate(phases):
        text.add(
            d + 2,
            f"{'el' if k else ''}if phase == {k}:",
            f"    given, row, n, stride, first = {given}, {row}, {n}, {stride}, {first}",
            *([f"    way = {1.0 if k == 3 else -1.0}"] * of_complex),
            f"    {last}",
        )
    _fold(text, d + 2, spec.parts)
    text.add(d + 2, "if phase == 0:")
    _reflector(text, d + 3)
    text.add(
        d + 2,
        f"elif phase == 2:\n{'    ' * (d + 3)}{text.run('overlap', '0')}",
        "else:",
        f"    factor = {'turned(tau, way)' if of_complex else 'tau'}",
        f"    {text.run('scale', 'first', tau='factor')}",
        "if phase == 1:",
        "    for i in range(j, height):",
        "        h = load_v(at_v, v + i)",
        f"        {text.run('update_row', 'j', r='r + i * length')}",
        "elif phase == 3:",
        "    for i in range(j):",
        "        store_m(at_m, b + j * length + i, minus(load_v(at_v, g + i)))",
    )
    text.add(d + 1, "store_m(at_m, b + j * length + j, tau)")
    _others(text, d, spec.parts)
    text.add(
        d,
        "for i in range(height):",
        "    for k in range(width):",
        "        store_a(at_a, base + i * columns + k, load_m(at_m, r + i * length + k))",
        "        here = (item * height + i) * width + k",
        "        store_y(at_y, here, load_m(at_m, u + i * length + k))",
        "for i in range(width):",
        "    for k in range(width):",
        "        here = (item * width + i) * width + k",
        "        store_t(at_t, here, load_m(at_m, b + k * length + i))",
    )
    return text.text()


def _others(text: PanelText, depth: int, parts: int) -> None:
    """Update columns on the right of the panel and of Q: x in rows, then V^T x and T V^T x."""
    # Conjugates are used for V^T, and for T^T with the columns of R.
    ways = [
        [f"            way = {way}"] * (parts == 2)
        for way in ("-1.0", "1.0 if of_q else -1.0", "1.0")
    ]
    text.add(
        depth,
        "z = x_row + height + length",
        "y = z + height * side",
        "for of_q in range(2):",
        "    count = wanted if of_q else rest",
        "    for i in range(height if count > 0 else 0):",
        "        for c in range(count):",
        "            there = z + i * side + c",
        "            if of_q:",
        "                store_m(at_m, there, ONES if i == c else ZEROS)",
        "            else:",
        "                store_m(at_m, there, load_a(at_a, base + i * columns + width + c))",
        f"    {text.whole('0', 'count')}",
        "    given, first, stride = v, 0, side",
        "    for part in range(2 * width + height if count > 0 else 0):",
        "        if part < width:",
        "            n, row = height, z",
        *ways[0],
        "            for i in range(height):",
        "                store_v(at_v, v + i, load_m(at_m, u + i * length + part))",
        "        elif part < 2 * width:",
        "            n, row = width, y",
        *ways[1],
        "            k = part - width",
        "            for i in range(width):",
        "                at = i * length + k if of_q else k * length + i",
        "                store_v(at_v, v + i, load_m(at_m, b + at))",
        "        else:",
        "            n, row = width, y + width * side",
        *ways[2],
        "            k = part - 2 * width",
        "            for i in range(width):",
        "                store_v(at_v, v + i, load_m(at_m, u + k * length + i))",
    )
    _fold(text, depth + 2, parts)
    text.add(
        depth + 2,
        text.run("settled", "0"),
        "if part < 2 * width:",
        "    for c in range(count):",
        "        store_m(at_m, y + part * side + c, load_v(at_v, g + c))",
        "else:",
        f"    {text.run('less', '0', row='z + k * side')}",
    )
    text.add(
        depth + 1,
        "for i in range(height if count > 0 else 0):",
        "    for c in range(count):",
        "        h = load_m(at_m, z + i * side + c)",
        "        if of_q:",
        "            store_q(at_q, (item * height + i) * count + c, h)",
        "        else:",
        "            store_a(at_a, base + i * columns + width + c, h)",
    )


def _steps(text: PanelText, spec: Reflection) -> None:
    """Define the loops over the numbers of a row."""
    settled = f"settle(load_s(at_s, s + c))[:{spec.terms}]"
    overlap = f"conjugate({settled})" if spec.parts == 2 else settled
    text.step("overlap", "at_s at_v s g", f"store_v(at_v, g + c, {overlap})")
    text.step("settled", "at_s at_v s g", f"store_v(at_v, g + c, {settled})")
    text.step(
        "less",
        "at_m at_v row g",
        "store_m(at_m, row + c, difference(load_m(at_m, row + c), load_v(at_v, g + c)))",
    )
    text.step("scale", "at_s at_v s g tau", f"store_v(at_v, g + c, product(tau, {settled}))")
    text.step(
        "update_row",
        "at_m at_v r g h",
        "store_m(at_m, r + c, update(load_m(at_m, r + c), h, load_v(at_v, g + c)))",
    )
    text.step(
        "divide",
        "at_m at_v x_row there h",
        "store_v(at_v, there + c, quotient(load_m(at_m, x_row + c), h))",
    )
    row_folds.steps(text, "m", spec.parts)


def _fold(text: PanelText, depth: int, parts: int) -> None:
    """Fold n numbers of v, or their conjugates, times rows, in the order of a matrix product."""
    given = "load_v(at_v, given + {})"
    row_folds.fold(text, depth, f"turned({given}, way)" if parts == 2 else given, parts)


def _column(text: PanelText, depth: int) -> None:
    """Load x, and test whether it is zero except for the first number."""
    text.add(
        depth,
        "largest = 0.0",
        "for i in range(j, height):",
        "    size = magnitude(load_m(at_m, r + i * length + j))",
        "    if size > largest or size != size:",
        "        largest = size",
        "exponent = ((bits64(largest) >> 52) & 0x7FF) - 1022",
        "if exponent == -1022:",
        "    exponent = ((bits64(largest * 18014398509481984.0) >> 52) & 0x7FF) - 1076",
        "if largest == 0 or exponent == 1025:",
        "    exponent = 0",
        # A power beyond the exponent range is applied as two factors, else as one.
        "main = max(-1022, min(1023, -exponent))",
        "more = power(-exponent - main)",
        "flat = True",
        "for i in range(height - j):",
        "    h = scaled(load_m(at_m, r + (j + i) * length + j), more, power(main))",
        "    flat = flat and (i == 0 or magnitude(h) == 0)",
        "    store_m(at_m, x_row + i, h)",
        "    store_v(at_v, x + i, h)",
    )


def _reflector(text: PanelText, depth: int) -> None:
    """Compute v and tau, and store v among the columns of V."""
    text.add(
        depth,
        "h, tau = reflector(load_v(at_v, x), settle(load_s(at_s, s))[:TERMS], flat)",
        "if j > 0:",
        "    store_v(at_v, v + j - 1, ZEROS)",
        text.whole("0", "height - j"),
        text.run("divide", "0", there="v + j"),
        "store_v(at_v, v + j, ONES)",
        "for i in range(j, height):",
        "    store_m(at_m, u + i * length + j, load_v(at_v, v + i))",
    )
