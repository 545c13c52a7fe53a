"""The reminders: what their handler makes of each, how a day of them is put, and how one is checked."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dagster_sqlqueue import Cancel, Consumer, Done, Job, QueueSpec, Reject, Retry, Snooze, SqlQueue
from dagster_sqlqueue.queue.selection import Selection
from definitions import reminder_day
from definitions.expected import expected_reminders, reminder_differences
from definitions.reminder_day import ended_reminders, put_reminders
from definitions.reminders import Reminder, contacts, contacts_file, reminders, send_reminder
from tests.gate.plugin import note_figures
from tests.support import rows, until

DAY = date(2013, 1, 31)
FLIGHTS, CANCELLED, WITHOUT_ADDRESS, MOVED, LATE = 928, 85, 20, 150, 163  # of that day, counted in the source file

PATIENT = replace(reminders, lease_seconds=300)


@pytest.fixture(scope="module")
def due() -> pd.DataFrame:
    """How the day's reminders have to end."""
    return expected_reminders(DAY)


@pytest.fixture(autouse=True)
def state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SQLQUEUE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def spec() -> QueueSpec[Any]:
    return PATIENT


def job(attempt: int = 1, **changed: Any) -> Job[Reminder]:
    reminder = {"day": DAY, "account": "IAH", "carrier": "UA", "flight": 1545, "origin": "EWR", "leaves": 515}
    return Job(
        id=None,  # type: ignore[arg-type]
        queue="reminders",
        payload=Reminder.model_validate(reminder | changed),
        lease_no=attempt,
        attempt=attempt,
        max_attempts=4,
        priority=0,
        created_at=datetime.now(UTC),
        unique_key=None,
        ordering_key=None,
        error=None,
    )


def test_a_reminder_is_sent_to_the_account() -> None:
    assert send_reminder(job()) == Done({"sent_to": "iah@airports.example", "text": "UA1545 from EWR leaves at 05:15"})


def test_a_cancelled_flights_is_called_off_whatever_else_is_wrong() -> None:
    assert send_reminder(job(cancelled=True, account="SJU", carrier="9E")) == Cancel("9E1545 from EWR is cancelled")


def test_an_account_gets_its_address_by_hand(state_directory: Path) -> None:
    refused = send_reminder(job(account="SJU"))
    assert isinstance(refused, Reject)
    assert refused.reason == "no address for SJU: add it to contacts.csv and redrive"
    assert contacts_file() == state_directory / "contacts.csv"
    contacts_file().write_text("STT,front desk\nSJU, info@sju.example \n\nmalformed\n")
    assert send_reminder(job(account="SJU")) == Done(
        {"sent_to": "info@sju.example", "text": "UA1545 from EWR leaves at 05:15"}
    )
    assert contacts()["STT"] == "front desk"


def test_a_late_flights_is_put_off_until_its_moment() -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    assert send_reminder(job(late_until=moment)) == Snooze(moment)
    assert isinstance(send_reminder(job(late_until=datetime.now(UTC))), Done)


def test_a_busy_gateway_takes_the_second_attempt() -> None:
    assert send_reminder(job(carrier="9E")) == Retry("the gateway of 9E is busy")
    assert isinstance(send_reminder(job(attempt=2, carrier="9E")), Done)


def put(queue: SqlQueue) -> None:
    planned, moved = put_reminders(queue, DAY)
    assert (planned.inserted, planned.duplicates) == (FLIGHTS, 0)
    assert (moved.replaced, moved.inserted, moved.duplicates) == (MOVED, 0, 0)


def drain(queue: SqlQueue, **settings: float) -> int:
    """Work off what is due, and give how many reminders were put off."""
    return Consumer(queue, PATIENT, send_reminder.handler).drain(**settings).snoozed


def let_a_year_pass(queue: SqlQueue) -> None:
    """For when reminders are due; and for late flights, whose reminders were put off, to leave."""
    rows(
        queue,
        "UPDATE {s}.job SET available_at = available_at - interval '1 year', run_at = run_at - interval '1 year',"
        " payload = CASE WHEN lease_no > attempt THEN"
        " payload || jsonb_build_object('late_until', CAST(payload->>'late_until' AS timestamptz) - interval '1 year')"
        " ELSE payload END",
    )


