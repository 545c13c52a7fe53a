"""In which mode a batch is sealed, and how it is read in either."""

from dataclasses import replace
from typing import Any

import pytest

from dagster_sqlqueue import Mode, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import BatchLost
from dagster_sqlqueue.spark import batches, sealed, sealed_read
from dagster_sqlqueue.spark.batches import batch_seal
from dagster_sqlqueue.spark.consume_verbs import consume
from tests.gate.patience import sized
from tests.spark.batches.held_support import ended, publish, seal
from tests.support import Work, caller, claim, rows, states


def test_jobs_that_others_are_at_make_it_a_leased_one(
    filled: SqlQueue, url: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.spark.batches.batch_seal._BEGINNINGS", sized(2, 5))
    with caller(url) as other:
        schema = filled.database.schema
        other.execute(f"SELECT FROM {schema}.job WHERE payload ->> 'n' = '7' FOR UPDATE".encode())
        batch = seal(filled)
        assert (batch.mode, batch.job_count, batch.snapshot) == (Mode.LEASED, 29, None)
        assert "is leased: others keep changing its jobs" in caplog.text
    publish(filled, batch)
    assert states(filled) == {n: "queued" if n == 7 else "succeeded" for n in range(30)}


def test_followed_jobs_make_it_a_leased_one(filled: SqlQueue) -> None:
    (one,) = rows(filled, "SELECT id FROM {s}.job LIMIT 1")
    rows(filled, "UPDATE {s}.job SET followed = true WHERE id = %s", one[0])
    for overlap in (False, True):
        batch = seal(filled, str(overlap), overlap=overlap)
        assert batch.mode is Mode.LEASED
        batches.abandon(filled, batch, "again")


ALONE = {
    "many jobs that nobody else works on": ("SELECT", Mode.TRANSACTIONAL),
    "fewer of them": ("DELETE FROM {s}.job WHERE id IN (SELECT id FROM {s}.job LIMIT 11)", Mode.LEASED),
    "few that fit the filter": (
        "UPDATE {s}.job SET payload = payload || '{{\"kind\": 0}}' WHERE bucket > 0",
        Mode.LEASED,
    ),
    "a producer who would wait": (
        "UPDATE {s}.job SET unique_key = 'u' WHERE id = (SELECT id FROM {s}.job LIMIT 1)",
        Mode.LEASED,
    ),
    "followers": ("UPDATE {s}.job SET followed = true WHERE id = (SELECT id FROM {s}.job LIMIT 1)", Mode.LEASED),
    "a consumer that waits": (
        "INSERT INTO {s}.waiter (queue, worker, expires_at) VALUES ('work', 'w', now() + interval '1 hour')",
        Mode.LEASED,
    ),
    "a consumer that is gone": (
        "INSERT INTO {s}.waiter (queue, worker, expires_at) VALUES ('work', 'w', now() - interval '1 second')",
        Mode.TRANSACTIONAL,
    ),
}
"""What is so, and how the queue is consumed then where nothing is said."""


@pytest.mark.parametrize("so", list(ALONE))
def test_the_mode_that_is_chosen(filled: SqlQueue, monkeypatch: pytest.MonkeyPatch, so: str) -> None:
    monkeypatch.setattr(batch_seal, "TRANSACTIONAL_FROM", 20)
    statement, mode = ALONE[so]
    rows(filled, "UPDATE {s}.job SET payload = payload || '{{\"kind\": 1}}'")
    rows(filled, statement)
    batch = batches.seal(filled, "work", "k", owner="w", mode=None, filter={"kind": 1})
    assert batch.mode is mode
    publish(filled, batch)
    assert len(ended(filled)) == batch.job_count > 0


def test_a_lease_is_chosen_while_somebody_works_on_the_queue(filled: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_seal, "TRANSACTIONAL_FROM", 20)
    claimed = claim(filled, 1)
    batch = batches.seal(filled, "work", "k", owner="w", mode=None)
    assert (batch.mode, batch.job_count) == (Mode.LEASED, 29)
    publish(filled, batch)
    filled.complete(claimed)


def test_a_transaction_that_nobody_asked_for_becomes_a_lease(filled: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_seal, "TRANSACTIONAL_FROM", 20)
    batch = batches.seal(filled, "work", "k", owner="w", mode=None, filter={"note": "y"})
    assert batch.mode is Mode.TRANSACTIONAL
    leased = batches.as_leased(filled, batch, owner="w", lease_seconds=300)
    assert (leased.mode, leased.id, leased.job_count) == (Mode.LEASED, batch.id, 20)
    with pytest.raises(BatchLost):
        publish(filled, batch)
    publish(filled, leased)
    assert len(ended(filled)) == 20


@pytest.mark.parametrize("mode", list(Mode))
def test_a_read_is_shared_out_by_ids_where_buckets_are_too_few(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(sealed_read, "_LEAST_ROWS", 8)
    narrow = replace(spec, name="narrow", bucket_count=1)
    queue.create_queue(narrow)
    queue.enqueue_many(narrow, [Work(n=n) for n in range(30)])
    with consume(queue, None, narrow, key="k", mode=mode, overlap=True) as work:
        read, wanted = work._read({"n": {"path": "payload.n", "type": "int"}}, None, "fail")
        parts = read.partitions()
        schema = sealed._schema(read, ["n"])
        found = [[n for rows in read.rows(part, schema) for n in rows.column(0).to_pylist()] for part in parts]
        assert sorted(map(len, found)) == [6, 8, 8, 8]
        assert sorted(n for part in found for n in part) == list(range(30))
        assert work.arrow({"n": {"path": "payload.n", "type": "int"}}).num_rows == 30
        capped = replace(read, max_connections=2)
        found = [
            [n for rows in capped.rows(part, schema) for n in rows.column(0).to_pylist()]
            for part in capped.partitions()
        ]
        assert sorted(map(len, found)) == [14, 16]
        assert sorted(n for part in found for n in part) == list(range(30))
        assert wanted == ["id", "attempt", "created_at", "n"]
