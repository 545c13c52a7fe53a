"""Payloads of several versions in one queue."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from dagster_sqlqueue import Consumer, DrainSummary, Job, NewJob, QueueSpec, SqlQueue, versioned
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownVersion
from dagster_sqlqueue.payload.versions import json_schema, versions_of
from dagster_sqlqueue.queue.selection import Selection
from tests.support import rows


class First(BaseModel):
    to: str


def in_list(old: dict[str, Any]) -> dict[str, Any]:
    return {"to": [old["to"]]}


def with_moment(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "at": "2030-01-31T08:00:00Z"}


@versioned(2, {1: in_list})
class Second(BaseModel):
    model_config = ConfigDict(extra="forbid")
    to: list[str]


@versioned(3, {1: in_list, 2: with_moment})
class Third(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    to: list[str]
    at: datetime


@versioned(3, {2: with_moment})
class ThirdWithoutFirst(Third):
    pass


first, second, third = (QueueSpec("work", model, bucket_count=4) for model in (First, Second, Third))
MOMENT = datetime(2030, 1, 31, 8, tzinfo=UTC)


def drain(queue: SqlQueue, spec: QueueSpec[Any]) -> tuple[DrainSummary, list[Any]]:
    seen: list[Any] = []
    return Consumer(queue, spec, lambda job: seen.append(job.payload)).drain(), seen


def stored(queue: SqlQueue) -> list[dict[str, Any]]:
    return [row[0] for row in rows(queue, "SELECT payload FROM {s}.job ORDER BY id")]


def held(queue: SqlQueue) -> tuple[str, int]:
    (job,) = queue.jobs("work", Selection(state="held"))
    assert job.error is not None
    return job.error, job.attempt


def put(queue: SqlQueue, payload: dict[str, Any]) -> None:
    """As another program would."""

    class Anything(RootModel[dict[str, Any]]):
        pass

    queue.enqueue(QueueSpec("work", Anything), Anything(payload))


def test_the_version_is_written_into_each_payload(queue: SqlQueue) -> None:
    queue.enqueue(second, Second(to=["ada"]))
    queue.enqueue_many(second, [NewJob({"to": ["bob"]}), Second(to=[])])
    queue.enqueue(second, Second(to=["eve"]), on_conflict="replace")
    assert [payload["$version"] for payload in stored(queue)] == [2, 2, 2, 2]
    assert sorted(payload["to"] for payload in stored(queue)) == [[], ["ada"], ["bob"], ["eve"]]
    assert sorted(payload.to for payload in drain(queue, second)[1]) == [[], ["ada"], ["bob"], ["eve"]]


def test_a_model_without_fields_has_a_version_too(queue: SqlQueue) -> None:
    @versioned(1)
    class Nothing(BaseModel):
        pass

    queue.enqueue(QueueSpec("work", Nothing), Nothing())
    assert stored(queue) == [{"$version": 1}]
    assert drain(queue, QueueSpec("work", Nothing))[1] == [Nothing()]


def test_older_payloads_are_upgraded_step_by_step(queue: SqlQueue) -> None:
    queue.enqueue(first, First(to="ada"))
    queue.enqueue(second, Second(to=["bob"]))
    queue.enqueue(third, Third(to=["eve"], at=MOMENT))
    summary, seen = drain(queue, third)
    assert (summary.succeeded, summary.held, summary.failed) == (3, 0, 0)
    assert sorted(seen, key=lambda payload: payload.to) == [
        Third(to=[name], at=MOMENT) for name in ("ada", "bob", "eve")
    ]


def test_a_mapping_of_an_older_version_is_upgraded_when_it_is_enqueued(queue: SqlQueue) -> None:
    queue.enqueue(third, NewJob({"$version": 2, "to": ["ada"]}))
    assert [(payload["$version"], payload["to"]) for payload in stored(queue)] == [(3, ["ada"])]
    with pytest.raises(UnknownVersion, match=r"row 1: the payload has version 4, this process knows versions 1 to 3"):
        queue.enqueue_many(third, [{"to": [], "at": MOMENT}, {"$version": 4}])
    assert len(stored(queue)) == 1


def test_a_newer_version_is_held_with_the_reason_and_goes_on_under_newer_code(queue: SqlQueue) -> None:
    queue.enqueue(third, NewJob(Third(to=["eve"], at=MOMENT), max_attempts=1))
    for _ in range(3):
        summary, seen = drain(queue, second)
        assert (summary.held, summary.failed, seen) == (1, 0, [])
        assert held(queue) == (
            "the payload has version 3, this process knows versions 1 to 2; deploy the newer code, then release the job",
            0,
        )
        queue.release_held("work", Selection(error_contains="has version"))
    summary, seen = drain(queue, third)
    assert (summary.succeeded, seen) == (1, [Third(to=["eve"], at=MOMENT)])
    assert rows(queue, "SELECT attempt, payload ->> '$version' FROM {s}.job_archive") == [(1, "3")]


def test_in_transactional_mode_too(queue: SqlQueue) -> None:
    queue.enqueue(third, Third(to=["eve"], at=MOMENT))
    queue.enqueue(first, First(to="ada"))
    seen: list[Any] = []
    summary = Consumer(queue, second, lambda job: seen.append(job.payload), mode="transactional").drain()
    assert (summary.held, summary.succeeded, seen) == (1, 1, [Second(to=["ada"])])
    assert held(queue)[1] == 0


@pytest.mark.parametrize("version", [0, -1, "2", 2.0, True, None, [2], {"a": 1}, 10**30])
def test_what_is_no_version_is_held(queue: SqlQueue, version: Any) -> None:
    put(queue, {"$version": version, "to": ["ada"]})
    assert drain(queue, second)[0].held == 1
    error, attempt = held(queue)
    assert error.startswith(f"the payload has version {version!r:.50}, this process knows versions 1 to 2; ")
    assert attempt == 0


def test_a_version_that_nothing_upgrades_any_more_is_held(queue: SqlQueue) -> None:
    queue.enqueue(first, First(to="ada"))
    queue.enqueue(second, Second(to=["bob"]))
    summary, seen = drain(queue, QueueSpec("work", ThirdWithoutFirst))
    assert (summary.held, [payload.to for payload in seen]) == (1, [["bob"]])
    assert held(queue)[0] == (
        "the payload has version 1, and nothing upgrades version 1 any more; give versioned an upgrade from 1, then"
        " release the job"
    )


FAILING: dict[str, tuple[Any, str]] = {
    "raises": (lambda old: old["no such secret-key"], "from version 1 failed with KeyError; mend it"),
    "gives nothing": (lambda old: None, "from version 1 returned a NoneType; it must return a dict"),
    "gives what JSON lacks": (lambda old: {"to": {1}}, "from version 1 failed with TypeError"),
    "gives NaN": (lambda old: {"to": float("nan")}, "from version 1 failed with ValueError"),
    "does not fit": (
        lambda old: {"to": 5},
        "of version 1, upgraded, does not fit Broken: to: Input should be a valid array",
    ),
}


@pytest.mark.parametrize("name", list(FAILING))
def test_an_upgrade_that_fails_holds_the_job(queue: SqlQueue, name: str) -> None:
    upgrade, message = FAILING[name]

    @versioned(2, {1: upgrade})
    class Broken(BaseModel):
        to: list[str]

    queue.enqueue(first, First(to="secret"))
    queue.enqueue(second, Second(to=["bob"]))
    summary, seen = drain(queue, QueueSpec("work", Broken))
    assert (summary.held, summary.succeeded, seen) == (1, 1, [Broken(to=["bob"])])
    error, attempt = held(queue)
    assert message in error
    assert "secret" not in error
    assert attempt == 0


def test_a_current_payload_that_does_not_fit_is_a_dead_letter(queue: SqlQueue) -> None:
    put(queue, {"$version": 2, "to": 7})
    assert drain(queue, second)[0].failed == 1
    assert queue.dead_letters("work")[0].error == "payload does not fit Second: to: Input should be a valid array"


def test_a_derived_model_has_no_version_of_its_own(queue: SqlQueue) -> None:
    class Derived(Second):
        pass

    assert versions_of(Derived) is None
    assert versions_of(Second) is not None


def test_a_version_of_its_own_in_a_payload_is_refused(queue: SqlQueue) -> None:
    @versioned(1)
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    with pytest.raises(InvalidPayload, match=r"row 0: the payload has a field '\$version' of its own"):
        queue.enqueue(QueueSpec("work", Open), Open(**{"$version": 5}))


def test_what_versioned_refuses() -> None:
    class Plain(BaseModel):
        n: int

    class Taken(BaseModel):
        v: int = Field(alias="$version")

    class Root(RootModel[list[int]]):
        pass

    def same(old: dict[str, Any]) -> dict[str, Any]:
        return old

    for arguments, model, message in (
        ((0,), Plain, "the version is 0; it must be a whole number of at least 1"),
        ((True,), Plain, "the version is True"),
        (("2",), Plain, "the version is '2'"),
        ((2, {2: same}), Plain, "there is an upgrade from 2; it must be from a version of 1 to 1"),
        ((2, {0: same}), Plain, "there is an upgrade from 0"),
        ((2, {1: "same"}), Plain, "the upgrade from 1 is 'same'; it must be a function of a dict"),
        ((4, {1: same, 3: same}), Plain, "there is no upgrade from 2, and one from 1"),
        ((3, {1: same}), Plain, "there is no upgrade from 2, and one from 1"),
        ((1,), Root, "it takes a pydantic model that is a JSON object"),
        ((1,), dict, "it takes a pydantic model that is a JSON object"),
        ((1,), Taken, r"field 'v' of Taken is called '\$version'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            versioned(*arguments)(model)  # type: ignore[arg-type, type-var]
    for sensitive in ("pin", b"pin", ["pin", 7]):  # of a text each letter would be a name
        with pytest.raises(InvalidInput, match=r"sensitive is .*; give the names of fields in a list"):
            versioned(2, {1: same}, sensitive=sensitive)  # type: ignore[arg-type]


def test_the_json_schema_has_the_version(queue: SqlQueue) -> None:
    schema = json_schema(Third)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["properties"]["$version"] == {"const": 3}
    assert schema["required"] == ["$version", "to", "at"]
    assert schema["properties"]["to"]["items"] == {"type": "string"}
    assert "$version" not in json_schema(First)["properties"]
    json.dumps(schema)


def test_a_handler_sees_no_version(queue: SqlQueue) -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    versioned(1)(Open)
    queue.enqueue(QueueSpec("work", Open), Open(a=1))  # type: ignore[call-arg]

    def handler(job: Job[Open]) -> None:
        assert job.payload.model_extra == {"a": 1}

    assert Consumer(queue, QueueSpec("work", Open), handler).drain().succeeded == 1
