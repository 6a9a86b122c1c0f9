"""Two runs print the same where the words are the same, whole numbers too, and others up to rounding."""

import pytest

from noclobber.fix.proof.trials.job import Ended, Result
from noclobber.fix.proof.trials.printed import difference


def ran(text, ended=Ended.WELL):
    return Result(ended, printed=text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loss 0.5\n", "loss 0.5\n"),
        ("loss 0.500001\n", "loss 0.5\n"),
        ("1e-3 of 4\n", "0.00100001 of 4\n"),
        ("nan\n", "nan\n"),
    ],
)
def test_the_same(one, other):
    assert difference(ran(one), ran(other)) == ""


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("loss 0.5\n", "loss 0.6\n", "line 1 of what it prints is `loss 0.6`, and was `loss 0.5`"),
        ("a\n20 steps\n", "a\n21 steps\n", "line 2 of what it prints is `21 steps`, and was `20 steps`"),
        ("loss 0.5\n", "cost 0.5\n", "line 1 of what it prints is `cost 0.5`, and was `loss 0.5`"),
        ("a\nb\n", "a\n", "it prints less than before, from line 2 on"),
        ("a\n", "a\nb\n", "it prints more than before, from line 2 on"),
        ("v2.0\n", "v2.1\n", "line 1 of what it prints is `v2.1`, and was `v2.0`"),
    ],
)
def test_others(one, other, said):
    assert difference(ran(one), ran(other)) == said


def test_of_runs_that_were_stopped_only_what_both_had_printed_counts():
    stopped = ran("a\nb\nhal", Ended.LIMIT)
    assert difference(stopped, ran("a\nb\nhalf\nc\n", Ended.LIMIT)) == ""
    assert difference(stopped, ran("a\nc\nhalf\nc\n", Ended.LIMIT)) == "line 2 of what it prints is `c`, and was `b`"
    assert difference(stopped, ran("")) == ""
    assert difference(ran("-0.0\n", Ended.LIMIT), ran("2.29\n", Ended.LIMIT)) == (
        "line 1 of what it prints is `2.29`, and was `-0.0`"
    )
    assert difference(ran("1.0\r2.0\r", Ended.LIMIT), ran("1.0\r3.0\r", Ended.LIMIT)) == (
        "line 2 of what it prints is `3.0`, and was `2.0`"
    )
