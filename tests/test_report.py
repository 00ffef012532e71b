"""`python -m mcf.report` and `python -m mcf.plan`."""

from __future__ import annotations

from typing import Any

import pytest

from mcf import plan, report
from mcf.kernels import registry
from mcf.optim import PRECISIONS, Precision


@pytest.fixture(params=["torch", pytest.param("all", marks=pytest.mark.slow)])
def some(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the executor that compiles nothing; that they have the same bits is known."""
    if request.param != "all":
        known = {request.param: registry.EXECUTORS[request.param]}
        monkeypatch.setattr(registry, "EXECUTORS", known)


@pytest.mark.usefixtures("some")
def test_bits_are_the_recorded_ones(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.main(["--no-speed"]) == 0
    said = capsys.readouterr().out
    assert said.count("as recorded") == len(report.WORK) * len(registry.EXECUTORS)
    assert "torch:" in said
    assert "DIFFERENT" not in said
    compute, _ = report.WORK["arithmetic"]
    monkeypatch.setattr(report, "WORK", {"arithmetic": (compute, "0" * 16)})
    assert report.main(["--no-speed"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_an_executor_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EXECUTORS", {"other": "no_such_package"})
    assert report.executors() == {"other": "No module named 'no_such_package'"}
    assert dict(report.environment())["executor other"] == "No module named 'no_such_package'"


@pytest.mark.usefixtures("on_torch")
def test_speed() -> None:
    found = dict(report.speed("cpu", 1000))
    assert len(found) == 5
    assert min(found.values()) > 0


def test_plan() -> None:
    found = plan.rows(7e9, 8, 1e12)
    assert {row.name for row in found} == {*PRECISIONS, plan.FLOAT32}
    assert [row.per_param for row in found] == sorted(row.per_param for row in found)
    by_name = {row.name: row for row in found}
    for name in PRECISIONS:
        assert by_name[name].per_param == Precision.of(name).bytes_per_param
    # Two words of the weight, one of m, two of v are read and written, the gradient is read.
    assert by_name["plus"] == ("plus", 12, 12 * 7e9 / 8, (12 + 10) * 7e9 / 8 / 1e12)
    assert by_name[plan.FLOAT32] == (plan.FLOAT32, 16, 14e9, (16 + 12) * 7e9 / 8 / 1e12)
    released = {row.name: row.per_param for row in plan.rows(7e9, release=True)}
    assert (released["plus"], released[plan.FLOAT32]) == (10, 12)


def test_plan_prints_a_table(capsys: Any) -> None:
    plan.main(["--params", "7e9", "--gpus", "8", "--device", "a100"])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 + len(PRECISIONS)
    assert next(line for line in said if line.startswith("plus")).split()[1:3] == ["12", "9.779"]


@pytest.mark.parametrize("option", ["--params", "--gpus", "--bandwidth"])
@pytest.mark.parametrize("value", ["0", "-1", "nan"])
def test_plan_refuses(option: str, value: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as error:
        plan.main(["--params", "1e9", option, value])
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert f"{option[2:]} must be" in said or "invalid int value" in said
