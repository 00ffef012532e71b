"""The steps of eliminations of small matrices of a batch; `elimination_lanes` says when."""

from __future__ import annotations

from mcf.kernels.elimination import Elimination
from mcf.kernels.numba.loops.matrices.lane_text import LaneText


def define(text: LaneText, spec: Elimination) -> None:
    """The steps of a kind, each a loop over lanes."""
    text.step("headed", "at_p at_h x h", "store_h(at_h, h + c, head(load_p(at_p, x + c)))")
    text.step("raised", "at_p at_h x h", "store_h(at_h, h + c, load_p(at_p, x + c))")
    text.step("lowered", "at_p at_h x h", "store_p(at_p, x + c, load_h(at_h, h + c))")
    text.step("kept", "at_p at_w x w", "store_w(at_w, w + c, load_p(at_p, x + c))")
    text.step(
        "divided",
        "at_p at_w at_h x w h",
        "q = quotient(load_p(at_p, x + c), load_h(at_h, h + c))",
        "store_p(at_p, x + c, q)",
        "store_w(at_w, w + c, q)",
    )
    text.step(
        "updated",
        "at_p at_w x m w",
        "less = update(load_p(at_p, x + c), load_w(at_w, m + c), load_w(at_w, w + c))",
        "store_p(at_p, x + c, less)",
    )
    if spec.kind == "substitution":
        return
    good = "magnitude(d) != 0" if spec.kind == "lu" else "d[0] > 0"
    text.step(
        "examined",
        "at_p at_f x f number",
        "d, bad = load_p(at_p, x + c), load_f(at_f, f + c)[0]",
        f"store_f(at_f, f + c, (number if (bad == 0) & (not ({good})) else bad,))",
    )
    if spec.kind == "cholesky":
        return
    text.step(
        "first",
        "at_p at_e at_f x e f number",
        "store_e(at_e, e + c, (magnitude(load_p(at_p, x + c)),))",
        "store_f(at_f, f + c, (number,))",
    )
    text.step(
        "compared",
        "at_p at_e at_f x e f number",
        "size, largest = magnitude(load_p(at_p, x + c)), load_e(at_e, e + c)[0]",
        "more = (size > largest) | ((size != size) & (largest == largest))",
        "store_e(at_e, e + c, (size if more else largest,))",
        "store_f(at_f, f + c, (number if more else load_f(at_f, f + c)[0],))",
    )
    # Row `number` takes the place of another one, `w`, where it is the pivot's.
    each = range(spec.terms)
    text.step(
        "exchanged",
        "at_p at_w at_h at_f x w h f number",
        "here = load_f(at_f, f + c)[0] == number",
        "one, other, row = load_p(at_p, x + c), load_w(at_w, w + c), load_h(at_h, h + c)",
        f"store_p(at_p, x + c, ({''.join(f'other[{k}] if here else one[{k}], ' for k in each)}))",
        f"store_h(at_h, h + c, ({''.join(f'one[{k}] if here else row[{k}], ' for k in each)}))",
    )
    text.step(
        "signed",
        "at_w at_f w f number",
        "odd, d = load_f(at_f, f + c)[0] != number, load_w(at_w, w + c)",
        "other = minus(d)",
        f"store_w(at_w, w + c, ({''.join(f'other[{k}] if odd else d[{k}], ' for k in each)}))",
    )
    text.step(
        "multiplied",
        "at_w at_h w x h",
        "store_h(at_h, h + c, product(load_w(at_w, w + c), load_w(at_w, x + c)))",
    )
    text.step("returned", "at_w at_h w h", "store_w(at_w, w + c, load_h(at_h, h + c))")
