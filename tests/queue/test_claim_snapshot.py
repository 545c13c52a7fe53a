"""Rows that another transaction changes between the snapshot of a claim and its locks: a later one takes them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.model.queue import RateLimit
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Endings
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until, value

JOBS = 40
DOOR = os.getpid()
"""The advisory lock that a claim waits for once it has its snapshot."""
BEFORE_ITS_LOCKS = "WHERE p.queue = %(queue)s ORDER BY"
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"

LIMITS = {"max_running": {"max_running": 100 * JOBS}, "rate": {"rate": RateLimit(100 * JOBS, 3600.0)}}


@pytest.fixture
def waits_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From its call on, this statement waits before the door."""
    load = statements.load

    def plant(statement: str) -> None:
        def waiting(verb: str, *given: str) -> str:
            text = load(verb, *given)
            if verb != statement:
                return text
            assert BEFORE_ITS_LOCKS in text
            wait = f"AND (SELECT pg_advisory_xact_lock_shared({DOOR}) IS NOT NULL) ORDER BY"
            return text.replace(BEFORE_ITS_LOCKS, BEFORE_ITS_LOCKS.replace("ORDER BY", wait))

        monkeypatch.setattr(statements, "load", waiting)

    return plant


@pytest.fixture
def door(url: str) -> Iterator["psycopg.Connection[Any]"]:
    """A connection that holds it shut until it is closed."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (DOOR,))
        yield connection


@pytest.mark.parametrize(
    ("statement", "limit"),
    [
        ("claim_round_robin", None),
        ("claim_fanout", None),
        *((f"claim_{kind}", limit) for kind in ("limited", "reserved") for limit in LIMITS),
    ],
)
def test_a_row_that_is_changed_meanwhile_is_claimed_once_by_a_later_claim(
    queue: SqlQueue,
    waits_in: Callable[[str], None],
    door: "psycopg.Connection[Any]",
    statement: str,
    limit: str | None,
) -> None:
    worker = f"{statement} {limit}"
    settings: dict[str, Any] = LIMITS[limit] if limit else {}
    if statement == "claim_fanout":
        settings = {"strategy": "fanout"}
    spec = QueueSpec("work", Work, bucket_count=4, **settings)
    queue.create_queue(spec)

    def claim() -> set[UUID]:
        # Without the hints of the claim before, which may begin behind what that one left.
        request = ClaimRequest("work", limit=JOBS, worker=worker)
        jobs = queue.leases.finish_and_claim(Endings.of([]), request)[1] if reserving else queue.leases.claim(request)
        return {job.id for job in jobs}

    reserving = statement == "claim_reserved"
    if reserving:
        # The first one learns of the limit; the second one finds nothing either, and reserves room for those to come.
        assert queue.claim("work", limit=1, worker=worker) == []
        assert claim() == set()
    queue.enqueue_many(spec, (Work(n=n) for n in range(JOBS)))
    waits_in(statement)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(claim)
        until(lambda: value(queue, WAITING, DOOR) == 1, "a claim that has its snapshot")
        changed = {
            id for (id,) in rows(queue, "UPDATE {s}.job SET tags = tags WHERE (payload ->> 'n')::int < 7 RETURNING id")
        }
        door.close()
        claimed = first.result(PATIENCE)
    assert (len(claimed), changed & claimed) == (JOBS - 7, set())
    assert claim() == changed
    assert rows(queue, "SELECT DISTINCT state, lease_no, attempt FROM {s}.job") == [("running", 1, 1)]
