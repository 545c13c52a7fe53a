"""The stream's reader: every ended job once, whenever its transaction commits; no Spark runs here."""

import json
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.spark.positions import Position
from dagster_sqlqueue.spark.stream_reader import JobsTrimmed, StreamReader
from tests.spark.stream_support import Stream
from tests.spark.support import NOON, Done, archive
from tests.support import Work, claim, rows, value
from tests.support.few import few

SHARES_A_SCHEMA = True

LONG_AGO = datetime.now(UTC) - timedelta(days=10)


def done(count: int, first: int = 0, *, step: float = 1.0, at: datetime = NOON) -> list[Done]:
    return [Done({"n": first + n}, at=at + timedelta(seconds=n * step)) for n in range(count)]


Begin = Callable[..., Stream]


def ns(jobs: Sequence[ClaimedJob]) -> list[int]:
    return sorted(json.loads(job.payload)["n"] for job in jobs)


@pytest.fixture
def begin(queue: SqlQueue, url: str) -> Iterator[Begin]:
    """Begin a stream; all end with the test."""
    with ExitStack() as stack:

        def beginning(**options: str) -> Stream:
            made = Stream(queue, url, **options)
            stack.callback(made.reader.stop)
            return made

        yield beginning


@pytest.fixture
def stream(begin: Begin) -> Stream:
    return begin()


def test_what_is_there_comes_first_and_then_what_ends(queue: SqlQueue, stream: Stream, spec: QueueSpec[Work]) -> None:
    assert stream.everything() == [[]]
    archive(queue, done(3))
    assert stream.batch() == [0, 1, 2]
    assert stream.batch() is None
    queue.enqueue_many(spec, [Work(n=n) for n in range(10, 14)])
    for jobs in (claim(queue, 3), claim(queue, 1)):
        queue.complete(jobs)
        assert stream.everything() == [ns(jobs)]


def test_a_transaction_that_ended_jobs_earlier_and_commits_later_is_read_then(
    queue: SqlQueue, stream: Stream, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(6)])
    first, second, third = (claim(queue, 2) for _ in range(3))
    with queue.database.transaction() as late:
        queue.complete(first, executor=late)
        # Later jobs end, are committed and read, twice over.
        queue.complete(second)
        assert stream.everything() == [ns(second)]
        queue.complete(third)
        assert stream.everything() == [ns(third)]
        assert stream.batch() is None
    assert stream.everything() == [ns(first)]
    assert stream.batch() is None
    ended = dict(rows(queue, "SELECT CAST(payload ->> 'n' AS integer), finished_at FROM {s}.job_archive"))
    assert max(ended[n] for n in ns(first)) < min(ended[n] for n in ns(second))


def test_a_transaction_that_is_rolled_back_leaves_nothing(
    queue: SqlQueue, stream: Stream, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(2)])
    jobs = claim(queue, 2)
    with queue.database.transaction() as late:
        queue.complete(jobs[:1], executor=late)
        queue.complete(jobs[1:])
        assert stream.everything() == [ns(jobs[1:])]
        raise psycopg.Rollback
    assert stream.everything() == []


@pytest.mark.parametrize("most", few([7, None], 1))
def test_many_writers_that_commit_in_any_order(queue: SqlQueue, stream: Stream, url: str, most: int | None) -> None:
    """Each transaction ends jobs one by one, stays open over others' commits, and the stream reads all the while."""
    schema = queue.database.schema
    dice = random.Random(4)
    numbers = iter(range(10_000))
    read: list[int] = []
    expected: list[int] = []
    insert = (
        f'INSERT INTO "{schema}".job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts,'
        " run_at, created_at, finished_at, region, tags, payload) SELECT gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1,"
        " 1, now(), now(), statement_timestamp(), 'local', '{}', jsonb_build_object('n', %s::int)"
    ).encode()
    with ExitStack() as stack:
        open_ones: list[tuple[psycopg.Connection[Any], list[int]]] = [
            (stack.enter_context(psycopg.connect(url)), []) for _ in range(6)
        ]
        for _ in range(300):
            connection, pending = dice.choice(open_ones)
            match dice.randrange(8):
                case 0:
                    connection.commit()
                    expected += pending
                    pending.clear()
                case 1:
                    connection.rollback()
                    pending.clear()
                case 2:
                    read += stream.batch(most) or []
                case kind:
                    # Every other one in a savepoint, which has a transaction number of its own.
                    if kind % 2:
                        connection.execute("SAVEPOINT inner_one")
                    pending.append(next(numbers))
                    connection.execute(insert, (pending[-1],))
        for connection, pending in open_ones:
            connection.commit()
            expected += pending
    for batch in stream.everything(most):
        assert most is None or len(batch) <= most
        read += batch
    assert sorted(read) == sorted(expected)
    assert len(expected) > 50


