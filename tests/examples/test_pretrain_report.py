"""The sentences about the spread over seeds, on numbers made up to fall on each side."""

from __future__ import annotations

import math

from pretraining import report


def test_plus_within_and_outside_the_spread_of_master():
    """Master: mean 2.0, sample standard deviation 0.1."""
    master = {0: 1.9, 1: 2.0, 2: 2.1}
    for shift, words in ((0.09, "is within"), (-0.09, "is within"), (0.11, "is NOT within")):
        plus = {seed: value + shift for seed, value in master.items()}
        text = "\n".join(report.verdict({"plus": plus, "master": master}))
        assert f"plus {words} master's seed-to-seed spread" in text
        assert f"differ by {shift:+.4f}, one standard deviation of master is 0.1000" in text


def test_paired_difference_sees_what_the_spread_hides():
    master = {0: 1.9, 1: 2.0, 2: 2.1}
    always = {0: 1.911, 1: 2.010, 2: 2.109}
    sometimes = {0: 1.89, 1: 2.03, 2: 2.10}
    assert "0.0006, systematic" in report.verdict({"plus": always, "master": master})[2]
    unsure = report.verdict({"plus": sometimes, "master": master})[2]
    assert "not distinguishable from zero" in unsure
    assert "lower in 1 of 3 seeds" in unsure


def test_split16_sr_has_sentences_of_its_own():
    losses = {name: {0: 1.9, 1: 2.1} for name in ("split16_sr", "plus", "master")}
    text = report.verdict(losses)
    assert [line.split()[3] for line in text if line.startswith("Over")] == ["plus", "split16_sr"]
    assert text[-1].endswith("split16_sr is lower in 0 of 2 seeds.")


def test_one_seed_gives_no_verdict():
    (_, text) = report.verdict({"plus": {0: 1.0}, "master": {0: 1.0}})
    assert "--seeds 0 1 2 3 4" in text
    assert report.verdict({"plus": {0: 1.0}}) == []


def test_non_finite_values_are_null_in_metrics():
    """JSON has no NaN: readers in other languages would refuse the file."""
    line = report.to_line({"step": 1, "train_loss": math.nan, "edq": math.inf})
    assert line == '{"step": 1, "train_loss": null, "edq": null}\n'
    assert math.isnan(report.read_lines(line)[0]["train_loss"])
