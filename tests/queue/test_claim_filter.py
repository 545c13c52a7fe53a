"""Claims that take only the jobs that fit a filter."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import RootModel

from dagster_sqlqueue import ClaimFilter, Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import claim_filter
from tests.support import Work, numbers


def test_a_filter_takes_what_fits_and_looks_at_no_more_than_it_may(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(
        spec,
        [
            NewJob(Work(n=n, note="x" if n % 7 else "seven"), tags=["odd"] if n % 2 else [], priority=n % 2)
            for n in range(700)
        ],
    )
    filter = ClaimFilter(tags=["odd"], payload={"note": "seven"}, scan=60)
    taken: list[int] = []
    summary = Consumer(queue, spec, lambda job: taken.append(job.payload.n), filter=filter, batch_size=9).drain()
    assert sorted(taken) == [n for n in range(700) if n % 2 and n % 7 == 0]
    assert summary.succeeded == 50
    assert queue.depth("work").ready == 650
    one = queue.claim("work", limit=5, worker="w", filter=ClaimFilter(payload='{"note": "seven"}', scan=10_000))
    assert all(n % 7 == 0 for n in numbers(one))
    assert len(one) == 5


class Numbers(RootModel[list[int]]):
    """A payload that is a list."""


def test_tags_alone_fit_whatever_the_payload_is(queue: SqlQueue) -> None:
    spec = QueueSpec("numbers", Numbers, bucket_count=1)
    queue.create_queue(spec)
    ours = queue.enqueue(spec, NewJob(Numbers([1, 2]), tags=["ours"]))
    queue.enqueue(spec, NewJob(Numbers([3]), tags=["theirs"]))
    claimed = queue.claim("numbers", limit=10, worker="w", filter=ClaimFilter(tags=["ours"]))
    assert [job.id for job in claimed] == [ours]


def test_a_filter_goes_on_among_jobs_that_became_due_together(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(300)])
    filter = ClaimFilter(payload={"n": 299}, scan=7)
    found = []
    for _ in range(100):
        found += queue.claim("work", limit=1, worker="w", filter=filter)
        if found:
            break
    assert numbers(found) == [299]


def test_a_filter_keeps_its_place_for_a_while_and_finds_what_came_late(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_filter, "SWEEP_SECONDS", 3_600.0)
    spec = QueueSpec("numbers", Work, bucket_count=1)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n, note="no" if n < 30 else "yes") for n in range(100)])
    filter = ClaimFilter(payload={"note": "yes"}, scan=20)

    def claim() -> list[int]:
        return numbers(queue.claim("numbers", limit=5, worker="w", filter=filter))

    # The first claims read twenty jobs that do not fit, and begin behind them from then on.
    assert [claim() for _ in range(4)] == [[], *([*range(n, n + 5)] for n in (30, 35, 40))]
    queue.enqueue(spec, NewJob(Work(n=200, note="yes"), run_at=datetime.now(UTC) - timedelta(hours=1)))
    assert claim() == [45, 46, 47, 48, 49]
    filter.sweep_next()
    assert claim() == [200]
    assert filter.unfinished
    assert claim() == [50, 51, 52, 53, 54]


def test_a_filter_is_unfinished_whenever_its_bound_kept_it_from_the_end(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    filter = ClaimFilter(tags=["x"], scan=7)
    for jobs, claims in ((20, 3), (40, 6)):
        queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
        assert queue.depth("work").ready == jobs
        for claim in range(claims):
            assert queue.claim("work", limit=5, worker="w", filter=filter) == []
            assert filter.unfinished == (claim < claims - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"payload": "{not json"}, "'{not json' is not JSON"),
        ({"payload": "[1]"}, "is not a JSON object"),
        ({"payload": {"a": float("nan")}}, "is not JSON"),
        ({"tags": "urgent"}, "give a sequence of texts"),
        ({"tags": iter(["urgent"])}, "tags are <list_iterator object .*give a sequence of texts"),
        ({"tags": None}, "tags are None; give a sequence of texts"),
        ({"tags": [1]}, r"tags are \[1\]; give a sequence of texts"),
        ({"scan": 0}, "scan is 0"),
        ({"scan": "10"}, "scan is '10'"),
        ({"scan": 2.5}, "scan is 2.5"),
    ],
)
def test_a_filter_that_is_none_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ClaimFilter(**arguments)


@pytest.mark.parametrize("given", [{"country": "NZ"}, '{"country": "NZ"}', ["eu"]], ids=repr)
def test_a_consumer_refuses_what_is_no_filter(queue: SqlQueue, spec: QueueSpec[Work], given: Any) -> None:
    with pytest.raises(InvalidInput, match=f"filter is a {type(given).__name__}; give a ClaimFilter"):
        Consumer(queue, spec, lambda job: None, filter=given)
