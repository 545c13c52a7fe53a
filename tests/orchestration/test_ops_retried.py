"""Ops that end jobs, whose step is tried again after it has written."""

from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import Hold, Reject, Retry, Snooze, SqlQueue
from dagster_sqlqueue.orchestration import LeasedJob, build_claim_op, fail_jobs
from tests.orchestration.support import WORK, Deployment
from tests.support import Work, claim, make_due, rows

claim_work = build_claim_op(WORK)


class Losing(dg.InMemoryIOManager):
    """It fails for the first output of `fail_jobs`, after what the test has happen in between."""

    def __init__(self, queue: SqlQueue, meanwhile: str | None) -> None:
        super().__init__()
        self.queue, self.meanwhile, self.lost = queue, meanwhile, False

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        if context.step_key == "fail_jobs" and not self.lost:
            self.lost = True
            if self.meanwhile == "claimed":
                make_due(self.queue)
                assert claim(self.queue, worker="another", limit=10)
            elif self.meanwhile == "released":
                rows(self.queue, "UPDATE {s}.job SET error = NULL, attempt = 0 WHERE state = 'queued'")
            raise OSError("the store is away")
        super().handle_output(context, obj)


def failed_twice(queue: SqlQueue, in_memory: Deployment, meanwhile: str | None = None) -> dg.ExecuteInProcessResult:
    """A run whose jobs each go another way, and whose step that says so is tried again after it has written."""
    ways: list[Any] = ["no luck", Retry("wait", after=3600), Reject("never"), Snooze(3600), Hold("look")]

    @dg.op
    def judge(jobs: list[LeasedJob[Work]]) -> list[Any]:
        return [(job, ways[job.payload.n]) for job in jobs]

    losing = dg.IOManagerDefinition.hardcoded_io_manager(Losing(queue, meanwhile))

    @dg.job(resource_defs={"sqlqueue": in_memory.resource, "io_manager": losing})
    def graph() -> None:
        fail_jobs.with_retry_policy(dg.RetryPolicy(max_retries=1))(judge(claim_work()))

    return in_memory.execute(graph)


def test_what_the_first_attempt_of_a_step_wrote_is_not_stale_in_the_second(
    queue: SqlQueue, in_memory: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    in_memory.enqueue_many(5)
    result = failed_twice(queue, in_memory)
    assert result.success
    assert len([event for event in result.all_events if event.is_step_up_for_retry]) == 1
    assert result.output_for_node("fail_jobs") == {
        "retried": 2,
        "dead_lettered": 1,
        "snoozed": 1,
        "held": 1,
        "stale": 0,
    }
    assert rows(queue, "SELECT (payload ->> 'n')::int, state, attempt, error FROM {s}.job ORDER BY 1") == [
        (0, "queued", 1, "no luck"),
        (1, "queued", 1, "wait"),
        (3, "queued", 0, None),
        (4, "held", 0, "look"),
    ]
    assert "lease lost" not in caplog.text


def test_what_was_claimed_since_is_stale_and_said_to_be_written_perhaps(
    queue: SqlQueue, in_memory: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    in_memory.enqueue_many(1)
    result = failed_twice(queue, in_memory, "claimed")
    assert result.success
    assert result.output_for_node("fail_jobs") == {"retried": 0, "dead_lettered": 0, "stale": 1}
    said = capfd.readouterr().err
    assert "This is attempt 2 of the step: what an earlier one wrote about a job counts as refused here" in said
    assert rows(queue, "SELECT state, attempt, claimed_by FROM {s}.job") == [("running", 2, "another")]


def test_what_was_given_back_by_others_is_stale(queue: SqlQueue, in_memory: Deployment) -> None:
    in_memory.enqueue_many(2)
    result = failed_twice(queue, in_memory, "released")
    assert result.output_for_node("fail_jobs") == {"retried": 0, "dead_lettered": 0, "stale": 2}
