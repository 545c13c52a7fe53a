"""The verbs about queues, decisions and maintenance, as attempts of somebody with one role."""

from typing import Any

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.queue.job_admin import Completed
from dagster_sqlqueue.queue.maintenance import Maintenance
from dagster_sqlqueue.queue.selection import Selection
from tests.gate.patience import PATIENCE
from tests.roles.desk import EVERYBODY, C, Desk, O, Secret, verb
from tests.support import Work, rows


@verb(O)
def create_queue(queue: SqlQueue, desk: Desk) -> Any:
    queue.create_queue(QueueSpec(f"{desk.name}_more", Work))


@verb(O)
def change_a_queue(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(2, ordering_key="k")
    queue.create_queue(QueueSpec(desk.name, Secret, ordered=True, max_running=1))


@verb(O)
def pause(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.pause(desk.name).paused_at


@verb(O)
def resume(queue: SqlQueue, desk: Desk) -> Any:
    desk.owner.pause(desk.name)
    assert queue.resume(desk.name).paused_at is None


@verb(O)
def drain(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.drain(desk.name, timeout_seconds=PATIENCE)


@verb(O)
def rebucket(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.rebucket(desk.name, 4).bucket_count == 4


@verb(O)
def set_region(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.set_region(desk.name, "eu", [1]).regions == ("local", "eu")


@verb(O)
def delete_queue(queue: SqlQueue, desk: Desk) -> Any:
    assert queue.delete_queue(desk.name).name == desk.name


@verb(O)
def cancel(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.cancel(desk.name, desk.all).changed) == 3


@verb(O)
def cancel_what_runs(queue: SqlQueue, desk: Desk) -> Any:
    jobs = desk.claimed()
    queue.cancel(desk.name, Selection(ids=[job.id for job in jobs]))
    assert len(desk.owner.heartbeat(jobs, lease_seconds=300).cancel_requested) == 3


@verb(O)
def hold_queued(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.hold_queued(desk.name, desk.all, "wait").changed) == 3


@verb(O)
def release_held(queue: SqlQueue, desk: Desk) -> Any:
    desk.held()
    assert len(queue.release_held(desk.name, desk.all).changed) == 1


@verb(O)
def complete_held(queue: SqlQueue, desk: Desk) -> Any:
    assert len(queue.complete_held(desk.name, [Completed(desk.held(), "ann", {"a": 1})]).changed) == 1


@verb(O)
def reschedule(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.reschedule(desk.name, desk.all, 60.0).changed) == 3


@verb(O)
def reprioritise(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled()
    assert len(queue.reprioritise(desk.name, desk.all, 9).changed) == 3


@verb(O)
def redrive(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    assert len(queue.redrive(desk.name, desk.all).changed) == 1


@verb(O)
def redrive_of_a_key(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(ordered=True, max_attempts=1)
    desk.filled(1, ordering_key="k")
    (job,) = desk.owner.claim(desk.name, limit=1, worker="w")
    desk.owner.fail(job, "no")
    assert len(queue.redrive(desk.name, desk.all).changed) == 1


@verb(O)
def replace_payload(queue: SqlQueue, desk: Desk) -> Any:
    (waits,) = desk.filled(1)
    assert queue.replace_payload(desk.spec, waits, Work(n=7)).changed == [waits]
    held = desk.held()
    assert queue.replace_payload(desk.spec, held, Work(n=7), release=True).changed == [held]


@verb(O)
def replace_payload_of_a_dead_letter(queue: SqlQueue, desk: Desk) -> Any:
    dead = desk.dead()
    assert queue.replace_payload(desk.spec, dead, Work(n=7)).changed == [dead]


@verb(O)
def delete(queue: SqlQueue, desk: Desk) -> Any:
    desk.dead()
    desk.filled()
    assert len(queue.delete(desk.name, desk.all).changed) == 4


@verb(O)
def maintain(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(ordered=True)
    desk.filled(2, ordering_key="k")
    rows(desk.owner, "UPDATE {s}.job SET available_at = 'infinity' WHERE queue = %s", desk.name)
    assert queue.maintain().keys_healed


@verb(C, O)
def trim(queue: SqlQueue, desk: Desk) -> Any:
    desk.change(retention_days=1)
    queue.trim(desk.name)


@verb(C, O)
def maintain_if_due(queue: SqlQueue, desk: Desk) -> Any:
    rows(desk.owner, "UPDATE {s}.maintenance SET due_at = now(), held_until = NULL")
    assert Maintenance(queue.catalog).maintain_if_due(stopping=lambda: False).ran


@verb(*EVERYBODY)
def ensure_partitions(queue: SqlQueue, desk: Desk) -> Any:
    assert Maintenance(queue.catalog).ensure_partitions()


@verb()
def migrate(queue: SqlQueue, desk: Desk) -> Any:
    queue.migrate()


@verb()
def install_roles(queue: SqlQueue, desk: Desk) -> Any:
    queue.install_roles()
