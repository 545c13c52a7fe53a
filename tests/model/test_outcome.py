"""Outcomes as values: how long they delay a job, in the same words as the standard library's."""

import pickle
from dataclasses import replace
from datetime import timedelta

from dagster_sqlqueue import Retry, Snooze


def test_a_delay_is_seconds_or_a_timedelta() -> None:
    assert Retry("away", after=timedelta(minutes=5)) == Retry("away", 300)
    assert Snooze(timedelta(hours=1, milliseconds=500)) == Snooze(3_600.5)
    assert Retry("away").after is None
    assert Snooze(timedelta(0)).until == 0


def test_an_outcome_is_taken_apart_copied_and_sent() -> None:
    outcome = Retry("away", timedelta(minutes=5))
    match outcome:
        case Retry(error, after):
            assert (error, after) == ("away", 300)
    assert replace(outcome, after=timedelta(minutes=1)) == Retry("away", 60)
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert repr(Snooze(timedelta(minutes=1))) == "Snooze(until=60.0)"
