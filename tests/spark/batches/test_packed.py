"""Large leased batches, whose jobs are in packs: reads see them run, and what happens to single ones unpacks them."""

from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event
from typing import Literal
from uuid import UUID

import pytest
from pydantic import BaseModel
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, Reject, Retry, Selection, SqlQueue
from dagster_sqlqueue.errors import BatchLost
from dagster_sqlqueue.followers import Callback, Followers
from dagster_sqlqueue.results import Results
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import leased_seal
from tests.gate.patience import PATIENCE
from tests.support import Work, asked, caller, claim, make_due, rows, until, value
from tests.support.leased import ids_of, publish, seal

KEPT = "id, queue, bucket, priority, max_attempts, run_at, created_at, ordering_key, region, timeout_seconds, tags, payload"
"""What a job is; the other columns are about how it fares."""


class Account(BaseModel):
    day: str
    account: str
    zone: str


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased_seal, "PACKED_FROM", 1)


@pytest.fixture
def many(filled: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """430 jobs: three packs."""
    filled.enqueue_many(spec, [Work(n=n) for n in range(30, 430)])
    return filled


def packed(queue: SqlQueue) -> dict[int, UUID]:
    """The jobs in packs, by the number in their payloads."""
    return {n: id for id, n in rows(queue, "SELECT id, (payload ->> 'n')::integer FROM {s}.packed_job")}


def ended(queue: SqlQueue, count: int) -> bool:
    """Whether the jobs from 0 up to a count have ended, each once, and as succeeded."""
    found = rows(queue, "SELECT (payload ->> 'n')::integer, state FROM {s}.job_archive")
    return sorted(found) == [(n, "succeeded") for n in range(count)]


def test_seal_read_publish(many: SqlQueue) -> None:
    written = rows(many, f"SELECT {KEPT} FROM {{s}}.job ORDER BY id")
    batch = seal(many, owner="me")
    assert batch.job_count == 430
    assert [count for (count,) in rows(many, "SELECT job_count FROM {s}.batch_pack ORDER BY 1")] == [30, 200, 200]
    assert value(many, "SELECT count(*) FROM {s}.job") == 0
    assert claim(many) == []
    assert len(packed(many)) == 430
    publish(many, batch)
    assert ended(many, 430)
    assert rows(many, f"SELECT {KEPT} FROM {{s}}.job_archive ORDER BY id") == written
    how = (
        "SELECT DISTINCT state, lease_no, attempt, claimed_by, batch_id, started_at < finished_at FROM {s}.job_archive"
    )
    assert rows(many, how) == [("succeeded", 1, 1, "me", batch.id, True)]
    assert value(many, "SELECT count(*) FROM {s}.batch_pack") == 0


def test_the_condition_of_a_batch_has_its_jobs(many: SqlQueue) -> None:
    batch = seal(many)
    found = value(many, "SELECT count(DISTINCT id) FROM {s}.live_job WHERE " + batch.condition.replace("%", "%%"))
    assert found == 430


def test_a_filter_takes_its_jobs_only(filled: SqlQueue) -> None:
    batch = seal(filled, filter={"note": "x"})
    assert (batch.job_count, len(packed(filled))) == (10, 10)
    publish(filled, batch)
    assert len(claim(filled)) == 20


def test_what_others_rely_on_stays_where_it_is(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """A unique key is held to the end, followers are notified, a cancellation stays requested; all end with the batch."""
    queue.create_queue(QueueSpec("ended", Work))
    plain = queue.enqueue(spec, Work(n=0))
    unique = queue.enqueue(spec, NewJob(Work(n=1), unique_key="u"))
    followed = queue.enqueue(spec, Work(n=2))
    assert followed is not None
    Followers(queue).follow(followed, Callback("ended"))
    large = queue.enqueue(spec, Work(n=3, note=Random(3).randbytes(10_000).hex()))
    batch = seal(queue)
    assert batch.job_count == 4
    assert set(packed(queue).values()) == {plain}
    assert {row[0] for row in rows(queue, "SELECT id FROM {s}.job WHERE batch_id = %s", batch.id)} == {
        unique,
        followed,
        large,
    }
    assert queue.enqueue(spec, NewJob(Work(n=9), unique_key="u")) is None
    publish(queue, batch)
    assert ended(queue, 4)
    assert (
        value(queue, "SELECT count(*) FROM {s}.job WHERE queue = 'ended' AND payload ->> 'job_id' = %s", str(followed))
        == 1
    )


def test_a_unique_key_is_free_from_the_seal_or_from_the_end(filled: SqlQueue, spec: QueueSpec[Work]) -> None:
    """One that is held until the claim: from the seal, which is its job's first, whatever becomes of the batch."""

    def keyed(n: int, key: str) -> UUID | None:
        return filled.enqueue(spec, NewJob(Work(n=n), unique_key=key, unique_until="claim" if key == "c" else "end"))

    assert keyed(30, "c")
    assert keyed(31, "e")
    assert keyed(99, "c") is keyed(99, "e") is None
    first = seal(filled)
    assert (first.job_count, len(packed(filled))) == (32, 30)
    assert keyed(99, "e") is None
    assert keyed(32, "c")
    assert keyed(99, "c") is None
    assert batches.abandon(filled, first, "no memory") == 32
    # The job that has been claimed is due again without its key, the other one has it.
    assert keyed(99, "c") is keyed(99, "e") is None
    make_due(filled)
    second = seal(filled)
    assert second.job_count == 33
    assert keyed(33, "c")
    assert keyed(99, "e") is None
    make_due(filled)
    third = seal(filled)
    assert (third.id, third.job_count) == (second.id, 34)
    assert keyed(34, "c")
    assert keyed(99, "e") is None
    batches.report(filled, third, [(ids_of(filled)[31], Retry("again", after=0))])
    publish(filled, third)
    assert value(filled, "SELECT count(DISTINCT id) FROM {s}.job_archive WHERE state = 'succeeded'") == 33
    assert keyed(99, "e") is None
    publish(filled, seal(filled))
    assert ended(filled, 35)
    assert keyed(35, "c")
    assert keyed(36, "e")


@pytest.mark.parametrize("held", ["claim", "end"])
def test_producers_of_unique_keys_beside_batches_lose_no_job(
    filled: SqlQueue, spec: QueueSpec[Work], held: Literal["claim", "end"]
) -> None:
    """Three of them, with the same three keys, while batches are sealed, abandoned and published."""
    over = Event()

    def produce() -> set[UUID]:
        landed = set()
        while not over.is_set():
            for key in "abc":
                landed.add(filled.enqueue(spec, NewJob(Work(n=1), unique_key=key, unique_until=held)))
        return {one for one in landed if one is not None}

    with ThreadPoolExecutor(3) as pool:
        producers = [pool.submit(produce) for _ in range(3)]
        try:
            for turn in range(12):
                until(lambda: rows(filled, "SELECT id FROM {s}.job WHERE unique_key IS NOT NULL AND state = 'queued'"))
                batch = seal(filled)
                if turn % 3 == 1:
                    batches.abandon(filled, batch, "no memory")
                else:
                    publish(filled, batch)
        finally:
            over.set()
    publish(filled, seal(filled))
    landed = [one for producer in producers for one in producer.result(PATIENCE)]
    archived = rows(filled, "SELECT id FROM {s}.job_archive WHERE state = 'succeeded' AND unique_key IS NOT NULL")
    assert len(landed) >= 8
    assert sorted(landed) == sorted(id for (id,) in archived)
    assert value(filled, "SELECT count(*) FROM {s}.live_job") == 0


def test_jobs_of_odd_numbers_are_sealed_beside_the_packs(filled: SqlQueue) -> None:
    rows(filled, "UPDATE {s}.job SET lease_no = -1 WHERE payload ->> 'n' = '7'")
    batch = seal(filled)
    assert (batch.job_count, len(packed(filled))) == (30, 29)
    publish(filled, batch)
    assert ended(filled, 30)


def test_a_job_that_is_sent_again_is_known(many: SqlQueue, spec: QueueSpec[Work]) -> None:
    batch = seal(many)
    again = [NewJob(Work(n=n), id=id) for n, id in packed(many).items()]
    assert many.enqueue(spec, again[0]) is None
    assert many.enqueue_many(spec, again).duplicates == 430
    assert value(many, "SELECT count(*) FROM {s}.job") == 0
    new = uuid7()
    assert many.enqueue_many(spec, [*again[:3], NewJob(Work(n=1_000), id=new)]).inserted == 1
    assert value(many, "SELECT id FROM {s}.job") == new
    publish(many, batch)
    assert ended(many, 430)


def test_every_reader_sees_running_jobs(many: SqlQueue) -> None:
    seal(many, owner="me", filter={"n": 7})
    seal(many, "other", owner="you")
    ids = packed(many)
    assert many.depth("work").running == 430
    assert value(many, "SELECT running FROM {s}.queue_stats") == 430
    job = many.job(ids[7])
    assert (job.state, job.claimed_by, job.attempt, job.available_at) == ("running", "me", 1, None)
    assert "It is in the batch 'k' of me" in str(many.explain(ids[7]))
    assert [job.id for job in many.jobs("work", Selection(payload={"n": 7}))] == [ids[7]]
    assert [job.id for job in many.jobs("work", Selection(payload={"n": 7}, state="queued"))] == []
    assert len(many.jobs("work", limit=500)) == 430
    assert Results(many).outcome(ids[7]).state == "running"
    assert rows(many, "SELECT archived, state FROM {s}.job_all WHERE id = %s", ids[7]) == [(False, "running")]
    one = "SELECT state, payload ->> 'n' FROM {s}_v1.job(%s)".replace("{s}_v1", f'"{many.database.schema}_v1"')
    assert rows(many, one, ids[7]) == [("running", "7")]


def test_a_cancellation_is_asked_for_and_the_batch_goes_on(many: SqlQueue) -> None:
    batch = seal(many)
    ids = packed(many)
    decided = many.cancel("work", Selection(ids=[ids[7]]))
    assert decided.requested == [ids[7]]
    assert many.job(ids[7]).cancel_requested_at is not None
    assert ids[7] not in packed(many).values()
    assert many.hold_queued("work", Selection(ids=[ids[8]]), reason="no").skipped == {ids[8]: "it is running"}
    publish(many, batch)
    assert ended(many, 430)


def test_a_payload_of_a_sealed_job_is_not_replaced(many: SqlQueue, spec: QueueSpec[Work]) -> None:
    batch = seal(many)
    job = packed(many)[7]
    assert "it is running" in many.replace_payload(spec, job, Work(n=777), release=True).skipped[job]
    publish(many, batch)
    assert ended(many, 430)


def test_a_cancellation_by_sql(many: SqlQueue) -> None:
    seal(many)
    ids = packed(many)
    decided = f"SELECT job_id, outcome FROM \"{many.database.schema}_v1\".cancel('work', ARRAY[%s], 'no')"
    assert rows(many, decided, ids[7]) == [(ids[7], "requested")]


def test_all_that_fits_is_found_by_a_verb(many: SqlQueue) -> None:
    seal(many)
    ids = packed(many)
    assert set(many.cancel("work", Selection(payload={"note": "x"})).requested) == {ids[n] for n in range(0, 30, 3)}


def test_who_follows_a_job_of_a_pack_is_notified(many: SqlQueue) -> None:
    many.create_queue(QueueSpec("ended", Work))
    batch = seal(many)
    job = packed(many)[7]
    Followers(many).follow(job, Callback("ended"))
    assert value(many, "SELECT followed FROM {s}.job WHERE id = %s", job)
    publish(many, batch)
    assert (
        value(many, "SELECT count(*) FROM {s}.job WHERE queue = 'ended' AND payload ->> 'job_id' = %s", str(job)) == 1
    )


def test_reported_jobs_are_unpacked_with_those_beside_them(many: SqlQueue) -> None:
    batch = seal(many)
    ids = packed(many)
    reports = [(ids[7], Reject("bad row")), (ids[429], Retry("again", after=1_000)), (UUID(int=1), Reject("whose?"))]
    assert batches.report(many, batch, reports) == {ids[7], ids[429]}
    assert 0 < len(packed(many)) < 430
    publish(many, batch)
    assert many.archived("work", since_seconds=3_600) == {"succeeded": 428, "failed": 1}
    assert rows(many, "SELECT id, state, attempt, error FROM {s}.job") == [(ids[429], "queued", 1, "again")]


def test_abandoned_jobs_are_due_at_once_and_have_spent_no_attempt(many: SqlQueue) -> None:
    batch = seal(many)
    batches.report(many, batch, [(packed(many)[7], Reject("bad row"))])
    assert batches.abandon(many, batch, "no memory") == 429
    assert rows(many, "SELECT DISTINCT state, attempt, error, batch_id, lease_no FROM {s}.job") == [
        ("queued", 0, "no memory", None, 1)
    ]
    assert many.archived("work", since_seconds=3_600) == {"failed": 1}
    assert value(many, "SELECT count(*) FROM {s}.batch_pack") == 0
    again = seal(many)
    publish(many, again)
    assert rows(many, "SELECT DISTINCT lease_no, attempt FROM {s}.job_archive WHERE state = 'succeeded'") == [(2, 1)]


def test_a_takeover_keeps_the_packs_and_adds_what_has_become_due(many: SqlQueue, spec: QueueSpec[Work]) -> None:
    old = seal(many, owner="old")
    many.enqueue(spec, Work(n=430))
    make_due(many)
    new = seal(many, owner="new")
    assert (new.id, new.token, new.job_count) == (old.id, 2, 431)
    with pytest.raises(BatchLost):
        publish(many, old)
    assert batches.abandon(many, old, "x") == 0
    publish(many, new)
    assert ended(many, 431)
    leases = rows(many, "SELECT DISTINCT lease_no, attempt, claimed_by FROM {s}.job_archive ORDER BY 1")
    assert leases == [(2, 1, "new")]


def test_a_takeover_with_another_filter_leaves_no_stranger_in_the_batch(filled: SqlQueue) -> None:
    seal(filled, filter={"note": "x"})
    make_due(filled)
    batch = seal(filled, filter={"note": "y"})
    assert batch.job_count == 20
    publish(filled, batch)
    assert len(claim(filled)) == 10


def test_a_sweep_gives_back_what_a_driver_left_behind(many: SqlQueue) -> None:
    seal(many)
    make_due(many)
    assert many.maintain().batches_swept == 1
    assert rows(many, "SELECT DISTINCT state, attempt, available_at <= now() FROM {s}.job") == [("queued", 0, True)]
    assert value(many, "SELECT count(*) FROM {s}.job") == 430


def test_an_operator_abandons_it(many: SqlQueue) -> None:
    batch = seal(many)
    gone = {"batch_id": batch.id, "error": "no more", "held": True, "dry_run": False}
    assert many.database.run("batch_give_up", gone) == [(batch.id, 0, 430)]
    assert many.depth("work").ready == 430
    with pytest.raises(BatchLost):
        publish(many, batch)


def test_jobs_that_somebody_has_locked_stay_for_later(many: SqlQueue, url: str) -> None:
    with caller(url) as other:
        mine = f'SELECT id FROM "{many.database.schema}".job ORDER BY id LIMIT 7 FOR UPDATE'
        locked = {row[0] for row in other.execute(mine.encode())}
        batch = seal(many)
        other.rollback()
    assert batch.job_count == 423
    assert {job.id for job in claim(many)} == locked


def test_two_sealers_share_the_jobs(many: SqlQueue) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda key: seal(many, key), ["a", "b"])
    assert first.job_count + second.job_count == 430
    publish(many, first)
    publish(many, second)
    assert ended(many, 430)


def test_unpacking_waits_for_a_publication_that_is_under_way(many: SqlQueue) -> None:
    batch = seal(many)
    job = packed(many)[7]
    with ThreadPoolExecutor(1) as pool:
        with many.database.transaction() as transaction:
            batches.publish(many, batch, transaction, output={})
            waits = pool.submit(many.cancel, "work", Selection(ids=[job]))
            until(lambda: asked(many, "sqlqueue.unpack_jobs".replace("sqlqueue", f'"{many.database.schema}"')))
        assert waits.result(PATIENCE).skipped == {job: "it ended as succeeded"}
    assert ended(many, 430)


def test_a_day_is_open_while_its_events_are_in_packs(queue: SqlQueue) -> None:
    events, daily = QueueSpec("events", Work), QueueSpec("daily", Account)
    queue.create_queue(events)
    queue.create_queue(daily)
    queue.enqueue_many(events, [Work(n=n, note="2013-07-04") for n in range(3)])
    queue.enqueue_many(daily, [Account(day="2013-07-04", account=str(n), zone="UTC") for n in range(4)])
    held = batches.seal(queue, "events", "events", owner="w")
    closed = {"queue": "events", "day_path": ["note"], "account_path": ["n"]}
    more = {"owner": "w", "closed": closed}
    days: list[batches.Batch] = []
    (batch,) = batches.seal_days(queue, "daily", {"d": "2013-07-04"}, held=days, **more)  # type: ignore[arg-type]
    assert batch.job_count == 1
    publish(queue, batch)
    open_ = {**closed, "queue": "events", "zoned": False, "day_zone": None, "zone_path": None, "days": ["2013-07-04"]}
    assert sorted(queue.database.run("open_accounts", open_)) == [("2013-07-04", str(n), 1) for n in range(3)]
    assert queue.database.run("live_by_day", open_) == [("2013-07-04", 3)]
    publish(queue, held)
    (batch,) = batches.seal_days(queue, "daily", {"e": "2013-07-04"}, held=[], **more)  # type: ignore[arg-type]
    assert batch.job_count == 3
