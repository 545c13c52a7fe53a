"""What launchpad jobs report: what is wrong, what stays secret, and how much of it."""

from typing import Annotated, Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import NewJob, QueueSpec, Sensitive, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from tests.orchestration.launchpad_support import Launchpad, everything
from tests.support import Work
from tests.support.decisions import PLAIN, put, take
from tests.support.few import few

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("redrive", {"all": True, "tags": ["a"]}, "give ids alone, conditions alone, or all=True alone"),
    ("cancel", {"ids": ["7"]}, "'7' is no job id"),
    ("cancel", {"tags": [""]}, "tags holds ''"),
    ("cancel", {"tags": ["a"], "since": "yesterday"}, "since is 'yesterday', which is not a time"),
    ("cancel", {"tags": ["a"], "before": "2026-01-31T08:00:00"}, "without a time zone; end it with Z"),
    ("cancel", {"all": True, "reason": " "}, "the reason is ' '"),
    ("cancel", {"all": True, "limit": 0}, "limit is 0; one run changes 1 to 10,000 jobs"),
    ("cancel", {"all": True, "limit": 10_001}, "limit is 10001"),
    ("cancel", {"ids": [str(uuid4()), str(uuid4())], "limit": 1}, "ids names 2 jobs, and the limit is 1"),
    ("hold", {"all": True, "reason": ""}, "the reason is ''"),
    ("reschedule", {"all": True}, "give one of until and seconds"),
    ("reschedule", {"all": True, "until": "2030-01-01T00:00:00Z", "seconds": 1.0}, "give one of until and seconds"),
    ("reschedule", {"all": True, "seconds": -1.0}, "seconds is -1"),
    ("reschedule", {"all": True, "until": "soon"}, "until is 'soon', which is not a time"),
    ("reprioritise", {"all": True, "priority": 10}, "priority is 10; it must be 0 to 9"),
    ("reprioritise", {"all": True}, "priority is None; it must be 0 to 9"),
    ("approve", {"by": ""}, "by is ''; give the name of a person"),
    ("approve", {"ids": [str(uuid4())]}, "by is None; give the name of a person"),
    ("reject", {"by": "ann", "ids": [str(uuid4())]}, "the reason is None"),
    ("assign", {"by": "ann", "ids": [str(uuid4())]}, "to is None; give the name of a person"),
    ("rebucket", {"buckets": 0}, "bucket_count of queue 'work' is 0"),
    ("pause", {"wait_seconds": -1.0}, "wait_seconds is -1"),
    ("pause", {"until": "2020-01-01T00:00:00Z"}, "which has passed by the database's clock; nothing was changed"),
    ("pause", {"until": "soon"}, "until is 'soon', which is not a time"),
]


"""Verbs, what is wrong about their config, and what is said then."""


@pytest.mark.parametrize("dry_run", few([False, True], 1))
def test_what_is_wrong_is_said_before_anything_is_written(queue: SqlQueue, launchpad: Launchpad, dry_run: bool) -> None:
    put(queue, PLAIN, 2)
    before = everything(queue)
    for verb, config, message in WRONG:
        assert message in launchpad.refused(verb, queue="work", **config, dry_run=dry_run)
        assert everything(queue) == before


@pytest.mark.parametrize("dry_run", few([False, True], 1))
def test_an_unknown_queue_or_job_is_named(queue: SqlQueue, launchpad: Launchpad, dry_run: bool) -> None:
    (job,) = put(queue, PLAIN, 1)
    queue.create_queue(QueueSpec("other", Work))
    unknown = uuid4()
    before = everything(queue)
    for verb, more in (("redrive", {}), ("cancel", {}), ("reschedule", {"seconds": 1.0})):
        said = launchpad.refused(verb, queue="mails", all=True, dry_run=dry_run, **more)
        assert "there is no queue 'mails'" in said
        assert "(there are: other, work)" in said
        said = launchpad.refused(verb, queue="work", ids=[str(job), str(unknown)], dry_run=dry_run, **more)
        assert f"queue 'work' has no job {unknown}, live or ended; nothing was changed" in said
        said = launchpad.refused(verb, queue="other", ids=[str(job)], dry_run=dry_run, **more)
        assert f"queue 'other' has no job {job}" in said
    assert "there is no queue 'mails'" in launchpad.refused("rebucket", queue="mails", buckets=8, dry_run=dry_run)
    assert everything(queue) == before
    assert "there is no queue 'mails'" in launchpad.refused("pause", queue="mails", dry_run=dry_run)
    assert "there is no queue 'mails'" in launchpad.refused("resume", queue="mails", dry_run=dry_run)
    assert f"there is no job {unknown}" in launchpad.refused("show", id=str(unknown))
    assert "'seven' is no job id" in launchpad.refused("show", id="seven")


