"""A consumer that began when its queue was small: the server keeps its plans until it has counted the table again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Job, Mode, QueueSpec, SqlQueue, Strategy
from tests.gate.patience import sized
from tests.support import Work, rows, until, value
from tests.support.cleared import own_schema

JOBS = sized(600, 2_000)
SCANS = "SELECT {} FROM pg_stat_user_tables WHERE relid = '{{s}}.job'::regclass"


@pytest.fixture(scope="module")
def shared(url: str) -> Iterator[SqlQueue]:
    """Of this module alone: the server's counts of what was read of its tables go on from test to test."""
    with own_schema(url, "growing") as queue:
        yield queue


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, Mode.LEASED),
        ({}, Mode.TRANSACTIONAL),
        ({"max_running": 1_000}, Mode.LEASED),
        ({"ordered": True}, Mode.LEASED),
        *(({"strategy": strategy}, Mode.LEASED) for strategy in Strategy),
    ],
    ids=str,
)
def test_the_table_is_never_read_whole(
    queue: SqlQueue, spec: QueueSpec[Work], settings: dict[str, Any], mode: Mode
) -> None:
    spec = replace(spec, **settings)
    queue.create_queue(spec)
    rows(queue, "ALTER TABLE {s}.job SET (autovacuum_enabled = off)")
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
    rows(queue, "VACUUM ANALYZE {s}.job")

    def handler(job: Job[Work]) -> None:
        if mode is Mode.TRANSACTIONAL:
            job.connection.execute("SELECT 1")

    def drain(size: int) -> int:
        return Consumer(queue, spec, handler, mode=mode, batch_size=size).drain().succeeded

    # One by one, until every statement has the plan that stays.
    assert drain(1) == 20
    queue.enqueue_many(spec, [Work(n=n) for n in range(JOBS)])
    seen = value(queue, SCANS.format("idx_scan"))
    assert drain(JOBS // 20) == JOBS
    until(lambda: value(queue, SCANS.format("idx_scan")) > seen + 20, "the server's count of what was read")
    assert value(queue, SCANS.format("seq_tup_read")) < JOBS
