"""Generated source of folds of numbers times rows, in the order of a matrix product."""

from __future__ import annotations

from collections.abc import Mapping

from mcf.kernels.fold import GROUP
from mcf.kernels.numba.loops.matrices.panel_text import PanelText


def steps(text: PanelText, rows: str, kinds: int = 1) -> None:
    """Define loops that add numbers times rows of an operand to the partial sums s.

    Complex numbers (`kinds` 2) have two terms each, so a group has half as many numbers; single
    ones use the functions `alone` and `joined`.
    """
    for name, count in (("group", GROUP // kinds), ("one", 1)):
        held = [f"f{k}" for k in range(count)]
        load = f"load_{rows}(at_{rows}, row + {{}} * stride + c)"
        parts = [f"term({f}, {load.format(k)})" for k, f in enumerate(held)]
        while len(parts) > 1:
            parts = [f"merge({a}, {b})" for a, b in zip(parts[::2], parts[1::2], strict=True)]
        arguments = f"at_{rows} at_s row stride s {' '.join(held)}"
        combined = f"combine(load_s(at_s, s + c), {parts[0]})"
        if kinds == 2 and count == 1:
            given = f"f0, {load.format(0)}"
            parts, combined = [f"alone({given})"], f"joined(load_s(at_s, s + c), {given})"
        text.step(f"{name}_first", arguments, f"store_s(at_s, s + c, {parts[0]})")
        text.step(name, arguments, f"store_s(at_s, s + c, {combined})")


def fold(text: PanelText, depth: int, given: str, kinds: int = 1) -> None:
    """Fold n numbers, loaded by `given` from their offset, times rows from `row` on."""
    group = GROUP // kinds
    text.add(depth, "i = 0")
    for condition, name, count in (
        (f"while i + {group} <= n:", "group", group),
        ("while i < n:", "one", 1),
    ):
        text.add(
            depth,
            condition,
            *(f"    f{k} = {given.format(f'i + {k}')}" for k in range(count)),
            "    if i == 0:",
            f"        {text.run(f'{name}_first', 'first')}",
            "    else:",
            f"        {text.run(name, 'first')}",
            f"    row += {count} * stride",
            f"    i += {count}",
        )


def inner(
    text: PanelText,
    depth: int,
    loads: Mapping[str, str],
    products: Mapping[str, tuple[str, str]],
    n: str,
    suffix: str = "",
    kinds: int = 1,
) -> None:
    """Compute inner products of n numbers, finalized and cut to their number of components.

    For complex numbers (`kinds` 2, see `steps`) the second ones are conjugated.

    Args:
        text: receives the statements.
        depth: of the statements.
        loads: for each vector the load of a number at its offset `i + k`.
        products: for each result the names of its vectors.
        n: the number of elements.
        suffix: of the names of the fold's functions.
        kinds: terms of a product.
    """
    term, merge, combine, settle = (f + suffix for f in ("term", "merge", "combine", "settle"))
    zeros = f"ZEROS{suffix}"
    group = GROUP // kinds

    def factors(left: str, right: str, k: int) -> str:
        second = f"{right}_{k}" if kinds == 1 else f"conjugate({right}_{k})"
        return f"{left}_{k}, {second}"

    text.add(depth, *(f"{name}_sum = {term}({zeros}, {zeros})" for name in products))
    text.add(depth, "i = 0")
    for condition, count in ((f"while i + {group} <= {n}:", group), (f"while i < {n}:", 1)):
        text.add(depth, condition)
        for k in range(count):
            for name, load in loads.items():
                text.add(depth + 1, f"{name}_{k} = {load.format(f'i + {k}')}")
        for name, (left, right) in products.items():
            given = [factors(left, right, k) for k in range(count)]
            if kinds == 2 and count == 1:
                text.add(depth + 1, "if i == 0:")
                text.add(depth + 2, f"{name}_sum = alone({given[0]})")
                text.add(depth + 1, "else:")
                text.add(depth + 2, f"{name}_sum = joined({name}_sum, {given[0]})")
                continue
            parts = [f"{term}({each})" for each in given]
            while len(parts) > 1:
                parts = [f"{merge}({u}, {v})" for u, v in zip(parts[::2], parts[1::2], strict=True)]
            text.add(depth + 1, f"{name}_part = {parts[0]}")
        if kinds == 1 or count > 1:
            text.add(depth + 1, "if i == 0:")
            text.add(depth + 2, *(f"{name}_sum = {name}_part" for name in products))
            text.add(depth + 1, "else:")
            text.add(depth + 2, *(f"{r}_sum = {combine}({r}_sum, {r}_part)" for r in products))
        text.add(depth + 1, f"i += {count}")
    for name in products:
        text.add(depth, f"{name} = {settle}({name}_sum)[:TERMS{suffix}]")
