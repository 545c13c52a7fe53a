"""The SQL functions as users of each role: they may what the tables allow them, and nothing through the functions."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import NewJob, QueueSpec
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.schema import functions
from dagster_sqlqueue.topics import Topics
from tests.roles.support import Staff
from tests.support import Work

Call: TypeAlias = Callable[..., Any]
P, C, O, B = Role.PRODUCER, Role.CONSUMER, Role.OPERATOR, Role.OBSERVER  # noqa: E741
SPEC = QueueSpec("called", Work, bucket_count=1)
LIMITED = QueueSpec("called_in_turns", Work, bucket_count=1, ordered=True, max_running=1_000)


def put(staff: Staff, spec: QueueSpec[Work] = SPEC, **more: Any) -> UUID:
    staff.owner.create_queue(spec)
    id = staff.owner.enqueue(spec, NewJob(Work(n=1), priority=9, **more))
    assert id
    return id


def lease(staff: Staff, spec: QueueSpec[Work] = SPEC, **more: Any) -> tuple[UUID, int]:
    put(staff, spec, **more)
    (job,) = staff.owner.claim(spec.name, limit=1, worker="w")
    return job.id, job.lease_no


def enqueue(staff: Staff, call: Call) -> None:
    staff.owner.create_queue(SPEC)
    staff.owner.create_queue(LIMITED)
    call("enqueue('called', '{\"n\": 1}', unique_key => gen_random_uuid()::text)")
    call("enqueue('called_in_turns', '{\"n\": 1}', ordering_key => 'k', on_duplicate => 'replace', unique_key => 'u')")
    call("enqueue_many('called', ARRAY[jsonb '{\"n\": 1}', '{\"n\": 2}'])")


def publish(staff: Staff, call: Call) -> None:
    staff.owner.create_queue(SPEC)
    Topics(staff.owner).subscribe("news", "all", "called")
    call("publish('news', '{\"n\": 1}')")


def take(staff: Staff, call: Call) -> None:
    put(staff)
    put(staff, LIMITED, ordering_key=str(uuid4()))
    call("claim('called', 'w')")
    call("claim('called_in_turns', 'w')")
    call("listen('called', 'w')")


def end(staff: Staff, call: Call) -> None:
    call("heartbeat(%s, %s)", *lease(staff))
    call("complete(%s, %s)", *lease(staff))
    call("complete(%s, %s)", *lease(staff, LIMITED, ordering_key=str(uuid4())))
    call("complete_many(ARRAY[%s]::uuid[], ARRAY[%s]::bigint[])", *lease(staff))
    call("reject(%s, %s, 'no')", *lease(staff))
    call("accept_cancel(%s, %s)", *lease(staff))


def give_back(staff: Staff, call: Call) -> None:
    call("fail(%s, %s, 'no')", *lease(staff))
    call("snooze(%s, %s, 60)", *lease(staff))
    call("release(%s, %s)", *lease(staff))
    call("hold(%s, %s, 'odd')", *lease(staff))


def decide(staff: Staff, call: Call) -> None:
    call("cancel('called', ARRAY[%s]::uuid[], 'no')", put(staff))
    call("reprioritise('called', ARRAY[%s]::uuid[], 3)", put(staff))
    call("reschedule('called', ARRAY[%s]::uuid[], 60)", put(staff))
    for named in ("hold_queued('called', ARRAY[%s]::uuid[], 'odd')", "release_held('called', ARRAY[%s]::uuid[])"):
        call(named, put(staff))
    call("retry('called', ARRAY[%s]::uuid[])", put(staff))
    call("replace_payload('called', %s, '{\"n\": 2}')", put(staff))
    call("pause('called')")
    call("resume('called')")


def read_queue(staff: Staff, call: Call) -> None:
    put(staff)
    call("peek('called')")
    call("depth('called')")


def read_one(staff: Staff, call: Call) -> None:
    call("job(%s)", put(staff))


CALLS = {
    enqueue: {P, O},
    publish: {P, O},
    take: {C},
    end: {C, O},
    give_back: {C},
    decide: {O},
    read_queue: {C, O, B},
    read_one: {O, B},
}


@pytest.mark.parametrize("calls", CALLS, ids=lambda calls: calls.__name__)
def test_who_may_call(shared: Staff, role: Role, calls: Callable[[Staff, Call], None]) -> None:
    with shared.connected(role) as connection:

        def call(text: str, *parameters: object) -> Any:
            query = f"SELECT * FROM {shared.schema}_v1.{text}".encode()
            if role in CALLS[calls]:
                return connection.execute(query, parameters or None).fetchone()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(query, parameters or None)
            return None

        calls(shared, call)
        connection.execute(f"SELECT {shared.schema}_v1.api_version()".encode())


def test_every_function_is_called() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert {name for name in functions.names() if not re.search(rf"[\".]{name}\(", text)} == set()
