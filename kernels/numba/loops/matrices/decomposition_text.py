"""Generated source of whole decompositions, which call the loops of sweeps and corrections.

Each thread has its own argument structs for these loops, with operands in its own memory. Operands,
each in separate memory: `a` is the input; `f` the scaled matrix, rows by columns; `b` the matrix to
orthogonalise, by `w` into `x`, with squared norms `d`. `j` and `k` are rotated by the sweeps. `n`
are vectors by columns, in rows of `length` numbers; `p` products with them and an extra row; `v` a
row, `s` its partial sums, `u` values. `o`, `q` and `y` are the results: values, and vectors.
"""

from __future__ import annotations

import math

from mcf.kernels import refinement
from mcf.kernels.decomposition import (
    DONE,
    HIGHEST,
    LARGEST,
    LEFT,
    LOST,
    ROTATE,
    Decomposition,
    Limits,
)
from mcf.kernels.numba.loops.matrices import row_folds
from mcf.kernels.numba.loops.matrices.panel_text import PanelText, lanes

# Limits are integers in units of u^terms over this.
LIMIT = 2**20
# Addresses, and fields of a struct for each thread: see `decomposition_loops`.
ADDRESSES = ("bases", "shares", "states", "tables", "rotate", "refine", "more")
WORDS = (
    *ADDRESSES[:-1],
    *("parts", "table", "turned_at", "turned_shares", "left_at", "left_shares", "left_states"),
    *(
        "more_at",
        "more_shares",
        "more_done",
        "places",
        "rows",
        "columns",
        "even",
        "across",
        "length",
    ),
    *(f"{name}_limit" for name in Limits._fields),
    *("symmetric", "batch_step", "row_step", "column_step", "wanted", "transposed", "more"),
)


def operands(spec: Decomposition) -> dict[str, int]:
    """Return the component counts of the operands, in the order of their addresses."""
    n = spec.terms
    own = dict.fromkeys("fbwxdk", n) | {"j": 1} | dict.fromkeys("npv", n)
    results = dict.fromkeys("oqy", spec.given)
    own |= {"s": spec.refinement.fold.state, "u": n}
    return {"a": spec.given} | results | own


def source(spec: Decomposition) -> str:
    """Return the kernel; an item is a matrix."""
    text = PanelText(WORDS, ADDRESSES, operands(spec), lanes())
    _steps(text, spec)
    d = text.own
    text.add(
        d,
        "size = rows * columns",
        "f = arrival * size",
        "w = arrival * rows * rows",
        "d = arrival * rows",
        "j = arrival * even * across",
        "n_at = arrival * ((columns + 1) * length)",
        "spare = n_at + columns * length",
        "v = arrival * length",
        "s = arrival * length",
        "g = v",
        "mine = advance(tables, arrival * table)",
        "place = advance(mine, places)",
        "state = 0",
        f"unit = {2.0 ** (-53 * spec.terms) / LIMIT!r}",
    )
    _opened(text, d)
    text.add(d, "if state == 0:")
    _turned(text, d + 1)
    text.add(d, "if state == 0:")
    _values(text, d + 1)
    text.add(d, "if state == 0:")
    _ordered(text, d + 1)
    _closed(text, d + 1)
    text.add(d, "put(states, item, state)")
    return text.text()


def _steps(text: PanelText, spec: Decomposition) -> None:
    n = spec.terms
    scaled = "".join(f"x[{k}] * factor, " for k in range(n))
    more = " + ZEROS[1:]" if spec.given < n else ""
    less = "[:1]" if spec.given < n else ""
    text.steps += ["@jit", "def scaled(x, factor):", f"    return {scaled}", ""]
    text.steps += ["@jit", "def whole(x):", f"    return x{more}", ""]
    text.steps += ["@jit", "def given(x):", f"    return x{less}", ""]
    larger = f"x[{n - 1}] > y[{n - 1}]"
    for k in reversed(range(n - 1)):
        larger = f"x[{k}] > y[{k}] or (x[{k}] == y[{k}] and ({larger}))"
    text.steps += ["@jit", "def larger(x, y):", f"    return {larger}", ""]
    text.step(
        "divide",
        "at_x at_v first g h",
        "store_v(at_v, g + c, quotient(load_x(at_x, first + c), h))",
    )
    row_folds.steps(text, "n")
    settled = f"settle(load_s(at_s, s + c))[:{n}]"
    text.step("settled", "at_s at_p s g", f"store_p(at_p, g + c, {settled})")
    # For `Limits`: multiples of a step, rounded down plus `more`, and the step's size.
    text.steps += [
        "@jit",
        "def steps_of(size, step, more):",
        "    count = size / step",
        f"    if not count < {float(LOST)!r}:",
        f"        return {LOST + 1}",
        "    return int(count) + (more if size > 0 else 0)",
        "",
        "@jit",
        "def step_of(limit, squares, columns):",
        "    half = (((bits64(squares) >> 52) & 0x7FF) - 1023) // 2",
        "    return limit / (64 * columns) * power(half)",
        "",
    ]


