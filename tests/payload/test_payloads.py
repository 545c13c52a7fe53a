"""What is refused at the door, and that nothing of the call gets in with it."""

import resource
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest
from pydantic import BaseModel, Field

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.payload.serialization import MAX_PAYLOAD_BYTES
from dagster_sqlqueue.queue import Enqueued
from tests.gate.patience import sized
from tests.support import Work, claim, make_due, value


class Flight(BaseModel):
    number: int = Field(alias="flightNo")
    delay: float = 0.0
    tags: dict[str, list[str]] = {}


BAD_PAYLOADS = [
    ({"n": "many"}, r"n: Input should be a valid integer"),
    ({"note": "x"}, "n: Field required"),
    (["n", 1], "the payload: "),
    (None, "the payload: "),
    ({"n": 1, "note": "a\x00b"}, "note.*NUL"),
    ({"n": 1, "note": "a\ud800b"}, "note.*surrogate"),
    ({"n": 1, "note": "x" * MAX_PAYLOAD_BYTES}, "the limit is 1,000,000"),
    ({"n": 1, "note": "ü" * (MAX_PAYLOAD_BYTES // 2)}, "the limit is 1,000,000"),
    (Flight(flightNo=1), "the payload is a Flight; queue 'work' takes Work"),
]


@pytest.mark.parametrize(("payload", "message"), BAD_PAYLOADS)
def test_a_payload_that_does_not_fit_is_named_by_row_and_field(
    queue: SqlQueue, spec: QueueSpec[Work], payload: Any, message: str
) -> None:
    with pytest.raises(InvalidPayload, match=rf"(?s)^row 0: .*{message}"):
        queue.enqueue(spec, payload)
    jobs: list[Any] = [Work(n=n) for n in range(4_500)]
    jobs[4_321] = payload
    with pytest.raises(InvalidPayload, match=rf"(?s)^row 4321: .*{message}"):
        queue.enqueue_many(spec, iter(jobs))
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


class Anything(BaseModel):
    v: Any


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


BAD_ANYTHINGS = [
    (nested(400), "it is nested too deeply"),
    (nested(100_000), "it is nested too deeply"),
    ({"a": [10**4_300]}, r"v\.a\.0 is a number of more than 4,300 digits; send it as a text"),
    (-(10**200_000), "v is a number of more than 4,300 digits"),
    ({"a": b"a\x00"}, "v.a holds a NUL character"),
    ({"\ud800": 1}, "v holds a lone surrogate"),
    (b"\xff", ".*utf-8"),
    (object(), "Unable to serialize"),
]


@pytest.mark.parametrize(("value", "message"), BAD_ANYTHINGS, ids=range(len(BAD_ANYTHINGS)))
def test_what_a_loose_model_lets_through_is_still_refused(queue: SqlQueue, value: Any, message: str) -> None:
    spec = QueueSpec("work", Anything)
    with pytest.raises(InvalidPayload, match=f"row 0: the payload cannot be .*: {message}"):
        queue.enqueue(spec, {"v": value})
    done = queue.enqueue_many(spec, [Anything(v=1), Anything(v=value)], on_bad_row="skip")
    assert (done.inserted, [bad.row for bad in done.rejected]) == (1, [1])


TAKEN = [nested(100), 10**4_300 - 1, "9" * 200_000, "a\\u0000", b"a", [None, 1e308]]


@pytest.mark.parametrize("value", TAKEN, ids=range(len(TAKEN)))
def test_what_only_looks_wrong_is_taken(queue: SqlQueue, value: Any) -> None:
    assert queue.enqueue(QueueSpec("work", Anything), {"v": value})


BAD_JOBS = [
    ({"run_at": datetime(2026, 1, 1)}, "run_at is .* time zone"),
    ({"run_at": "2026-01-01"}, "run_at is '2026-01-01'"),
    ({"run_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))}, "run_at is .* years 1 to 9999"),
    ({"run_at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))}, "run_at is .* years 1 to 9999"),
    ({"priority": -1}, "priority is -1"),
    ({"priority": 10}, "priority is 10"),
    ({"priority": 1.5}, "priority is 1.5"),
    ({"priority": True}, "priority is True"),
    ({"max_attempts": 0}, "max_attempts is 0"),
    ({"max_attempts": "3"}, "max_attempts is '3'"),
    ({"max_attempts": 2**31}, "max_attempts is 2147483648"),
    ({"unique_key": ""}, "unique_key"),
    ({"unique_key": "x" * 1_001}, "unique_key"),
    ({"unique_key": "a\x00"}, "unique_key"),
    ({"unique_key": "a\ud800"}, "unique_key"),
    ({"unique_key": 7}, "unique_key"),
    ({"unique_key": "\U0001f600" * 626}, "unique_key has 2,504 bytes, the limit is 2,500"),
    ({"ordering_key": "\U0001f600" * 626}, "ordering_key has 2,504 bytes"),
    ({"region": ""}, "region"),
    ({"region": "a\x00"}, "region"),
    ({"tags": ["a\x00"]}, "a tag holds a NUL"),
    ({"tags": ["a\ud800"]}, "a tag holds a lone surrogate"),
    ({"tags": [""]}, "tags must be texts"),
    ({"tags": ["x" * 1_001]}, "tags must be texts"),
    ({"tags": [7]}, "tags must be texts of 1 to 1,000 characters, and holds 7"),
    ({"tags": ["a"] * 101}, "tags has 101 words"),
    ({"tags": "ab"}, "tags is 'ab'"),
    ({"tags": (tag for tag in "ab")}, "tags is <generator"),
    ({"timeout_seconds": 0}, "timeout_seconds is 0"),
    ({"timeout_seconds": float("nan")}, "timeout_seconds is nan"),
    ({"timeout_seconds": float("inf")}, "timeout_seconds is inf"),
    ({"timeout_seconds": "60"}, "timeout_seconds is '60'"),
    ({"timeout_seconds": True}, "timeout_seconds is True"),
    ({"backoff": 5}, "backoff is 5; it must be a Backoff"),
    ({"ordering_key": "a\ud800"}, "ordering_key"),
    ({"ordering_key": 7}, "ordering_key"),
    ({"id": "7"}, "id is '7'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_JOBS)
def test_a_setting_that_makes_no_sense_is_named_by_row(
    queue: SqlQueue, spec: QueueSpec[Work], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"^row 0: .*{message}"):
        queue.enqueue(spec, NewJob(Work(n=1), **settings))
    jobs = [*[Work(n=n) for n in range(2_000)], NewJob(Work(n=1), **settings)]
    with pytest.raises(InvalidInput, match=rf"^row 2000: .*{message}"):
        queue.enqueue_many(spec, jobs)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_several_wrong_fields_are_all_named(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    with pytest.raises(InvalidPayload, match=r"n: .*; note: "):
        queue.enqueue(spec, {"n": "x", "note": 7})


def test_the_message_names_the_place_inside_the_payload(queue: SqlQueue) -> None:
    spec = QueueSpec("flights", Flight)
    queue.create_queue(spec)
    with pytest.raises(InvalidPayload, match=r"tags\.late\.1.*NUL"):
        queue.enqueue(spec, {"flightNo": 1, "tags": {"late": ["a", "b\x00"]}})
    with pytest.raises(InvalidPayload, match=r"tags.*NUL"):
        queue.enqueue(spec, {"flightNo": 1, "tags": {"la\x00te": []}})


@pytest.mark.parametrize("delay", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused_and_not_made_null(queue: SqlQueue, delay: float) -> None:
    spec = QueueSpec("flights", Flight)
    queue.create_queue(spec)
    with pytest.raises(InvalidPayload, match=r"row 0: .*delay"):
        queue.enqueue(spec, {"flightNo": 1, "delay": delay})


def test_a_model_with_aliases_comes_back_as_itself(queue: SqlQueue) -> None:
    spec = QueueSpec("flights", Flight)
    queue.create_queue(spec)
    queue.enqueue(spec, {"flightNo": 7, "delay": 1.5})
    seen = []
    summary = Consumer(queue, spec, lambda job: seen.append(job.payload)).drain()
    assert seen == [Flight(flightNo=7, delay=1.5)]
    assert summary.succeeded == 1


class Validating(Work):
    @classmethod
    def model_validate(cls, obj: Any, **given: Any) -> Self:
        return super().model_validate({**obj, "n": 10 * obj["n"]}, **given)


class Reading(Work):
    @classmethod
    def model_validate_json(cls, json_data: Any, **given: Any) -> Self:
        read = super().model_validate_json(json_data, **given)
        return read.model_copy(update={"n": 10 * read.n})


class Writing(Work):
    def model_dump_json(self, **given: Any) -> str:
        return super().model_dump_json(**given).replace('"n":1', '"n":10')


@pytest.mark.parametrize("model", [Validating, Reading, Writing])
def test_methods_that_a_model_has_of_its_own_are_used(queue: SqlQueue, model: type[Work]) -> None:
    spec = QueueSpec("own", model)
    queue.create_queue(spec)
    queue.enqueue(spec, {"n": 1})
    queue.enqueue_many(spec, [{"n": 1}])
    seen: list[int] = []
    Consumer(queue, spec, lambda job: seen.append(job.payload.n)).drain()
    assert seen == [10, 10]


def test_a_unique_key_is_ignored_while_live_and_taken_again_when_finished(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    assert queue.enqueue(spec, NewJob(Work(n=1), unique_key="u"))
    assert queue.enqueue(spec, NewJob(Work(n=2), unique_key="u")) is None
    assert queue.enqueue_many(spec, [NewJob(Work(n=3), unique_key=key) for key in "uvv"]) == Enqueued(1, 2)
    jobs = claim(queue)
    assert queue.enqueue(spec, NewJob(Work(n=4), unique_key="u")) is None
    queue.complete(jobs)
    assert queue.enqueue(spec, NewJob(Work(n=5), unique_key="u"))
    assert value(queue, "SELECT count(*) FROM {s}.job") == 1


def test_the_same_id_lands_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    jobs = [NewJob(Work(n=n), id=uuid4()) for n in range(10)]
    assert queue.enqueue_many(spec, jobs) == Enqueued(10, 0)
    assert queue.enqueue_many(spec, jobs) == Enqueued(0, 10)
    assert queue.enqueue(spec, jobs[0]) is None
    claimed = claim(queue)
    queue.complete(claimed[:4])
    assert queue.fail(claimed[4], "x", backoff=spec.backoff)
    more = NewJob(Work(n=10), id=uuid4())
    assert queue.enqueue_many(spec, [*jobs, more]) == Enqueued(1, 10)
    make_due(queue)
    while again := claim(queue):
        queue.complete(again)
    assert queue.enqueue_many(spec, [*jobs, more]) == Enqueued(0, 11)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0
    assert value(queue, "SELECT count(DISTINCT id) FROM {s}.job_archive") == 11
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 11


def test_a_generator_is_read_in_constant_memory(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    seen: list[int] = []

    def jobs(count: int) -> Iterator[dict[str, Any]]:
        for n in range(count):
            if n % 5_000 == 0:
                seen.append(resident())
            yield {"n": n, "note": f"{n:200}"}

    queue.enqueue_many(spec, jobs(10_000))
    before = resident()
    count = sized(50_000, 100_000)
    assert queue.enqueue_many(spec, jobs(count)).inserted == count
    # All of them at once would be more than 100 MB: a job, its columns and its text take more than 2 kB.
    assert max(seen) - before < 40_000_000