def test_batches_have_at_most_so_many_rows_also_of_one_moment(queue: SqlQueue, stream: Stream) -> None:
    archive(queue, [*done(5, step=0), *done(5, first=5)])
    found = stream.everything(3)
    assert [len(batch) for batch in found] == [3, 3, 3, 1]
    assert sorted(n for batch in found for n in batch) == list(range(10))


def test_a_batch_is_the_same_as_often_as_it_is_read(queue: SqlQueue, stream: Stream) -> None:
    archive(queue, done(10))
    start = stream.offset
    first = stream.batch(4)
    middle = stream.offset
    second = stream.batch(4)
    archive(queue, done(5, first=100))
    assert stream.between(start, middle) == first == [0, 1, 2, 3]
    assert stream.between(middle, stream.offset) == second == [4, 5, 6, 7]
    assert stream.everything(4) == [[8, 9], [100, 101, 102, 103], [104]]


@pytest.mark.parametrize("target", few([3, 1, 7, 50], 1))
def test_slices(queue: SqlQueue, begin: Begin, target: int) -> None:
    archive(queue, [*done(9, step=0), *done(30, first=9)])
    stream = begin(target_rows=str(target))
    assert stream.everything() == [list(range(39))]
    # The ten of noon, too, are shared out.
    assert stream.slices == -(-39 // target)
    assert max(stream.sizes) <= target
    parts = begin(target_rows=str(target))
    assert sorted(n for batch in parts.everything(8) for n in batch) == list(range(39))


def test_where_a_stream_begins(queue: SqlQueue, begin: Begin) -> None:
    archive(queue, done(4))
    since = (NOON + timedelta(seconds=2)).isoformat()
    streams = [begin(startingPosition=where) for where in ("earliest", "latest", since)]
    archive(queue, done(2, first=10, at=NOON + timedelta(hours=1)))
    archive(queue, done(1, first=20, at=NOON - timedelta(hours=1)))
    found = [sorted(n for batch in stream.everything(2) for n in batch) for stream in streams]
    assert found == [[0, 1, 2, 3, 10, 11, 20], [10, 11, 20], [2, 3, 10, 11]]


def test_only_what_was_there_when_it_began_with_available_now(queue: SqlQueue, stream: Stream) -> None:
    archive(queue, done(5))
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.batch(2) == [0, 1]
    archive(queue, done(5, first=10))
    assert stream.everything(2) == [[2, 3], [4]]
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.everything() == [[10, 11, 12, 13, 14]]


def test_rows_that_move_into_the_partition_of_their_day_are_not_read_again(queue: SqlQueue, stream: Stream) -> None:
    archive(queue, done(3))
    assert stream.everything() == [[0, 1, 2]]
    day = NOON.date()
    assert rows(queue, "SELECT {s}.make_archive_partition(%s)", day)
    archive(queue, done(1, first=9))
    assert stream.everything() == [[9]]


def test_a_job_that_is_brought_back_and_ends_again_comes_again(
    queue: SqlQueue, stream: Stream, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue, 1)
    queue.fail(job, "broken", after=0)
    rows(queue, "UPDATE {s}.job SET max_attempts = attempt, available_at = now()")
    queue.claim("work", limit=1, worker="w")
    assert stream.everything() == [[1]]
    queue.redrive("work", Selection(all=True))
    queue.complete(claim(queue, 1))
    assert stream.everything() == [[1]]


def keeping(queue: SqlQueue, days: int) -> None:
    rows(queue, "UPDATE {s}.queue SET retention_days = %s", days)


def test_a_stream_says_when_it_was_overtaken_by_the_trimming(queue: SqlQueue, begin: Begin) -> None:
    archive(queue, done(6, at=LONG_AGO))
    stream = begin()
    assert stream.batch(2) == [0, 1]
    keeping(queue, 3)
    # Nothing has been trimmed yet.
    assert stream.batch(2) == [2, 3]
    archive(queue, done(1, first=9, at=datetime.now(UTC)))
    queue.trim()
    with pytest.raises(JobsTrimmed, match=r"has read up to .* some may have been removed unread.*failOnDataLoss"):
        stream.batch(2)
    careless = begin(failOnDataLoss="false")
    careless.offset = stream.offset
    assert careless.everything() == [[], [9]] or careless.everything() == []
    queue.trim()


@pytest.mark.parametrize("days", [0, 3_000, 36_600])
def test_a_stream_says_so_after_the_retention_was_raised_again(queue: SqlQueue, begin: Begin, days: int) -> None:
    keeping(queue, 0)
    archive(queue, done(4, at=LONG_AGO))
    stream = begin()
    assert stream.batch(2) == [0, 1]
    keeping(queue, 3)
    queue.trim()
    keeping(queue, 2_000)
    keeping(queue, days)
    archive(queue, done(1, first=9, at=datetime.now(UTC)))
    with pytest.raises(JobsTrimmed, match="or were not by an earlier retention"):
        stream.batch(2)
    assert begin().everything() == [[9]], "what begins now has missed nothing"


def test_a_retention_that_was_raised_before_anything_was_trimmed_ends_no_stream(queue: SqlQueue, begin: Begin) -> None:
    keeping(queue, 0)
    archive(queue, done(4, at=LONG_AGO))
    stream = begin()
    assert stream.batch(2) == [0, 1]
    keeping(queue, 3)
    keeping(queue, 0)
    assert stream.batch(2) == [2, 3]


def test_a_stream_says_so_after_its_queue_was_deleted_and_made_again(
    queue: SqlQueue, begin: Begin, spec: QueueSpec[Work]
) -> None:
    """Unless the archive still has what the stream has read: then nothing that came later was trimmed."""
    archive(queue, done(2))
    stream = begin()
    assert stream.everything() == [[0, 1]]
    archive(queue, done(1, first=2))
    queue.delete_queue("work")
    queue.create_queue(spec)
    assert stream.everything() == [[2]]
    archive(queue, done(1, first=3))
    queue.delete_queue("work")
    rows(queue, "DELETE FROM {s}.job_archive")
    queue.create_queue(spec)
    with pytest.raises(JobsTrimmed, match="some may have been removed unread"):
        stream.batch()


def test_a_batch_that_is_trimmed_before_it_is_read_says_so(queue: SqlQueue, begin: Begin) -> None:
    for options, fails in (({}, True), ({"failOnDataLoss": "false"}, False)):
        archive(queue, done(3, at=LONG_AGO))
        keeping(queue, 0)
        stream = begin(startingPosition=(LONG_AGO - timedelta(days=1)).isoformat(), **options)
        start = stream.offset
        assert stream.batch() == [0, 1, 2]
        keeping(queue, 3)
        queue.trim()
        if fails:
            with pytest.raises(JobsTrimmed):
                stream.between(start, stream.offset)
        else:
            assert stream.between(start, stream.offset) == []


def test_an_idle_stream_notes_every_hour_that_it_has_looked(queue: SqlQueue, begin: Begin) -> None:
    keeping(queue, 1)
    rows(queue, "UPDATE {s}.queue SET kept_from = created_at - interval '1 day'")
    stream = begin(startingPosition="latest")
    assert stream.batch() is None
    now = datetime.now(UTC)
    stream.offset = {**stream.offset, "time": (now - timedelta(hours=2)).isoformat()}
    assert stream.batch() == []
    assert stream.batch() is None
    assert now <= datetime.fromisoformat(stream.offset["time"]) <= datetime.now(UTC)


def test_rows_of_another_server_are_reported_and_cured(queue: SqlQueue, stream: Stream) -> None:
    archive(queue, done(2))
    rows(queue, "UPDATE {s}.job_archive SET ended_in = '4000000000000'")
    with pytest.raises(InvalidInput, match="came here in a dump") as caught:
        stream.batch()
    cure = str(caught.value).partition("checkpoint: ")[2]
    rows(queue, cure.replace('"' + queue.database.schema + '"', "{s}"))
    assert stream.batch() == [0, 1]


def test_a_checkpoint_of_another_server_is_refused(queue: SqlQueue, stream: Stream) -> None:
    stream.offset = Position(until="900000000000:900000000000:", time=NOON.isoformat()).offset()
    with pytest.raises(InvalidInput, match="new checkpoint"):
        stream.batch()


@pytest.mark.parametrize(
    "offset", [{"index": 3}, {"until": "1:1:'); DROP TABLE job; --"}, {"at": "yesterday"}, {"id": "7"}, {"until": 4}]
)
def test_an_offset_that_is_none(stream: Stream, offset: dict[str, Any]) -> None:
    stream.offset = offset
    with pytest.raises(InvalidInput, match="none of this source"):
        stream.batch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingPosition": "yesterday"}, "startingPosition.*'yesterday'.*earliest, latest, or an ISO timestamp"),
        ({"startingPosition": "2013-01-01T00:00:00"}, "ISO timestamp with a zone"),
        ({"maxRowsPerBatch": "0"}, "maxRowsPerBatch.*'0'.*whole number"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss.*true or false"),
        ({"state": "live"}, "no stream: the option 'state' is 'live'"),
        ({"finished_from": "2013-01-01T00:00:00Z"}, "startingPosition"),
        ({"color": "red"}, "'color' is not known"),
        ({"where": '[{"column": "m", "op": "=", "value": 1}]'}, "where has .*; column is one of"),
    ],
)
def test_options_that_are_not_usable(begin: Begin, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        begin(**options)


def test_a_queue_that_does_not_exist(begin: Begin) -> None:
    with pytest.raises(UnknownQueue, match="nothing"):
        begin(queue_name="nothing")


def test_states_and_conditions(queue: SqlQueue, begin: Begin) -> None:
    archive(queue, [Done({"n": 1}, state="failed"), Done({"n": 2}), Done({"n": 3})])
    where = json.dumps([{"column": "n", "op": ">", "value": 2}])
    assert begin(states="failed").everything() == [[1]]
    assert begin(where=where).everything() == [[3]]


def test_the_archive_is_read_while_it_is_written(queue: SqlQueue, stream: Stream, spec: QueueSpec[Work]) -> None:
    """Two consumers end jobs while the stream reads, in batches of any size."""
    queue.enqueue_many(spec, [Work(n=n) for n in range(600)])

    def consume() -> None:
        while jobs := queue.claim("work", limit=7, worker="w", lease_seconds=60):
            queue.complete(jobs)

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    read: list[int] = []
    while any(consumer.is_alive() for consumer in consumers):
        read += stream.batch(50) or []
    for consumer in consumers:
        consumer.join()
    for batch in stream.everything():
        read += batch
    assert sorted(read) == list(range(600))
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_a_reader_travels_to_the_tasks_without_its_connection(stream: Stream) -> None:
    stream.batch()
    copied = pickle.loads(pickle.dumps(stream.reader))
    assert isinstance(copied, StreamReader)
    assert copied._opened is None
