"""pandas and matplotlib with expansion tensors: exact columns, and plots of rounded numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mcf
from tests.integrations.packages import package

THIRDS = [Fraction(1, 3), Fraction(2, 3), Fraction(4, 3)]


def thirds() -> mcf.MCFTensor:
    return mcf.tensor(THIRDS, 3)


def test_a_column_has_the_exact_numbers() -> None:
    pandas = package("pandas")
    x = thirds()
    for column in (pandas.Series(x), pandas.DataFrame({"x": x})["x"]):
        assert column.dtype == object
        assert column.tolist() == x.to_fractions()
        assert column.sum() == sum(x.to_fractions())
    rounded = pandas.Series(x, dtype=float)
    assert rounded.tolist() == [float(v) for v in x.to_fractions()] == x.tolist()
    assert pandas.Series(mcf.tensor([1.0, 0.5])).dtype == np.float64
    assert pandas.Series(x.to_numpy(np.float32)).dtype == np.float32


PLOTS: dict[str, Callable[[Any, Any], Any]] = {
    "plot": lambda axes, x: axes.plot(x),
    "plot of two": lambda axes, x: axes.plot(x, x * x, "o"),
    "plot with a gradient": lambda axes, x: axes.plot(x.clone().requires_grad_()),
    "semilogy": lambda axes, x: axes.semilogy(x),
    "scatter": lambda axes, x: axes.scatter(x, x),
    "errorbar": lambda axes, x: axes.errorbar(x, x, yerr=x / 2),
    "hist": lambda axes, x: axes.hist(x),
    "bar": lambda axes, x: axes.bar(range(3), x),
    "step": lambda axes, x: axes.step(x, x),
    "stem": lambda axes, x: axes.stem(x),
    "axhline": lambda axes, x: axes.axhline(x[0]),
    "boxplot": lambda axes, x: axes.boxplot(x),
    "fill_between": lambda axes, x: axes.fill_between(x.to_numpy(), x.to_numpy()),
    "imshow": lambda axes, x: axes.imshow(x.reshape(1, 3).to_numpy()),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", PLOTS)
def test_plots(name: str) -> None:
    pyplot = package("matplotlib", "matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    figure, axes = pyplot.subplots()
    try:
        drawn = PLOTS[name](axes, thirds())
        figure.canvas.draw()
        if name == "plot":
            assert np.asarray(drawn[0].get_ydata()).tolist() == thirds().tolist()
    finally:
        pyplot.close(figure)