def _opened(text: PanelText, depth: int) -> None:
    """Scale the matrix by a power of two and build the matrix to orthogonalise."""
    text.add(
        depth,
        "largest = 0.0",
        "fine = True",
        "for i in range(rows):",
        "    for c in range(columns):",
        "        low, high = i, c",
        "        if symmetric and c > i:",
        "            low, high = c, i",
        "        at = item * batch_step + low * row_step + high * column_step",
        "        h = tidy(whole(load_a(at_a, at)))",
        "        fine = fine and usual(h)",
        # As for the sum of a triangle and a transposed one: no -0.
        "        if symmetric and h[0] == 0:",
        "            h = ZEROS",
        "        largest = max(largest, abs(h[0]))",
        "        store_f(at_f, f + i * columns + c, h)",
        "exponent = ((bits64(largest) >> 52) & 0x7FF) - 1022",
        "if largest == 0:",
        "    exponent = 0",
        f"if not fine or exponent == -1022 or exponent > {LARGEST}:",
        f"    state = {LEFT}",
        "    exponent = 0",
        "factor = power(-exponent)",
        "for i in range(size):",
        "    store_f(at_f, f + i, scaled(load_f(at_f, f + i), factor))",
        # Squares of elements, rounded up to multiples of 2^-16: an exact sum.
        "total_of = 0",
        "for i in range(size if symmetric and state == 0 else 0):",
        "    level = abs(load_f(at_f, f + i)[0]) * 65536.0",
        "    up = int(level)",
        "    if float(up) < level:",
        "        up += 1",
        "    total_of += up * up",
        # The sum is below 2^places_of.
        "places_of = 0",
        "if total_of > 0:",
        "    places_of = ((bits64(float(total_of)) >> 52) & 0x7FF) - 1022 - 32",
        "shift = (power((places_of + 2) // 2),) + ZEROS[1:]",
        "for i in range(rows):",
        "    for c in range(columns):",
        "        h = load_f(at_f, f + i * columns + c)",
        "        if symmetric:",
        "            h = total(h, shift if i == c else ZEROS)",
        "        store_b(at_b, f + i * columns + c, h)",
    )


def _turned(text: PanelText, depth: int) -> None:
    """Run the sweeps, start the corrections, and run them."""
    text.add(
        depth,
        "for i in range(rows):",
        "    for c in range(columns):",
        "        lead = load_b(at_b, f + i * columns + c)[0]",
        "        store_j(at_j, j + i * across + c, (lead,))",
        "    for c in range(across - columns):",
        "        store_j(at_j, j + i * across + columns + c, (1.0 if c == i else 0.0,))",
        "for c in range(across if even > rows else 0):",
        "    store_j(at_j, j + rows * across + c, (0.0,))",
        "if rows > 1:",
        "    counters = advance(mine, turned_shares)",
        "    put(counters, 0, 0)",
        "    put(counters, 8, 0)",
        "    call(rotate, advance(mine, turned_at))",
        "for k in range(rows):",
        "    here = j + k * across",
        "    norm, side = 1.0, columns",
        "    if symmetric:",
    )
    loads = {"lone": "load_j(at_j, here + {})"}
    row_folds.inner(text, depth + 2, loads, {"alone": ("lone", "lone")}, "columns", "_plain")
    text.add(
        depth,
        "        norm, side = root_plain(alone)[0], 0",
        "    for c in range(rows):",
        "        lead = load_j(at_j, here + side + c)[0] / norm",
        "        store_w(at_w, w + k * rows + c, (lead,) + ZEROS[1:])",
        "counters = advance(mine, left_shares)",
        "put(counters, 0, 0)",
        "put(counters, 8, 0)",
        "call(refine, advance(mine, left_at))",
        f"if number(mine, left_states) != {refinement.DONE}:",
    )
    _rotated(text, depth + 1)


