"""Room that is reserved far from the limits of a queue: it counts, it is used up, it expires, and nothing goes beyond it."""

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.queue import RateLimit
from dagster_sqlqueue.queue import limits
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.limits import Reservations
from tests.support import Work, rows, value
from tests.support.cleared import cleared
from tests.support.drained import Clock

LIMIT = 100
LIMITS = {"max_running": {"max_running": LIMIT}, "rate": {"rate": RateLimit(LIMIT, 3600.0)}}
BATCH = 2
RESERVED = 10 * BATCH


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work], url: str) -> Iterator[SqlQueue]:
    """Which holds no reservation of another test."""
    cleared(shared, spec)
    with SqlQueue(url, schema=shared.database.schema) as queue:
        yield queue


@pytest.fixture(params=list(LIMITS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def limited(queue: SqlQueue, kind: str) -> SqlQueue:
    """A queue that allows a hundred, with three hundred jobs that are due."""
    spec = QueueSpec("work", Work, bucket_count=4, **LIMITS[kind])  # type: ignore[arg-type]
    queue.create_queue(spec)
    queue.enqueue_many(spec, (Work(n=n) for n in range(3 * LIMIT)))
    return queue


def next_batch(queue: SqlQueue, jobs: list[ClaimedJob], worker: str = "a") -> list[ClaimedJob]:
    endings = Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs)
    accepted, claimed = queue.leases.finish_and_claim(endings, ClaimRequest("work", limit=BATCH, worker=worker))
    assert accepted == {job.id for job in jobs}
    return claimed


def reserve(queue: SqlQueue, worker: str = "a") -> list[ClaimedJob]:
    """Claim a batch, end it, and hold the next one with a reservation for nine more."""
    return next_batch(queue, queue.claim("work", limit=BATCH, worker=worker), worker)


def used(kind: str, jobs: int) -> int:
    """What jobs that have ended still take of the limit: a rate counts starts."""
    return jobs if kind == "rate" else 0


def started(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT COALESCE(sum(starts), 0) FROM {s}.rate_start"))


def test_what_is_reserved_is_missing_for_others(limited: SqlQueue, kind: str) -> None:
    reserve(limited)
    others = limited.claim("work", limit=3 * LIMIT, worker="b")
    assert len(others) == LIMIT - RESERVED - used(kind, BATCH)
    assert limited.claim("work", limit=1, worker="c") == []


def test_a_reservation_is_used_up_and_not_exceeded(limited: SqlQueue, kind: str) -> None:
    jobs = reserve(limited)
    limited.claim("work", limit=3 * LIMIT, worker="b")
    taken = len(jobs)
    for _ in range(RESERVED // BATCH - 1):
        jobs = next_batch(limited, jobs)
        assert len(jobs) == BATCH
        taken += len(jobs)
    assert taken == RESERVED
    if kind == "rate":
        assert started(limited) == LIMIT
        assert next_batch(limited, jobs) == []
    else:
        # Its own two ended, and make room for two; the eighteen that were ended before made room for others.
        assert len(next_batch(limited, jobs)) == BATCH
        assert len(limited.claim("work", limit=3 * LIMIT, worker="b")) == RESERVED - BATCH


def test_what_was_used_is_counted_once(limited: SqlQueue, kind: str) -> None:
    jobs = reserve(limited)
    for _ in range(4):
        jobs = next_batch(limited, jobs)
    left = RESERVED - 5 * BATCH
    others = limited.claim("work", limit=3 * LIMIT, worker="b")
    assert len(others) == LIMIT - left - BATCH - used(kind, 5 * BATCH)
    assert kind != "rate" or started(limited) == LIMIT - left


def test_two_consumers_have_reservations_of_their_own(limited: SqlQueue, kind: str) -> None:
    first, second = reserve(limited, "a"), reserve(limited, "b")
    others = limited.claim("work", limit=3 * LIMIT, worker="c")
    assert len(others) == LIMIT - 2 * RESERVED - 2 * used(kind, BATCH)
    assert len(next_batch(limited, first, "a")) == len(next_batch(limited, second, "b")) == BATCH


def test_near_the_limit_nothing_is_reserved(limited: SqlQueue, kind: str) -> None:
    far = 20 * BATCH
    limited.claim("work", limit=LIMIT - far, worker="b")
    jobs = reserve(limited)
    assert value(limited, "SELECT count(*) FROM {s}.limit_reservation") == 0
    assert len(jobs) == BATCH
    left = limited.claim("work", limit=3 * LIMIT, worker="c")
    assert len(left) == far - BATCH - used(kind, BATCH)


def test_a_reservation_that_expired_is_given_to_others(limited: SqlQueue, kind: str) -> None:
    jobs = reserve(limited)
    rows(limited, "UPDATE {s}.limit_reservation SET expires_at = now() - interval '1 second'")
    others = limited.claim("work", limit=3 * LIMIT, worker="b")
    assert len(others) == LIMIT - BATCH - used(kind, BATCH)
    assert next_batch(limited, jobs) == []


def test_one_that_a_claim_has_in_hand_counts_although_it_expired(limited: SqlQueue, kind: str, url: str) -> None:
    reserve(limited)
    rows(limited, "UPDATE {s}.limit_reservation SET expires_at = now() - interval '1 second'")
    with psycopg.connect(url) as claiming:
        claiming.execute(f"SELECT FROM {limited.database.schema}.limit_reservation FOR UPDATE")
        others = limited.claim("work", limit=3 * LIMIT, worker="b")
    assert len(others) == LIMIT - RESERVED - used(kind, BATCH)


@pytest.mark.parametrize("change", ["pause", "settings"])
def test_nothing_is_claimed_from_a_reservation_of_other_settings(limited: SqlQueue, kind: str, change: str) -> None:
    with SqlQueue(limited.database) as consumer:
        jobs = reserve(consumer)
        if change == "pause":
            limited.pause("work")
        else:
            limited.create_queue(QueueSpec("work", Work, bucket_count=4, max_running=1))
        assert next_batch(consumer, jobs) == []


def test_a_batch_that_is_larger_than_what_is_left_takes_no_more(limited: SqlQueue) -> None:
    jobs = reserve(limited)
    room: UUID = value(limited, "SELECT id FROM {s}.limit_reservation")
    rows(limited, "UPDATE {s}.limit_reservation SET jobs = 1")
    assert len(next_batch(limited, jobs)) == 1
    assert value(limited, "SELECT jobs FROM {s}.limit_reservation WHERE id = %s", room) == 0


class StillClock(Clock):
    """It goes only when the test moves it."""

    def monotonic(self) -> float:
        return self.ahead


def test_consumers_that_are_gone_are_forgotten(limited: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StillClock()
    monkeypatch.setattr(limits, "time", clock)
    reservations = Reservations(limited.database)
    settings = limited.settings("work")

    def reserved(worker: str) -> UUID | None:
        return reservations.reservation(settings, ClaimRequest("work", limit=BATCH, worker=worker))

    for no in range(2):
        assert reserved(f"gone {no}")
    clock.ahead = 3_600
    mine = reserved("mine")
    assert reserved("other") != mine
    assert {worker for _, worker in reservations._reserved} == {"mine", "other"}
    assert reserved("mine") == mine
