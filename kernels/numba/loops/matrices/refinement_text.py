"""Generated source of the CPU's corrections of orthogonal matrices."""

from __future__ import annotations

from mcf.kernels.numba.loops.matrices import row_folds
from mcf.kernels.numba.loops.matrices.panel_text import PanelText, lanes
from mcf.kernels.refinement import APART, DONE, STUCK, Refinement

WORDS = (
    *("bases", "shares", "parts", "states", "rows", "columns", "steps", "exponent"),
    *("length", "m_size", "level"),
)


def operands(spec: Refinement) -> dict[str, int]:
    """Return component counts of the operands: squared norms are real."""
    own = {"d": spec.terms // spec.parts, "s": spec.fold.state}
    return dict.fromkeys("awxdmv", spec.terms) | own


def source(spec: Refinement) -> str:
    """Return the kernel of one matrix. Arrays of rows in `m`: V, N, R, E, a transpose, M, Y."""
    text = PanelText(WORDS, ("bases", "shares", "states"), operands(spec), lanes())
    text.sizes(spec.terms, spec.parts)
    row_folds.steps(text, "m", spec.parts)
    adjoint = "x" if spec.parts == 1 else "turned(x, -1.0)"
    text.steps += ["@jit", "def adjoint(x):", f"    return {adjoint}", ""]
    settled = f"settle(load_s(at_s, s + c))[:{spec.terms}]"
    halves = "".join(f"x[{k}] / 2, " for k in range(spec.terms))
    text.steps += ["@jit", "def halved(x):", f"    return {halves}", ""]
    text.step("settled", "at_s at_v s g", f"store_v(at_v, g + c, {settled})")
    mine = "load_v(at_v, g + c)"
    text.step("taken", "at_v g", f"store_v(at_v, g + c, difference(ZEROS, {mine}))")
    kept = f"total(load_m(at_m, there + c), {mine})"
    text.step("grown", "at_m at_v there g", f"store_v(at_v, g + c, {kept})")
    numbers = "".join(f"load_m(at_m, {row} + c), " for row in ("t", "rest", "there"))
    text.step(
        "numerators",
        "at_m at_v t rest there g",
        f"store_v(at_v, g + c, fused({numbers}))",
    )
    d = text.own
    text.add(
        d,
        "square = rows * length",
        "v = arrival * m_size",
        "n_at = v + square",
        "r = n_at + square",
        "e = r + square",
        "t = e + square",
        "m = t + max(rows, columns, 2) * length",
        "y = m + square",
        "g = arrival * length",
        "s = arrival * length",
        "base = item * rows * columns",
        "place = item * rows * rows",
        "for i in range(rows):",
        "    for c in range(rows):",
        "        store_m(at_m, v + i * length + c, load_w(at_w, place + i * rows + c))",
        "    for c in range(columns):",
        "        store_m(at_m, m + i * length + c, load_a(at_a, base + i * columns + c))",
        "before = 0.25",
        "turn_of_steps = 0",
        "state, ending = 0, 0",
        "while state == 0:",
        # I - V V^T; V M; the product of V M with its transpose; the update of V.
        "    for kind in range(4):",
        "        if (kind == 1 or kind == 2) and turn_of_steps < steps:",
        "            continue",
        "        if kind == 2 and ending != 0:",
        "            state = ending",
        "            break",
        "        if kind == 3 and turn_of_steps >= steps:",
    )
    _corrections(text, d + 3, spec)
    text.add(
        d + 3,
        f"if state != 0 and state != {DONE}:",
        "    ending, state, turn_of_steps = state, 0, -1",
        "    break",
    )
    text.add(d + 2, "if state != 0:", "    break")
    _products(text, d + 2, spec.parts)
    text.add(d + 1, "turn_of_steps += 1")
    text.add(
        d,
        "for i in range(rows):",
        "    for c in range(rows):",
        "        store_w(at_w, place + i * rows + c, load_m(at_m, v + i * length + c))",
        "    for c in range(columns):",
        "        store_x(at_x, base + i * columns + c, load_m(at_m, y + i * length + c))",
        "put(states, item, state)",
    )
    return text.text()


def _products(text: PanelText, depth: int, parts: int) -> None:
    """Compute a product's rows from numbers at `given` and rows at `row`, and use them."""
    of_complex = parts == 2
    text.add(
        depth,
        "early = turn_of_steps < steps",
        "if kind == 0 or kind == 2:",
        "    here = y if kind == 2 else v",
        "    for i in range(rows):",
        "        for c in range(columns if kind == 2 else rows):",
        "            h = load_m(at_m, here + i * length + c)",
        "            store_m(at_m, t + c * length + i, adjoint(h))",
        "if kind == 3 and early:",
        "    for i in range(square):",
        "        store_m(at_m, r + i, halved(load_m(at_m, r + i)))",
        "for k in range(rows):",
        "    n, count, step = rows, rows, 1",
        "    given, row = v + k * length, t",
        "    if kind == 1:",
        "        count, row = columns, m",
        "    if kind == 2:",
        "        n, given = columns, y + k * length",
        "    if kind == 3:",
        "        given, row = r + k * length, v",
        "        if not early:",
        "            given, step = e + k, length",
        *["    way = -1.0 if kind == 3 and not early else 1.0"] * of_complex,
        "    first, stride = 0, length",
        # Symmetric: the left half is computed already.
        "    mirror = e if kind == 2 else r",
        "    if kind == 0 or kind == 2:",
        f"        first = k // {text.pad} * {text.pad}",
        f"    {text.whole('0', 'count')}",
    )
    load = "load_m(at_m, given + ({}) * step)"
    row_folds.fold(text, depth + 1, f"turned({load}, way)" if of_complex else load, parts)
    text.add(
        depth + 1,
        text.run("settled", "first"),
        "there = v + k * length",
        "if kind == 0:",
        "    h = load_v(at_v, g + k)",
        f"    {text.run('taken', 'first')}",
        "    store_v(at_v, g + k, difference(ONES, h))",
        "elif kind == 3:",
        f"    {text.run('grown', 'first')}",
        *_of_complex_products() * of_complex,
        "gone = kind == 1",
        "for c in range(first):",
        "    h = load_m(at_m, mirror + c * length + k)",
        "    store_m(at_m, mirror + k * length + c, adjoint(h))",
        "target = (r if kind == 0 else y if kind == 1 else e if kind == 2 else n_at) + k * length",
        "for c in range(first, count):",
        "    h = load_v(at_v, g + c)",
        "    gone = gone and size_of(h) < VANISHED",
        "    store_m(at_m, target + c, h)",
        "for c in range(count if gone else 0):",
        "    store_m(at_m, y + k * length + c, ZEROS)",
    )
    text.add(
        depth,
        "for i in range(rows if kind == 3 else 0):",
        "    for c in range(rows):",
        "        h = load_m(at_m, n_at + i * length + c)",
        "        store_m(at_m, v + i * length + c, h)",
    )


def _of_complex_products() -> tuple[str, ...]:
    """Return statements that make products exactly Hermitian: real diagonal, left half mirrored."""
    return (
        "if kind == 0 or kind == 2:",
        "    store_v(at_v, g + k, real_of(load_v(at_v, g + k)))",
        "    first = k",
    )


def _corrections(text: PanelText, depth: int, spec: Refinement) -> None:
    """Compute the error, then E in the memory of G, or the final checks."""
    text.add(
        depth,
        # s_i and its root, in the first and second row of the transpose's memory.
        "for i in range(rows):",
        "    h = difference(ONES, load_m(at_m, r + i * length + i))",
        "    h = quotient(load_m(at_m, e + i * length + i), h)",
        "    store_m(at_m, t + i, h)",
        "    store_m(at_m, t + length + i, root((h[0],)) + ZEROS[1:])",
        text.whole("0", "rows"),
        "for i in range(rows):",
        "    rest, there = r + i * length, e + i * length",
        f"    {text.run('numerators', '0')}",
        "    for c in range(rows):",
        "        store_m(at_m, n_at + i * length + c, load_v(at_v, g + c))",
        "error = 0.0",
        "for i in range(rows):",
        "    low = load_m(at_m, t + length + i)[0]",
        "    for c in range(rows):",
        "        there = i * length + c",
        "        other = load_m(at_m, n_at + c * length + i)",
        "        mean = mean_of(load_m(at_m, n_at + there), other)",
        "        sizes = low * load_m(at_m, t + length + c)[0]",
        "        cosine = 0.0",
        "        if i != c and sizes > 0:",
        "            cosine = mean / sizes",
        "        off = size_of(load_m(at_m, r + there))",
        "        if off > cosine or off != off:",
        "            cosine = off",
        "        if cosine > error or cosine != cosine:",
        "            error = cosine",
        "tolerance = power(exponent)",
        "slow = not (error <= 0.00390625 * before)",
        "before = error",
        "if error <= tolerance or (slow and error <= 8 * tolerance):",
        f"    state = {DONE}",
        "elif slow:",
        f"    state = {STUCK}",
        "if state == 0:",
    )
    _steps_to_come(text, depth + 1)
    text.add(depth, "else:")
    _looked_at(text, depth + 1, spec)


def _steps_to_come(text: PanelText, depth: int) -> None:
    """Compute E in the memory of G."""
    text.add(
        depth,
        "for i in range(rows):",
        "    low = load_m(at_m, t + i)",
        "    for c in range(rows):",
        "        there = i * length + c",
        "        gap = difference(load_m(at_m, t + c), low)",
        "        top = load_m(at_m, n_at + there)",
        "        mean = mean_of(top, load_m(at_m, n_at + c * length + i))",
        "        if mean > 5.9604644775390625e-08 * abs(gap[0]) or gap[0] == 0 or i == c:",
        "            store_m(at_m, e + there, halved(load_m(at_m, r + there)))",
        "        else:",
        "            store_m(at_m, e + there, quotient(top, gap))",
    )


def _looked_at(text: PanelText, depth: int, spec: Refinement) -> None:
    """Store the diagonal of G, and check that rows are orthogonal."""
    text.add(
        depth,
        "largest = 0.0",
        "for i in range(rows):",
        "    h = load_m(at_m, e + i * length + i)",
        f"    store_d(at_d, item * rows + i, h[:{spec.terms // spec.parts}])",
        "    h = root((h[0],)) + ZEROS[1:]",
        "    store_m(at_m, t + i, h)",
        "    largest = max(largest, h[0])",
        "least = power(level) * largest",
        "for i in range(rows):",
        "    low = load_m(at_m, t + i)[0]",
        "    for c in range(i + 1, rows):",
        "        high = load_m(at_m, t + c)[0]",
        "        limit = tolerance * low * high",
        "        if not (low >= least and high >= least):",
        "            limit = 8 * limit",
        f"        if state == {DONE} and size_of(load_m(at_m, e + i * length + c)) > limit:",
        f"            state = {APART}",
    )