def _rotated(text: PanelText, depth: int) -> None:
    """Run sweeps in expansions."""
    text.add(
        depth,
        "wide = columns + rows",
        "there = arrival * even * wide",
        "for i in range(even if more != 0 else 0):",
        "    for c in range(wide):",
        "        h = ZEROS",
        "        if i < rows and c < columns:",
        "            h = load_x(at_x, f + i * columns + c)",
        "        elif i < rows:",
        "            h = load_w(at_w, w + i * rows + c - columns)",
        "        store_k(at_k, there + i * wide + c, h)",
        "if more == 0:",
        f"    state = {ROTATE}",
        "elif rows > 1:",
        "    counters = advance(mine, more_shares)",
        "    put(counters, 0, 0)",
        "    put(counters, 8, 0)",
        "    put(mine, more_done, 0)",
        "    call(more, advance(mine, more_at))",
        "    if number(mine, more_done) == 0:",
        f"        state = {LEFT}",
        "for k in range(rows if more != 0 else 0):",
        "    here = there + k * wide",
        "    for c in range(columns):",
        "        store_x(at_x, f + k * columns + c, load_k(at_k, here + c))",
        "    for c in range(rows):",
        "        store_w(at_w, w + k * rows + c, load_k(at_k, here + columns + c))",
    )
    loads = {"x": "load_k(at_k, here + {})"}
    row_folds.inner(text, depth + 1, loads, {"z": ("x", "x")}, "columns")
    text.add(depth + 1, "store_d(at_d, d + k, z)")
    _held(text, depth)


def _held(text: PanelText, depth: int) -> None:
    """Check the results of sweeps in expansions."""
    _squares(text, depth, "b", "columns")
    text.add(
        depth,
        "limit = drift_limit * rows * unit",
        "step = step_of(limit, squares, columns)",
        "lost, held = 0, True",
        # Products W W^T, X X^T and W M.
        "for kind in range(3 if more != 0 else 0):",
        "    for i in range(rows):",
        "        for c in range(rows if kind == 0 else columns):",
        "            if kind == 0:",
        "                store_n(at_n, n_at + c * length + i, load_w(at_w, w + i * rows + c))",
        "            elif kind == 1:",
        "                store_n(at_n, n_at + c * length + i, load_x(at_x, f + i * columns + c))",
        "            else:",
        "                store_n(at_n, n_at + i * length + c, load_b(at_b, f + i * columns + c))",
        "    n, stride, first = rows, length, 0",
        "    if kind == 1:",
        "        n = columns",
        "    count = columns if kind == 2 else rows",
        f"    {text.whole('0', 'count')}",
        "    for k in range(rows):",
        "        row, here = n_at, there + k * wide",
        "        left = here if kind == 1 else here + columns",
    )
    row_folds.fold(text, depth + 2, "load_k(at_k, left + {})")
    text.add(
        depth + 2,
        text.run("settled", "0", g="spare"),
        "low = root_plain(load_d(at_d, d + k)[:1])[0]",
        "for c in range(count):",
        "    h = load_p(at_p, spare + c)",
        "    if kind == 0 and c == k:",
        "        held = held and abs(difference(ONES, h)[0]) <= own_limit * rows * unit",
        "    elif kind == 0:",
        "        held = held and abs(h[0]) <= off_limit * unit",
        "    elif kind == 1:",
        "        high = root_plain(load_d(at_d, d + c)[:1])[0]",
        "        within = abs(h[0]) <= cosine_limit * unit * low * high",
        "        held = held and (c == k or within)",
        "    else:",
        "        level = abs(difference(h, load_k(at_k, here + c))[0])",
        "        count_of = steps_of(level, step, 1)",
        "        lost += count_of * count_of",
    )
    text.add(
        depth,
        "if more != 0 and not (held and float(lost) * (step * step) <= limit * limit * squares):",
        f"    state = {LEFT}",
    )


