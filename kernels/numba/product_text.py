"""The text of products of rows: halves of what is left, element by element."""

from __future__ import annotations

from mcf.kernels.numba import team
from mcf.kernels.numba.loops import step


def room(terms: int, count: int) -> int:
    """Numbers that a thread needs: what is left, and what becomes of it."""
    return 2 * terms * ((count + 1) // 2)


def source(terms: int, name: str) -> str:
    """The loop; `name` is one of `mcf.kernels.row_tasks`."""

    def each(form: str) -> str:
        return "(" + "".join(f"{form.format(k=k)}, " for k in range(terms)) + ")"

    s, e, d = (each(c + "{k}") for c in "sed")
    names = [f"{c}{k}" for c in "sed" for k in range(terms)]
    body = f"store_d({d}, i, algorithm(load_s({s}, i), load_e({e}, i)))"
    lines = [
        *step("joined", "i", names, [body]),
        "def kernel(data):",
        "    prefer_wide_vectors()",
        "    rows, count = number(data, 0), number(data, 1)",
        "    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)",
        f"    outs = {each('word(data, 5 + {k})')}",
        f"    given = {each(f'word(data, {5 + terms} + {{k}})')}",
        *("    " + line for line in team.ITEMS),
    ]
    own = "(" + "".join(f"advance(given[{k}], item * count), " for k in range(terms)) + ")"
    unpacked = "\n".join(
        f"                {', '.join(f'{c}{k}' for k in range(terms))}, = {c}" for c in "sed"
    )
    return (
        "\n".join(lines)
        + f"""
            size = (count + 1) >> 1
            here = advance(works, arrival * 2 * {terms} * size)
            there = advance(here, {terms} * size)
            s = {own}
            left = count
            while left > 1:
                half = (left + 1) >> 1
                pairs = left - half
                e = {"(" + "".join(f"advance(s[{k}], half), " for k in range(terms)) + ")"}
                d = {each("advance(here, {k} * size)")}
{unpacked}
                over(0, pairs, joined, ({", ".join(names)},))
                if half > pairs:
                    store_d(d, pairs, load_s(s, pairs))
                s = d
                here, there = there, here
                left = half
            store_d(outs, item, load_s(s, 0))
"""
    )