@pytest.fixture
def worked_off(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> SqlQueue:
    """The day's reminders, none of which becomes due by itself."""
    monkeypatch.setattr(reminder_day, "FIRST_DUE_SECONDS", 86_400.0)
    put(queue)
    assert drain(queue) == 0
    assert queue.depth("reminders").live == FLIGHTS
    put_off = 0
    # All are due; then the late ones, and those which the gateway did not take; then those which were both.
    for _ in range(3):
        let_a_year_pass(queue)
        put_off += drain(queue)
    assert put_off > 0
    assert queue.depth("reminders").live == 0
    return queue


@pytest.mark.prove
def test_reminders_that_become_due_while_they_are_worked_off(queue: SqlQueue, due: pd.DataFrame) -> None:
    put(queue)
    put_off = []

    def all_ended() -> bool:
        put_off.append(drain(queue, linger_seconds=5))
        return queue.depth("reminders").live == 0

    until(all_ended, "the end of the day's last reminder")
    ended = ended_reminders(queue, DAY)
    assert reminder_differences(ended, due) == []
    assert sum(put_off) == ended["put_off"].sum() > 0
    note_figures(reminders=len(ended), put_off=sum(put_off), longest_wait=f"{ended['wait'].max():.2f} s")


def test_a_day_of_reminders_ends_as_the_source_says(worked_off: SqlQueue, due: pd.DataFrame) -> None:
    ended = ended_reminders(worked_off, DAY)
    assert reminder_differences(ended, due) == []
    assert Counter(ended["ending"]) == {
        "succeeded": FLIGHTS - CANCELLED - WITHOUT_ADDRESS,
        "cancelled": CANCELLED,
        "failed": WITHOUT_ADDRESS,
    }
    texts = rows(worked_off, "SELECT result->>'text' FROM {s}.job_archive WHERE result->>'text' LIKE 'UA772 %'")
    assert texts == [("UA772 from EWR leaves at 06:51",)]  # scheduled for 6:34, left 17 minutes late

    again = put_reminders(worked_off, DAY)
    assert [(step.inserted, step.replaced, step.duplicates) for step in again] == [(0, 0, FLIGHTS), (0, 0, MOVED)]
    assert worked_off.depth("reminders").live == 0


def test_a_redrive_sends_once_there_is_an_address(worked_off: SqlQueue) -> None:
    contacts_file().write_text("SJU,info@sju.example\n")
    redriven = worked_off.redrive("reminders", Selection(tags=["SJU"]))
    assert len(redriven.changed) == 14  # of the file's flights to San Juan that day none was cancelled
    drain(worked_off)
    left = rows(worked_off, "SELECT DISTINCT payload->>'account' FROM {s}.job_archive WHERE state = 'failed'")
    assert ("SJU",) not in left


def test_expected_numbers_of_the_day(due: pd.DataFrame) -> None:
    assert len(due) == FLIGHTS
    assert Counter(due["ending"])["cancelled"] == CANCELLED
    assert Counter(due["ending"])["failed"] == WITHOUT_ADDRESS
    assert int(due["late"].sum()) == LATE


@pytest.fixture
def right(due: pd.DataFrame) -> pd.DataFrame:
    expected = due.reset_index()
    return expected.assign(attempts=1 + expected["retried"].astype(int), early=False)


def test_what_is_right_has_no_differences(right: pd.DataFrame, due: pd.DataFrame) -> None:
    assert reminder_differences(right.sample(frac=1, random_state=1), due) == []


@pytest.mark.parametrize(
    ("column", "value", "line"),
    [
        ("ending", "failed", "ending is failed, expected succeeded"),
        ("attempts", 2, "retried is True, expected False"),
        ("leaves", 1234, "leaves is 1234, expected 500"),
        ("late", True, "late is True, expected False"),
        ("account", "IAH", "account is IAH, expected CLT"),
        ("early", True, "was sent before its moment"),
    ],
)
def test_each_difference_is_reported(
    right: pd.DataFrame, due: pd.DataFrame, column: str, value: object, line: str
) -> None:
    right.loc[right["key"] == "US|1117|2013-01-31|500|EWR", column] = value
    assert reminder_differences(right, due) == [f"US|1117|2013-01-31|500|EWR: {line}"]


def test_missing_doubled_and_unexpected_reminders_are_reported(right: pd.DataFrame, due: pd.DataFrame) -> None:
    keys = right["key"].tolist()
    wrong = pd.concat([right.iloc[1:], right.iloc[[1]], right.iloc[[0]].assign(key="another")])
    assert reminder_differences(wrong, due) == [
        f"{keys[1]}: ended more than once",
        f"{keys[0]}: no reminder ended",
        "another: not expected",
    ]
    assert len(reminder_differences(right.iloc[:0], due)) == 21