def _squares(text: PanelText, depth: int, name: str, columns: str) -> None:
    """Sum the squares of a matrix for `Limits`."""
    text.add(
        depth,
        "total_of = 0",
        f"for i in range(rows * {columns}):",
        f"    count_of = steps_of(abs(load_{name}(at_{name}, f + i)[0]), {2.0**-10!r}, 0)",
        "    total_of += count_of * count_of",
        f"squares = float(total_of) * {2.0**-20!r}",
    )


def _values(text: PanelText, depth: int) -> None:
    """Divide rows by their norms; the values are in d."""
    text.add(
        depth,
        "for i in range(rows):",
        "    h = root(load_d(at_d, d + i))",
        "    first = f + i * columns",
        "    last = columns",
        "    store_u(at_u, d + i, h)",
        "    if h[0] == 0:",
        f"        state = {LEFT} if wanted else state",
        "        h = ONES",
        f"    {text.run('divide', '0')}",
        "    for c in range(columns):",
        "        store_n(at_n, n_at + c * length + i, load_v(at_v, v + c))",
    )
    text.add(depth, "if symmetric:")
    _rotated_values(text, depth + 1)


def _rotated_values(text: PanelText, depth: int) -> None:
    """Compute A V, and (A V)^T V up to its diagonal, the values; check the off-diagonal part."""
    _squares(text, depth, "f", "rows")
    text.add(
        depth,
        "limit = mixed_limit * rows * unit",
        "step = step_of(limit, squares, rows)",
        "lost = 0",
        "n, stride, first = rows, length, 0",
        "for k in range(2 * rows):",
        "    row, here = n_at, f + k * rows",
        "    count, g = rows, n_at + k * length",
        "    if k >= rows:",
        "        here, count, g = n_at + k - rows, k - rows + 1, spare",
        f"    {text.whole('0', 'count')}",
    )
    load = "(load_f(at_f, here + {0}) if k < rows else load_p(at_p, here + ({0}) * length))"
    row_folds.fold(text, depth + 1, load)
    text.add(
        depth + 1,
        text.run("settled", "0"),
        "if k >= rows:",
        "    store_u(at_u, d + count - 1, load_p(at_p, spare + count - 1))",
        "    for c in range(count - 1):",
        f"        level = abs(load_p(at_p, spare + c)[0] * {math.sqrt(2.0)!r})",
        "        count_of = steps_of(level, step, 1)",
        "        lost += count_of * count_of",
    )
    text.add(
        depth,
        "if not float(lost) * (step * step) <= limit * limit * squares:",
        f"    state = {LEFT}",
    )


def _ordered(text: PanelText, depth: int) -> None:
    """Order the rows' values, from the largest down, stable for equal ones."""
    text.add(
        depth,
        "for k in range(rows):",
        "    z = load_u(at_u, d + k)",
        "    if not usual(z):",
        f"        state = {LEFT}",
        "    i = k",
        "    while i > 0:",
        "        h = load_u(at_u, d + number(place, i - 1))",
        "        if not larger(z, h):",
        "            break",
        "        put(place, i, number(place, i - 1))",
        "        i -= 1",
        "    put(place, i, k)",
    )


def _closed(text: PanelText, depth: int) -> None:
    """Store values and vectors in the requested form."""
    text.add(
        depth,
        "factor = power(exponent)",
        "for k in range(rows):",
        "    i = number(place, rows - 1 - k if symmetric else k)",
        "    h = scaled(load_u(at_u, d + i), factor)",
        f"    if not usual(h) or abs(h[0]) > {2.0**HIGHEST!r}:",
        f"        state = {LEFT}",
        "    store_o(at_o, item * rows + k, given(tidy(h)))",
        # The orthogonalised rows, and for `svd` also W.
        "    for c in range(columns + rows if wanted else 0):",
        "        if symmetric and c >= rows:",
        "            break",
        "        turned = c < columns",
        "        at = c if turned else c - columns",
        "        h = load_n(at_n, n_at + at * length + i)",
        "        if not turned:",
        "            h = load_w(at_w, w + i * rows + at)",
        "        if not usual(h):",
        f"            state = {LEFT}",
        "        long = columns if turned else rows",
        "        if symmetric or turned == (transposed != 0):",
        "            store_q(at_q, (item * long + at) * rows + k, given(tidy(h)))",
        "        else:",
        "            store_y(at_y, (item * rows + k) * long + at, given(tidy(h)))",
        "if state == 0:",
        f"    state = {DONE}",
    )
