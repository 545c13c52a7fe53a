"""The verbs that read queues and jobs, as attempts of somebody with one role."""

import json
from typing import Any

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.schema import migrations
from tests.roles.desk import EVERYBODY, B, C, Desk, O, verb


@verb(C, O, B)
def read_heads_and_depth(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert queue.peek_heads(desk.name)
    assert queue.depth(desk.name).ready == 3


@verb(C, O)
def note_sweep(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.leases.note_sweep(desk.name) == 2


@verb(*EVERYBODY)
def settings_of_queues(queue: SqlQueue, desk: Desk) -> Any:
    assert desk.name in {settings.name for settings in queue.queues()}
    assert queue.settings(desk.name) == queue.catalog.last_seen(desk.name)
    queue.catalog.check_exists(desk.name)
    migrations.check(queue.database)
    queue.leases.head_hints(desk.name)


@verb(C, O, B)
def peek(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.peek(desk.name)) == 3


@verb(O, B)
def stats(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    desk.filled()
    found = queue.stats(desk.name)
    assert (found.ready, found.dead_letters, found.payload_bytes_max is None) == (3, 1, False)


@verb(O, B)
def dead_letters(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert len(queue.dead_letters(desk.name)) == 1


@verb(C, O, B)
def archived(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert queue.archived(desk.name, since_seconds=3_600) == {"failed": 1}


@verb(O, B)
def find_a_job(queue: SqlQueue, desk: Desk) -> Any:
    assert json.loads(queue.job(desk.dead()).payload) == {"n": 0, "note": ""}


@verb(C, O, B)
def explain_a_live_job(queue: SqlQueue, desk: Desk) -> Any:
    (job,) = desk.filled(1)
    assert queue.explain(job).claimable


@verb(O, B)
def explain_an_ended_job(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.explain(desk.dead()).state == "failed"


@verb(C, O, B)
def list_live_jobs(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.jobs(desk.name)) == 3


@verb(O, B)
def list_archived_jobs(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert len(queue.jobs(desk.name, archived=True)) == 1


@verb(C, O, B)
def sensitive_names(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.catalog.sensitive_names(desk.name) == frozenset()
