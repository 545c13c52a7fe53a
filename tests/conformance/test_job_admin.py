"""Operators' verbs on queues of every strategy."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from dagster_sqlqueue.errors import InvalidInput, LeaseLost, UnknownJob, UnknownQueue
from dagster_sqlqueue.model.outcome import Snooze
from dagster_sqlqueue.queue.selection import Selection
from tests.conformance.conftest import Line, numbers
from tests.gate.patience import PATIENCE
from tests.support import Work

EVERY = Selection(all=True)


def only(id: UUID) -> Selection:
    return Selection(ids=[id])


def test_cancel_before_while_and_after_it_runs(line: Line) -> None:
    (waiting,) = line.put(1, run_at=datetime.now(UTC) + timedelta(days=1))
    (ended,) = line.put(2)
    line.queue.complete([line.one()])
    (running,) = line.put(3)
    job = line.one()
    decided = line.queue.cancel(line.name, Selection(ids=[waiting, running, ended]))
    assert (decided.changed, decided.requested, list(decided.skipped)) == ([waiting], [running], [ended])
    assert line.states() == ["cancelled", "succeeded", "running"]
    assert line.queue.heartbeat([job], lease_seconds=300).cancel_requested == {running}


def test_a_cancelled_job_whose_consumer_died_is_not_handed_out_again(line: Line) -> None:
    job = line.claimed()
    line.queue.cancel(line.name, only(job.id))
    line.let_time_pass()
    assert line.take() == []
    assert line.states() == ["cancelled"]


def test_a_cancelled_job_that_comes_back_is_not_handed_out_again(line: Line) -> None:
    job = line.claimed()
    line.queue.cancel(line.name, only(job.id))
    line.queue.requeue([(job, Snooze(0))])
    assert line.take() == []
    assert line.states() == ["cancelled"]


def test_redrive_is_the_same_job_with_all_its_attempts(line: Line) -> None:
    job = line.claimed(max_attempts=1, priority=4, tags=["t"], unique_key="u")
    line.queue.fail(job, "broken")
    decided = line.queue.redrive(line.name, Selection(error_contains="broken"))
    assert decided.changed == [job.id]
    again = line.one()
    assert (again.id, again.attempt, again.lease_no) == (job.id, 1, 2)
    assert (again.priority, list(again.tags), again.unique_key) == (4, ["t"], "u")
    line.queue.complete([again])
    assert line.states() == ["succeeded"]


def test_a_stale_write_is_refused_after_a_redrive_too(line: Line) -> None:
    job = line.claimed(max_attempts=1)
    line.queue.fail(job, "broken")
    line.queue.redrive(line.name, EVERY)
    line.one()
    assert line.queue.release([job]) == set()


def test_redrive_leaves_what_a_live_job_is_in_the_way_of(line: Line) -> None:
    job = line.claimed(max_attempts=1, unique_key="u")
    line.queue.fail(job, "broken")
    line.put(2, unique_key="u")
    decided = line.queue.redrive(line.name, EVERY)
    assert (decided.changed, list(decided.skipped)) == ([], [job.id])
    assert line.states() == ["failed", "queued"]


def test_a_payload_is_replaced_before_and_after_a_job_runs_and_not_meanwhile(line: Line) -> None:
    (id,) = line.put(1, max_attempts=1, priority=4)
    assert line.queue.replace_payload(line.spec, id, Work(n=5)).changed == [id]
    job = line.one()
    assert (job.priority, numbers([job])) == (4, [5])
    assert "it is running" in line.queue.replace_payload(line.spec, id, Work(n=6)).skipped[id]
    line.queue.hold([(job, "look at it")])
    assert line.queue.replace_payload(line.spec, id, Work(n=7), release=True).changed == [id]
    job = line.one()
    assert (job.attempt, job.lease_no, numbers([job])) == (1, 2, [7])
    line.queue.fail(job, "broken")
    assert line.queue.replace_payload(line.spec, id, Work(n=8)).changed == [id]
    again = line.one()
    assert (again.id, again.attempt, again.lease_no, numbers([again])) == (id, 1, 3, [8])
    line.queue.complete([again])
    assert "it ended as succeeded" in line.queue.replace_payload(line.spec, id, Work(n=9)).skipped[id]
    assert line.row(id).payload["n"] == 8


def test_delete_leaves_nothing_but_what_runs(line: Line) -> None:
    failed = line.claimed(max_attempts=1)
    line.queue.fail(failed, "broken")
    running = line.claimed()
    line.put(1, 2)
    decided = line.queue.delete(line.name, EVERY)
    assert len(decided.changed) == 3
    assert line.states() == ["running"]
    line.queue.complete([running])
    with pytest.raises(LeaseLost):
        line.queue.complete([failed])
    line.put(3, 4)
    assert len(line.queue.delete(line.name, EVERY, states=["queued", "held"]).changed) == 2
    assert line.take() == []
    assert line.states() == ["succeeded"]


def test_hold_and_release(line: Line) -> None:
    line.put(1, 2, 3)
    held = line.queue.hold_queued(line.name, Selection(payload={"n": 2}), "look at it")
    assert len(held.changed) == 1
    assert line.states() == ["queued", "held", "queued"]
    jobs = line.take()
    assert sorted(numbers(jobs)) == [1, 3]
    line.queue.hold([(job, "and at these") for job in jobs])
    assert len(line.queue.release_held(line.name, EVERY).changed) == 3
    jobs = line.take()
    assert sorted(numbers(jobs)) == [1, 2, 3]
    assert {job.attempt for job in jobs} == {1}


def test_delay_and_reprioritise(line: Line) -> None:
    line.queue.rebucket(line.name, 1)
    first, second, third = line.put(1, 2, 3)
    assert line.queue.reschedule(line.name, only(first), 3600.0).changed == [first]
    assert line.queue.reprioritise(line.name, only(third), 9).changed == [third]
    assert [numbers(line.take(1)) for _ in range(3)] == [[3], [2], []]
    assert line.queue.reschedule(line.name, only(first), datetime.now(UTC)).changed == [first]
    assert line.take()[0].id == first
    assert line.row(second).state == "running"


def test_what_is_decided_about_is_what_was_selected(line: Line) -> None:
    line.put(1, 2, tags=["a"])
    line.put(3, tags=["a", "b"])
    line.put(4, ordering_key="k")
    assert len(line.queue.cancel(line.name, Selection(tags=["a", "b"])).changed) == 1
    assert len(line.queue.cancel(line.name, Selection(ordering_key="k")).changed) == 1
    assert line.states() == ["queued", "queued", "cancelled", "cancelled"]
    with pytest.raises(InvalidInput, match="names no jobs"):
        Selection()
    with pytest.raises(UnknownQueue):
        line.queue.cancel("nowhere", EVERY)
    assert line.states() == ["queued", "queued", "cancelled", "cancelled"]


def test_drain_waits_for_what_runs(line: Line) -> None:
    job = line.claimed()
    assert line.queue.drain(line.name, timeout_seconds=0) is False
    line.queue.complete([job])
    assert line.queue.drain(line.name, timeout_seconds=PATIENCE) is True
    line.put(2)
    assert line.take() == []
    line.queue.resume(line.name)
    assert numbers(line.take()) == [2]


def test_everything_about_one_job(line: Line) -> None:
    job = line.claimed(tags=["t"], ordering_key="k")
    shown = line.queue.job(job.id)
    assert (shown.id, shown.queue, shown.state, shown.attempt, shown.lease_no) == (job.id, line.name, "running", 1, 1)
    assert (list(shown.tags), shown.ordering_key, shown.claimed_by, shown.archived) == (["t"], "k", "w", False)
    line.queue.complete([job])
    shown = line.queue.job(str(job.id))
    assert (shown.state, shown.archived) == ("succeeded", True)
    with pytest.raises(UnknownJob):
        line.queue.job(UUID(int=1))


def test_reading_changes_nothing(line: Line) -> None:
    line.put(*range(5), run_at=datetime.now(UTC) + timedelta(days=1))
    line.put(5, 6, 7)
    running = line.one(limit=1)
    depth = line.queue.depth(line.name)
    assert (depth.ready, depth.running, depth.scheduled, depth.held, depth.live) == (2, 1, 5, 0, 8)
    assert len(line.queue.jobs(line.name)) == 8
    assert len(line.queue.peek(line.name, 3)) == 3
    assert sum(head.due_seconds >= 0 for head in line.queue.peek_heads(line.name)) in (1, 2)
    line.queue.complete([running])
    assert line.queue.archived(line.name, since_seconds=3_600) == {"succeeded": 1}
    assert [row.id for row in line.queue.jobs(line.name, archived=True)] == [running.id]
    assert len(line.take()) == 2
