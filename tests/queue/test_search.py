"""Seeing one job wherever it is, lists of jobs, and what a selection of jobs may say."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import Backoff, NewJob, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.job_admin import Completed
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work, caller
from tests.support.decisions import ALL, LATER, ORDERED, PLAIN, ids, kill, put, take


def test_a_job_can_be_seen_wherever_it_is(queue: SqlQueue) -> None:
    (job_id,) = put(queue, ORDERED, 1, ordering_key="k", tags=["t"], backoff=Backoff(1, jitter=0))
    row = queue.job(job_id)
    assert (row.queue, row.state, row.archived, row.tags, row.payload) == (
        "work",
        "queued",
        False,
        ["t"],
        '{"n": 0, "note": ""}',
    )
    assert (row.order_no is not None, row.available_at == row.run_at, row.backoff) == (True, True, [1, 2, 3600, 0])
    (job,) = take(queue)
    assert (queue.job(str(job_id)).state, queue.job(job_id).claimed_by) == ("running", "w")
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"a": 1})])
    ended = queue.job(job_id)
    assert (ended.state, ended.archived, ended.result, ended.available_at) == ("succeeded", True, '{"a": 1}', None)
    with pytest.raises(UnknownJob, match="there is no job 0"):
        queue.job(UUID(int=0))
    with pytest.raises(InvalidInput, match="'nope' is no job id"):
        queue.job("nope")


def test_lists_are_in_the_order_of_claims_and_of_ends(queue: SqlQueue) -> None:
    queue.create_queue(PLAIN)
    for n in range(30):
        queue.enqueue(PLAIN, NewJob(Work(n=n), priority=n % 3, run_at=LATER if n % 5 == 0 else None))
    queue.hold_queued("work", Selection(payload={"n": 17}), "x")
    listed = [row.id for row in queue.jobs("work")]
    assert len(listed) == 30
    assert queue.jobs("work")[-1].state == "held"
    assert [row.id for row in queue.jobs("work", limit=7)] == listed[:7]
    assert [row.state for row in queue.jobs("work", Selection(state="held"))] == ["held"]
    assert queue.jobs("work", archived=True) == []
    ended = [kill(queue)[0].id for _ in range(4)]
    assert [row.id for row in queue.jobs("work", archived=True)] == ended[::-1]
    assert [row.id for row in queue.jobs("work", archived=True, limit=2)] == ended[:1:-1]
    assert queue.jobs("work", Selection(state="succeeded"), archived=True) == []
    assert {row.id for row in queue.jobs("work", ids(*ended), archived=True)} == set(ended)
    assert queue.jobs("work", ids(*ended)) == []


def test_lists_within_a_transaction_show_what_it_has_done_so_far(queue: SqlQueue, url: str) -> None:
    first, second = put(queue, PLAIN, 2)
    queue.hold_queued("work", ids(first), "x")
    with caller(url) as connection:
        queue.complete_held("work", [Completed(first, "ada")], connection=connection)
        third = queue.enqueue(PLAIN, Work(n=3), connection=connection)
        assert [row.id for row in queue.jobs("work", connection=connection)] == [second, third]
        assert [row.id for row in queue.jobs("work", archived=True, connection=connection)] == [first]
        assert [row.id for row in queue.jobs("work", ids(second, third), connection=connection)] == [second, third]
        assert {row.id for row in queue.jobs("work")} == {first, second}
        assert queue.jobs("work", archived=True) == []


def test_every_condition_of_a_selection(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_sqlqueue.queue.search._SCAN", 3)
    queue.create_queue(PLAIN)
    for n in range(40):
        key = f"k{n % 4}" if n % 2 else None
        job = NewJob(
            Work(n=n, note="a" if n % 3 else "b'%"), ordering_key=key, tags=[f"t{n % 5}", "all"], priority=n % 2
        )
        queue.enqueue(PLAIN, job)
    jobs = {int(row.payload.split()[1].strip(",")): row for row in queue.jobs("work")}
    fitting = {
        Selection(tags=["t3", "all"]): lambda n: n % 5 == 3,
        Selection(payload='{"note": "b\'%"}'): lambda n: n % 3 == 0,
        Selection(ordering_key="k3"): lambda n: n % 4 == 3,
        Selection(state="queued", tags=["t0"]): lambda n: n % 5 == 0,
        Selection(since=jobs[10].created_at): lambda n: n >= 10,
        Selection(since=jobs[10].created_at, before=jobs[20].created_at): lambda n: 10 <= n < 20,
        Selection(error_contains="%"): lambda n: False,
        ALL: lambda n: True,
    }
    for selection, fits in fitting.items():
        found = [row.id for row in queue.jobs("work", selection)]
        assert sorted(found) == sorted(row.id for n, row in jobs.items() if fits(n)), selection
        assert sorted(queue.reprioritise("work", selection, 4).changed) == sorted(found)
        assert len(queue.jobs("work", selection, limit=2)) == min(2, len(found))
    queue.hold_queued("work", ids(jobs[1].id), "100 %")
    assert [row.id for row in queue.jobs("work", Selection(error_contains="%"))] == [jobs[1].id]
    kill(queue, 39)
    for selection, fits in fitting.items():
        if selection.state or selection.since or selection.error_contains:
            continue
        found = [row.id for row in queue.jobs("work", selection, archived=True)]
        assert sorted(found) == sorted(row.id for n, row in jobs.items() if fits(n) and n != 1)
    assert len(queue.jobs("work", Selection(error_contains="failure of 3"), archived=True)) == 11


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "names no jobs"),
        ({"ids": []}, "names no jobs"),
        ({"ids": ["nope"]}, "'nope' is no job id"),
        ({"ids": "0190"}, "give a sequence"),
        ({"ids": [uuid4()], "all": True}, "ids and all=True at once"),
        ({"ids": [uuid4()], "tags": ["a"]}, "ids and tags at once"),
        ({"all": True, "state": "held"}, "all=True and state at once"),
        ({"tags": "abc"}, "give a sequence"),
        ({"tags": [""]}, "tags holds ''"),
        ({"tags": ["a\x00"]}, "NUL"),
        ({"payload": "{"}, "is not JSON"),
        ({"payload": "[1]"}, "is not a JSON object"),
        ({"payload": {"a": float("nan")}}, "is not JSON"),
        ({"payload": {"a": "\ud800"}}, "lone surrogate"),
        ({"payload": {"a": {1, 2}}}, "is not JSON"),
        ({"ordering_key": 7}, "ordering_key holds 7"),
        ({"error_contains": ""}, "error_contains holds ''"),
        ({"state": "dead"}, "state is 'dead'"),
        ({"before": datetime(2030, 1, 1)}, "the selection's before is"),
        ({"since": "yesterday"}, "the selection's since is"),
    ],
)
def test_a_selection_that_is_none(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Selection(**wrong)


@pytest.mark.parametrize("given", ["queued", [UUID(int=7)], [], {"state": "held"}, 7], ids=repr)
def test_what_is_given_as_a_selection_and_is_none(queue: SqlQueue, url: str, given: Any) -> None:
    (job,) = put(queue, PLAIN, 1)
    verbs: dict[str, Callable[[], object]] = {
        "jobs": lambda: queue.jobs("work", given),
        "cancel": lambda: queue.cancel("work", given),
        "hold_queued": lambda: queue.hold_queued("work", given, "look"),
        "release_held": lambda: queue.release_held("work", given),
        "reschedule": lambda: queue.reschedule("work", given, 0),
        "reprioritise": lambda: queue.reprioritise("work", given, 5),
        "redrive": lambda: queue.redrive("work", given),
        "delete": lambda: queue.delete("work", given),
    }
    for name, verb in verbs.items():
        with pytest.raises(InvalidInput, match=re.escape(f"the selection is {given!r:.100}; give a Selection")):
            verb()
        assert queue.job(job).state == "queued", name
    with caller(url) as own, pytest.raises(InvalidInput, match="give a Selection"):
        queue.hold_queued("work", given, "look", connection=own)
