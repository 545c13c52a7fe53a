"""Ops of graphs that claim and end jobs: what goes from one to the next, and what is written under the fence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Cancel, Done, Hold, NewJob, QueueSpec, Reject, Retry, Sensitive, Snooze, SqlQueue
from dagster_sqlqueue.orchestration import (
    LeasedJob,
    build_claim_op,
    build_enqueue_op,
    build_fail_op,
    claim_jobs,
    complete_jobs,
    enqueue_jobs,
    fail_jobs,
    give_back_on_failure,
)
from dagster_sqlqueue.queue.selection import Selection
from tests.orchestration.support import WORK, Deployment, error_of, failure_of, of_environment
from tests.support import Work, claim, make_due, rows, states

claim_work = build_claim_op(WORK)


@dg.op(out={"done": dg.Out(), "failed": dg.Out()})
def judge(jobs: list[LeasedJob[Work]]) -> Iterator[dg.Output[Any]]:
    """By number: the first ones are done, and of the others each goes another way."""
    ways: dict[int, Any] = {
        5: "no luck",
        6: Retry("wait", after=3600),
        7: Reject("never"),
        8: Snooze(3600),
        9: Hold("look"),
        10: Cancel("no use"),
    }
    yield dg.Output([(job, Done({"n": job.payload.n})) for job in jobs if job.payload.n not in ways], "done")
    yield dg.Output([(job, ways[job.payload.n]) for job in jobs if job.payload.n in ways], "failed")


@dg.job(executor_def=dg.in_process_executor, hooks={give_back_on_failure})
def judged() -> None:
    done, failed = judge(claim_work())
    complete_jobs(done)
    fail_jobs(failed)


def test_jobs_go_through_a_graph_and_end_as_its_ops_say(queue: SqlQueue, in_memory: Deployment) -> None:
    in_memory.enqueue_many(11)
    result = in_memory.execute(judged)
    assert result.success
    assert result.output_for_node("complete_jobs") == {"completed": 5, "stale": 0}
    assert result.output_for_node("fail_jobs") == {
        "retried": 2,
        "dead_lettered": 1,
        "snoozed": 1,
        "held": 1,
        "cancelled": 1,
        "stale": 0,
    }
    ended = dict(rows(queue, "SELECT (payload ->> 'n')::int, state FROM {s}.job_archive"))
    assert ended == {**dict.fromkeys(range(5), "succeeded"), 7: "failed", 10: "cancelled"}
    left = rows(queue, "SELECT (payload ->> 'n')::int, state, attempt, error FROM {s}.job ORDER BY 1")
    assert left == [
        (5, "queued", 1, "no luck"),
        (6, "queued", 1, "wait"),
        (8, "queued", 0, None),
        (9, "held", 0, "look"),
    ]
    results = rows(
        queue, "SELECT result FROM {s}.job_archive WHERE state = 'succeeded' ORDER BY (payload ->> 'n')::int"
    )
    assert results == [({"n": n},) for n in range(5)]


def test_an_error_on_the_last_attempt_is_the_dead_letter(queue: SqlQueue, in_memory: Deployment) -> None:
    in_memory.enqueue(Work(n=5))
    for attempt in range(1, 4):
        outcome = in_memory.execute(judged).output_for_node("fail_jobs")
        assert (outcome["retried"], outcome["dead_lettered"]) == ((0, 1) if attempt == 3 else (1, 0))
    assert [letter.error for letter in queue.dead_letters("work")] == ["no luck"]


def test_counts_are_in_the_metadata_and_no_job_has_an_event_of_its_own(queue: SqlQueue, in_memory: Deployment) -> None:
    in_memory.enqueue(Work(n=1))
    few = in_memory.execute(judged)
    queue.enqueue_many(WORK, [Work(n=100 + n) for n in range(60)])
    many = in_memory.execute(judged)
    (claimed,) = [
        event for event in many.all_node_events if event.is_successful_output and event.node_name == "claim_work"
    ]
    assert claimed.step_output_data.metadata["claimed"].value == 60
    assert len(many.all_events) == len(few.all_events)


def test_a_failed_job_to_be_cancelled_is_not_said_to_be_retried(
    queue: SqlQueue, in_memory: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    @dg.op
    def cancelled_meanwhile(jobs: list[LeasedJob[Work]]) -> list[Any]:
        queue.cancel("work", Selection(ids=[jobs[0].id]))
        return [(job, Retry("no luck", after=3600)) for job in jobs]

    @dg.job
    def graph() -> None:
        fail_jobs(cancelled_meanwhile(claim_work()))

    in_memory.enqueue_many(2)
    with caplog.at_level("WARNING", logger="dagster_sqlqueue.failures"):
        assert in_memory.execute(graph).success
    said = [record.getMessage() for record in caplog.records if record.name == "dagster_sqlqueue.failures"]
    assert sorted(text.partition("of 3: ")[2] for text in said) == [
        "cancelled as requested: no luck",
        "retried in 3600.0 s: no luck",
    ]


def test_nothing_due_goes_through_the_graph_as_nothing(in_memory: Deployment) -> None:
    result = in_memory.execute(judged)
    assert result.success
    assert result.output_for_node("claim_work") == []
    assert result.output_for_node("complete_jobs") == {"completed": 0, "stale": 0}


@pytest.mark.parametrize("processes", ["in_process", pytest.param("multiprocess", marks=pytest.mark.prove)])
def test_jobs_survive_the_default_io_manager_and_processes(
    queue: SqlQueue,
    persistent: dg.DagsterInstance,
    environment: None,
    monkeypatch: pytest.MonkeyPatch,
    processes: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    queue.enqueue_many(WORK, [Work(n=n) for n in range(8)])
    config = {"execution": {"config": {processes: {}}}}
    with dg.execute_job(dg.reconstructable(judged_as_configured), persistent, run_config=config) as result:
        assert result.success
        assert result.output_for_node("complete_jobs") == {"completed": 5, "stale": 0}
    assert {n: state for n, state in states(queue).items() if state != "queued"} == {
        **dict.fromkeys(range(5), "succeeded"),
        7: "failed",
    }


def judged_as_configured() -> dg.JobDefinition:
    @dg.job(executor_def=dg.multi_or_in_process_executor, resource_defs={"sqlqueue": of_environment()})
    def between() -> None:
        done, failed = judge(claim_work())
        complete_jobs(done)
        fail_jobs(failed)

    return between


def overtaken(queue: SqlQueue, **config: Any) -> dg.JobDefinition:
    """A graph in whose midst the leases run out, and somebody else claims two of the jobs."""

    @dg.op
    def dawdle(jobs: list[LeasedJob[Work]]) -> list[LeasedJob[Work]]:
        make_due(queue)
        assert len([*claim(queue, worker="another"), *claim(queue, worker="another")]) == 2
        return jobs

    @dg.job
    def graph() -> None:
        complete_jobs(dawdle(claim_work()))

    return graph


def test_a_stale_completion_is_counted_and_shown(
    queue: SqlQueue, in_memory: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    in_memory.enqueue_many(5)
    result = in_memory.execute(overtaken(queue))
    assert result.success
    assert result.output_for_node("complete_jobs") == {"completed": 3, "stale": 2}
    assert queue.depth("work").running == 2, "the other one's leases are not touched"
    assert caplog.text.count("lease lost: what became of it was refused") == 2


def test_a_claim_op_logs_a_job_whose_last_attempt_killed_its_run(
    queue: SqlQueue, in_memory: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    @dg.job
    def graph() -> None:
        complete_jobs(claim_work())

    queue.enqueue(WORK, NewJob(Work(n=1), max_attempts=1))
    assert len(claim(queue)) == 1
    make_due(queue)
    assert in_memory.execute(graph).success
    assert "attempt 1 of 1: dead letter: its consumer died or hung on the last attempt" in caplog.text


def test_a_stale_completion_fails_the_step_where_that_is_wanted(queue: SqlQueue, in_memory: Deployment) -> None:
    in_memory.enqueue_many(5)
    result = in_memory.execute(overtaken(queue), complete_jobs={"fail_if_stale": True})
    assert not result.success
    said, metadata = failure_of(result, "complete_jobs")
    assert "2 of 5 writes were refused" in said
    assert metadata["completed"] == 3
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 3}


def test_a_result_that_cannot_be_stored_ends_no_job(queue: SqlQueue, in_memory: Deployment) -> None:
    @dg.op
    def last_is_bad(jobs: list[LeasedJob[Work]]) -> list[Any]:
        return [(job, Done({"n": place} if place < 1500 else {"n": {1, 2}})) for place, job in enumerate(jobs)]

    @dg.job
    def graph() -> None:
        complete_jobs(last_is_bad(claim_work()))

    in_memory.enqueue_many(1501)
    assert "the result cannot be written as JSON" in error_of(
        in_memory.execute(graph, claim_work={"limit": 2000}), "complete_jobs"
    )
    assert queue.depth("work").running == 1501


def test_a_completion_that_is_done_again_under_the_same_lease_is_not_stale(
    queue: SqlQueue, in_memory: Deployment
) -> None:
    @dg.op
    def before(jobs: list[LeasedJob[Work]]) -> list[LeasedJob[Work]]:
        queue.complete([job.claimed for job in jobs[:2]])
        return jobs

    @dg.job
    def graph() -> None:
        complete_jobs(before(claim_work()))

    in_memory.enqueue_many(3)
    assert in_memory.execute(graph).output_for_node("complete_jobs") == {"completed": 3, "stale": 0}


def test_the_config_says_how_much_is_claimed_where_and_for_how_long(queue: SqlQueue, in_memory: Deployment) -> None:
    @dg.job
    def graph() -> None:
        claim_work()

    in_memory.enqueue_many(100)
    result = in_memory.execute(graph, claim_work={"limit": 7, "lease_seconds": 900, "buckets": [2]})
    jobs = result.output_for_node("claim_work")
    assert [job.claimed.bucket for job in jobs] == [2] * 7
    ((low, high),) = rows(
        queue,
        "SELECT min(extract(epoch FROM available_at - started_at)), max(extract(epoch FROM available_at - started_at))"
        " FROM {s}.job WHERE state = 'running'",
    )
    assert low == high == 900
    assert rows(queue, "SELECT DISTINCT claimed_by FROM {s}.job WHERE state = 'running'") == [(f"run/{result.run_id}",)]


def test_payloads_that_do_not_fit_are_settled_at_the_claim(queue: SqlQueue, in_memory: Deployment) -> None:
    in_memory.enqueue_many(3)
    rows(queue, "UPDATE {s}.job SET payload = '{{\"n\": \"x\"}}' WHERE (payload ->> 'n')::int = 1")
    result = in_memory.execute(judged)
    assert len(result.output_for_node("claim_work")) == 2
    (letter,) = queue.dead_letters("work")
    assert letter.error is not None
    assert letter.error.startswith("payload does not fit Work: n:")


def test_ops_that_know_the_queue_by_its_name_alone(queue: SqlQueue, in_memory: Deployment) -> None:
    @dg.op
    def make() -> list[dict[str, Any]]:
        return [{"n": n, "note": "made"} for n in range(4)]

    @dg.op
    def odd(jobs: list[LeasedJob[dict[str, Any]]]) -> list[tuple[LeasedJob[dict[str, Any]], str]]:
        assert {job.payload["note"] for job in jobs} == {"made"}
        return [(job, f"{job.payload['n']} is not wanted") for job in jobs]

    @dg.job
    def graph() -> None:
        fail_jobs(odd(claim_jobs(start=enqueue_jobs(make()))))

    result = in_memory.execute(graph, enqueue_jobs={"queue": "work"}, claim_jobs={"queue": "work"})
    assert result.output_for_node("enqueue_jobs") == {"enqueued": 4, "duplicates": 0, "replaced": 0}
    assert result.output_for_node("fail_jobs") == {"retried": 4, "dead_lettered": 0, "stale": 0}
    errors = rows(queue, "SELECT error FROM {s}.job ORDER BY error")
    assert errors == [(f"{n} is not wanted",) for n in range(4)]


def test_a_backoff_of_ones_own_is_the_op_s(queue: SqlQueue, in_memory: Deployment) -> None:
    patient = QueueSpec("work", Work, bucket_count=4, max_attempts=3, backoff=lambda attempt: 1000.0 * attempt)
    fail = build_fail_op(patient)

    @dg.op
    def all_of_them(jobs: list[Any]) -> list[Any]:
        return [(job, "not yet") for job in jobs]

    @dg.job
    def graph() -> None:
        fail(all_of_them(claim_work()))

    in_memory.enqueue(Work(n=1))
    assert in_memory.execute(graph).output_for_node("fail_work")["retried"] == 1
    ((seconds,),) = rows(queue, "SELECT extract(epoch FROM available_at - now())::float8 FROM {s}.job")
    assert 900 < seconds <= 1000


def test_ops_can_be_called_directly(in_memory: Deployment) -> None:
    with dg.build_op_context(resources={"sqlqueue": in_memory.resource}) as context:
        put = build_enqueue_op(WORK)(context, jobs=[Work(n=1)])
        assert put.value["enqueued"] == 1
        jobs = claim_work(context).value
        assert [job.payload.n for job in jobs] == [1]
        assert complete_jobs(context, jobs=jobs).value == {"completed": 1, "stale": 0}


@pytest.mark.parametrize(
    ("op", "outcome", "message"),
    [
        (complete_jobs, Retry("no"), "complete_jobs was given a job with Retry"),
        (fail_jobs, Done(), "as done; give it to complete_jobs"),
        (fail_jobs, 7, "came with a int"),
    ],
)
def test_outcomes_that_an_op_does_not_take_are_refused(
    queue: SqlQueue, in_memory: Deployment, op: dg.OpDefinition, outcome: Any, message: str
) -> None:
    @dg.op
    def pair(jobs: list[Any]) -> list[Any]:
        return [(job, outcome) for job in jobs]

    @dg.job
    def graph() -> None:
        op(pair(claim_work()))

    in_memory.enqueue(Work(n=1))
    result = in_memory.execute(graph)
    assert message in error_of(result, op.name)
    assert queue.depth("work").running == 1


class Login(BaseModel):
    password: Annotated[str, Sensitive()]


@pytest.mark.parametrize("named", [False, True])
def test_errors_quote_no_sensitive_value(queue: SqlQueue, in_memory: Deployment, named: bool) -> None:
    spec = QueueSpec("logins", Login, max_attempts=1)
    queue.create_queue(spec)
    queue.enqueue(spec, Login(password="correct horse"))
    claims = claim_jobs if named else build_claim_op(spec)

    @dg.op
    def refuse(jobs: list[Any]) -> list[Any]:
        return [(job, "refused correct horse") for job in jobs]

    @dg.job
    def graph() -> None:
        fail_jobs(refuse(claims()))

    assert in_memory.execute(graph, **({"claim_jobs": {"queue": "logins"}} if named else {})).success
    assert [letter.error for letter in queue.dead_letters("logins")] == ["refused ***"]
