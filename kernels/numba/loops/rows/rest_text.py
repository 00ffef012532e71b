"""Generated source of sums of all but one number of each row, and of broadcasts along rows."""

from __future__ import annotations

from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.runtime import team


def room(terms: int, count: int) -> int:
    """Return the 64-bit units of workspace per thread: two halving buffers."""
    return 2 * terms * ((count + 1) // 2)


def source(terms: int, name: str) -> str:
    """Return the loop "rest" or "spread" of `mcf.kernels.row_tasks`."""
    return _rest(terms) if name == "rest" else _spread(terms)


def _each(terms: int, form: str) -> str:
    return "(" + "".join(f"{form.format(k=k)}, " for k in range(terms)) + ")"


def _begin(*words: str) -> list[str]:
    return [
        "def kernel(data):",
        "    prefer_wide_vectors()",
        "    rows, count = number(data, 0), number(data, 1)",
        "    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)",
        *("    " + line for line in (*words, *team.ITEMS)),
    ]


def _rest(terms: int) -> str:
    s, e, d = (_each(terms, c + "{k}") for c in "sed")
    names = [f"{c}{k}" for c in "sed" for k in range(terms)]
    body = f"store_d({d}, i, algorithm(load_s({s}, i), load_e({e}, i)))"
    lines = [
        *step("joined", "i", names, [body]),
        *_begin(
            f"outs, index = {_each(terms, 'word(data, 5 + {k})')}, word(data, {5 + terms})",
            f"given = {_each(terms, f'word(data, {6 + terms} + {{k}})')}",
        ),
    ]
    unpacked = "\n".join(
        f"                {', '.join(f'{c}{k}' for k in range(terms))}, = {c}" for c in "sed"
    )
    # The bits of 0.0 are those of the integer 0.
    zeros = "\n".join(f"            put(s[{k}], number(index, item), 0)" for k in range(terms))
    return (
        "\n".join(lines)
        + f"""
            size = (count + 1) >> 1
            here = advance(works, arrival * 2 * {terms} * size)
            there = advance(here, {terms} * size)
            s = {_each(terms, "advance(given[{k}], item * count)")}
{zeros}
            left = count
            while left > 1:
                half = left >> 1
                e = {_each(terms, "advance(s[{k}], half)")}
                d = {_each(terms, "advance(here, {k} * size)")}
{unpacked}
                over(0, half, joined, ({", ".join(names)},))
                if left & 1 == 1:
                    store_d(d, half, load_s(s, left - 1))
                s = d
                here, there = there, here
                left -= half
            store_d(outs, item, load_s(s, 0))
"""
    )


def _spread(terms: int) -> str:
    s, d = (_each(terms, c + "{k}") for c in "sd")
    names = [f"{c}{k}" for c in "ds" for k in range(terms)]
    lines = [
        *step("copied", "i", ["item", *names], [f"store_d({d}, i, load_s({s}, item))"]),
        *_begin(
            f"{', '.join(f'd{k}' for k in range(terms))}, = {_each(terms, 'word(data, 5 + {k})')}",
            f"{', '.join(f's{k}' for k in range(terms))}, = "
            + _each(terms, f"word(data, {5 + terms} + {{k}})"),
        ),
    ]
    arguments = ", ".join(["item", *names])
    return (
        "\n".join(lines)
        + f"""
            first = item * count
            over(first, first + count, copied, ({arguments},))
"""
    )
