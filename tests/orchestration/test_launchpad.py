"""Launchpad jobs about jobs and queues: what they find and what they change."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.display import moment
from tests.orchestration.launchpad_support import Launchpad, everything
from tests.support import Work
from tests.support.decisions import LATER, PLAIN, ids, kill, put, take


def test_a_dead_letter_is_read_and_redriven(queue: SqlQueue, launchpad: Launchpad) -> None:
    (job,) = put(queue, PLAIN, 1, tags=["import"], unique_key="u")
    kill(queue)
    story = launchpad("show", id=str(job), show_payloads=True)
    assert story.value == {"queue": "work", "changed": False, "attempt": 1, "max_attempts": 3, "lease_no": 1}
    assert story.said == f"job {job} of queue work is failed, attempt 1 of 3"
    assert story.metadata["error"] == "```\nfailure of 0\n```"
    assert '"n": 0' in story.metadata["payload"]
    assert "| unique key | u |" in story.metadata["job"]
    assert "| tags | import |" in story.metadata["job"]
    assert story.observed is None
    config = f'      queue: work\n      ids:\n        - "{job}"\n      dry_run: false'
    assert f"ops:\n  sqlqueue_redrive_op:\n    config:\n{config}" in story.metadata["to_redrive_it"]

    dry = launchpad("redrive", queue="work", error_contains="failure")
    assert dry.value == {
        "queue": "work",
        "changed": False,
        "jobs_would_be_changed": 1,
        "jobs_would_be_asked_to_end": 0,
        "jobs_would_be_left": 0,
    }
    assert dry.said == "queue work: 1 job would be put back. Nothing was changed: this was a dry run"
    assert dry.observed is None
    assert queue.job(job).state == "failed"

    done = launchpad("redrive", queue="work", ids=[str(job)], dry_run=False)
    assert done.said == "queue work: 1 job was put back"
    assert done.observed is not None
    assert done.metadata["jobs_changed"] == 1
    assert done.observed["result"] == done.said
    assert f"| {job} | failed | 0 |" in done.observed["jobs"]
    assert queue.job(job).state == "queued"
    (again,) = take(queue)
    queue.complete([again])
    assert "to_redrive_it" not in launchpad("show", id=str(job)).metadata
    assert launchpad("redrive", queue="work", all=True, dry_run=False).said == "queue work: 0 jobs were put back"


@pytest.mark.parametrize(
    ("verb", "more", "state"),
    [
        ("cancel", {}, "cancelled"),
        ("hold", {}, "held"),
        ("reschedule", {"seconds": 3600.0}, "queued"),
        ("reprioritise", {"priority": 7}, "queued"),
    ],
)
def test_jobs_that_fit_are_decided_about_up_to_the_limit(
    queue: SqlQueue, launchpad: Launchpad, verb: str, more: dict[str, Any], state: str
) -> None:
    put(queue, PLAIN, 5, tags=["other"])
    wanted = put(queue, PLAIN, 6, tags=["import", "csv"])
    before = everything(queue)
    config = {"queue": "work", "tags": ["import", "csv"], "limit": 4, **more}
    dry = launchpad(verb, **config)
    assert dry.value["jobs_would_be_changed"] == 4
    assert "more may fit, the limit is 4" in dry.said
    assert everything(queue) == before, "a dry run changed something"
    done = launchpad(verb, **config, dry_run=False)
    assert done.value["jobs_changed"] == 4
    changed = [job for job in wanted if _differs(queue, verb, queue.job(job))]
    assert len(changed) == 4
    assert {queue.job(job).state for job in changed} == {state}
    assert sorted(str(job) for job in changed) == sorted(_ids_in(dry.metadata["jobs"])), (
        "it was not what the dry run showed"
    )
    assert queue.depth("work").live == (7 if verb == "cancel" else 11)


def _differs(queue: SqlQueue, verb: str, job: Any) -> bool:
    return {
        "cancel": job.state == "cancelled",
        "hold": job.state == "held",
        "reschedule": job.available_at is not None and job.available_at > datetime.now(UTC) + timedelta(minutes=30),
        "reprioritise": job.priority == 7,
    }[verb]


def _ids_in(table: str) -> list[str]:
    return [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]


def test_what_is_deleted_is_shown_once_more(queue: SqlQueue, launchpad: Launchpad) -> None:
    put(queue, PLAIN, 3)
    (failed,) = kill(queue)
    (running,) = take(queue, 1)
    dry = launchpad("delete", queue="work", all=True)
    assert dry.said == "queue work: 1 job would be deleted. Nothing was changed: this was a dry run"
    assert queue.job(failed.id).state == "failed"
    assert launchpad("delete", queue="work", all=True, dry_run=False).said == "queue work: 1 job was deleted"
    (waiting,) = (job.id for job in queue.jobs("work") if job.state == "queued")
    named = [str(waiting), str(running.id)]
    done = launchpad("delete", queue="work", ids=named, dry_run=False)
    assert done.said == "queue work: 1 job was deleted, 1 job was left unchanged"
    assert _ids_in(done.metadata["jobs"]) == [str(waiting)]
    assert [job.id for job in (*queue.jobs("work"), *queue.jobs("work", archived=True))] == [running.id]


def test_release_and_what_people_see_of_many(queue: SqlQueue, launchpad: Launchpad) -> None:
    put(queue, PLAIN, 60)
    assert launchpad("hold", queue="work", all=True, reason="looks odd", dry_run=False).value["jobs_changed"] == 60
    done = launchpad("release", queue="work", all=True, dry_run=False)
    assert done.value["jobs_changed"] == 60
    assert len(_ids_in(done.metadata["jobs"])) == 50
    assert done.metadata["jobs"].endswith("The first 50 of 60 jobs.")
    assert "looks odd" in done.metadata["jobs"]
    assert queue.depth("work").ready == 60


def test_a_running_job_is_asked_to_end_and_what_does_not_fit_is_named(queue: SqlQueue, launchpad: Launchpad) -> None:
    first, second, third = put(queue, PLAIN, 3)
    (running,) = take(queue, 1)
    (done,) = take(queue, 1)
    queue.complete([done])
    (waiting,) = {first, second, third} - {running.id, done.id}
    before = everything(queue)
    named = [str(job) for job in (first, second, third)]
    dry = launchpad("cancel", queue="work", ids=named)
    assert everything(queue) == before
    assert dry.said == (
        "queue work: 1 job would be cancelled, 1 running job would be asked to end, 1 job would be left unchanged."
        " Nothing was changed: this was a dry run"
    )
    real = launchpad("cancel", queue="work", ids=named, dry_run=False, reason="not wanted")
    assert real.said == ("queue work: 1 job was cancelled, 1 running job was asked to end, 1 job was left unchanged")
    assert f"| {done.id} | it is succeeded |" in real.metadata["left_as_before"]
    assert queue.job(waiting).error == "not wanted"
    assert queue.job(running.id).cancel_requested_at is not None


def test_pause_resume_and_rebucket(queue: SqlQueue, launchpad: Launchpad) -> None:
    put(queue, PLAIN, 2)
    (running,) = take(queue, 1)
    dry = launchpad("pause", queue="work", until=LATER.isoformat(), wait_seconds=30.0)
    assert dry.said == f"queue work would be paused until {moment(LATER)}. Nothing was changed: this was a dry run"
    assert (dry.value, dry.observed) == ({"queue": "work", "changed": False}, None)
    assert queue.settings("work").paused_at is None
    done = launchpad("pause", queue="work", wait_seconds=0.05, dry_run=False)
    assert done.value == {"queue": "work", "changed": True, "drained": 0}
    assert "jobs of it are still running" in done.said
    assert take(queue) == []
    queue.complete([running])
    assert launchpad("pause", queue="work", wait_seconds=30.0, dry_run=False).value == {
        "queue": "work",
        "changed": False,
        "drained": 1,
    }
    dry = launchpad("rebucket", queue="work", buckets=2)
    assert dry.said.startswith("queue work has 4 buckets and would have 2. Nothing was changed")
    assert queue.settings("work").bucket_count == 4
    done = launchpad("rebucket", queue="work", buckets=2, dry_run=False)
    assert done.observed is not None
    assert (done.value["buckets_before"], done.value["buckets_now"]) == (4, 2)
    assert queue.settings("work").bucket_count == 2
    dry = launchpad("resume", queue="work")
    assert dry.said.startswith("queue work would hand out jobs again; it is paused since ")
    assert queue.settings("work").paused_at is not None
    resumed = launchpad("resume", queue="work", dry_run=False)
    assert resumed.said == "queue work hands out jobs again"
    assert queue.settings("work").paused_at is None
    assert launchpad("resume", queue="work", dry_run=False).observed is None
    assert launchpad("resume", queue="work").said.startswith("queue work is not paused. Nothing was changed")


def test_jobs_are_found_by_each_condition(queue: SqlQueue, launchpad: Launchpad) -> None:
    put(queue, PLAIN, 2)
    (keyed,) = put(queue, PLAIN, 1, ordering_key="k")
    queue.enqueue(PLAIN, NewJob(Work(n=7, note="x"), run_at=LATER))
    (held,) = put(queue, PLAIN, 1)
    queue.hold_queued("work", ids(held), "a word about it")

    def found(**conditions: Any) -> int:
        return int(launchpad("cancel", queue="work", **conditions).value["jobs_would_be_changed"])

    now = datetime.now(UTC)
    assert found(payload={"n": 7}) == 1
    assert found(payload={"n": 7, "note": "y"}) == 0
    assert found(ordering_key="k") == 1
    assert found(state="held") == 1
    assert found(error_contains="a word") == 1
    assert found(since=(now + timedelta(hours=1)).isoformat()) == 0
    assert found(before=(now + timedelta(hours=1)).isoformat()) == 5
    assert found(all=True) == 5
    assert keyed


def test_cancelled_jobs_are_redriven_when_asked_for(queue: SqlQueue, launchpad: Launchpad) -> None:
    failed, cancelled = put(queue, PLAIN, 2)
    queue.cancel("work", ids(cancelled))
    assert [job.id for job in kill(queue)] == [failed]
    assert launchpad("redrive", queue="work", all=True).value["jobs_would_be_changed"] == 1
    launchpad("redrive", queue="work", all=True, state="cancelled", dry_run=False)
    assert (queue.job(failed).state, queue.job(cancelled).state) == ("failed", "queued")


def test_a_job_that_ended_meanwhile_is_reported_as_left(queue: SqlQueue, launchpad: Launchpad) -> None:
    """A redrive meets a unique key that somebody else has taken: the job stays, and the run says so."""
    (old,) = put(queue, PLAIN, 1, unique_key="u")
    kill(queue)
    put(queue, PLAIN, 1, unique_key="u")
    done = launchpad("redrive", queue="work", all=True, dry_run=False)
    assert done.said == "queue work: 0 jobs were put back, 1 job was left unchanged"
    assert (
        f"| {old} | a live job of the queue has the same id, or the unique key 'u' |" in done.metadata["left_as_before"]
    )
    assert done.observed is None