class Card(BaseModel):
    holder: str
    number: Annotated[str, Sensitive()]


def test_a_live_job_says_why_it_is_not_claimed(queue: SqlQueue, launchpad: Launchpad) -> None:
    (job,) = put(queue, PLAIN, 1)
    assert "Nothing keeps it" in launchpad("show", id=str(job)).metadata["why_not_claimed"]
    queue.pause("work")
    assert "Its queue has been paused for" in launchpad("show", id=str(job)).metadata["why_not_claimed"]
    queue.resume("work")
    queue.complete(take(queue, 1))
    assert "why_not_claimed" not in launchpad("show", id=str(job)).metadata


@pytest.mark.parametrize("show_payloads", [True, False])
def test_payloads_are_shown_when_asked_for_and_secrets_never(
    queue: SqlQueue, launchpad: Launchpad, show_payloads: bool
) -> None:
    cards = QueueSpec("cards", Card, max_attempts=1)
    queue.create_queue(cards)
    job = queue.enqueue(cards, Card(holder="Anna", number="4111222233334444"))
    (claimed,) = queue.claim("cards", limit=1, lease_seconds=300, worker="w")
    queue.finish([Ending(claimed, ArchiveState.FAILED, error="4111222233334444 | was *declined*\n<b>twice</b>")])
    reports = [
        launchpad("show", id=str(job), show_payloads=show_payloads),
        launchpad("redrive", queue="cards", all=True, show_payloads=show_payloads),
        launchpad("redrive", queue="cards", all=True, show_payloads=show_payloads, dry_run=False),
    ]
    for each in reports:
        assert "4111" not in str((each.metadata, each.observed, each.value))
        assert ("Anna" in str(each.metadata)) is show_payloads
    assert "```\n*** | was *declined*\n<b>twice</b>\n```" in reports[0].metadata["error"]
    assert r"| \*\*\* \| was \*declined\* … |" in reports[1].metadata["jobs"]


def test_no_field_takes_an_environment_variable(
    queue: SqlQueue, launchpad: Launchpad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLQUEUE_URL", "postgresql://me:s3cret@example.invalid/db")
    put(queue, PLAIN, 1)
    secret = {"env": "SQLQUEUE_URL"}
    for verb, config in (
        ("cancel", {"queue": "work", "all": True, "reason": secret, "dry_run": False}),
        ("cancel", {"queue": secret, "all": True}),
        ("cancel", {"queue": "work", "tags": [secret]}),
        ("show", {"id": secret}),
    ):
        said = launchpad.refused(verb, **config)
        assert "asks for an environment variable; write the value itself" in said
        assert "s3cret" not in said
    assert queue.depth("work").ready == 1
    assert launchpad("cancel", queue="work", payload={"note": {"env": "prod"}}).value["jobs_would_be_changed"] == 0


def test_what_is_reported_stays_small_whatever_jobs_hold(queue: SqlQueue, launchpad: Launchpad) -> None:
    """Metadata is read whole with every view of a run or an asset."""
    for _ in range(60):
        queue.enqueue(PLAIN, NewJob(Work(n=1, note="y" * 20_000), unique_key=f"{uuid4()}{'u' * 900}", tags=["t" * 900]))
    jobs = take(queue, 60)
    queue.finish([Ending(job, ArchiveState.FAILED, error="x" * 100_000) for job in jobs])
    story = launchpad("show", id=str(jobs[0].id), show_payloads=True)
    assert "characters are left out" in story.metadata["error"]
    assert len(str(story.metadata)) < 40_000
    redriven = launchpad("redrive", queue="work", all=True, show_payloads=True, dry_run=False)
    assert redriven.value["jobs_changed"] == 60
    assert len(str(redriven.metadata)) < 50 * 700
    assert len(str(redriven.observed)) < 50 * 700
