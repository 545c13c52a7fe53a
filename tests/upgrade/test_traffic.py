"""Old code on the next schema, and new code on the last one, while the schema is upgraded under them: nothing is lost,
nothing is done twice, and nobody sees an error.
"""

import pytest

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import SchemaTooNew
from tests.gate.patience import sized
from tests.support import Work, rows, until, value
from tests.support.few import few
from tests.upgrade.crowd import Crowd
from tests.upgrade.made_up import REAL, become

OLD, NEW, FLOOR = REAL[-1].version, 3, 4
JOBS = sized(60, 3_000)


@pytest.mark.parametrize(
    ("producer", "consumer"), few([(OLD, NEW), (OLD, OLD), (NEW, NEW)], 1), ids=["both", "old", "new"]
)
def test_producers_and_consumers_go_on_while_the_schema_is_upgraded(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    crowd: Crowd,
    monkeypatch: pytest.MonkeyPatch,
    producer: int,
    consumer: int,
) -> None:
    producers = [crowd.start("producer", producer) for _ in range(sized(1, 3))]
    consumers = [crowd.start("consumer", consumer) for _ in range(sized(1, 3))]
    until(lambda: len(crowd.said("ended")) > JOBS, "traffic on the last schema")
    become(monkeypatch, NEW)
    assert [migration.version for migration in queue.migrate()] == [2, 3]
    before = len(crowd.said("ended"))
    until(lambda: len(crowd.said("ended")) > before + JOBS, "traffic on the next schema")
    if producer == NEW:
        until(lambda: "labelled" in {kind for _, kind in crowd.said("put")}, "what the next schema can do")
    assert [process.stopped() for process in producers] == [0] * len(producers)
    put = {job for job, _ in crowd.said("put")}
    until(lambda: value(queue, "SELECT count(*) FROM {s}.job") == 0, "the end of all jobs")
    assert [process.stopped() for process in consumers] == [0] * len(consumers)
    ended = [job for job, _ in crowd.said("ended")]
    assert (len(ended), set(ended)) == (len(put), put)
    assert value(queue, "SELECT count(*) FROM {s}.job_archive WHERE state = 'succeeded' AND attempt = 1") == len(put)
    for process in crowd.all:
        said = process.errors.splitlines()
        assert all("works on it" in line for line in said), process.errors
        # Once for each of the two versions, if it looked in between.
        assert len(said) == len(set(said)) <= 2, process.errors


@pytest.mark.prove
def test_a_consumer_that_the_schema_does_not_serve_any_more_ends_with_its_leases_given_back(
    queue: SqlQueue, spec: QueueSpec[Work], crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = crowd.start("consumer", OLD), crowd.start("consumer", NEW)
    producer = crowd.start("producer", NEW)
    until(lambda: old.said("ended") and new.said("ended"), "traffic")
    become(monkeypatch, FLOOR)
    assert [migration.version for migration in queue.migrate()] == [2, 3, 4]
    assert old.ended() == 4
    assert "SchemaTooNew" in old.errors
    assert "The package is to be upgraded: pip install --upgrade dagster-sqlqueue" in old.errors
    before = len(new.said("ended"))
    until(lambda: len(new.said("ended")) > before + JOBS // 4, "the traffic of the others")
    assert [producer.stopped(), new.stopped()] == [0, 0]
    assert rows(queue, "SELECT claimed_by FROM {s}.job WHERE state = 'running'") == []
    Consumer(queue, spec, lambda job: None).drain()
    put, ended = ({job for job, _ in crowd.said(what)} for what in ("put", "ended"))
    assert ended <= put
    assert value(queue, "SELECT count(*) FROM {s}.job_archive WHERE state = 'succeeded'") == len(put)


def test_a_statement_that_fails_as_the_schema_has_moved_on_says_so(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between two checks of the schema's version."""

    def handle(_job: object) -> None:
        rows(queue, "INSERT INTO {s}.schema_version VALUES (9, 'renamed', 9)")
        rows(queue, "ALTER TABLE {s}.job RENAME COLUMN lease_no TO fence_no")

    queue.enqueue(spec, Work(n=1))
    with pytest.raises(SchemaTooNew, match=r"is at version 9, .*pip install --upgrade"):
        Consumer(queue, spec, handle).drain()
